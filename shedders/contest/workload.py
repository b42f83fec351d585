"""Trace of a scenario and a seed, computed step by step on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shedders.contest.changes import wavering_of
from shedders.contest.first_owners import first_owners
from shedders.contest.scenario import ScenarioError
from shedders.contest.timeline import absent_at_start, events_of, judged_of, machines_of, upsets_of
from shedders.contest.topics import namespace_names, topics_of
from shedders.contest.trace import Costs, Demand, Namespace, TraceEvent, TraceMachine, Units

if TYPE_CHECKING:
    from shedders.contest.demand_noise import DemandVariation
    from shedders.contest.scenario_model import Scenario
    from shedders.contest.trace import Floats


class ScaledTrace:
    """A trace in which all that a unit wants goes up and down together (see `trace.Trace`).

    Attributes:
        base: What each unit wants on average.
        remarks: What had to be assumed to make it.
    """

    def __init__(
        self,
        *,
        name: str,
        about: str,
        seed: int,
        step_s: float,
        steps: int,
        machines: Sequence[TraceMachine],
        namespaces: Sequence[Namespace],
        units: Units,
        events: Sequence[TraceEvent],
        disturbances: Sequence[float],
        judged: Sequence[tuple[float, float]],
        costs: Costs,
        base: Demand,
        wavering: DemandVariation,
        remarks: Sequence[str] = (),
    ) -> None:
        self.name, self.about, self.seed = name, about, seed
        self.step_s, self.steps = step_s, steps
        self.machines, self.namespaces, self.units = machines, namespaces, units
        self.events, self.disturbances, self.judged, self.costs = events, disturbances, judged, costs
        self.base = base
        self.remarks = remarks
        self._wavering = wavering

    def factors(self, step: int) -> Floats:
        """What each unit wants in a step, in parts of its average."""
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        return self._wavering.at(step * self.step_s)

    def demand(self, step: int) -> Demand:
        return scaled(self.base, self.factors(step))


def scaled(base: Demand, factors: Floats) -> Demand:
    """So much of what the units want on average."""
    return Demand(*(column * factors for column in base))


def scenario_trace(scenario: Scenario, seed: int) -> ScaledTrace:
    """The trace of a scenario and a seed.

    Raises:
        ScenarioError: The scenario contradicts itself in what only shows now: events at odds, too few topics.
    """
    machines = machines_of(scenario)
    events = events_of(scenario, seed)
    away = absent_at_start(events)
    there = [machine for machine in machines if machine.name not in away]
    if not there:
        raise ScenarioError(scenario.name, ["events: every machine joins later, so there is none at the start"])
    topics = topics_of(scenario, seed, there)
    owners = first_owners(scenario, seed, there, topics)
    upsets = upsets_of(scenario, events)
    return ScaledTrace(
        name=scenario.name,
        about=scenario.about,
        seed=seed,
        step_s=scenario.step_s,
        steps=int(scenario.hours * 3_600 // scenario.step_s),
        machines=machines,
        namespaces=[
            Namespace(name, scenario.namespaces[group].bundles, owners=tuple(owners[place]))
            for place, (name, group) in enumerate(namespace_names(scenario))
        ],
        units=topics.units,
        events=events,
        disturbances=[last for _, last in upsets],
        judged=judged_of(scenario, upsets),
        costs=Costs(**scenario.costs.model_dump()),
        base=topics.base,
        wavering=wavering_of(scenario, seed, topics),
    )
