"""Trace: all that happens to a simulated cluster independently of strategies: machines, demand over time, and events.

A trace has no owners. Demand belongs to *units*: topics, or parts of a bundle if only bundles are known. A
unit has a position on the ring of its namespace, so it belongs to the bundle that covers that position, on any broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
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
    """A broker can only do `factor` of what its machine promises; it reports what it does, so it looks idle. 1 heals it."""
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
    """Something happens to a broker, or a namespace is created."""

    at_s: float
    what: TraceEventKind
    broker: str = ""
    factor: float = 1.0
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs for clients, and detection times.

    Attributes:
        transfer_gap_s: Time without an owner while a bundle is transferred; `unload_gap_s`: while it is unloaded and
            looked up again; `split_gap_s`: while it is split.
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


class Trace(Protocol):
    """See the module. The same trace answers the same, bit for bit, in whatever order it is asked.

    Attributes:
        step_s: Time between two demands; `steps`: how many there are.
        machines: All that ever take part, sorted by name; those with a `JOIN` as their first event are not there at the start.
        events: By time.
        disturbances: Times at which balance is upset, in seconds, the start (0) among them: how long and how many rounds it
            takes to settle is counted from each.
        judged: Spans (from_s, to_s) in which balance is to be good: settled parts, for the aims.
    """

    name: str
    about: str
    seed: int
    step_s: float
    steps: int
    machines: Sequence[TraceMachine]
    namespaces: Sequence[Namespace]
    units: Units
    events: Sequence[TraceEvent]
    disturbances: Sequence[float]
    judged: Sequence[tuple[float, float]]
    costs: Costs

    def demand(self, step: int) -> Demand:
        """What is wanted in a step, from `step * step_s` until the next."""
        ...
