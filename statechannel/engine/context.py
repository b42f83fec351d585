"""What all parts of one engine share; it imports no part.

It has the identity and the clocks of the process, its replicas, its state as a member of the cluster, and the effects of the
step under way. A fact that several parts read is an attribute here, written by one part; what follows from several facts is a
method.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from statechannel.engine.commands import Rejected
from statechannel.engine.effects import Complete, Emit
from statechannel.engine.inputs import Now
from statechannel.engine.membership import Membership
from statechannel.engine.seat import Deputy, Seat, SeatBounds
from statechannel.engine.troubles import Troubles
from statechannel.protocol.bundle import parse_key, partition_of
from statechannel.protocol.keys import KeyState, Writer
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from statechannel.engine.commands import Outcome
    from statechannel.engine.config import EngineConfig, Identity
    from statechannel.engine.effects import Effect, StopEngine

WORK_GAP_S = 0.01
_CAUGHT_UP, _STOPPED = Phase.CAUGHT_UP, Phase.STOPPED
_UNREAD = (Phase.CLOSED, Phase.READING)


class Mode(StrEnum):
    """How far this process trusts its picture of the cluster."""

    STARTING = "starting"  # not registered yet
    NORMAL = "normal"
    SAFE = "safe"  # the log is away: serve what is served, decide nothing
    SETTLING = "settling"  # the log is back: wait for the others to be heard


class Context:
    """The shared state of one engine.

    Attributes:
        now: The clocks of the step under way.
        wake_at_s: When the engine wants a `Tick` at the latest (monotonic seconds).
        stopped: Set once the engine has ended; every further step does nothing.
        tells_all: Report the verdict on every record, not only on those that concern this broker.
        members: The members that are heard in the registry; this and the next four are written by `Presence`.
        registry_mode: The mode as far as the registry decides it.
        term: Offset of the registry record by which this process leads; -1 while it does not.
        listening_since_s: Since when the registry is read to its end.
        seat: What the health of this process allows; written by `Candidacy`, as is the deputy.
        deputy: Whether this process acts for a leader that is not heard.
        lease_ran_out: The lease expired and was not renewed: nothing is begun that would end in serving; written by `Lease`.
        suspended: This process writes probes instead of heartbeats; written by `Lease`.
        draining: This process is leaving; written by `Departure`.
        repair_paused: Why repair waits, or None; written by `Repair`.
        repair_resumes_at_ms: Wall clock at which it goes on by itself, while it waits; written by `Repair`.
        troubles: What its heartbeats tell operators; written by the engine and `Lookups`.
        cold_starting: Partitions whose cold start is under way; a table of `ColdStart`.
        doubtful: Partitions with a cold start's mark of unknown origin; a table of `ColdStart`.
        unproven: Partitions in which others had read further than this process has; a table of `LogHead`.
    """

    def __init__(self, identity: Identity, config: EngineConfig) -> None:
        self.identity = identity
        self.config = config
        self.writer = Writer(identity.broker, identity.incarnation)
        self.replicas = _replicas(config)
        self.now = Now(0.0, 0)
        self.wake_at_s = 0.0
        self.stopped: StopEngine | None = None
        self.ready_since_s = 0.0
        self.tells_all = False
        self.members = Membership(
            config.member_expiry_s,
            config.remembered_max,
            members_max=config.members_max,
            members_max_bytes=config.members_max_bytes,
        )
        self.registry_mode = Mode.STARTING
        self.announced = False
        self.term = -1
        self.listening_since_s: float | None = None
        bounds = SeatBounds.of(config)
        self.seat = Seat(bounds)
        self.deputy = Deputy(bounds)
        self.lease_ran_out = False
        self.suspended = False
        self.draining = False
        self.repair_paused: str | None = None
        self.repair_resumes_at_ms: int | None = None
        self.troubles = Troubles()
        self.cold_starting: Collection[int] = ()
        self.doubtful: Collection[int] = ()
        self.unproven: Collection[int] = ()
        self._effects: list[Effect] = []
        self._postponed: dict[Callable[[], None], None] = {}
        self._tokens = 0

    # --- the step under way -----------------------------------------------------------------------------------------

    def begin_step(self, now: Now) -> None:
        self.now, self._effects = now, []

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def take_postponed(self) -> Collection[Callable[[], None]]:
        postponed, self._postponed = self._postponed, {}
        return postponed

    def new_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def perform(self, effect: Effect) -> None:
        """Have an effect done after this step."""
        self._effects.append(effect)

    def wake_soon(self, go_on: Callable[[], None], gap_s: float = WORK_GAP_S) -> None:
        """Call this in another step soon: there is more to do than fits into one, and the loop has other work as well."""
        self._postponed[go_on] = None
        self.wake_at_s = min(self.wake_at_s, self.now.mono_s + gap_s)

    def emit(self, event: str, **facts: Any) -> None:
        """Report an event; correctness never depends on it."""
        self._effects.append(Emit(event, facts))

    def complete(self, token: int, outcome: Outcome) -> None:
        self._effects.append(Complete(token, outcome))

    # --- the channel ------------------------------------------------------------------------------------------------

    def partition_of(self, namespace: str) -> int:
        return partition_of(namespace, self.config.partitions)

    def key(self, name: str) -> KeyState | None:
        """Accepted state of a namespace or bundle; None where it does not exist or this process cannot say."""
        if len(self.replicas) == 1:
            replica = self.replicas[0]
        else:
            parts = parse_key(name.encode(errors="replace"))
            if parts is None:
                return None
            replica = self.replicas[self.partition_of(parts.namespace)]
        readable = replica.phase is _STOPPED or self.judges(replica.partition)
        return replica.view.get(name) if readable else None

    def settled(self, partition: int) -> bool:
        """Whether the history of a partition is beyond doubt: no cold start under way, no mark of unknown origin, all read."""
        doubts = self.cold_starting, self.doubtful, self.unproven
        return not any(partition in partitions for partitions in doubts) if self.in_doubt else True

    @property
    def in_doubt(self) -> bool:
        return bool(self.cold_starting or self.doubtful or self.unproven)

    def judges(self, partition: int) -> bool:
        """Whether this process may act on a partition: caught up, and no cold start puts its history in doubt."""
        return self.replicas[partition].phase is _CAUGHT_UP and self.settled(partition)

    @property
    def caught_up(self) -> bool:
        if self.in_doubt:
            return False
        for replica in self.replicas:  # noqa: SIM110  # asked for each record: a third of the price of a generator
            if replica.phase is not _CAUGHT_UP:
                return False
        return True

    # --- this process as a member -----------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        for replica in self.replicas:
            if replica.phase is _STOPPED:
                return Mode.SAFE
        return self.registry_mode

    @property
    def registered(self) -> bool:
        """Whether this process is a member: before that it neither prepares nor serves, its predecessor may live."""
        return self.registry_mode is not Mode.STARTING

    @property
    def may_write(self) -> bool:
        """Whether records make sense now: not while the log is away."""
        return self.announced and self.mode is not Mode.SAFE and self.mode is not Mode.STARTING

    @property
    def is_elected(self) -> bool:
        """Whether its claim to lead was read back; enough to start cold, anything else needs `leading`."""
        return self.term >= 0 and self.registry_mode is Mode.NORMAL

    @property
    def leading(self) -> bool:
        """Whether this process leads, is caught up, and may act on it."""
        return self.is_elected and self.caught_up

    @property
    def could_lead(self) -> bool:
        """Whether it could act for a leader that is not heard."""
        able = self.announced and self.caught_up and self.registry_mode is Mode.NORMAL
        return able and self.seat.fit and not self.draining

    @property
    def deputizing(self) -> bool:
        return self.deputy.acting and self.could_lead

    @property
    def acts_as_leader(self) -> bool:
        """Whether the duties of a leader are this process's: it leads, or acts as deputy."""
        return self.leading or self.deputizing

    @property
    def accepting(self) -> bool:
        """Whether this process takes bundles."""
        fit = self.seat.writes and not self.lease_ran_out
        return self.announced and self.caught_up and self.mode is Mode.NORMAL and not self.draining and fit

    def refusal(self) -> Rejected | None:
        """Why no operation can be started now."""
        stopped = next((replica for replica in self.replicas if replica.phase is _STOPPED), None)
        if stopped is not None:
            return Rejected(Verdict.UNSUPPORTED_FORMAT, stopped.why)
        if not self.caught_up:
            return Rejected(
                "joining", "this broker has not caught up with the channel yet", "Try again, or ask another broker."
            )
        if self.mode is not Mode.NORMAL:
            return Rejected(f"{self.mode}-mode", "the log is, or was a moment ago, out of reach", "Try again later.")
        if self.config.observes:
            return Rejected("read-only", "this process only reads the channel", "Ask a broker.")
        return Rejected("draining", "this broker is shutting down", "Ask another one.") if self.draining else None

    # --- other members ----------------------------------------------------------------------------------------------

    def accepts(self, broker: str) -> bool:
        """Whether a broker takes bundles: this process by its own state, others by their last heartbeat."""
        if broker == self.identity.broker:
            return self.accepting
        member = self.members.alive.get(broker)
        return member is not None and member.accepting

    def knows_absence(self) -> bool:
        """Whether a broker that is not heard may be called lost: this process has listened for long enough."""
        now_s = self.now.mono_s
        return (
            self.registry_mode is Mode.NORMAL
            and self.listening_since_s is not None
            and now_s - self.listening_since_s >= self.config.member_expiry_s
            and not self.members.overflowed(now_s)
        )

    @property
    def deserted(self) -> bool:
        """Whether no broker lives, as far as a process that only reads can know: it hears none, and has read all there is."""
        if not self.config.observes or self.members.alive or not self.knows_absence():
            return False
        return all(replica.phase not in _UNREAD for replica in self.replicas)

    def is_lost(self, broker: str) -> bool:
        """Whether a broker is known to be gone; never while this process may be the one that is cut off."""
        if broker == self.identity.broker or broker in self.members.alive:
            return False
        # Lost by the log's own times, or never heard although this process has listened for long enough.
        expired = self.registry_mode is Mode.NORMAL and broker in self.members.lost
        return expired or self.knows_absence()

    def urls_of(self, broker: str) -> Mapping[str, str]:
        """Listeners by name: its own of this process, those that it registered of any other; empty where none is heard.

        Under this process's id the registry may have none, or another process that is gone: until it counts as lost, the
        successor that takes over replaces it only by its second heartbeat.
        """
        if broker == self.identity.broker and not self.config.observes:
            return self.identity.listeners
        member = self.members.alive.get(broker)
        return {} if member is None else member.urls

    def bound_broker(self, namespace: str) -> str | None:
        """Broker to which a namespace belongs by rule (heartbeat and SLA namespaces), if it is alive."""
        tenant, _, broker = namespace.partition("/")
        if tenant in self.config.bound_tenants and broker in self.members.alive:
            return broker
        return None


def _replicas(config: EngineConfig) -> list[Replica]:
    return [
        Replica(
            partition,
            config.partitions,
            compaction_lag_s=config.compaction_lag_s,
            kept_records_max=config.kept_records_max,
            kept_max_bytes=config.kept_max_bytes,
            tail_records=config.replay_tail_records,
            newest_format=config.newest_format,
            accept_lost_head=config.accept_lost_head,
        )
        for partition in range(config.partitions)
    ]
