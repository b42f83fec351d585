"""Incidents, by log time. Pure folds.

Of a channel's log: lost owners with their repair, long gaps, cold starts. Of the registry's last hour: starts and ends of
processes, leaders, modes, silence; `engine.membership` has the current members, this has the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from statechannel.audit.forgeries import ForgeriesFound, ForgeryCheck, as_rows, forged_sentence
from statechannel.audit.gaps import Gap, GapCause, Gaps
from statechannel.audit.incident import DeclineCount, Incident, IncidentKind, RegistrySilence, seconds
from statechannel.audit.overlaps import HeardIn, first_heard_ms
from statechannel.audit.ownership import lost_of, writing_process
from statechannel.audit.writers import Disowned, ForgedRecords, WritersHeard, forged_of
from statechannel.protocol.bounded import remember
from statechannel.protocol.cold_start_marks import Mark, Marks
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record
from statechannel.protocol.states import Action, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement

_REASON_MAX = 300
KEPT_MAX = 200
"""Number of newest incidents that are kept."""
DECLINED_MAX = NAMESPACES_MAX = 10_000


@dataclass(slots=True)
class _Lost:
    """A lost broker, and the repairs of its bundles by partition and offset.

    Attributes:
        again_ms: Log time at which the same process wrote again.
        served: Bundles that got an owner since.
    """

    broker: str
    incarnation: str | None
    last_heard_ms: int
    by: dict[str, None]
    bundles: set[KeyState]
    repairs: set[tuple[int, int]]
    newest_ms: int
    again_ms: int | None = None
    served: set[str] = field(default_factory=set)


@dataclass(slots=True)
class DeclinedBundle:
    """A bundle that brokers declined and that no broker has served since.

    Attributes:
        since_ms: Log time since which it has had no owner; of a bundle that never had one, of the first decline.
        reasons: By broker and incarnation, of its newest decline.
    """

    since_ms: int
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(slots=True)
class NamespaceDeletion:
    """A deleted namespace.

    Attributes:
        bundles: Number of its bundles; `owned`: those that the deletion took from an owner.
        broker: Which wrote the record.
    """

    at_ms: int
    namespace: str
    operation: str | None
    bundles: int
    owned: int
    broker: str

    def message(self, requester: str | None) -> str:
        """As a sentence, with who asked for it."""
        executed = f", executed by {self.broker}" if requester else ""
        return (
            f"{requester or self.broker} deleted namespace {self.namespace} ({_bundles(self.bundles)}, "
            f"{self.owned} with an owner){executed}"
        )


class ChannelIncidents:
    """Incidents in a channel's log. Feed it an audit's observations in log order.

    Args:
        gap_over_ms: Shorter gaps in service are not incidents.
        with_gaps: Find the gaps; else the caller finds them, and passes them to `add_gap`.
        check: Shared with other observers.

    Attributes:
        forgeries: Forged records.
        declined: Bundles by name; the newest `DECLINED_MAX`.
        requesters: Who asked for an operation, by its id, as far as the caller knows.
    """

    def __init__(self, gap_over_ms: float, *, with_gaps: bool = True, check: ForgeryCheck | None = None) -> None:
        self._gap_over_ms = gap_over_ms
        check = self._check = ForgeryCheck() if check is None else check
        self.forgeries = ForgeriesFound(check)
        self._gaps = Gaps(check=check) if with_gaps else None
        self._lost: dict[tuple[str, str | None], _Lost] = {}
        self._repairing: dict[str, _Lost] = {}
        self._long: dict[tuple[str, int, int], Gap] = {}
        self._cold_starts: dict[tuple[int, int], Incident] = {}
        self._marks: dict[int, Marks] = {}
        self._declines: dict[str, DeclineCount] = {}
        self.declined: dict[str, DeclinedBundle] = {}
        self.requesters: Mapping[str, str] = {}
        self._bundles: dict[str, int] = {}
        self._unloaded: dict[str, set[str]] = {}
        self._deletions: dict[tuple[str, int], NamespaceDeletion] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        process = writing_process(record, judgement) if self._lost else None
        written_again = None if process is None else self._lost.get(process)
        forged = self._check.sign(record, judgement) is not None
        if written_again is not None and written_again.again_ms is None and not forged:
            written_again.again_ms = record.timestamp_ms
        if judgement.verdict is Verdict.CONTROL:
            self._control(record)
            return
        self.forgeries.observe(record, judgement)
        if self._gaps is not None:
            self._gaps.observe(record, judgement)
        change = judgement.record
        if judgement.verdict is not Verdict.ACCEPTED or change is None or judgement.key is None:
            return
        lost = lost_of(change) if change.forced else None
        if lost is not None:
            name = (lost.broker, lost.incarnation)
            held = self._lost.get(name)
            if held is None:
                held = _Lost(lost.broker, lost.incarnation, lost.last_heard_ms, {}, set(), set(), record.timestamp_ms)
                remember(self._lost, name, held, KEPT_MAX)
            held.by[change.broker] = None
            held.bundles.add(judgement.key)
            held.repairs.add((record.partition, record.offset))
            held.newest_ms = record.timestamp_ms
            self._repairing[judgement.key.name] = held
        if judgement.key.owner is not None and (repaired := self._repairing.pop(judgement.key.name, None)) is not None:
            repaired.served.add(judgement.key.name)
        self._note_decline(record, change, judgement.key)
        self._note_deletion(record, change, judgement.key, forged=forged)
        self._note_gaps()

    def _note_decline(self, record: RecordRead, change: Record, key: KeyState) -> None:
        if key.is_namespace:
            self._forget_declined([name for name in self.declined if name.startswith(f"{key.namespace}/")])
        elif key.owner is not None:
            self._forget_declined([key.name])
        broker = change.from_
        # The owner that cannot resume a bundle releases it by the same action.
        if broker is None or change.forced or change.text("action") != Action.DECLINE:
            return
        count = self._declines.get(broker) or DeclineCount(broker)
        self._declines.pop(broker, None)
        remember(self._declines, broker, count, KEPT_MAX)
        count.times += 1
        count.bundle, count.newest_ms = key.name, record.timestamp_ms
        count.reason = (change.text("reason") or "")[:_REASON_MAX]
        remember(count.waiting, key.name, None, KEPT_MAX)
        since_ms = None if self._gaps is None else self._gaps.open_since_ms(key.name)
        bundle = self.declined.get(key.name) or DeclinedBundle(record.timestamp_ms if since_ms is None else since_ms)
        remember(self.declined, key.name, bundle, DECLINED_MAX)
        remember(bundle.reasons, (broker, change.incarnation), count.reason, KEPT_MAX)

    def _note_deletion(self, record: RecordRead, change: Record, key: KeyState, *, forged: bool) -> None:
        """Count bundles by namespace, and those that an operation unloads; note the deletion."""
        operation = change.text("operation")
        if not key.is_namespace:
            if change.state is State.DELETED and key.namespace in self._bundles:
                self._bundles[key.namespace] += len(key.children or ()) - 1
            elif change.state is State.RELEASING and operation is not None:
                unloaded = self._unloaded.get(operation, set())
                unloaded.add(key.name)
                remember(self._unloaded, operation, unloaded, KEPT_MAX)
        elif change.state is State.ACTIVE:
            remember(self._bundles, key.namespace, len(key.children or ()), NAMESPACES_MAX)
        else:
            owned = sum(name.startswith(f"{key.namespace}/") for name in self._unloaded.get(operation or "", ()))
            deletion = NamespaceDeletion(
                record.timestamp_ms,
                key.namespace,
                None if forged else operation,
                self._bundles.pop(key.namespace, owned),
                owned,
                change.broker,
            )
            remember(self._deletions, (key.namespace, record.offset), deletion, KEPT_MAX)

    def _forget_declined(self, bundles: Iterable[str]) -> None:
        for bundle in bundles:
            self.declined.pop(bundle, None)
            for count in self._declines.values():
                count.waiting.pop(bundle, None)

    @property
    def declines(self) -> list[DeclineCount]:
        """Brokers that declined bundles; the one that did so last comes last."""
        return list(self._declines.values())

    def _note_gaps(self) -> None:
        if self._gaps is not None:
            for gap in self._gaps.closed:
                self.add_gap(gap)
            self._gaps.closed.clear()  # a display that stays open must not grow

    def add_gap(self, gap: Gap) -> None:
        """Note a gap that has ended; short ones are ignored."""
        if (gap.length_ms or 0) > self._gap_over_ms:
            remember(self._long, (gap.bundle, gap.partition, gap.start_offset), gap, KEPT_MAX)

    def _control(self, record: RecordRead) -> None:
        control = self._marks.setdefault(record.partition, Marks()).control_read(record)
        if isinstance(control, Mark):
            self._cold_start(record, control)

    def _cold_start(self, record: RecordRead, mark: Mark) -> None:
        message = (
            f"cold start: {mark.writer} accepted its view of partition {record.partition}, through offset "
            f"{mark.through}, as the truth"
        )
        remember(
            self._cold_starts,
            (record.partition, record.offset),
            Incident(record.timestamp_ms, IncidentKind.COLD_START, message),
            KEPT_MAX,
        )

    def all(self) -> list[Incident]:
        """All kept incidents, in no particular order."""
        incidents = list(self._cold_starts.values())
        incidents += [
            Incident(row["timestamp_ms"], IncidentKind.FORGED, forged_sentence(row))
            for row in as_rows(self.forgeries)["newest"]
        ]
        incidents += [self._of_lost(lost) for lost in self._lost.values()]
        incidents += [
            Incident(count.newest_ms, IncidentKind.DECLINED, count.message) for count in self._declines.values()
        ]
        incidents += [
            Incident(
                item.at_ms, IncidentKind.NAMESPACE_DELETED, item.message(self.requesters.get(item.operation or ""))
            )
            for item in self._deletions.values()
        ]
        incidents += [
            _of_gap(gap) for gap in self._long.values() if gap.cause is not GapCause.OWNER_LOST or not gap.repaired
        ]
        return incidents

    def _of_lost(self, lost: _Lost) -> Incident:
        many = len(lost.bundles)
        took = f"; the last one {seconds(lost.newest_ms - lost.last_heard_ms)} after it was last heard"
        gaps = [
            gap.length_ms or 0
            for gap in self._long.values()
            if gap.cause is GapCause.OWNER_LOST and (gap.partition, gap.start_offset) in lost.repairs
        ]
        longest = f"; the longest gap in service was {seconds(max(gaps))}" if gaps else ""
        repaired = (
            f"repaired {_bundles(many)}"
            if len(lost.served) == many
            else f"tried to repair {_bundles(many)}, {len(lost.served)} got an owner"
        )
        message = f"{lost.broker} was lost; {' and '.join(lost.by)} {repaired}{took}{longest}"
        heard = None
        if lost.incarnation is not None:
            process = lost.broker, lost.incarnation
            heard = first_heard_ms(self._check.writers, process, lost.last_heard_ms, lost.again_ms)
        if heard is not None:
            later = seconds(heard[0] - lost.last_heard_ms)
            what = "wrote again" if heard[1] is HeardIn.LOG else "was heard again"
            message += (
                f"; it {what} {later} after it was last heard: at most until then it may have served them, "
                "beside their new owners (`statechannel audit overlaps`)"
            )
        return Incident(lost.last_heard_ms, IncidentKind.OWNER_LOST, message)


def _bundles(many: int) -> str:
    return "1 bundle" if many == 1 else f"{many} bundles"


def _of_gap(gap: Gap) -> Incident:
    return Incident(
        gap.start_ms, IncidentKind.GAP, f"no broker served {gap.bundle} for {seconds(gap.length_ms or 0)}: {gap.why}"
    )


_SKEWS = 30
_STILL_LEAST_MS = 2_000
_TOLD_WITHOUT_LEADER_MS = 1_000
_QUIET_MODES = ("starting", "settling")


def _still_ms(before: Mapping[str, Any], info: Mapping[str, Any]) -> int:
    """Time by the process's own clock in which it made no heartbeat; one that is cut off from Kafka goes on making them."""
    beats = [(fields.get("seq"), fields.get("sent_at_ms")) for fields in (before, info)]
    (first, first_ms), (last, last_ms) = beats
    if not (type(first) is int and type(last) is int and type(first_ms) is int and type(last_ms) is int):
        return 0
    return (last_ms - first_ms) // (last - first) if last > first else 0


