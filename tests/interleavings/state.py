"""A small cluster as a value: processes, what is on its way, what may still come."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import Appended, AppendFailed
from statechannel.sim.trace import OpenedBundles
from tests.interleavings.automaton import Automaton, now_at
from tests.interleavings.log import Log


class Danger(StrEnum):
    """Moments at which a bug would show; a search that misses one shows little."""

    READ_BEFORE_REPORT = "a record is read before its report"
    LATE_RECORD = "a late record lands"
    LATE_ACCEPTED = "a late record is accepted"
    LATE_OWED = "a late record is rejected and owed"
    LOST_RACE = "a record loses its race"
    RELEASING_DEATH = "a broker dies that a bundle in Releasing names"
    ASSIGNING_DEATH = "a broker dies that a bundle in Assigning names"
    SPLITTING_DEATH = "a broker dies that a bundle in Splitting names"
    DEAD_IN_FLIGHT = "a bundle is in flight while a broker is dead"
    START_IN_FLIGHT = "a process starts while a bundle is in flight"
    LEADER_DEATH = "a leader dies"
    TWO_LEADERS = "two leaders for a moment"
    SECOND_ELECTED = "a second is elected while the first leads"
    LEADER_WAKES = "a leader wakes that lost the seat"
    OWNER_WAKES = "an owner wakes that was away for an expiry"
    REPLACED_WAKES = "an owner wakes whose bundle is another's"
    OLD_OWNER = "an old owner serves beside the new one"
    COLD_START = "a cold start"
    COLD_DEATH = "a process dies in its cold start"
    COLD_LATE = "a late record lands while a process starts cold"
    DEPARTURE = "a process leaves in order"


class Write(NamedTuple):
    """A record in a client, on its way to the channel."""

    token: int
    key: bytes
    value: bytes | None
    session: int


class Process(NamedTuple):
    """One process.

    Attributes:
        state: Number of its engine's state.
        position: Of its reader in the channel; -1 where it has to open it first. `heard`: in the registry.
        writes: In its client, in order.
        reports: Of its client, not taken in yet.
        hooks: Called and not finished.
        opened: Bundles that are prepared or served, by the calls of hooks.
        seats: What the election tells it, and it has not taken in.
        away_s: How long it has read nothing: it sleeps, or is cut off.
        cut: It is cut off.
    """

    name: str
    state: int
    alive: bool = True
    position: int = -1
    heard: int = -1
    session: int = 1
    writes: tuple[Write, ...] = ()
    reports: tuple[Appended | AppendFailed, ...] = ()
    hooks: tuple[int, ...] = ()
    opened: OpenedBundles = ()
    seats: tuple[bool, ...] = ()
    stands: bool = False
    away_s: float = 0.0
    cut: bool = False


class Stray(NamedTuple):
    """A record that its writer has given up, or did not outlive: it may land at any time, or never."""

    writer: str
    key: bytes
    value: bytes | None
    session: int


class Budget(NamedTuple):
    """How many of each fault may still come, and how often time may pass."""

    periods: int = 0
    crashes: int = 0
    starts: int = 0
    sleeps: int = 0
    cuts: int = 0
    stalls: int = 0
    timeouts: int = 0
    pushes: int = 0
    hook_errors: int = 0
    hook_hangs: int = 0
    lookups: int = 0
    reopens: int = 0

    def less(self, *names: str) -> Budget:
        return self._replace(**{name: getattr(self, name) - 1 for name in names})


class Setting(NamedTuple):
    """What is the same in all states of a search.

    Attributes:
        operations: Of each command, by its token.
        askers: The process that was given each command, by its token.
        fine: Heartbeats and the registry come in any order with everything else, too.
    """

    config: EngineConfig
    operations: Mapping[int, frozenset[str]] = MappingProxyType({})
    askers: Mapping[int, str] = MappingProxyType({})
    fine: bool = False


class ClusterState(NamedTuple):
    """The whole cluster at one moment; equal ones have the same future.

    Attributes:
        processes: By slot; a slot is a broker id.
        holder: Name of the process that has the leader's seat; it has not been heard for `unheard_s`.
        refused: Operations of which somebody heard that they were refused.
        open: Tokens of commands that are not answered.
        rewritten: A cold start has changed what is accepted; views are not compared with the whole log any more.
    """

    time_s: float
    channel: Log
    registry: Log
    processes: tuple[Process, ...]
    budget: Budget
    holder: str | None = None
    unheard_s: float = 0.0
    strays: tuple[Stray, ...] = ()
    refused: frozenset[str] = frozenset()
    open: frozenset[int] = frozenset()
    rewritten: bool = False


def new_process(automaton: Automaton, config: EngineConfig, broker: str, number: int, time_s: float) -> Process:
    """A process that starts now."""
    name = f"{broker}#{number}"
    entropy = name.encode().rjust(10, b"-")
    identity = Identity(broker, f"{broker}-{number}", entropy, now_at(time_s).wall_ms, {"tcp": f"tcp://{name}"})
    return Process(name, automaton.add(Engine(identity, config)))
