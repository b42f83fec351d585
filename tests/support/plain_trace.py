"""A trace that is written down unit by unit: demand as given, times a factor by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shedders.contest.trace import Costs, Demand, Namespace, TraceEvent, TraceMachine, Units
from shedders.model.cluster import Policies


def _always(_step: int) -> float:
    return 1.0


@dataclass
class PlainTrace:
    """`throughput`: bytes a second in of each unit, spread evenly over the ring; as many go out; a message has 1,000 bytes."""

    machines: Sequence[TraceMachine]
    namespaces: Sequence[Namespace]
    throughput: Sequence[Sequence[float]]
    steps: int = 60
    step_s: float = 20.0
    events: Sequence[TraceEvent] = ()
    disturbances: Sequence[float] = (0.0,)
    judged: Sequence[tuple[float, float]] = ()
    costs: Costs = field(default_factory=Costs)
    factor: Callable[[int], float] = _always
    policies: Policies = field(default_factory=Policies)
    cpu_per_mb: float = 1.0
    memory_per_mb: float = 1.0
    name: str = "plain"
    about: str = "written down"
    seed: int = 1

    def __post_init__(self) -> None:
        spaces, places, rates = [], [], []
        for number, units in enumerate(self.throughput):
            for place, rate in enumerate(units):
                spaces.append(number)
                places.append((2 * place + 1) * 2**32 // (2 * len(units)))
                rates.append(rate)
        self._rates = np.array(rates)
        self.units = Units(np.array(spaces), np.array(places), np.full(len(rates), 3, dtype=np.int64))

    def demand(self, step: int) -> Demand:
        rates = self._rates * self.factor(step)
        return Demand(
            rates / 1e3, rates / 1e3, rates, rates, rates / 1e6 * self.cpu_per_mb, rates / 1e6 * self.memory_per_mb
        )