@dataclass(slots=True)
class RegisteredProcess:
    """One process, from its heartbeats.

    Attributes:
        first_ms, last_ms: Log times of its first and newest heartbeat.
        info: The newest one.
        left: It sent a goodbye.
        lost: Silent for longer than its expiry, and not heard since.
        leads_since_ms: Log time since which it claims leadership; None while it does not.
        old_claim: It was lost, and is heard again with the claim of before, while another process leads: it does not count.
        claim: Offset of its leadership claim, its term; None if that was not seen.
        forgeries: The incident of the forged records that it has read; it is counted up, and does not push others out.
        pause: The incident of its present pause of repair; its text is replaced as more brokers are lost.
        heard_before_ms: Log time of the heartbeat before the newest.
        still_at_ms: Log time at which it was last heard after a standstill.
        skews_ms: Log time minus its own clock, of the newest heartbeats; the least one has the least delay in it.
    """

    broker: str
    incarnation: str
    first_ms: int
    last_ms: int
    info: Mapping[str, Any]
    left: bool = False
    lost: bool = False
    leads_since_ms: int | None = None
    old_claim: bool = False
    claim: int | None = None
    forgeries: Incident | None = None
    pause: Incident | None = None
    mode_since_ms: int = 0
    heard_before_ms: int = 0
    still_at_ms: int | None = None
    skews_ms: deque[int] = field(default_factory=lambda: deque(maxlen=_SKEWS))

    @property
    def clock_behind_ms(self) -> int | None:
        """How far its clock is behind the log's (negative: ahead); None if its heartbeats have no time."""
        return min(self.skews_ms, default=None)


