"""The engine of one broker: `step(now, input) -> effects`, and nothing else goes in or comes out.

It reads the channel and the registry, judges, reacts, answers, repairs. The live runtime and the simulator drive the same
object. Parts, each in its own file: presence (registry, mode, leadership), proposals (records on their way), reactions
(what states ask of this broker), lookups, operations, duties (heartbeats, debts, purge), repair, cold start.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, assert_never

from statechannel.engine.candidacy import Candidacy
from statechannel.engine.cold_start import ColdStart
from statechannel.engine.commands import (
    AwaitOperation,
    CreateNamespace,
    DeleteNamespace,
    Done,
    Lookup,
    NotFound,
    Outcome,
    Rejected,
    ResumeRepair,
    Shutdown,
    Split,
    Transfer,
    Unload,
)
from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.controls import ClosingMarks, Controls
from statechannel.engine.effects import Complete, Effect, Emit, RestartReading, StandForLeader, StopEngine
from statechannel.engine.inputs import (
    Appended,
    AppendFailed,
    CommandReceived,
    HookFinished,
    Input,
    LeadershipChanged,
    Now,
    PartitionBroken,
    PartitionOpened,
    PositionReached,
    Tick,
)
from statechannel.engine.lease import Lease
from statechannel.engine.lookups import Lookups
from statechannel.engine.maintenance import Maintenance
from statechannel.engine.names import locate
from statechannel.engine.operations import Operations
from statechannel.engine.placement import FewestBundles, Placement
from statechannel.engine.presence import Mode, Presence
from statechannel.engine.proposals import Proposals
from statechannel.engine.provenance import Provenance
from statechannel.engine.reactions import Reactions
from statechannel.engine.repair import Repair
from statechannel.engine.shutdown import Departure
from statechannel.engine.status import refusal_of, status_of
from statechannel.engine.streams import Streams, tell_verdict
from statechannel.protocol import codec
from statechannel.protocol.bundle import parse_key, partition_of
from statechannel.protocol.keys import KeyState, Writer
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.record import Kind
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.protocol.record import Record
    from statechannel.protocol.view import Judgement

TICK_INTERVAL_S, WORK_GAP_S = 0.2, 0.01


class Engine:
    """One broker's replica of the channel.

    Attributes:
        now: The clocks of the step under way.
        wake_at_s: When the engine wants a `Tick` at the latest (monotonic seconds).
        stopped: Set once the engine has ended; every further step does nothing.
        counts: Verdicts since the start.
        ready_since_s: Since when all partitions are caught up.
        tells_all: Tell the verdict on every record, not only of those that concern this broker.
    """

    def __init__(self, identity: Identity, config: EngineConfig, placement: Placement | None = None) -> None:
        self.identity = identity
        self.config = config
        self.placement: Placement = placement or FewestBundles()
        self.writer = Writer(identity.broker, identity.incarnation)
        self.now = Now(0.0, 0)
        self.wake_at_s = self._tick_at_s = 0.0
        self.stopped: StopEngine | None = None
        self.counts: Counter[Verdict] = Counter()
        self.ready_since_s, self.tells_all = 0.0, False
        self.replicas = _replicas(config)
        self._effects: list[Effect] = []
        self._more: dict[Callable[[], None], None] = {}
        self._tokens, self._was_caught_up = 0, False
        self.closing_marks, self.streams = ClosingMarks(self), Streams(self)
        self.controls = Controls(self)
        self.presence = Presence(self)
        self.candidacy = Candidacy(self, config)
        self.provenance = Provenance(self)
        self.proposals = Proposals(self)
        self.reactions = Reactions(self)
        self.lookups = Lookups(self)
        self.operations = Operations(self)
        self.duties = Maintenance(self)
        self.repair = Repair(self)
        self.cold_start = ColdStart(self)
        self.departure = Departure(self)
        self.lease = Lease(self)

    # --- the door ---------------------------------------------------------------------------------------------------

    def step(self, now: Now, event: Input) -> list[Effect]:
        """Take one input in; what has to be done, in order."""
        self.now, self._effects = now, []
        if self.stopped is None and now.mono_s >= self.wake_at_s:
            # Time comes first: a process that was paused must notice before it acts on anything else.
            self._tick()
        if self.stopped is None:
            self._take(event)
            self.duties.pay_what_was_read()
        effects, self._effects = self._effects, []
        return effects

    def _take(self, event: Input) -> None:
        match event:
            case RecordRead():
                self._record_read(event)
            case RecordsRead():
                self._records_read(event.records)
            case Appended():
                self.proposals.appended(event)
            case AppendFailed():
                self.proposals.append_failed(event)
            case PositionReached():
                self._position_reached(event)
            case CommandReceived():
                self._command(event)
            case HookFinished():
                self.reactions.hook_finished(event)
            case Tick():
                pass
            case LeadershipChanged():
                self.presence.elected_changed(elected=event.elected)
            case PartitionOpened():
                self._partition_opened(event)
            case PartitionBroken():
                self._partition_broken(event)
            case _:
                assert_never(event)

    def _tick(self) -> None:
        more, self._more = self._more, {}
        if self.now.mono_s < self._tick_at_s:
            self.wake_at_s = self._tick_at_s
            for go_on in more:
                go_on()
            return
        self.wake_at_s = self._tick_at_s = self.now.mono_s + TICK_INTERVAL_S
        self.presence.tick()
        self.proposals.tick()
        if self.stopped is not None:
            return
        self.candidacy.tick()
        self.lease.tick()
        self.cold_start.tick()
        self.reactions.tick()
        self.lookups.tick()
        self.operations.tick()
        self.duties.tick()
        self.repair.tick()
        self.departure.tick()
        self.candidacy.check()

    # --- what the parts use -----------------------------------------------------------------------------------------

    def new_token(self) -> int:
        """A number for an append."""
        self._tokens += 1
        return self._tokens

    def perform(self, effect: Effect) -> None:
        """Have an effect done after this step."""
        self._effects.append(effect)

    def wake_soon(self, go_on: Callable[[], None], gap_s: float = WORK_GAP_S) -> None:
        """More is to be done than fits into one step: call this in a step soon, when the loop has looked at all else."""
        self._more[go_on] = None
        self.wake_at_s = min(self.wake_at_s, self.now.mono_s + gap_s)

    def emit(self, event: str, **facts: Any) -> None:
        """Tell the world; nothing hangs on it."""
        self._effects.append(Emit(event, facts))

    def complete(self, token: int, outcome: Outcome) -> None:
        """Answer a command."""
        self._effects.append(Complete(token, outcome))

    def stop(self, reason: str, detail: str) -> None:
        """End this engine: it serves nothing and writes nothing from here on."""
        if self.stopped is None:
            self.reactions.release_all()
            self.stopped = StopEngine(reason, detail)
            if self.candidacy.stands:
                self.perform(StandForLeader(stand=False))
            self.perform(self.stopped)

    def partition_of(self, namespace: str) -> int:
        """The partition that holds a namespace."""
        return partition_of(namespace, self.config.partitions)

    def key(self, name: str) -> KeyState | None:
        """Accepted state of a namespace or bundle; None where it does not exist or nobody here may say."""
        parts = parse_key(name.encode(errors="replace"))
        if parts is None:
            return None
        replica = self.replicas[self.partition_of(parts.namespace)]
        readable = replica.phase is Phase.STOPPED or self.judges(replica.partition)
        return replica.view.get(name) if readable else None

    def judges(self, partition: int) -> bool:
        """Whether this process may act on a partition: caught up, and no cold start puts its history in doubt."""
        return self.replicas[partition].caught_up and self.cold_start.settled(partition)

    @property
    def caught_up(self) -> bool:
        """Whether every partition is judged."""
        return all(replica.caught_up for replica in self.replicas) and not self.cold_start.in_doubt

    @property
    def mode(self) -> Mode:
        """How far this process trusts its picture of the cluster."""
        stopped = any(replica.phase is Phase.STOPPED for replica in self.replicas)
        return Mode.SAFE if stopped else self.presence.mode

    @property
    def leading(self) -> bool:
        """Whether this process leads, is caught up, and may act on it."""
        return self.presence.leading and self.caught_up

    @property
    def deputizing(self) -> bool:
        """Whether this process acts for a leader that is not heard."""
        return self.candidacy.deputizing

    @property
    def acts_as_leader(self) -> bool:
        """Whether the duties of a leader are this process's: it leads, or acts as deputy."""
        return self.leading or self.deputizing

    @property
    def draining(self) -> bool:
        """Whether this process is on its way out."""
        return self.departure.begun

    @property
    def accepting(self) -> bool:
        """Whether this process takes bundles."""
        fit = self.candidacy.seat.writes and not self.lease.ran_out
        return self.caught_up and self.mode is Mode.NORMAL and not self.draining and fit

    def accepts(self, broker: str) -> bool:
        """Whether a broker takes bundles: this process by its own state, others by their last heartbeat."""
        if broker == self.identity.broker:
            return self.accepting
        member = self.presence.members.alive.get(broker)
        return member is not None and member.accepting

    @property
    def registered(self) -> bool:
        """Whether this process is a member: before that it neither prepares nor serves, its predecessor may live."""
        return self.presence.mode is not Mode.STARTING

    @property
    def may_write(self) -> bool:
        """Whether records make sense now: not while the log is away."""
        return self.presence.announced and self.mode is not Mode.SAFE and self.mode is not Mode.STARTING

    def is_lost(self, broker: str) -> bool:
        """Whether a broker is known to be gone; never while this process is not sure of its own ears."""
        if broker == self.identity.broker or broker in self.presence.members.alive:
            return False
        # Lost by the log's own times, or never heard by one who has listened for long enough.
        expired = self.presence.mode is Mode.NORMAL and broker in self.presence.members.lost
        return expired or self.presence.knows_absence()

    def serving(self) -> dict[str, int]:
        """Bundles that this process serves right now, with their generations."""
        return {} if self.stopped is not None else self.reactions.serving()

    def refusal(self) -> Rejected | None:
        """Why no operation can be started now."""
        return refusal_of(self)

    def bound_broker(self, namespace: str) -> str | None:
        """Broker to which a namespace belongs by rule (heartbeat and SLA namespaces), if it is alive."""
        tenant, _, broker = namespace.partition("/")
        if tenant in self.config.bound_tenants and broker in self.presence.members.alive:
            return broker
        return None

    def locate(self, name: str) -> KeyState | NotFound:
        """The live bundle that a name means."""
        return locate(self, name)

    def closing(self, namespace: str) -> bool:
        """Whether a namespace is being deleted."""
        return self.closing_marks.holds(namespace)

    # --- changes that concern several parts -------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Somebody came or went."""
        self.repair.wanted()
        self.reactions.recheck()
        self.lookups.recheck_all()

    def mode_changed(self, before: Mode) -> None:
        """The log went away, or came back; or this process was registered just now and may begin to act."""
        if before is Mode.STARTING:
            for replica in self.replicas:
                if self.judges(replica.partition):
                    self.reactions.view_replaced(replica.view)
        self.repair.wanted()
        self.lookups.recheck_all()

    def leadership_changed(self) -> None:
        """This process began or ceased to act as leader."""
        self.repair.wanted()

    def caught_up_changed(self) -> None:
        """A partition was joined or lost."""
        self.streams.check()
        if self.caught_up and not self._was_caught_up:
            self.ready_since_s = self.now.mono_s
            self.emit("replica.caught-up", why="; ".join(replica.why for replica in self.replicas))
        self._was_caught_up = self.caught_up
        self.presence.announce_change()
        self.repair.wanted()
        self.lookups.recheck_all()
        self.candidacy.check()

    # --- the log ----------------------------------------------------------------------------------------------------

    def _partition_opened(self, event: PartitionOpened) -> None:
        if event.topic is Topic.REGISTRY:
            self.presence.opened(event)
        elif event.topic is Topic.CHANNEL:
            replica = self.replicas[event.partition]
            replica.opened(self.now.mono_s, event.first_offset, event.end_offset)
            self.phase_changed(replica, Phase.CLOSED)

    def _position_reached(self, event: PositionReached) -> None:
        if event.topic is Topic.REGISTRY:
            self.presence.reached(event)
        elif event.topic is Topic.CHANNEL:
            replica = self.replicas[event.partition]
            before = replica.phase
            replica.reached(self.now.mono_s, event.position)
            replica.complete_as_of(event.as_of_s)
            self.phase_changed(replica, before)

    def _partition_broken(self, event: PartitionBroken) -> None:
        if event.topic is Topic.CHANNEL:
            self.replicas[event.partition].broken(event.detail)
        self.stop("topic-broken", f"{event.topic} partition {event.partition}: {event.detail}")

    def _records_read(self, records: Sequence[RecordRead]) -> None:
        taken = 0
        if records[0].topic is Topic.CHANNEL:
            replica = self.replicas[records[0].partition]
            replica.read_at_s = self.now.mono_s
            taken = replica.read_many(self.now.mono_s, records)
            for record in records[:taken]:
                self.controls.look_at(record)
        with self.lookups.held_back():  # nobody is answered from the middle of what was read
            for record in records[taken:]:
                if self.stopped is None:
                    self._record_read(record)

    def _record_read(self, event: RecordRead) -> None:
        if event.topic is not Topic.CHANNEL:
            if event.topic is Topic.REGISTRY:
                self.presence.read(event)
            return
        replica = self.replicas[event.partition]
        replica.read_at_s = self.now.mono_s
        self.controls.look_at(event)
        before = replica.phase
        judgement = replica.read(self.now.mono_s, event)
        if judgement is not None:
            if before is Phase.CAUGHT_UP:
                self._judged(event, judgement, replica)
            elif judgement.verdict is Verdict.ACCEPTED and judgement.record is not None and judgement.key is not None:
                # Replay: nothing is done about it, but what became of operations is remembered.
                self.operations.accepted(judgement.record, judgement.key, event.partition, event.offset)
        if replica.phase is not before:
            self.phase_changed(replica, before)
        if event.key == codec.COLD_START_KEY:
            self.cold_start.read(event, live=before is Phase.CAUGHT_UP)

    def _judged(self, event: RecordRead, judgement: Judgement, replica: Replica) -> None:
        verdict, record, key = judgement.verdict, judgement.record, judgement.key
        self.counts[verdict] += 1
        if verdict is not Verdict.ACCEPTED:
            tell_verdict(self, event, judgement)
        if key is not None:
            self.duties.judged(replica, key)
        if record is None or key is None:
            return
        # Before it is settled which history counts, only a cold start's own asserts are looked at; `joined` does the rest.
        settled = self.judges(replica.partition)
        own = self.provenance.is_own_record(event, record)
        if own:
            self.candidacy.echo.read_back(replica.partition, record.id)
        if own and (settled or record.kind is Kind.ASSERT):
            self.proposals.read_back(event, judgement)
        if verdict is not Verdict.ACCEPTED:
            return
        if settled:
            self._accepted(event, record, key)
        self.emit("record.accepted", record=record, read=event)

    def _accepted(self, event: RecordRead, record: Record, key: KeyState) -> None:
        self.lookups.accepted(record, key)
        self.operations.accepted(record, key, event.partition, event.offset)
        self.reactions.moved(record.state, key)
        self.reactions.state_changed(self.replicas[event.partition].view, key)
        if self.draining:
            self.departure.go_on()
        self.lookups.recheck(key.name)

    def start_over(self, partition: int, why: str) -> None:
        """Join a partition again from its beginning."""
        replica = self.replicas[partition]
        before = replica.phase
        replica.start_over(why)
        self.phase_changed(replica, before)

    def joined(self, replica: Replica) -> None:
        """A partition is judged from here on: act on everything in it that names this broker."""
        self.candidacy.echo.restarted(replica.partition)
        self.operations.seed(replica.view)
        self.duties.view_replaced(replica.partition)
        self.proposals.view_replaced(replica.partition)
        self.reactions.view_replaced(replica.view)

    def phase_changed(self, replica: Replica, before: Phase) -> None:
        """A partition's reader came a step further, or fell back."""
        if replica.phase is before:
            return
        self.emit("replica.phase", partition=replica.partition, before=before, phase=replica.phase, why=replica.why)
        self.cold_start.abandon(replica.partition)
        match replica.phase:
            case Phase.CAUGHT_UP:
                self.joined(replica)
            case Phase.START_OVER:
                self.perform(RestartReading(Topic.CHANNEL, replica.partition))
            case Phase.BROKEN:
                self.stop("topic-broken", f"channel partition {replica.partition}: {replica.why}")
            case Phase.STOPPED:
                replica.stopped_at_s = self.now.mono_s
                self.emit("replica.stopped", partition=replica.partition, format=replica.newer_format, why=replica.why)
            case _:
                pass
        self.caught_up_changed()

    # --- commands ---------------------------------------------------------------------------------------------------

    def _command(self, event: CommandReceived) -> None:
        token, command = event.token, event.command
        match command:
            case Lookup():
                self.lookups.look_up(token, command)
            case AwaitOperation():
                self.operations.wait(token, command)
            case ResumeRepair():
                self.repair.resume()
                self.complete(token, Done("", "resumed"))
            case Shutdown():
                self.departure.begin(token, command.budget_s)
            case Transfer() | Unload() | Split() | CreateNamespace() | DeleteNamespace():
                self.operations.start(token, command)
            case _:
                assert_never(command)

    def status(self) -> dict[str, Any]:
        """How this process stands, as JSON-able values."""
        return status_of(self)


def _replicas(config: EngineConfig) -> list[Replica]:
    """A reader of each partition, with the bounds of an engine."""
    return [
        Replica(
            partition,
            config.partitions,
            compaction_lag_s=config.compaction_lag_s,
            kept_records_max=config.kept_records_max,
            kept_max_bytes=config.kept_max_bytes,
            tail_records=config.replay_tail_records,
            newest_format=config.newest_format,
        )
        for partition in range(config.partitions)
    ]
