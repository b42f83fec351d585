"""Records in flight: written, perhaps in the log, judged when read back (protocol.md section 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.engine.effects import Append
from statechannel.protocol import codec
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import Topic
from statechannel.protocol.record import REASON_MAX, Kind
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.inputs import Appended, AppendFailed
    from statechannel.engine.kafka_limits import AppendRefusal
    from statechannel.engine.presence import Presence
    from statechannel.engine.provenance import Provenance
    from statechannel.engine.seat import Echo
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.states import Action, Flow
    from statechannel.protocol.view import Judgement

ROUND_TRIPS = 4
"""A record that was not read back after this number of round trips counts as lost or late."""
REFUSED_FOR_INTERVALS = 10
"""Retry intervals after which the outcome of a record that Kafka refused counts as unknown."""
SHUTDOWN = "shutdown"
"""Reason in the records of a broker that leaves: of what it hands over, and of what it declines meanwhile."""


class ProposalStatus(StrEnum):
    """How a record of ours ended."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NOT_WRITTEN = "not-written"
    UNKNOWN = "unknown"


class ProposalResult(NamedTuple):
    """The end of one record.

    Attributes:
        verdict: Set where the record was judged.
        winner: Id of the accepted record that stood in its way.
        refusal: Why another try would not be written either.
    """

    status: ProposalStatus
    verdict: Verdict | None = None
    offset: int = -1
    winner: str | None = None
    refusal: AppendRefusal | None = None


@dataclass(slots=True)
class Pending:
    """A record that was handed to the log and whose end is not known yet.

    Attributes:
        refusal: Kafka's, of its last try.
        unseen_through: The view was rebuilt meanwhile: what lies in the log up to here was not judged one by one.
    """

    token: int
    partition: int
    name: str
    record_id: str
    version: int
    sent_at_s: float
    done: Callable[[ProposalResult], None]
    is_proposal: bool
    offset: int = -1
    session: int = -1
    failed: bool = False
    refusal: AppendRefusal | None = None
    unseen_through: int = -1
    seen: dict[int, ProposalResult] = field(default_factory=dict)


class _Other(NamedTuple):
    """A record that is not judged: only its delivery matters, and to few."""

    partition: int
    failed: Callable[[], None] | None = None


class _Held(NamedTuple):
    """A record that may have to wait for a heartbeat.

    Attributes:
        record_id: None for those that are not judged.
    """

    append: Append
    record_id: str | None = None


class Silence:
    """Whether a cold start may be under way somewhere, by the heartbeats that were read of each partition."""

    def __init__(self, context: Context, presence: Presence) -> None:
        self._context = context
        self._presence = presence
        self._heard_ms = [-1] * context.config.partitions
        self._spoke_s = [-inf] * context.config.partitions

    def heard(self, partition: int, timestamp_ms: int) -> None:
        """A heartbeat was read, written at this log time."""
        self._heard_ms[partition] = timestamp_ms

    def spoke(self, partition: int, sent_at_s: float) -> None:
        """A heartbeat of this process was read back, sent at this time by its own clock."""
        self._spoke_s[partition] = max(self._spoke_s[partition], sent_at_s)

    def is_silent(self, partition: int) -> bool:
        """Whether the newest heartbeat that was read is so old that another member may be starting cold.

        By Kafka's clock: a process that was paused reads old heartbeats late. One that does so writes a heartbeat and reads it
        back before it writes anything else to the partition, or what it writes could lie between a view that is taken for the
        truth and its mark, without a heartbeat that makes the mark void. An own one counts from when it was sent, by the own
        clock: a process that does not hear the registry any more may take Kafka's clock for later than it is.
        """
        context = self._context
        ahead_ms = self._presence.clock_ahead_ms
        if ahead_ms is None or partition in context.cold_starting:
            return False
        now_s, bound_s = context.now.mono_s, context.config.cold_start_after_s
        if now_s - self._spoke_s[partition] <= bound_s:
            return False
        return now_s * 1000 + ahead_ms - self._heard_ms[partition] > bound_s * 1000


