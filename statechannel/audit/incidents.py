"""Incidents in a channel's log, by log time: lost owners with their repair, long gaps, cold starts. A pure fold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from statechannel.audit.gap_list import GapGroup, began_together
from statechannel.audit.gaps import Gap, GapCause, Gaps, gap_fields
from statechannel.audit.overlaps import HeardIn, first_heard_ms
from statechannel.audit.ownership import writing_process
from statechannel.protocol.bounded import remember
from statechannel.protocol.cold_start_marks import Mark, Marks
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.record import Record
from statechannel.protocol.states import Action, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver
from statechannel.stories.bundle import lost_of
from statechannel.stories.incident import KEPT_MAX, Declines, Incident, IncidentKind, seconds
from statechannel.stories.processes import TimesHeard, WritersHeard

_KEYS_NAMED = 3
_TIMES_MAX = 10_000
_WRITERS_MAX = 1_000
NAMESPACES_MAX = 10_000


@dataclass(slots=True)
class _Lost:
    """A lost broker, and the repairs of its bundles by partition and offset.

    Attributes:
        taken_ms: Log time of the first repair.
        served: Bundles that got an owner since.
    """

    broker: str
    incarnation: str | None
    last_heard_ms: int
    by: dict[str, None]
    bundles: set[KeyState]
    repairs: set[tuple[int, int]]
    taken_ms: int
    newest_ms: int
    served: set[str] = field(default_factory=set)


@dataclass(slots=True)
class NamespaceDeletion:
    """A deleted namespace: the number of its bundles, and of those that the deletion took from an owner."""

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


class ChannelIncidents(JoinObserver):
    """Incidents in a channel's log. Feed it an audit's observations in log order.

    Args:
        gap_over_ms: Shorter gaps in service are not incidents.
        with_gaps: Find the gaps; else the caller finds them, and passes them to `add_gap`.
        writers: What the registry shows of the processes; None: it was not read.

    Attributes:
        declines: Bundles that brokers declined.
        requesters: Who asked for an operation, by its id, as far as the caller knows.
    """

    def __init__(self, gap_over_ms: float, *, with_gaps: bool = True, writers: WritersHeard | None = None) -> None:
        self._gap_over_ms = gap_over_ms
        self._writers = writers
        self._gaps = Gaps() if with_gaps else None
        self._lost: dict[tuple[str, str | None, int], _Lost] = {}
        self._newest_loss: dict[tuple[str, str | None], _Lost] = {}
        self._written_ms: dict[tuple[str, str], TimesHeard] = {}
        self._repairing: dict[str, list[_Lost]] = {}
        self._long: dict[tuple[str, int, int], Gap] = {}
        self._cold_starts: dict[tuple[int, int], Incident] = {}
        self._marks: dict[int, Marks] = {}
        self.declines = Declines()
        self.requesters: Mapping[str, str] = {}
        self._bundles: dict[str, int] = {}
        self._unloaded: dict[str, set[str]] = {}
        self._deletions: dict[tuple[str, int], NamespaceDeletion] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        self._note_writer(record, judgement)
        if judgement.verdict is Verdict.CONTROL:
            self._control(record)
            return
        if self._gaps is not None:
            self._gaps.observe(record, judgement)
        change = judgement.record
        if judgement.verdict is not Verdict.ACCEPTED or change is None or judgement.key is None:
            return
        lost = lost_of(change) if change.forced else None
        if lost is not None:
            held = self._newest_loss.get((lost.broker, lost.incarnation))
            if held is None or lost.last_heard_ms > held.newest_ms:  # it was heard since the last repair
                at_ms = record.timestamp_ms
                held = _Lost(lost.broker, lost.incarnation, lost.last_heard_ms, {}, set(), set(), at_ms, at_ms)
                remember(self._lost, (lost.broker, lost.incarnation, at_ms), held, KEPT_MAX)
                remember(self._newest_loss, (lost.broker, lost.incarnation), held, KEPT_MAX)
            held.by[change.broker] = None
            held.bundles.add(judgement.key)
            held.repairs.add((record.partition, record.offset))
            held.newest_ms = record.timestamp_ms
            # A destination of a repair may be lost before it takes the bundle.
            self._repairing.setdefault(judgement.key.name, []).append(held)
        if judgement.key.owner is not None:
            for repaired in self._repairing.pop(judgement.key.name, ()):
                repaired.served.add(judgement.key.name)
        self._note_decline(record, change, judgement.key)
        self._note_deletion(record, change, judgement.key)
        self._note_gaps()

    def _note_writer(self, record: RecordRead, judgement: Judgement) -> None:
        """Partitions come one after the other: what a lost process wrote to one may be known before its loss is."""
        process = writing_process(record, judgement)
        if process is None:
            return
        times = self._written_ms.get(process)
        if times is None:
            times = TimesHeard(_TIMES_MAX)
            remember(self._written_ms, process, times, _WRITERS_MAX)
        times.note(record.timestamp_ms)

    def _note_decline(self, record: RecordRead, change: Record, key: KeyState) -> None:
        if key.is_namespace:
            self.declines.forget_namespace(key.namespace)
        elif key.owner is not None or key.state is State.DELETED:
            self.declines.forget([key.name])
        # The owner that cannot resume a bundle releases it by the same action.
        if change.from_ is not None and not change.forced and change.text("action") == Action.DECLINE:
            process, since_ms = (change.from_, change.incarnation), self.open_gap_since_ms(key.name)
            self.declines.note(key.name, process, change.text("reason"), record.timestamp_ms, since_ms)

    def _note_deletion(self, record: RecordRead, change: Record, key: KeyState) -> None:
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
                operation,
                self._bundles.pop(key.namespace, owned),
                owned,
                change.broker,
            )
            remember(self._deletions, (key.namespace, record.offset), deletion, KEPT_MAX)

    @property
    def deletions(self) -> list[NamespaceDeletion]:
        """Deleted namespaces that were not created again, the newest last."""
        newest = {deletion.namespace: deletion for deletion in self._deletions.values()}
        return [deletion for deletion in newest.values() if deletion.namespace not in self._bundles]

    def open_gap_since_ms(self, bundle: str) -> int | None:
        """Log time since which no broker has served a bundle; None where one does, or gaps are not looked for."""
        return None if self._gaps is None else self._gaps.open_since_ms(bundle)

    def _note_gaps(self) -> None:
        if self._gaps is not None:
            for gap in self._gaps.closed:
                self.add_gap(gap)
            self._gaps.closed.clear()  # a display that stays open must not grow

    def add_gap(self, gap: Gap) -> None:
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

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        """Name the keys that a cold start has changed, whose mark was observed already."""
        if self._gaps is not None:
            self._gaps.overruled(cold_start, view)
            self._note_gaps()
        place = view.partition, cold_start.offset
        keys = [state.key for state in cold_start.overruled or ()]
        self.declines.forget(keys)
        if place in self._cold_starts:
            more = f" and {len(keys) - _KEYS_NAMED:,} more" if len(keys) > _KEYS_NAMED else ""
            message = f"{self._cold_starts[place].message}; it changed {', '.join(keys[:_KEYS_NAMED])}{more}"
            self._cold_starts[place] = self._cold_starts[place]._replace(message=message)

    def all(self) -> list[Incident]:
        incidents = list(self._cold_starts.values())
        incidents += [self._of_lost(lost) for lost in self._lost.values()]
        incidents += [
            Incident(count.newest_ms, IncidentKind.DECLINED, count.message) for count in self.declines.counts.values()
        ]
        incidents += [
            Incident(
                item.at_ms, IncidentKind.NAMESPACE_DELETED, item.message(self.requesters.get(item.operation or ""))
            )
            for item in self._deletions.values()
        ]
        others = [gap for gap in self._long.values() if gap.cause is not GapCause.OWNER_LOST or not gap.repaired]
        by_time = sorted(others, key=lambda gap: (gap.start_ms, gap.bundle))
        gaps = (gap_fields(gap) | {"brief": gap.brief} for gap in by_time)
        return incidents + [_of_gaps(group) for group in began_together(gaps, itemgetter("from", "cause"))]

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
            times = self._written_ms.get(process)
            written_ms = None if times is None else times.first_after_ms(lost.taken_ms)
            heard = first_heard_ms(self._writers, process, lost.taken_ms, written_ms)
        if heard is not None:
            later = seconds(heard[0] - lost.last_heard_ms)
            what = "wrote again" if heard[1] is HeardIn.LOG else "was heard again"
            message += (
                f"; it {what} {later} after it was last heard: at most until then it may have served them, "
                "beside their new owners (`statechannel audit overlaps`)"
            )
        return Incident(lost.last_heard_ms, IncidentKind.OWNER_LOST, message, lost=lost.broker)


def _bundles(many: int) -> str:
    return "1 bundle" if many == 1 else f"{many} bundles"


def _of_gaps(gaps: GapGroup) -> Incident:
    """One incident, with the cause in the longest of the gaps."""
    longest, many = gaps.longest, len(gaps.bundles)
    what, length = longest["bundle"], seconds(longest["length_ms"])
    if many > 1:
        what = f"{many} bundles" + (f" of {longest['from']}" if longest["from"] else "")
        shortest = seconds(gaps.shortest_ms or 0)
        length = length if shortest == length else f"{shortest} to {length}"
    cause = longest["brief"] or longest["why"]
    if len(gaps.owners) > 1:
        went = [f"{number} to {owner}" for owner, number in sorted(gaps.owners.items())]
        cause += f" (the longest); {', '.join(went[:-1])} and {went[-1]}"
    return Incident(gaps.start_ms, IncidentKind.GAP, f"no broker served {what} for {length}: {cause}")
