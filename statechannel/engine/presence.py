"""This process in the registry: waiting for its predecessor, heartbeats, and what the silence of the log means (safe mode)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson

from statechannel.engine.context import Mode
from statechannel.engine.effects import Append
from statechannel.engine.inputs import PartitionOpened, PositionReached
from statechannel.engine.membership import MEMBER_FORMAT, HeartbeatForm, decode_member, decode_probe
from statechannel.protocol.bounded import remember
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import FORMAT, readable, writable_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.engine.context import Context
    from statechannel.engine.log_findings import LogFindings
    from statechannel.engine.membership import LostMember
    from statechannel.engine.proven_positions import ProvenPositions
    from statechannel.engine.provenance import Provenance
    from statechannel.protocol.keys import Writer
    from statechannel.protocol.replica import Phase, Replica

FRESH_TO_REFUSE = 2
OUTSTANDING_MAX = 64


class RegistryListener(Protocol):
    """What follows for the other parts from what the registry says."""

    def members_lost(self, lost: list[LostMember]) -> None: ...

    def members_changed(self) -> None: ...

    def mode_changed(self, before: Mode) -> None: ...

    def leadership_changed(self) -> None: ...

    def phase_changed(self, replica: Replica, before: Phase) -> None:
        """Kafka's clock became known, and a partition vouches for itself with it."""

    def stop(self, reason: str, detail: str) -> None:
        """Another process has this broker id."""


