"""A recorded trace with a little noise: what holds of it only by chance does not hold of its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shedders.simulate.wavering import NoiseLayer, Wavering
from shedders.simulate.workload import scaled

if TYPE_CHECKING:
    from shedders.simulate.trace import Demand, Trace

AS_RECORDED: Final = 1
"""With this seed nothing is changed."""
NOISE: Final = ((0.05, 60.0), (0.1, 1_800.0))
"""Standard deviation in parts of each unit's demand, and seconds between two draws: what differs from one day to the next."""


class Varied:
    """The trace as another day might have had it (see `trace.Trace`); everything but demand and seed is the recorded one's."""

    def __init__(self, trace: Trace, seed: int) -> None:
        self._trace = trace
        self.seed = seed
        units = len(trace.units.position)
        layers = [NoiseLayer(seed, number, sd, every_s, units) for number, (sd, every_s) in enumerate(NOISE)]
        self._wavering = Wavering(units, layers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def demand(self, step: int) -> Demand:
        """See `Trace.demand`."""
        return scaled(self._trace.demand(step), self._wavering.at(step * self._trace.step_s))


def varied(trace: Trace, seed: int) -> Trace:
    """The trace for a seed."""
    if seed == AS_RECORDED:
        return trace
    found: Any = Varied(trace, seed)  # it has the recorded one's attributes, which no checker sees
    return found  # type: ignore[no-any-return]
