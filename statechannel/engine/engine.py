"""The engine of one broker: `step(now, input) -> effects`, and nothing else goes in or comes out.

It reads the channel and the registry, judges, reacts, answers, repairs. The live runtime and the simulator drive the same
object. Parts, each in its own file: presence (registry, mode, leadership), proposals (records in flight), reactions
(what states ask of this broker), lookups, operations, duties (heartbeats, debts, purge), repair, cold start. What all parts
share is `context`; what several parts do about one change is in `transitions`.
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
    DismissBroker,
    Done,
    Lookup,
    NotFound,
    PreStop,
    Rejected,
    ResumeRepair,
    Shutdown,
    Split,
    Transfer,
    UndoPreStop,
    Unload,
)
from statechannel.engine.config import EngineConfig, Identity
from statechannel.engine.context import Context, Mode
from statechannel.engine.controls import ClosingMarks, Controls
from statechannel.engine.effects import Effect, StopEngine
from statechannel.engine.freshness import lag_s
from statechannel.engine.inputs import (
    ApiServed,
    Appended,
    AppendFailed,
    CommandReceived,
    HeadLost,
    HookFailed,
    HookFinished,
    Input,
    KafkaLimited,
    LeaderEpochBegan,
    LeadershipChanged,
    LoopBlocked,
    Now,
    PartitionBroken,
    PartitionOpened,
    PositionReached,
    Tick,
)
from statechannel.engine.lease import Lease
from statechannel.engine.log_findings import LogFindings
from statechannel.engine.log_head import LogHead
from statechannel.engine.lookups import Lookups
from statechannel.engine.maintenance import Maintenance
from statechannel.engine.names import locate
from statechannel.engine.operations import Operations
from statechannel.engine.placement import Placement, Placer
from statechannel.engine.presence import Presence
from statechannel.engine.proposals import Proposals, Silence
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.engine.provenance import Provenance
from statechannel.engine.reactions import Reactions
from statechannel.engine.repair import Repair
from statechannel.engine.seat import Echo
from statechannel.engine.shutdown import Departure
from statechannel.engine.streams import Streams, report_verdict
from statechannel.engine.transitions import Transitions
from statechannel.protocol import codec
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.record import Kind
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.protocol.record import Record
    from statechannel.protocol.view import Judgement


class Engine:
    """One broker's replica of the channel: puts the parts together, and hands each input to those that it concerns.

    A part gets the context and the parts that it uses; none gets the engine.

    Attributes:
        counts: Verdicts since the start.
        cached_owner: See `OwnerCache.find`; from any thread.
    """

    def __init__(self, identity: Identity, config: EngineConfig, placement: Placement | None = None) -> None:
        context = self.context = Context(identity, config)
        self.identity, self.config, self.replicas = identity, config, context.replicas
        self.counts: Counter[Verdict] = Counter()
        self._tick_at_s = 0.0
        changes = self.transitions = Transitions(context)
        marks = self.closing_marks = ClosingMarks(context)
        streams = self.streams = changes.streams = Streams(context)
        positions, findings = ProvenPositions(identity.log, config.partitions), LogFindings(context)
        self.findings = findings
        provenance = self.provenance = Provenance(context, changes.announce_change)
        presence = self.presence = changes.presence = Presence(context, provenance, changes, positions, findings)
        placer = self.placer = Placer(context, placement)
        echo, silence = Echo(config.partitions), Silence(context, presence)
        proposals = Proposals(context, presence, provenance, echo, silence, changes.want_heartbeat)
        self.proposals = changes.proposals = proposals
        reactions = self.reactions = changes.reactions = Reactions(context, presence, provenance, proposals)
        self.lookups = changes.lookups = Lookups(context, presence, proposals, reactions, placer, marks)
        self.cached_owner = self.lookups.cache.find
        self.operations = Operations(context, proposals, reactions)
        changes.operations = self.operations.fold
        self.repair = changes.repair = Repair(context, proposals, placer, marks)
        cold_start = self.cold_start = changes.cold_start = ColdStart(context, presence, proposals, streams, changes)
        self.head = changes.head = LogHead(context, proposals, positions, changes)
        candidacy = Candidacy(context, presence, echo, cold_start, changes.leadership_changed)
        self.candidacy = changes.candidacy = candidacy
        duties = self.duties = changes.duties = Maintenance(context, presence, proposals, echo, candidacy)
        self.departure = Departure(context, presence, proposals, reactions, placer, changes.stop)
        self.lease = Lease(context, presence, reactions)
        self.controls = Controls(context, echo, silence, marks, proposals, cold_start, duties)

    # --- the door ---------------------------------------------------------------------------------------------------

    def step(self, now: Now, event: Input) -> list[Effect]:
        """Take one input in; what has to be done, in order."""
        context, cache = self.context, self.lookups.cache
        cache.epoch += 1
        context.begin_step(now)
        if context.stopped is None and now.mono_s >= context.wake_at_s:
            # Time comes first: a process that was paused must notice before it acts on anything else.
            self._tick()
        if context.stopped is None:
            self._take(event)
            self.duties.pay_what_was_read()
        cache.epoch += 1  # stays odd where a step raises: the engine has ended
        return context.take_effects()

    def _take(self, event: Input) -> None:
        context = self.context
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
            case LeadershipChanged() | ApiServed():
                self._changed(event)
            case LoopBlocked() | HookFailed() | KafkaLimited():
                context.troubles.note(event, context.now.wall_ms)
            case PartitionOpened():
                self._partition_opened(event)
            case PartitionBroken() | HeadLost() | LeaderEpochBegan():
                self._partition_changed(event)
            case _:
                assert_never(event)

    def _changed(self, event: LeadershipChanged | ApiServed) -> None:
        if isinstance(event, ApiServed):
            self.presence.announce_api(event.url)
        else:
            self.presence.elected_changed(elected=event.elected)

    def _tick(self) -> None:
        context = self.context
        postponed = context.take_postponed()
        if context.now.mono_s < self._tick_at_s:
            context.wake_at_s = self._tick_at_s
            for go_on in postponed:
                go_on()
            return
        context.wake_at_s = self._tick_at_s = context.now.mono_s + context.config.tick_interval_s
        self.presence.tick()
        self.proposals.tick()
        if context.stopped is not None:
            return
        self.candidacy.tick()
        self.lease.tick()
        self.cold_start.tick()
        self.head.tick()
        self.findings.tick()
        self.reactions.tick()
        self.lookups.tick()
        self.placer.tick()
        self.operations.tick()
        self.duties.tick()
        self.repair.tick()
        self.departure.tick()
        self.candidacy.check()

    # --- what others may know of it ---------------------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return self.context.now

    @property
    def wake_at_s(self) -> float:
        return self.context.wake_at_s

    @property
    def stopped(self) -> StopEngine | None:
        """Set once the engine has ended; every further step does nothing."""
        return self.context.stopped

    @property
    def caught_up(self) -> bool:
        return self.context.caught_up

    @property
    def mode(self) -> Mode:
        return self.context.mode

    @property
    def ready(self) -> bool:
        """Whether what it answers is the present: it is caught up, or only reads and knows that no broker lives."""
        return (self.caught_up and self.mode is Mode.NORMAL) or self.context.deserted

    @property
    def leading(self) -> bool:
        return self.context.leading

    @property
    def deputizing(self) -> bool:
        return self.context.deputizing

    @property
    def draining(self) -> bool:
        return self.context.draining

    @property
    def accepting(self) -> bool:
        return self.context.accepting

    def key(self, name: str) -> KeyState | None:
        return self.context.key(name)

    def locate(self, name: str) -> KeyState | NotFound:
        return locate(self.context, name)

    def serving(self) -> dict[str, int]:
        return {} if self.stopped is not None else self.reactions.serving()

    def stop(self, reason: str, detail: str) -> None:
        self.lookups.cache.epoch |= 1
        self.transitions.stop(reason, detail)

    # --- the log ----------------------------------------------------------------------------------------------------

    def _partition_opened(self, event: PartitionOpened) -> None:
        if event.topic is Topic.REGISTRY:
            self.presence.opened(event)
        elif event.topic is Topic.CHANNEL:
            replica = self.replicas[event.partition]
            replica.opened(self.context.now.mono_s, event.first_offset, event.end_offset)
            self.transitions.phase_changed(replica, Phase.CLOSED)

    def _position_reached(self, event: PositionReached) -> None:
        if event.topic is Topic.REGISTRY:
            self.presence.reached(event)
        elif event.topic is Topic.CHANNEL:
            replica = self.replicas[event.partition]
            before = replica.phase
            replica.reached(self.context.now.mono_s, event.position)
            replica.complete_as_of(event.as_of_s)
            self.transitions.phase_changed(replica, before)

    def _partition_changed(self, event: PartitionBroken | HeadLost | LeaderEpochBegan) -> None:
        if isinstance(event, HeadLost):
            self.head.lost(event)
            return
        if isinstance(event, LeaderEpochBegan):
            self.head.epoch_began(event)
            return
        if event.topic is Topic.CHANNEL:
            self.replicas[event.partition].broken(event.detail)
        self.transitions.stop("topic-broken", f"{event.topic} partition {event.partition}: {event.detail}")

    def _records_read(self, records: Sequence[RecordRead]) -> None:
        taken = 0
        if records[0].topic is Topic.REGISTRY:
            self.presence.read_many(records)
            return
        if records[0].topic is Topic.CHANNEL:
            replica = self.replicas[records[0].partition]
            replica.read_at_s = self.context.now.mono_s
            others: list[RecordRead] = []
            taken = replica.read_many(self.context.now.mono_s, records, others)
            # Most are plain moves of other processes: no line of Python for a single one of them.
            named = replica.may_hold(self.identity.incarnation) and self.provenance.is_named_in(records)
            for record in records[:taken] if named else others:
                self._look_at(record)
        with self.lookups.held_back():  # no lookup is answered from the middle of what was read
            for record in records[taken:]:
                if self.context.stopped is None:
                    self._record_read(record)

    def _look_at(self, record: RecordRead) -> None:
        self.provenance.look_at(record)
        if record.key is not None and record.key[:1] == b"!":
            self.controls.read(record)

    def _record_read(self, event: RecordRead) -> None:
        if event.topic is not Topic.CHANNEL:
            if event.topic is Topic.REGISTRY:
                self.presence.read(event)
            return
        replica = self.replicas[event.partition]
        replica.read_at_s = self.context.now.mono_s
        plain = replica.phase is Phase.CAUGHT_UP and event.key is not None and event.key[:1] != b"!"
        if not plain:
            self._look_at(event)
        before = replica.phase  # a heartbeat may end a cold start
        judgement = replica.read(self.context.now.mono_s, event)
        if plain and (judgement is None or judgement.record is None or judgement.key is None):
            self.provenance.look_at(event)  # others are looked at decoded, when they are judged
        if judgement is not None:
            if before is Phase.CAUGHT_UP:
                self._judged(event, judgement, replica)
            elif judgement.verdict is Verdict.ACCEPTED and judgement.record is not None and judgement.key is not None:
                # Replay: nothing is done about it, but what became of operations is remembered.
                self.operations.fold.accepted(judgement.record, judgement.key, event.partition, event.offset)
        if replica.phase is not before:
            self.transitions.phase_changed(replica, before)
        if event.key == codec.COLD_START_KEY:
            self.cold_start.read(event, live=before is Phase.CAUGHT_UP)

    def _judged(self, event: RecordRead, judgement: Judgement, replica: Replica) -> None:
        verdict, record, key = judgement.verdict, judgement.record, judgement.key
        self.counts[verdict] += 1
        if verdict is not Verdict.ACCEPTED:
            report_verdict(self.context, event, judgement)
        if key is not None:
            self.duties.judged(replica, key)
        if record is None or key is None:
            return
        # Before it is settled which history counts, only a cold start's own asserts are looked at; `joined` does the rest.
        settled = self.context.judges(replica.partition)
        own = self.provenance.is_own_record(event, record)
        if own:
            self.candidacy.echo.read_back(replica.partition, record.id, self.context.now.mono_s)
        if own and (settled or record.kind is Kind.ASSERT):
            self.proposals.read_back(event, judgement)
        if verdict is not Verdict.ACCEPTED:
            return
        if settled:
            self._accepted(event, record, key)
        self.context.emit("record.accepted", record=record, read=event)

    def _accepted(self, event: RecordRead, record: Record, key: KeyState) -> None:
        self.placer.accepted(record, key)
        self.operations.fold.accepted(record, key, event.partition, event.offset)
        self.reactions.moved(record.state, key)
        self.reactions.state_changed(self.replicas[event.partition].view, key)
        if self.context.draining:
            self.departure.go_on()
        self.repair.accepted(key)
        self.lookups.changed(key)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _command(self, event: CommandReceived) -> None:
        token, command = event.token, event.command
        match command:
            case Lookup():
                self.lookups.look_up(token, command)
            case AwaitOperation():
                self.operations.wait(token, command)
            case ResumeRepair():
                was_paused = self.context.repair_paused is not None
                self.repair.resume()
                self.context.complete(token, Done("", "resumed" if was_paused else "not-paused"))
            case DismissBroker(broker):
                self.context.complete(token, self._dismiss(broker))
            case Shutdown():
                self.departure.begin(token, command.budget_s)
            case PreStop():
                self.departure.prepare(token, command.budget_s, command.notice_s)
            case UndoPreStop():
                self.departure.undo(token)
            case Transfer() | Unload() | Split() | CreateNamespace() | DeleteNamespace():
                self.operations.start(token, command)
            case _:
                assert_never(command)

    def _dismiss(self, broker: str) -> Done | Rejected:
        members = self.context.members
        if broker in members.alive:
            return Rejected("broker-alive", f"{broker} is alive: only a broker that was lost can be dismissed")
        lost = members.lost.get(broker)
        if lost is None:
            return Rejected("broker-not-lost", f"{broker} is not known as lost")
        return Done("", "dismissed", {"incarnation": lost.incarnation, "last_heard_ms": lost.last_heard_ms})

    def status(self) -> dict[str, Any]:
        """JSON-able values: mode, leadership, what is served, what is in flight, how far each partition was read."""
        context = self.context
        in_flight = [key for replica in context.replicas for key in replica.view.in_flight]
        return {
            "broker": context.identity.broker,
            "incarnation": context.identity.incarnation,
            "mode": str(context.mode),
            "leading": context.leading,
            "term": context.term,
            "deputizing": context.deputizing,
            "suspended": context.suspended,
            "withdrawn": context.seat.withdrawn,
            "draining": context.draining,
            "caught_up": context.caught_up,
            "serving": self.reactions.serving_count,
            "lookups_waiting": self.lookups.waiting,
            "pending": len(self.proposals),
            "oldest_debt_s": self.duties.oldest_debt_s(),
            "repair_paused": context.repair_paused,
            "forged": self.provenance.fields(),
            "differs": self.findings.fields(),
            "in_flight": [{"bundle": key.name, "state": str(key.state), "version": key.version} for key in in_flight],
            "verdicts": {str(verdict): count for verdict, count in self.counts.items()},
            "partitions": [
                {
                    "partition": replica.partition,
                    "phase": str(replica.phase),
                    "why": replica.why,
                    "applied": replica.applied,
                    "lag_s": lag_s(context.now, replica),
                    "debts": len(replica.view.ledger.open),
                }
                for replica in context.replicas
            ],
        }
