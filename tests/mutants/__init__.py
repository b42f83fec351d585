"""Planted bugs: one rule of the core bent at a time, to see that the simulator notices."""

from tests.mutants import engine, join, judge, seat, vouching  # noqa: F401 - they register themselves
from tests.mutants.planting import PLANTED, Patcher, Plant, PlantMisfitError, planted, run_planted

__all__ = ["PLANTED", "Patcher", "Plant", "PlantMisfitError", "planted", "run_planted"]