class Proposals:
    """All records of this process on the channel topic whose end is open.

    Args:
        want_heartbeat: Called where a record waits for a heartbeat of this process.
    """

    def __init__(
        self,
        context: Context,
        presence: Presence,
        provenance: Provenance,
        echo: Echo,
        silence: Silence,
        want_heartbeat: Callable[[], None],
    ) -> None:
        self._context = context
        self._presence = presence
        self._provenance = provenance
        self._echo = echo
        self._silence = silence
        self._want_heartbeat = want_heartbeat
        self._pending: dict[int, Pending] = {}
        self._by_id: dict[str, Pending] = {}
        self._failed: dict[int, Pending] = {}
        self._delivered: dict[tuple[int, int], tuple[int, int]] = {}
        self._others: dict[int, _Other] = {}
        self._refused: dict[str, tuple[float, AppendRefusal]] = {}
        self._held: list[list[_Held]] = [[] for _ in range(context.config.partitions)]

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def room(self) -> int:
        return max(0, self._context.config.pending_max - len(self._pending))

    def patience_s(self, retry_intervals: int = 4) -> float:
        """Time-out after which a record that was not read back is written again.

        A slow log gets more time: further records would only make it slower.

        Args:
            retry_intervals: The least time, in retry intervals.
        """
        config = self._context.config
        slow_s = ROUND_TRIPS * self._echo.round_trip_s
        return max(retry_intervals * config.retry_interval_s, min(slow_s, config.unknown_limit_s / ROUND_TRIPS))

    def new_id(self) -> str:
        """A ULID: wall time, this process's own random part, and a counter."""
        return self._provenance.ids.new_id(self._context.now.wall_ms)

    def propose(
        self,
        key: KeyState,
        state: State,
        done: Callable[[ProposalResult], None],
        *,
        action: Action,
        flow: Flow | str | None,
        operation: str | None,
        from_: str | None = None,
        to: str | None = None,
        version: int | None = None,
        carried: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> str | None:
        """Write a proposal that builds on the accepted state of the key; its id, or None if too many are in flight.

        Args:
            done: Called once with the end.
            version: Where it is not the accepted version plus one.
            carried: Fields that this version does not know, of the record that is answered.
            more: Further fields (`children`, `forced`, `lost`, `reason`, `decision`); those that are None are left out.
        """
        fields: dict[str, Any] = {
            "version": key.version + 1 if version is None else version,
            "base": key.accepted_id,
            "state": state,
            "action": action,
        }
        if not key.is_namespace:
            fields |= {"from": from_, "to": to}
        more |= {"flow": flow, "operation": operation, "reason": _sayable(more.get("reason"))}
        fields |= {name: value for name, value in more.items() if value is not None}
        fields |= carried or {}
        return self._write(key, Kind.PROPOSAL, fields, done)

    def restate(self, key: KeyState, done: Callable[[ProposalResult], None]) -> str | None:
        """Write an assert of the accepted state of the key (Absent where it does not exist)."""
        fields: dict[str, Any] = {
            "version": key.version if key.state is not None else 0,
            "asserts": key.accepted_id if key.state is not None else None,
            "state": key.state or State.ABSENT,
        }
        if not key.is_namespace:
            fields |= {"from": key.from_, "to": key.to}
        if key.operation is not None:
            fields["operation"] = key.operation
        if key.flow is not None:
            fields["flow"] = key.flow
        if key.bounds is not None:
            fields["children"] = key.children
        if key.server is not None:
            # For joiners, who could not know otherwise which process serves; never judged.
            fields["server"] = {"broker": key.server.broker, "incarnation": key.server.incarnation}
        fields |= key.more or {}
        return self._write(key, Kind.ASSERT, fields, done)

    def _write(
        self, key: KeyState, kind: Kind, fields: dict[str, Any], done: Callable[[ProposalResult], None]
    ) -> str | None:
        context = self._context
        if len(self._pending) >= context.config.pending_max or fields["version"] > codec.MAX_INT:
            return None  # the second: an import, or a hostile one, began at the end of all versions
        partition = context.partition_of(key.namespace)
        record_id = self.new_id()
        value = codec.encode(
            {
                "format": self._presence.writes_format,
                "kind": kind,
                "id": record_id,
                "covers": context.replicas[partition].applied,
                "by": {"broker": context.identity.broker, "incarnation": context.identity.incarnation},
                **fields,
                "written_at_ms": context.now.wall_ms,
            }
        )
        token = context.new_token()
        pending = Pending(
            token,
            partition,
            key.name,
            record_id,
            fields["version"],
            context.now.mono_s,
            done,
            is_proposal=kind is Kind.PROPOSAL,
        )
        self._pending[token] = pending
        self._by_id[record_id] = pending
        self._provenance.wrote(record_id, key.key, value)
        self._send(_Held(Append(token, Topic.CHANNEL, partition, key.key, value), record_id))
        return record_id

    def _send(self, held: _Held) -> None:
        """Hand a record to the log; after a silence of all heartbeats not before one of this process was read back."""
        context, partition = self._context, held.append.partition
        if self._held[partition] or self._silence.is_silent(partition):
            # Records that are judged are fewer than that; of the others some are lost.
            if len(self._held[partition]) < 2 * context.config.pending_max:
                self._held[partition].append(held)
            self._want_heartbeat()
            return
        if held.record_id is not None:
            self._echo.written(partition, held.record_id, context.now.mono_s)
        context.perform(held.append)

    def holds_back(self, partition: int) -> bool:
        """Whether records wait for a heartbeat."""
        return bool(self._held[partition])

    def awaits_proof(self, partition: int) -> bool:
        """Whether Kafka refused a record, and only a later one that is read back shows that no earlier try was written."""
        return any(pending.refusal is not None and pending.partition == partition for pending in self._failed.values())

    def refusal(self, name: str, within_s: float = 0.0) -> AppendRefusal | None:
        """Kafka's newest refusal of a record of this key, or of what this process says of itself, such as a heartbeat.

        Args:
            within_s: How long ago at most; no less than it takes to give up such a record.
        """
        since_s = self._context.now.mono_s - max(within_s, self.patience_s(REFUSED_FOR_INTERVALS))
        refused = [self._refused[key] for key in (name, "") if key in self._refused]
        return next((refusal for at_s, refusal in refused if at_s >= since_s), None)

    def release(self, partition: int) -> None:
        """A member that knows the history wrote a heartbeat: what was held back goes out, in order.

        Not while a cold start puts the history in doubt: it may be the heartbeat of the member that starts cold.
        """
        if self._held[partition] and self._context.judges(partition):
            held, self._held[partition] = self._held[partition], []
            for record in held:
                if record.record_id is None or record.append.token in self._pending:
                    self._send(self._numbered(record))

    def _numbered(self, held: _Held) -> _Held:
        """A record that waited, with a new token: tokens say in which order records were handed to the log."""
        before, token = held.append.token, self._context.new_token()
        pending, other = self._pending.pop(before, None), self._others.pop(before, None)
        if pending is not None:
            pending.token = token
            self._pending[token] = pending
        if other is not None:
            remember(self._others, token, other, self._context.config.pending_max)
        return held._replace(append=replace(held.append, token=token))

    def control(
        self, partition: int, key: bytes, fields: dict[str, Any], *, failed: Callable[[], None] | None = None
    ) -> None:
        """Write a control record.

        Args:
            failed: Called where its delivery is reported as an error; then it may be in the log all the same.
        """
        value = codec.encode(fields)
        if key != codec.HEARTBEAT_KEY:
            self._provenance.wrote_mark(key, value)
        self._unjudged(_Other(partition, failed), key, value)

    def purge(self, partition: int, key: bytes) -> None:
        """Write the null that takes away a key which does not exist."""
        self._unjudged(_Other(partition), key, None)

    def _unjudged(self, other: _Other, key: bytes, value: bytes | None) -> None:
        token = self._context.new_token()
        remember(self._others, token, other, self._context.config.pending_max)
        append = Append(token, Topic.CHANNEL, other.partition, key, value)
        if key == codec.HEARTBEAT_KEY:
            self._context.perform(append)
        else:
            self._send(_Held(append))

    def appended(self, report: Appended) -> None:
        """A delivery report: the record is in the log, its verdict follows (or came already)."""
        pending = self._pending.get(report.token)
        other = self._others.pop(report.token, None)
        delivered = pending or other
        if delivered is not None:
            partition = delivered.partition
            before = self._delivered.get((partition, report.session), (-1, -1))
            self._delivered[partition, report.session] = max(before, (report.token, report.offset))
        if pending is None:
            return
        pending.offset = report.offset
        pending.session = report.session
        result = pending.seen.get(report.offset)
        if result is not None:
            self._finish(pending, result)
        elif report.offset <= pending.unseen_through:
            self._finish(pending, ProposalResult(ProposalStatus.UNKNOWN))

    def append_failed(self, report: AppendFailed) -> None:
        """An error is not an end, unless the record never left the client."""
        other = self._others.pop(report.token, None)
        if other is not None and other.failed is not None:
            other.failed()
        pending = self._pending.get(report.token)
        if report.refusal is not None and (pending or other):
            name, context = pending.name if pending else "", self._context
            remember(self._refused, name, (context.now.mono_s, report.refusal), context.config.pending_max)
        if pending is None:
            return
        pending.refusal = report.refusal
        if report.never_written:
            self._finish(pending, ProposalResult(ProposalStatus.NOT_WRITTEN))
            return
        pending.failed = True
        pending.session = report.session
        self._failed[pending.token] = pending
        if pending.seen:
            self._finish(pending, next(iter(pending.seen.values())))

    def read_back(self, record: RecordRead, judgement: Judgement) -> None:
        """A record that names this process as its writer was judged."""
        decoded = judgement.record
        pending = self._by_id.get(decoded.id) if decoded is not None else None
        if pending is None or judgement.key is None or judgement.key.name != pending.name:
            return
        verdict = judgement.verdict
        if verdict is Verdict.ACCEPTED or verdict is Verdict.ASSERT_EQUAL:
            self._finish(pending, ProposalResult(ProposalStatus.ACCEPTED, verdict, record.offset))
            return
        result = ProposalResult(ProposalStatus.REJECTED, verdict, record.offset, judgement.key.accepted_id)
        if pending.failed and pending.unseen_through >= 0:
            # This may be a second copy; what became of a first one was not seen here.
            result = ProposalResult(ProposalStatus.UNKNOWN)
        if pending.failed or pending.offset == record.offset:
            self._finish(pending, result)
        elif pending.offset < 0:
            # The offset of ours was not reported yet: a copy of our id by another writer must not end it.
            pending.seen[record.offset] = result

    def tick(self) -> None:
        """End what can be known by now of records that were not read back as such, or whose report was an error."""
        for pending in list(self._pending.values()):
            replica = self._context.replicas[pending.partition]
            if 0 <= pending.offset <= replica.applied and self._context.judges(pending.partition):
                # It was read, and named neither us nor its id: it could not be decoded (an argument of no known form).
                self._finish(pending, ProposalResult(ProposalStatus.REJECTED, Verdict.UNDECODABLE, pending.offset))
        for pending in list(self._failed.values()):
            replica = self._context.replicas[pending.partition]
            token, offset = self._delivered.get((pending.partition, pending.session), (-1, -1))
            if pending.unseen_through >= 0:
                self._finish(pending, ProposalResult(ProposalStatus.UNKNOWN))
            elif token > pending.token and 0 <= offset <= replica.applied and self._context.judges(pending.partition):
                self._finish(pending, ProposalResult(ProposalStatus.NOT_WRITTEN))
            elif pending.is_proposal and self._superseded(pending):
                self._finish(pending, ProposalResult(ProposalStatus.REJECTED, Verdict.STALE_VERSION))
            elif self._context.now.mono_s - pending.sent_at_s > self._unknown_after_s(pending):
                self._finish(pending, ProposalResult(ProposalStatus.UNKNOWN))

    def _unknown_after_s(self, pending: Pending) -> float:
        """Where Kafka refuses a record for good, it may refuse all that could show what became of it, too."""
        limit_s = self._context.config.unknown_limit_s
        return limit_s if pending.refusal is None else min(limit_s, self.patience_s(REFUSED_FOR_INTERVALS))

    def _superseded(self, pending: Pending) -> bool:
        """Another record has its version: wherever ours lands, it can no longer be accepted."""
        judges = self._context.judges(pending.partition)  # else its own record may be accepted and was not looked at
        key = self._context.replicas[pending.partition].view.get(pending.name) if judges else None
        return key is not None and key.version >= pending.version and key.record_id != pending.record_id

    def view_replaced(self, partition: int, *, assumed: bool = False) -> None:
        """The view was rebuilt: what was judged in between was not seen here.

        Args:
            assumed: It is what a cold start takes for the truth; before its mark counts, it does not tell what was accepted.
        """
        held, self._held[partition] = self._held[partition], []
        never_left = {record.append.token for record in held}
        view = self._context.replicas[partition].view
        copied = self._provenance.is_copied
        for pending in [p for p in self._pending.values() if p.partition == partition]:
            key = view.get(pending.name)
            if pending.token in never_left:
                self._finish(pending, ProposalResult(ProposalStatus.NOT_WRITTEN))
            elif not assumed and key is not None and _is_state_by(pending, key) and not copied(key.record_id):
                self._finish(pending, ProposalResult(ProposalStatus.ACCEPTED, Verdict.ACCEPTED, key.offset))
            elif pending.failed or 0 <= pending.offset <= view.applied:
                self._finish(pending, ProposalResult(ProposalStatus.UNKNOWN))
            else:
                pending.unseen_through = view.applied

    def _finish(self, pending: Pending, result: ProposalResult) -> None:
        self._pending.pop(pending.token, None)
        self._by_id.pop(pending.record_id, None)
        self._failed.pop(pending.token, None)
        if pending.refusal is not None and result.status in (ProposalStatus.NOT_WRITTEN, ProposalStatus.UNKNOWN):
            result = result._replace(refusal=pending.refusal)
        pending.done(result)


class Restating:
    """The keys of one partition that are still to be asserted."""

    def __init__(self, names: list[str]) -> None:
        self._todo = names[::-1]
        self._in_flight: set[str] = set()

    def go_on(self, context: Context, proposals: Proposals, partition: int, *, since: int | None = None) -> bool:
        """Write as many asserts as may be in flight; whether all were judged.

        Args:
            since: Leave out keys with a clean record of their own at or above this offset.
        """
        keys = context.replicas[partition].view.keys
        while self._todo and len(self._in_flight) < context.config.cold_start_window and context.may_write:
            name = self._todo.pop()
            key = keys.get(name.encode())
            if key is None or (since is not None and key.settled >= since):
                continue
            self._in_flight.add(name)
            if proposals.restate(key, self._judged(name)) is None:
                self._in_flight.discard(name)
                self._todo.append(name)
                break
        return not self._todo and not self._in_flight

    def _judged(self, name: str) -> Callable[[ProposalResult], None]:
        def done(result: ProposalResult) -> None:
            self._in_flight.discard(name)
            if result.status in (ProposalStatus.NOT_WRITTEN, ProposalStatus.UNKNOWN):
                self._todo.append(name)

        return done


def _is_state_by(pending: Pending, key: KeyState) -> bool:
    """Whether a key's accepted record has the id of one of ours."""
    return key.record_id == pending.record_id and not key.derived


def _sayable(reason: str | None) -> str | None:
    """A text for people as a record can hold it."""
    return None if reason is None else reason[:REASON_MAX].encode(errors="replace").decode()
