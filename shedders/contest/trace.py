"""Trace: all that happens to a simulated cluster independently of strategies: machines, demand over time, and events.

A trace has no owners. Demand belongs to *units*: topics, or parts of a bundle if only bundles are known. A
unit has a position on the ring of its namespace, so it belongs to the bundle that covers that position, on any broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shedders.model.cluster import Policies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


CORE: Final = 100.0
"""A core of CPU, in the unit of reports and demand."""


@dataclass(frozen=True, slots=True)
class TraceMachine:
    """What a broker has: limits as it reports them.

    Attributes:
        cores: CPU; a core is 100 in the units of reports.
        bandwidth_in_kbit, bandwidth_out_kbit: Network, in kbit/s.
        idle_percent: CPU that is used without traffic, in percent of all cores.
    """

    name: str
    cores: float = 8.0
    memory_mib: float = 8_192.0
    direct_memory_mib: float = 8_192.0
    bandwidth_in_kbit: float = 10e6
    bandwidth_out_kbit: float = 10e6
    idle_percent: float = 3.0
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and the bundles that it begins with: equal parts of the ring (or `bounds`, ascending, both ends in).

    Attributes:
        owners: Broker of each bundle at the start; None: looked up at the start, and placed.
    """

    name: str
    bundles: int
    bounds: Sequence[int] = ()
    owners: Sequence[str | None] = ()


class Units(NamedTuple):
    """Where demand arises; all arrays have one entry a unit.

    Attributes:
        namespace: Index into `Trace.namespaces`.
        position: Hash, 0 to 2**32 - 1.
        sessions: Producers and consumers.
    """

    namespace: Ints
    position: Ints
    sessions: Ints


class Demand(NamedTuple):
    """What clients want at a moment, a second; one entry a unit. What a broker can do of it depends on its machine.

    Attributes:
        cpu: In percent of one core.
        direct_memory_mib: Cached bytes and buffers.
    """

    msg_rate_in: Floats
    msg_rate_out: Floats
    msg_throughput_in: Floats
    msg_throughput_out: Floats
    cpu: Floats
    direct_memory_mib: Floats


class TraceEventKind(StrEnum):
    """What can happen to a cluster."""

    JOIN = "join"
    """A broker that was not there at the start joins (or comes back), empty."""
    LOST = "lost"
    """A broker dies: its bundles have no owner until the loss is detected, and are then placed again."""
    LEAVE = "leave"
    """A broker hands over what it serves, and leaves."""
    SLOW = "slow"
    """A broker can only do `factor` of what its machine promises; it reports what it does, so it looks idle. 1 heals it.

    `resources`: of these only; empty: of CPU and network. From the start: limits that were wrong since it was first heard.
    """
    SILENT = "silent"
    """A broker stops reporting (`factor` 0), or starts again (1)."""
    LOSSY = "lossy"
    """A share `factor` of a broker's reports is lost."""
    LYING = "lying"
    """A broker reports `factor` times its usage and traffic; its bundles' figures likewise."""
    CREATE = "create"
    """A namespace that was not there at the start is created; all of its bundles are looked up within a minute."""


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something happens to a broker, or a namespace is created.

    Attributes:
        planned: Of a `LEAVE`: a step of one rolling restart with all others that are planned, in the order of their times.
    """

    at_s: float
    what: TraceEventKind
    broker: str = ""
    factor: float = 1.0
    namespace: str = ""
    resources: tuple[str, ...] = ()
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs for clients, and detection times.

    Attributes:
        transfer_gap_s: Time without an owner while a bundle is transferred; `unload_gap_s`: while it is unloaded and
            looked up again; `split_gap_s`: while it is split. So long a move or split is under way, of which live brokers
            bound the number.
        loss_detect_s: From a broker's death until its bundles are placed again.
        reconnect_cpu_s: CPU seconds that one session costs its new broker.
        overloaded: Load from which on a broker counts as overloaded (1 is full).
    """

    transfer_gap_s: float = 0.08
    unload_gap_s: float = 0.5
    split_gap_s: float = 0.1
    loss_detect_s: float = 6.0
    reconnect_cpu_s: float = 0.002
    overloaded: float = 0.85


@dataclass(eq=False, kw_only=True)
class Trace:
    """Demand and events of a cluster. The same trace answers the same, bit for bit, in whatever order it is asked.

    Attributes:
        step_s: Time between two demands; `steps`: how many there are.
        machines: All that ever take part, sorted by name; those with a `JOIN` as their first event are not there at the start.
        rows: Numbers of a step: factors of `base`, one a unit; without `base` the rows of `Demand`.
        base: What each unit wants on average, if all that it wants goes up and down together.
        events: By time.
        disturbances: Times at which balance is upset, in seconds, the start (0) among them: how long and how many rounds it
            takes to settle is counted from each.
        judged: Spans (from_s, to_s) in which balance is to be good: settled parts, for the aims.
        policies: Policies of operators, in force from the start.
        remarks: What had to be assumed to make it.
    """

    name: str
    about: str
    seed: int
    step_s: float
    steps: int
    machines: Sequence[TraceMachine]
    namespaces: Sequence[Namespace]
    units: Units
    rows: Callable[[int], Floats]
    base: Demand | None = None
    events: Sequence[TraceEvent] = ()
    disturbances: Sequence[float] = (0.0,)
    judged: Sequence[tuple[float, float]] = ()
    costs: Costs = field(default_factory=Costs)
    policies: Policies = field(default_factory=Policies)
    remarks: Sequence[str] = ()

    def demand(self, step: int) -> Demand:
        """What is wanted in a step, from `step * step_s` until the next.

        Raises:
            IndexError: The step does not exist.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        rows = self.rows(step)
        return Demand(*(rows if self.base is None else (column * rows for column in self.base)))


def sums(where: Ints, values: Floats, count: int) -> Floats:
    """Sums by number, added up one after the other: the same on every machine."""
    # Without values numpy would give whole numbers.
    return np.bincount(where, weights=values, minlength=count).astype(np.float64)


def total(values: Floats) -> float:
    """Sum, one after the other: the same on every machine."""
    return float(sums(np.zeros(len(values), np.int64), values, 1)[0])


def absent_at_start(events: Iterable[TraceEvent]) -> set[str]:
    """Machines whose first event is to join."""
    first: dict[str, TraceEventKind] = {}
    for event in events:
        if event.broker:
            first.setdefault(event.broker, event.what)
    return {name for name, what in first.items() if what is TraceEventKind.JOIN}


def together(times: Iterable[float], settle_s: float, end_s: float) -> list[tuple[float, float]]:
    """Times before the end, and the start: first and last of those that are less than `settle_s` apart."""
    spans = [(0.0, 0.0)]
    for at_s in sorted(time_s for time_s in times if 0 < time_s < end_s):
        if spans[-1][0] > 0 and at_s - spans[-1][1] < settle_s:
            spans[-1] = (spans[-1][0], at_s)
        else:
            spans.append((at_s, at_s))
    return spans


def settled_spans(upsets: Sequence[tuple[float, float]], settle_s: float, end_s: float) -> list[tuple[float, float]]:
    """From `settle_s` after each disturbance until the next."""
    spans = [(last + settle_s, until) for (_, last), (until, _) in pairwise([*upsets, (end_s, end_s)])]
    return [(from_s, until_s) for from_s, until_s in spans if from_s < until_s]