class RegistryStory:
    """Feed it the heartbeats in log order.

    Args:
        expiry_s: Expiry of this reader; used for processes whose heartbeats do not have their own.

    Attributes:
        processes: Newest process of each broker id.
        doubled: Broker ids with two alternating processes, with the log time of the last alternation.
        newest_ms: Log time of the newest heartbeat of any process; 0 without one.
        led_ms: Log time of the newest heartbeat of a leader; None without one.
        heard_from_ms: Log time of the first heartbeat, or of the first one after a complete silence.
        restarted_ms: Log time at which a process last started while no other was alive; None if that was not seen.
        forgeries: What each process last said of forged records, by broker and incarnation; also of those that have ended.
        writers: What the log is held against.
    """

    def __init__(self, expiry_s: float) -> None:
        self.writers = WritersHeard()
        self._expiry_ms = expiry_s * 1_000
        self.processes: dict[str, RegisteredProcess] = {}
        self.doubled: dict[str, int] = {}
        self.newest_ms = 0
        self.led_ms: int | None = None
        self.leader: str | None = None
        self._replaced: dict[tuple[str, str], None] = {}
        self.heard_from_ms = 0
        self.restarted_ms: int | None = None
        self._looked_ms = 0
        self.forgeries: dict[tuple[str, str], ForgedRecords] = {}
        self._silence: RegistrySilence | None = None
        self.incidents: deque[Incident] = deque(maxlen=KEPT_MAX)

    def disowned(self, listed: Sequence[Mapping[str, Any]]) -> list[Disowned]:
        """What processes say of forged records that the log's own list of them does not have."""
        reports = (Disowned(broker, forged) for (broker, _), forged in sorted(self.forgeries.items()))
        return [item for item in reports if not item.is_listed(listed)]

    def doubled_at(self, at_ms: int) -> list[str]:
        """Broker ids that two processes use now."""
        return [broker for broker, seen_ms in self.doubled.items() if at_ms - seen_ms < 2 * self._expiry_ms]

    def observe(self, record: RecordRead, info: Mapping[str, Any]) -> None:
        """Apply one valid heartbeat (`engine.membership.decode_member`)."""
        self.writers.observe(record, info)
        at_ms = record.timestamp_ms
        self._pass_time(at_ms)
        process = self._process(info, at_ms, record.offset)
        if process is None:
            return
        self._explain_silence(process.incarnation)
        before = process.info
        silent_ms = at_ms - process.last_ms
        still_ms = _still_ms(before, info)
        if still_ms > max(self._patience_ms(process) / 2, _STILL_LEAST_MS):
            process.still_at_ms = at_ms
            message = f"{process.broker} stood still for {seconds(still_ms)}: its process or event loop did not run"
            self._add(process.last_ms, IncidentKind.STANDSTILL, message)
        if process.lost:
            process.lost = False
            process.old_claim = self._another_leads(process)
            self._add(at_ms, IncidentKind.LOST, f"{process.broker} is heard again, after {seconds(silent_ms)}")
        process.heard_before_ms, process.last_ms = process.last_ms, at_ms
        sent_ms = info.get("sent_at_ms")
        if type(sent_ms) is int:
            process.skews_ms.append(at_ms - sent_ms)
        self._changes(process, before, info, record)
        process.info = info

    def _process(self, info: Mapping[str, Any], at_ms: int, offset: int) -> RegisteredProcess | None:
        broker, incarnation = info["broker"], info["incarnation"]
        known = self.processes.get(broker)
        if known is not None and known.incarnation == incarnation:
            return known
        if (broker, incarnation) in self._replaced:  # of two processes in turns the later one counts
            remember(self.doubled, broker, at_ms, KEPT_MAX)
            return None
        if known is not None:
            remember(self._replaced, (broker, known.incarnation), None, 10 * KEPT_MAX)
        process = RegisteredProcess(broker, incarnation, at_ms, at_ms, info, mode_since_ms=at_ms)
        remember(self.processes, broker, process, 10 * KEPT_MAX)
        # What was running when the topic's memory began has not just started.
        if isinstance(info.get("seq"), int) and info["seq"] <= 1:
            again = "" if known is None else " again, as a new process"
            self._add(at_ms, IncidentKind.STARTED, f"{broker} started{again}")
            others = (other for other in self.processes.values() if other is not process)
            if not any(self._is_alive(other, at_ms) for other in others):
                self.restarted_ms = at_ms
        if info.get("leading") is True:
            self._leads(process, at_ms, offset if info["seq"] <= 1 else None)
        self._forged(process, None, info, at_ms)
        return process

    def _forged(
        self, process: RegisteredProcess, before: ForgedRecords | None, info: Mapping[str, Any], at_ms: int
    ) -> None:
        forged = forged_of(info)
        if forged is None or not forged.records or (before is not None and forged.records <= before.records):
            return
        if process.forgeries is not None:
            self._drop(process.forgeries)
        remember(self.forgeries, (process.broker, process.incarnation), forged, KEPT_MAX)
        when_ms = at_ms if forged.timestamp_ms is None else forged.timestamp_ms
        disowned = Disowned(process.broker, forged)
        process.forgeries = Incident(when_ms, IncidentKind.FORGED, forged.sentence(process.broker), disowned)
        self.incidents.append(process.forgeries)

    def _changes(
        self, process: RegisteredProcess, before: Mapping[str, Any], info: Mapping[str, Any], record: RecordRead
    ) -> None:
        name, at_ms = process.broker, record.timestamp_ms
        leading = info.get("leading") is True
        process.old_claim = process.old_claim and leading and self._another_leads(process)
        if leading and not process.old_claim:
            if process.leads_since_ms is None:
                self._leads(process, at_ms, record.offset)
            self.led_ms = at_ms
        elif process.leads_since_ms is not None:
            process.leads_since_ms = None
        self._mode(process, before, info, at_ms)
        if before is not info:
            self._forged(process, forged_of(before), info, at_ms)
        pause, paused = info.get("repair_paused"), before.get("repair_paused")
        if pause and pause != paused:
            began_ms = at_ms
            if process.pause is not None and paused:  # more brokers were lost meanwhile
                began_ms = process.pause.at_ms
                self._drop(process.pause)
            process.pause = Incident(began_ms, IncidentKind.REPAIR_PAUSED, f"{name} paused repair: {pause}")
            self.incidents.append(process.pause)
        elif paused and not pause:
            self._add(at_ms, IncidentKind.REPAIR_PAUSED, f"{name} repairs again")
        if info.get("draining") is True and before.get("draining") is not True:
            self._add(at_ms, IncidentKind.LEFT, f"{name} is shutting down, and hands over its bundles")
        if info.get("leaving") is True and not process.left:
            process.left, process.leads_since_ms = True, None
            self._add(at_ms, IncidentKind.LEFT, f"{name} left with a goodbye")

    def _mode(self, process: RegisteredProcess, before: Mapping[str, Any], info: Mapping[str, Any], at_ms: int) -> None:
        mode, was = info.get("mode"), before.get("mode")
        if mode == was:
            return
        if mode == "safe":
            # What it wrote while it was cut off comes late or never: it has been in safe mode since it was last heard. One
            # that stood still protected nothing meanwhile: it noticed when it ran again.
            late = at_ms - process.heard_before_ms > self._patience_ms(process) / 2
            still = process.still_at_ms is not None and at_ms - process.still_at_ms <= self._patience_ms(process)
            process.mode_since_ms = process.heard_before_ms if late and not still else at_ms
            why = "it reads what it missed" if still else "it lost its connection to Kafka"
            self._add(process.mode_since_ms, IncidentKind.MODE, f"{process.broker} is in safe mode: {why}")
        elif was in ("starting", None):
            return
        elif mode == "normal":
            took = seconds(at_ms - process.mode_since_ms)
            self._add(at_ms, IncidentKind.MODE, f"{process.broker} is back in normal mode, after {took}")
        elif mode not in _QUIET_MODES:
            self._add(at_ms, IncidentKind.MODE, f"{process.broker} is in the mode {mode}")
        elif was == "normal":
            process.mode_since_ms = at_ms

    def _another_leads(self, process: RegisteredProcess) -> bool:
        return any(other.leads_since_ms is not None for other in self.processes.values() if other is not process)

    def _leads(self, process: RegisteredProcess, at_ms: int, claim: int | None) -> None:
        process.leads_since_ms, process.claim = at_ms, claim
        without_ms = 0 if self.led_ms is None else at_ms - self.led_ms
        if claim is not None and self.leader is not None:
            late = f" {seconds(without_ms)} without a leader" if without_ms > _TOLD_WITHOUT_LEADER_MS else ""
            same = self.leader == process.broker
            message = f"{process.broker} leads again" if same else f"{process.broker} leads, after {self.leader}"
            self._add(at_ms, IncidentKind.LEADER, f"{message}{',' if late and same else ' and' if late else ''}{late}")
        elif claim is not None:
            self._add(at_ms, IncidentKind.LEADER, f"{process.broker} leads")
        self.leader, self.led_ms = process.broker, at_ms

    def _pass_time(self, at_ms: int) -> None:
        """Detect lost processes; a complete silence of all does not count, as for a member that was cut off."""
        silent_ms = at_ms - self.newest_ms if self.newest_ms else 0
        self.heard_from_ms = self.heard_from_ms or at_ms
        if silent_ms > self._expiry_ms / 2:
            self.heard_from_ms = at_ms
            self._silence = RegistrySilence(
                self.newest_ms, silent_ms, {process.incarnation for process in self.processes.values()}
            )
            self.incidents.append(self._silence.incident)
        self.newest_ms = max(self.newest_ms, at_ms)
        if at_ms - self._looked_ms < 500:  # noqa: PLR2004 - often enough
            return
        self._looked_ms = at_ms
        for process in self.processes.values():
            if process.left or process.lost:
                continue
            if at_ms - max(process.last_ms, self.heard_from_ms) > self._patience_ms(process):
                process.lost = True
                process.leads_since_ms = None
                self._add(process.last_ms, IncidentKind.LOST, f"{process.broker} was lost without a goodbye")

    def _explain_silence(self, incarnation: str) -> None:
        """The first processes that are heard after a complete silence show what was away: Kafka or the brokers."""
        silence = self._silence
        if silence is None or silence.survived:
            return
        before, silence.survived = silence.incident, incarnation in silence.incarnations
        silence.restarted = not silence.survived
        if before in self.incidents:
            self.incidents[self.incidents.index(before)] = silence.incident

    def _drop(self, incident: Incident) -> None:
        if incident in self.incidents:
            self.incidents.remove(incident)

    def _is_alive(self, process: RegisteredProcess, at_ms: int) -> bool:
        return not (process.left or process.lost) and at_ms - process.last_ms <= self._patience_ms(process)

    def _patience_ms(self, process: RegisteredProcess) -> float:
        expiry_s = process.info.get("expiry_s")
        return expiry_s * 1_000 if isinstance(expiry_s, int | float) else self._expiry_ms

    def _add(self, at_ms: int, kind: IncidentKind, message: str) -> None:
        self.incidents.append(Incident(at_ms, kind, message))