class Presence:
    """Registry reader and writer of one process.

    Attributes:
        complete_as_of_s: The newest moment at which the whole registry was read, by the engine's clock; None before the first.
        last_ms: Log time of the last registry record read; not the largest of any, as Kafka's clock may have been wrong.
        clock_ahead_ms: How far Kafka's clock is ahead of the monotonic one, at most: by the newest own record that was read
            back, which the log had stamped after it was sent. None before the first.
    """

    def __init__(
        self,
        context: Context,
        provenance: Provenance,
        listener: RegistryListener,
        positions: ProvenPositions,
        findings: LogFindings,
    ) -> None:
        self._positions = positions
        self._findings = findings
        self._context = context
        self._provenance = provenance
        self._listener = listener
        self.members = context.members
        self.elected = False
        self.goodbye_sent = False
        self._api_url: str | None = None
        self.goodbye_heard = False
        self._registry_end: int | None = None
        self._position = 0
        self._read_to = 0
        self.complete_as_of_s: float | None = None
        self.last_ms = 0
        self.clock_ahead_ms: float | None = None
        self._seq = 0
        self._sent_at_s: dict[int, float] = {}
        self._value_hashes: dict[int, int] = {}
        self._claim_seq: int | None = None
        self._awaited: str | None = None
        self._next_at_s = 0.0
        self._heard_self_sent_s = 0.0
        self._heartbeat_sent_s = 0.0
        self._mode_since_s = 0.0
        self._safe_since_ms: int | None = None
        self._expected: set[str] = set()
        self._fresh_foreign: dict[str, int] = {}
        self._foreign_last_ms: dict[str, int] = {}
        self._own_first_read = False
        self._own_last_ms = 0
        self._own_first_offset = -1
        self.writes_format = FORMAT

    # --- what the log says ------------------------------------------------------------------------------------------

    def opened(self, event: PartitionOpened) -> None:
        """The registry is read from its beginning, perhaps once more: records read before are not signs of life."""
        self._registry_end = event.end_offset
        self._position = event.first_offset
        self._read_to = min(self._read_to, event.end_offset)  # a topic that was created again begins at 0
        self._check_listened()

    def reached(self, event: PositionReached) -> None:
        """Everything below the position was delivered."""
        self._position = max(self._position, event.position)
        if event.as_of_s is not None:
            self.complete_as_of_s = event.as_of_s
        self._check_listened()

    def _check_listened(self) -> None:
        if (
            self._context.listening_since_s is None
            and self._registry_end is not None
            and self._position >= self._registry_end
        ):
            self._context.listening_since_s = self._context.now.mono_s
            for member in self.members.alive.values():
                self._positions.take(member.info)
            self.members.settle_backlog(self._context.now.mono_s, self.last_ms)

    def read_many(self, records: Sequence[RecordRead]) -> None:
        """Take in registry records that were delivered together; nearly all are heartbeats that repeat the one before."""
        context, hear_again, expected, end = self._context, self.members.heard_again, self._expected, self._registry_end
        now_s, listened = context.now.mono_s, context.listening_since_s is not None
        for record in records:
            _, _, offset, timestamp_ms, key, value = record
            if offset < self._read_to:
                self.read(record)
                continue
            member = (
                hear_again(now_s, timestamp_ms, key, value, end is not None and offset >= end) if listened else None
            )
            if member is None:
                self.read(record)
                if context.stopped is not None:
                    return
                continue
            self._position = self._read_to = offset + 1
            self.last_ms = timestamp_ms
            if expected:
                expected.discard(member.broker)

    def read(self, record: RecordRead) -> None:
        self._position = record.offset + 1
        if self._position > self._read_to:
            self._read_to = self._position
            self._take(record)
        if self._context.listening_since_s is None:
            self._check_listened()

    def _take(self, record: RecordRead) -> None:
        self.last_ms = timestamp_ms = record.timestamp_ms
        context = self._context
        repeating = self.members.heard_again(
            context.now.mono_s, timestamp_ms, record.key, record.value, self._is_live(record)
        )
        if repeating is not None:
            self._expected.discard(repeating.broker)
        elif (info := decode_member(record.value)) is not None:
            self._heard(record, info)
        elif record.key == context.identity.broker.encode():
            self._take_probe(record)

    def _heard(self, record: RecordRead, info: dict[str, Any]) -> None:
        context = self._context
        own_id = info["broker"] == context.identity.broker
        if own_id and info["incarnation"] != context.identity.incarnation:
            if not self._tolerate(record, info):
                return
        elif own_id and self._is_forged(record, info["seq"], leaving=info.get("leaving") is True):
            self._provenance.registry_forged(record)
        elif own_id:
            self._heard_self(record, info)
            if context.stopped is not None:
                return
        before = self.members.alive.get(info["broker"])
        live = self._is_live(record)
        if not live:
            self._positions.take(info)
        overflowed = self.members.overflowed(context.now.mono_s)
        self.members.heard(
            context.now.mono_s,
            record.offset,
            record.timestamp_ms,
            info,
            live=live,
            size_bytes=len(record.value or b""),
            own_id=own_id,
            form=None if own_id or record.value is None else HeartbeatForm.of(record.value, info),
        )
        if not overflowed and self.members.overflowed(context.now.mono_s):
            context.emit("registry.full", members=len(self.members.alive))
        self._expected.discard(info["broker"])
        member = self.members.alive.get(info["broker"])
        if member is not before:
            if before is not None:
                self._positions.take(before.info)
            self._report_member(record, info, here=member is not None, live=live)
            self._listener.members_changed()

    def _is_live(self, record: RecordRead) -> bool:
        """Whether a record was written after this process began to read, and so is a sign of life."""
        return self._registry_end is not None and record.offset >= self._registry_end

    def _take_probe(self, record: RecordRead) -> None:
        probe = decode_probe(record.value)
        if probe is None or probe[0] != self._context.identity.incarnation:
            return
        if self._is_forged(record, probe[1]):
            self._provenance.registry_forged(record)
        else:
            self._read_back(probe[1], record.timestamp_ms)

    def _is_forged(self, record: RecordRead, seq: int, *, leaving: bool = False) -> bool:
        """Whether a registry record with this process's id is not its own; beyond the retained hashes only `seq` is checked."""
        sent = self._value_hashes.get(seq)
        altered = sent is not None and sent != hash(record.value)
        return altered or not 0 < seq <= self._seq or (leaving and not self.goodbye_sent)

    def _report_member(self, record: RecordRead, info: dict[str, Any], *, here: bool, live: bool) -> None:
        broker, incarnation = info["broker"], info["incarnation"]
        if live and here:
            self._context.emit("member.joined", member=broker, incarnation=incarnation, offset=record.offset)
        elif live:
            self._context.emit("member.left", member=broker, incarnation=incarnation, offset=record.offset)

    def _tolerate(self, record: RecordRead, info: dict[str, Any]) -> bool:
        """Another process under our id: whether it counts as a member."""
        context = self._context
        incarnation = info["incarnation"]
        before = self._foreign_last_ms.get(incarnation)
        remember(self._foreign_last_ms, incarnation, record.timestamp_ms, context.config.remembered_max)
        if info.get("leaving") is True:
            return True
        if self._own_first_read and info["since"] > self._own_first_offset:
            self._stop_replaced(incarnation, info)
            return True
        if not context.announced:
            if self._is_live(record):
                heard = self._fresh_foreign.get(incarnation, 0) + 1
                remember(self._fresh_foreign, incarnation, heard, context.config.remembered_max)
            if self._fresh_foreign.get(incarnation, 0) >= FRESH_TO_REFUSE and not context.config.take_over:
                self._listener.stop(
                    "id-in-use",
                    f"broker id {context.identity.broker} is in use by a live process (incarnation {incarnation})",
                )
            return True
        if not self._own_first_read or before is not None:
            # Before our own first record it was first, and our first record will say what follows; after it, it is a
            # process that we replaced and that has not noticed yet.
            return not self._own_first_read
        silent_ms = record.timestamp_ms - self._own_last_ms
        if silent_ms < context.config.member_expiry_s * 1000 and info.get("take_over") is not True:
            # We were heard a moment ago: by the same log times the other one will see that, and give way.
            return False
        self._stop_replaced(incarnation, info)
        return True

    def _stop_replaced(self, incarnation: str, info: dict[str, Any]) -> None:
        why = (
            "it was started to take over (membership.take_over), and this one"
            if info.get("take_over") is True
            else "this one was not heard for longer than the expiry and"
        )
        self._listener.stop(
            "replaced",
            f"another process (incarnation {incarnation}) runs under broker id {self._context.identity.broker} now; {why} must "
            "not go on",
        )

    def _heard_self(self, record: RecordRead, info: dict[str, Any]) -> None:
        context = self._context
        if info.get("leaving") is True:
            self.goodbye_heard = True
        self._own_last_ms = record.timestamp_ms
        if not self._own_first_read:
            self._own_first_read = True
            self._own_first_offset = record.offset
            limit_ms = context.config.member_expiry_s * 1000
            for incarnation, last_ms in self._foreign_last_ms.items():
                gone = (context.identity.broker, incarnation) in self.members.gone
                # Log time of the other's later than ours: Kafka's clock was set back between. It says nothing of when that was;
                # this process has waited an expiry for its predecessor, and a twin stops where `since` comes after its own.
                near = 0 <= record.timestamp_ms - last_ms < limit_ms
                if near and not gone and not context.config.take_over:
                    self._listener.stop(
                        "id-in-use",
                        f"broker id {context.identity.broker} was taken by another process at the same time "
                        f"(incarnation {incarnation})",
                    )
                    return
        sent_at_s = self._read_back(info["seq"], record.timestamp_ms)
        if sent_at_s is not None:
            self._heartbeat_sent_s = max(self._heartbeat_sent_s, sent_at_s)
        if self._claim_seq is not None and info["seq"] >= self._claim_seq and info.get("leading") is True:
            self._claim_seq = None
            context.term = record.offset
            context.emit("leader.elected", term=context.term)
            self._listener.leadership_changed()

    def _read_back(self, seq: int, timestamp_ms: int) -> float | None:
        """An own record came back; when it was sent, None where that is not known any more."""
        sent_at_s = self._sent_at_s.pop(seq, None)
        if sent_at_s is not None:
            self._heard_self_sent_s = max(self._heard_self_sent_s, sent_at_s)
            self._clock_read(timestamp_ms - sent_at_s * 1000)
        return sent_at_s

    def _clock_read(self, ahead_ms: float) -> None:
        """Kafka's clock is known (again): with it a log may vouch for itself."""
        self.clock_ahead_ms = ahead_ms
        for replica in self._context.replicas:
            before = replica.phase
            replica.learn_clock(ahead_ms)
            self._listener.phase_changed(replica, before)

    # --- leadership -------------------------------------------------------------------------------------------------

    def elected_changed(self, *, elected: bool) -> None:
        """The election decided. A leader counts only after its own registry record was read back."""
        if elected == self.elected:
            return
        self.elected = elected
        if elected:
            self._claim_seq = self._seq + 1
            self._send()
        else:
            self._claim_seq = None
            if self._context.term >= 0:
                self._context.term = -1
                self._context.emit("leader.resigned")
                self._listener.leadership_changed()

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Mode first, then expiry: a process that was cut off must not hold the others' silence against them."""
        context = self._context
        now_s = context.now.mono_s
        if not context.announced:
            self._maybe_announce(now_s)
        before = context.registry_mode
        self._check_mode(now_s)
        if context.registry_mode is Mode.NORMAL:
            lost = self.members.expire(now_s, keep=context.identity.incarnation)
            if lost:
                for member in lost:
                    context.emit(
                        "member.lost", member=member.broker, incarnation=member.incarnation, at_ms=member.last_heard_ms
                    )
                self._listener.members_lost([member for member in lost if member.heard_live])
                self._listener.members_changed()
        self._choose_format()
        if context.registry_mode is not before:
            # After the expiry: a process that begins to act now must know who is gone.
            self._listener.mode_changed(before)
        if now_s >= self._next_at_s:
            self._send()

    def _choose_format(self) -> None:
        """Hold a newer format back until every registered member reads it; never choose it before having listened."""
        chosen, newest = FORMAT, self._context.config.newest_format
        if newest > FORMAT and self._context.knows_absence():
            others = [member.formats for member in self.members.alive.values()]
            chosen = writable_format(others, readable(newest))
        if chosen != self.writes_format:
            before, self.writes_format = self.writes_format, chosen
            self._context.emit("format.changed", before=before, format=chosen)

    def _maybe_announce(self, now_s: float) -> None:
        context = self._context
        if context.config.observes or context.listening_since_s is None or self.goodbye_sent:
            return
        predecessor = self.members.alive.get(context.identity.broker)
        if predecessor is not None and not context.config.take_over:
            left_s = predecessor.heard_at_s + context.config.member_expiry_s - now_s
            if left_s >= 0:
                self._report_wait(predecessor.incarnation, left_s)
                return
        context.announced = True
        self._heard_self_sent_s = self._heartbeat_sent_s = now_s
        self._send()

    def _report_wait(self, incarnation: str, left_s: float) -> None:
        """Report once that this process waits: without that a quick restart seems to hang."""
        if incarnation == self._awaited:
            return
        self._awaited = incarnation
        self._context.emit(
            "predecessor.awaited",
            incarnation=incarnation,
            seconds=round(left_s, 1),
            why=f"a process of {self._context.identity.broker} that said no goodbye was heard a moment ago: its successor waits "
            "until it counts as lost (membership.expiry_s)",
            hint="A supervisor that knows that the former process has ended sets membership.take_over: then nothing waits.",
        )

    def _check_mode(self, now_s: float) -> None:
        context = self._context
        if not (self._observing or context.announced):
            return
        silence_s = self.silence_s
        if context.registry_mode is Mode.STARTING:
            # Who reads the registry late has still to read who took its place.
            # Who has said goodbye takes nothing on any more.
            known = self._observing or (self._own_first_read and not self.goodbye_sent)
            if known and silence_s <= context.config.safe_after_s:
                self._change(Mode.NORMAL)
        elif silence_s > context.config.safe_after_s:
            if context.registry_mode is not Mode.SAFE:
                self._expected = set(self.members.alive) - {context.identity.broker}
                self._change(Mode.SAFE)
        elif context.registry_mode is Mode.SAFE:
            self.members.hear_all(now_s)
            self._change(Mode.SETTLING)
        elif context.registry_mode is Mode.SETTLING and (
            not self._expected or now_s - self._mode_since_s >= context.config.settle_s
        ):
            self._change(Mode.NORMAL)

    def _change(self, mode: Mode) -> None:
        context = self._context
        before, context.registry_mode = context.registry_mode, mode
        self._mode_since_s = context.now.mono_s
        if mode is Mode.SAFE:
            self._safe_since_ms = context.now.wall_ms
        elif mode is Mode.NORMAL:
            self._safe_since_ms = None
        context.emit("mode.changed", before=before, mode=mode)
        self._next_at_s = context.now.mono_s

    @property
    def _observing(self) -> bool:
        """Whether this process only reads, and has read the registry to its end."""
        return self._context.config.observes and self._context.listening_since_s is not None

    @property
    def silence_s(self) -> float:
        """Age of the picture: since the send time of the newest own heartbeat, or probe, that was read back.

        A process that only reads has none: its picture is as old as the moment for which it knows that it had read everything.
        """
        context = self._context
        if context.config.observes:
            as_of_s = self.complete_as_of_s
            as_of_s = context.listening_since_s if as_of_s is None else as_of_s
            return 0.0 if as_of_s is None else context.now.mono_s - as_of_s
        return context.now.mono_s - self._heard_self_sent_s if context.announced else 0.0

    def has_read_since(self, moment_s: float) -> bool:
        """Whether all was read that the registry held at a moment of the engine's clock."""
        if self._context.config.observes:
            return self.complete_as_of_s is not None and self.complete_as_of_s > moment_s
        return self._own_first_read and self._heard_self_sent_s > moment_s

    def predecessor_heard_ms(self, incarnation: str) -> int | None:
        """Log time at which another process under this broker id was last heard; None where none was."""
        return self._foreign_last_ms.get(incarnation)

    def may_be_replaced_by(self, server: Writer) -> bool:
        """Whether a process that became owner may have taken over this broker's id, and serves now.

        One that the registry does not name before this process registered before it served: a lease later this process has
        read that in the registry and stopped, or holds its own lease no more.
        """
        return server != self._context.writer and server.incarnation not in self._foreign_last_ms

    def heartbeat_age_at_s(self, now_s: float) -> float:
        """Since the send time of the newest own heartbeat that was read back: since then the others may count our silence.

        Args:
            now_s: The engine's clock at a moment that the engine may not have come to yet.
        """
        return now_s - self._heartbeat_sent_s if self._context.announced else 0.0

    # --- writing ----------------------------------------------------------------------------------------------------

    def announce_change(self) -> None:
        """Write to the registry at once rather than at the next interval."""
        self._send()

    def announce_api(self, url: str) -> None:
        """The heartbeats name the URL of this process's admin API from now on."""
        self._api_url = url
        self._send()

    def say_goodbye(self) -> None:
        self._send(leaving=True)
        self.goodbye_sent = True

    def _send(self, *, leaving: bool = False) -> None:
        context = self._context
        if not context.announced or self.goodbye_sent:
            return
        self._next_at_s = context.now.mono_s + context.config.member_interval_s
        self._seq += 1
        remember(self._sent_at_s, self._seq, context.now.mono_s, OUTSTANDING_MAX)
        info = self._probe() if context.suspended and not leaving else self._heartbeat(leaving=leaving)
        key, value = context.identity.broker.encode(), orjson.dumps(info)
        remember(self._value_hashes, self._seq, hash(value), context.config.remembered_max)
        context.perform(Append(context.new_token(), Topic.REGISTRY, 0, key, value))

    def _probe(self) -> dict[str, Any]:
        """The record by which a process that suspended its heartbeats finds out whether it hears itself."""
        identity = self._context.identity
        return {
            "format": MEMBER_FORMAT,
            "kind": "probe",
            "broker": identity.broker,
            "incarnation": identity.incarnation,
            "seq": self._seq,
            "sent_at_ms": self._context.now.wall_ms,
        }

    def _heartbeat(self, *, leaving: bool) -> dict[str, Any]:
        context, identity = self._context, self._context.identity
        throttled, refused = context.troubles.kafka.throttled, context.troubles.kafka.refused
        return {
            "format": MEMBER_FORMAT,
            "kind": "member",
            "broker": identity.broker,
            "incarnation": identity.incarnation,
            "seq": self._seq,
            "sent_at_ms": context.now.wall_ms,
            "started_at_ms": identity.started_at_ms,
            "listeners": dict(identity.listeners),
            "persistent": identity.persistent,
            "non_persistent": identity.non_persistent,
            "properties": dict(identity.properties),
            "software": identity.software,
            "log": identity.log or None,
            "http": identity.http or None,
            "api": self._api_url,
            "extensions": list(identity.extensions),
            **({"checks": list(identity.checks)} if identity.checks else {}),
            "formats": list(readable(context.config.newest_format)),
            "writes": self.writes_format,
            "phase": "caught-up" if context.caught_up else "joining",
            "mode": context.mode,
            "safe_since_ms": self._safe_since_ms,
            # Only until we are known: a late record of a process that took over once must not do it again.
            "since": self._own_first_offset,
            "take_over": context.config.take_over and not self._own_first_read,
            "accepting": not context.draining and context.seat.writes,
            "draining": context.draining,
            "leading": self.elected,
            "fit": context.seat.fit,
            "deputy": context.deputizing,
            "writable": context.seat.writes,
            "term": self._context.term,
            "leaving": leaving,
            "repair_paused": context.repair_paused,
            "repair_resumes_at_ms": context.repair_resumes_at_ms,
            "forged": self._provenance.fields(),
            "differs": self._findings.fields(),
            "blocked": None if context.troubles.blocked is None else context.troubles.blocked.fields(),
            "hooks_failed": {hook.value: failures.fields() for hook, failures in context.troubles.hooks.items()}
            or None,
            "unplaced": context.troubles.unplaced.fields(context.now.wall_ms),
            "throttled": None if throttled is None else throttled.fields(),
            "refused": None if refused is None else refused.fields(),
            **self._positions.fields(context.replicas),
            "applied": {str(replica.partition): replica.applied for replica in context.replicas},
            "expiry_s": context.config.member_expiry_s,
        }
