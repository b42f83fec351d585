"""Gaps in service with their causes.

Pure functions over what an audit observes (`RecordRead`, `Judgement`), so that Spark can fold them as well, one partition at
a time. Times are the log's own, milliseconds since 1970. Only strictly judged records have a verdict: of what a joining read
took leniently the final state is known, and the records that the ids connect with it (`statechannel.audit.ownership`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.audit.ownership import SERVED, Trail, Trails, never_served, process_started_ms, splits_of, was_served
from statechannel.engine.proposals import SHUTDOWN
from statechannel.protocol.codec import COLD_START_KEY
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import BETWEEN_OWNERS, Action, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver
from statechannel.stories.bundle import LostOwner, lost_of, repair_reason
from statechannel.stories.incident import seconds
from statechannel.stories.processes import WritersHeard

_BRIEF_MAX = 60
_BEFORE_LOG = "began before the first record judged"
SLOW_RELEASE_MS = 2_000
"""A release that takes this long is named: a broker waits for its hook."""
_NOT_TOLD = "not served since before the first record judged; the log no longer shows whether a broker had served it"


class GapCause(StrEnum):
    """Why a bundle was without a serving owner."""

    TRANSFER = "transfer"
    UNLOAD = "unload"
    DECLINED = (
        "declined"  # the broker that should have taken it declined, or its owner could not serve it and gave it up
    )
    SHUTDOWN = "shutdown"  # its owner shut down, and no other broker could take it, or the one that was to did so, too
    NAMESPACE_DELETED = "namespace-deleted"  # unloaded so that its namespace could be deleted
    OWNER_LOST = "owner-lost"  # a repair, or its next process, says which owner was gone and when it was last heard
    REPAIR = "repair"  # forced, and the record does not say who was lost
    COLD_START = "cold-start"  # a cold start overruled the state by which it was served
    BEFORE_LOG = "before-log"  # it began before the first record judged


class GapEnd(StrEnum):
    """How a gap ended."""

    ASSIGNED = "assigned"
    TAKEN_BACK = "taken-back"
    NAMESPACE_DELETED = "namespace-deleted"
    COLD_START = "cold-start"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Gap:
    """An interval in which no broker served a bundle.

    Attributes:
        start_ms: The accepted Releasing, or when the lost owner was last heard.
        end_ms: The next accepted Assigned; None while open.
        on_request_ms: Part of it in which the bundle was Unassigned after an unload, waiting for a lookup;
            of an open gap only the ended part.
        unassigned_ms: Part of it in which the bundle was Unassigned for any reason: no broker was asked to serve it.
        repaired: A forced record was needed.
        why: A sentence, with the names of the brokers.
        brief: The same with what kept the bundle unserved first, and without a long reason of the change that began it.
        certain: False: the log no longer shows whether the bundle had been served before. Only of gaps `before-log`.
    """

    bundle: str
    cause: GapCause
    partition: int
    start_offset: int
    start_ms: int
    before: str | None
    why: str
    operation: str | None = None
    end: GapEnd = GapEnd.OPEN
    end_offset: int | None = None
    end_ms: int | None = None
    after: str | None = None
    on_request_ms: int = 0
    unassigned_ms: int = 0
    repaired: bool = False
    certain: bool = True
    brief: str = field(default="", compare=False)

    @property
    def length_ms(self) -> int | None:
        return None if self.end_ms is None else max(0, self.end_ms - self.start_ms - self.on_request_ms)


class _Served(NamedTuple):
    """A bundle's owner, and the log time of its last Assigned or Splitting; 0: unknown."""

    owner: str | None
    said_ms: int = 0


@dataclass(slots=True)
class _Open:
    """A gap that has not ended.

    Attributes:
        on_request: It is Unassigned after an unload, and nothing but a lookup is missing.
        declines: How often a broker declined it.
        declined: By whom and why, the last time.
        assigned: Who assigned it then; empty: no broker yet.
        slow: Which broker took long to release it, and how long; empty: none did.
        hand_over: Its owner let it go as it shut down.
    """

    gap: Gap
    state: State
    unassigned_since_ms: int | None = None
    on_request: bool = False
    declines: int = 0
    declined: str = ""
    assigned: str = ""
    slow: str = ""
    hand_over: bool = False

    def so_far(self) -> Gap:
        """The gap, with what happened in it in its sentence."""
        often = f", the last of {self.declines} times" if self.declines > 1 else ""
        declined = f"{self.declined}{often}" if self.declines else ""
        gap = self.gap
        return replace(
            gap,
            why=_joined(gap.why, self.slow, declined, self.assigned),
            brief=_joined(self.slow, declined, gap.brief, self.assigned),
        )


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


class Gaps(JoinObserver):
    """Finds the gaps in service of every bundle. Feed it an audit's observations in log order.

    A bundle that was never served has no gap; a split has none either, since the parent serves until the children do.

    Args:
        ended: Called with each ended gap; then only the sums of ended gaps are kept.
    """

    def __init__(self, ended: Callable[[Gap], None] | None = None) -> None:
        self.closed: list[Gap] = []
        self._ended = self.closed.append if ended is None else ended
        self._open: dict[str, _Open] = {}
        self._served: dict[str, _Served] = {}
        self._unserved: set[str] = set()
        self._trails = Trails()

    def taken(self, record: RecordRead, decoded: Record) -> None:
        self._trails.take(record, decoded)

    def joined(self, view: View, *, sure: bool) -> None:
        """Start from a joining reader's view: owners, and unserved bundles with the time since when."""
        trails, self._trails = self._trails, Trails()
        if not sure:
            return
        splits = splits_of(view)
        created = {key.namespace: key.version for key in view.existing() if key.is_namespace}
        for key in view.live():
            if key.state in SERVED:
                self._served[key.name] = _Served(key.owner, trails.time_ms(key.offset))
            elif key.derived:
                self._unserved.add(key.name)
            else:
                split = splits.get(key.key)
                if split is not None:
                    self._served_since_split(key.name, split, trails)
                self._not_served(key, trails.of(key.key), split, created[key.namespace])

    def _served_since_split(self, bundle: str, split: KeyState, trails: Trails) -> None:
        self._served[bundle] = _Served(split.from_, trails.time_ms(split.offset))

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        """A cold start has changed the states of bundles: it ends gaps, and begins others."""
        place = view.partition, cold_start.offset, cold_start.timestamp_ms
        record = RecordRead(Topic.CHANNEL, *place, COLD_START_KEY, None)
        for bundle, _, _ in cold_start.overruled or ():
            key = view.get(bundle)
            if key is None or key.state in {None, State.DELETED}:
                self._close(bundle, record, GapEnd.COLD_START, None)
                self._served.pop(bundle, None)
                self._unserved.discard(bundle)
            elif key.is_namespace:
                continue
            elif key.state in SERVED:
                self._close(bundle, record, GapEnd.COLD_START, key.owner)
                self._served[bundle] = _Served(key.owner, record.timestamp_ms)
                self._unserved.discard(bundle)
            elif served := self._served.pop(bundle, None):
                why = f"{cold_start.mark.writer} started cold, and took it for {key.state}"
                gap = Gap(bundle, GapCause.COLD_START, *place, served.owner, why, brief=why)
                self._open[bundle] = _Open(gap, key.state)
                self._note_unassigned(record, bundle, key.state, on_request=False)
            elif bundle not in self._open:
                self._unserved.add(bundle)

    def _not_served(self, key: KeyState, trail: Trail, split: KeyState | None, created: int) -> None:
        """The bundle is unserved at the join: follow the records that lead to this state, as far as the log has them."""
        bundle = key.name
        was: State | None = None
        if split is not None and trail and trail[0].decoded.version == split.version + 2:
            was = State.ASSIGNED  # the split itself made the splitter its owner
        for record, change in trail:
            # A late copy of a record stands behind it, and may be all that the cleaner left. The record that is held at a
            # clean join is the accepted one, and so is one that lies right behind what its writer had read.
            held = record.offset == key.offset
            first = change.kind is Kind.PROPOSAL and (held or record.offset == change.covers + 1)
            begins = change.state not in SERVED and bundle not in self._open and bundle not in self._unserved
            known = was is not None or change.state in SERVED
            alone = held and first and change.state is State.RELEASING
            if alone or (known and (first or not begins)):
                self._step(record, change, bundle, was)
            elif not known and never_served(change, split, created):
                self._unserved.add(bundle)
            else:
                self._served.pop(bundle, None)
                self._begun_before(record, change, bundle, certain=known or was_served(change, split))
            was = change.state

    def _step(self, record: RecordRead, change: Record, bundle: str, was: State | None) -> None:
        """Apply an accepted record of one bundle other than a split."""
        if change.forced:
            self._forced(record, change, bundle)
        else:
            self._moved(record, change, bundle, was)

    def _begun_before(self, record: RecordRead, change: Record, bundle: str, *, certain: bool) -> None:
        """A gap that was open when this record was written, or began with a record that the log no longer has."""
        what, before = _BEFORE_LOG, None
        if not change.forced and change.from_ is not None and change.state in BETWEEN_OWNERS:
            before = change.from_
            what = f"{_release_cause(change)[1]}, {_BEFORE_LOG}"
        elif not certain:
            what = _NOT_TOLD
        gap = Gap(
            bundle, GapCause.BEFORE_LOG, record.partition, record.offset, record.timestamp_ms, before, what,
            change.text("operation"), repaired=change.forced, certain=certain,
        )  # fmt: skip
        self._open[bundle] = _Open(gap, change.state)
        if change.state is State.UNASSIGNED and change.kind is Kind.PROPOSAL:
            unloaded = not change.forced and change.text("action") == Action.UNLOAD
            self._open[bundle].unassigned_since_ms = record.timestamp_ms
            self._open[bundle].on_request = unloaded and not _is_shutdown(change)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        if judgement.verdict is not Verdict.ACCEPTED or judgement.record is None or judgement.key is None:
            return
        key, change = judgement.key, judgement.record
        if key.is_namespace:
            self._namespace(record, change, key)
        elif change.state is State.DELETED:
            self._split(record, key)
        else:
            self._step(record, change, key.name, key.was)

    def all(self) -> list[Gap]:
        every = [*self.closed, *self.open()]
        return sorted(every, key=lambda gap: (gap.start_ms, gap.partition, gap.start_offset))

    def open_since_ms(self, bundle: str) -> int | None:
        """Log time at which the open gap of a bundle began; None without one."""
        held = self._open.get(bundle)
        return None if held is None else held.gap.start_ms

    def open(self) -> list[Gap]:
        return [held.so_far() for held in self._open.values()]

    def _namespace(self, record: RecordRead, change: Record, key: KeyState) -> None:
        prefix = f"{key.namespace}/"
        if change.state is State.ACTIVE:
            self._unserved.update(prefix + child for child in key.children or ())
            return
        operation = change.text("operation")
        for bundle in [name for name in self._open if name.startswith(prefix)]:
            held = self._open[bundle]
            if held.gap.cause is GapCause.UNLOAD and operation is not None and held.gap.operation == operation:
                why = f"namespace deleted, {held.gap.why}"
                held.gap = replace(
                    held.gap, cause=GapCause.NAMESPACE_DELETED, why=why, brief="namespace deleted", on_request_ms=0
                )
                held.on_request = False
            self._close(bundle, record, GapEnd.NAMESPACE_DELETED, None)
        for bundle in [name for name in self._served if name.startswith(prefix)]:
            del self._served[bundle]
        self._unserved = {name for name in self._unserved if not name.startswith(prefix)}

    def _split(self, record: RecordRead, key: KeyState) -> None:
        served = self._served.pop(key.name, None)
        owner = key.from_ if served is None else served.owner
        for child in key.children or ():
            self._served[f"{key.namespace}/{child}"] = _Served(owner, record.timestamp_ms)

    def _moved(self, record: RecordRead, change: Record, bundle: str, was: State | None) -> None:
        if change.state in SERVED:
            owner = change.to if change.state is State.ASSIGNED else change.from_
            held = self._open.get(bundle)
            back = held is not None and held.state is State.RELEASING
            if held is None and bundle in self._served:
                self._resumed(record, change, bundle, self._served[bundle])
            self._close(bundle, record, GapEnd.TAKEN_BACK if back else GapEnd.ASSIGNED, owner)
            self._served[bundle] = _Served(owner, record.timestamp_ms)
            self._unserved.discard(bundle)
            return
        if change.state is State.RELEASING:
            self._begin(record, change, bundle, *_release_cause(change), change.from_)
        elif bundle not in self._open and bundle not in self._unserved:
            if _had_owner(change):
                self._begin(record, change, bundle, GapCause.BEFORE_LOG, _BEFORE_LOG, None)
            else:
                self._unserved.add(bundle)
        held = self._open.get(bundle)
        if held is not None:
            self._go_on(held, change, was)
            took_ms = record.timestamp_ms - held.gap.start_ms
            its_own = was is State.RELEASING and change.broker == held.gap.before
            if its_own and took_ms >= SLOW_RELEASE_MS:
                held.slow = f"{change.broker} took {took_ms / 1_000:.1f} s to release it"
        self._note_unassigned(record, bundle, change.state, on_request=was is not State.ASSIGNING)

    @staticmethod
    def _go_on(held: _Open, change: Record, was: State | None) -> None:
        """A step within a gap: a broker declined the bundle, or it is assigned after it had waited Unassigned."""
        if change.state is State.UNASSIGNED and was is State.ASSIGNING:
            reason = change.text("reason")
            if held.gap.cause in (GapCause.TRANSFER, GapCause.UNLOAD):
                all_stop = held.hand_over and reason == SHUTDOWN
                held.gap = replace(held.gap, cause=GapCause.SHUTDOWN if all_stop else GapCause.DECLINED)
            held.declines += 1
            held.declined = f"{change.broker} declined it" + (f" ({reason})" if reason else "")
            held.assigned = ""
        elif change.state is State.ASSIGNING and held.unassigned_since_ms is not None and not held.on_request:
            started_ms = process_started_ms(change.incarnation)
            later = started_ms is not None and started_ms > held.unassigned_since_ms
            held.assigned = (
                f"{change.broker}, which started after that, assigned it" if later else f"{change.broker} assigned it"
            )

    def _resumed(self, record: RecordRead, change: Record, bundle: str, served: _Served) -> None:
        """A new process of the owner resumes; the previous one was gone for a while without a repair."""
        lost = lost_of(change)
        if lost is not None:
            why = f"{lost.broker} was gone, and resumed when it was started again"
            self._begin(record, change, bundle, GapCause.OWNER_LOST, why, served.owner)
            self._missing_since(bundle, lost, served)

    def _forced(self, record: RecordRead, change: Record, bundle: str) -> None:
        held = self._open.get(bundle)
        if held is not None:
            repair = repair_reason(change)
            held.gap = replace(
                held.gap, repaired=True, why=_joined(held.gap.why, repair), brief=_joined(held.gap.brief, repair)
            )
        elif bundle not in self._unserved:
            served = self._served.get(bundle)
            lost = lost_of(change)
            cause = GapCause.REPAIR if lost is None else GapCause.OWNER_LOST
            before = served.owner if served is not None else None if lost is None else lost.broker
            self._begin(record, change, bundle, cause, repair_reason(change), before)
            if lost is not None:
                self._missing_since(bundle, lost, served)
            self._open[bundle].gap = replace(self._open[bundle].gap, repaired=True)
        self._note_unassigned(record, bundle, change.state, on_request=False)

    def _missing_since(self, bundle: str, lost: LostOwner, served: _Served | None) -> None:
        """A lost owner cannot have been missing before its last record."""
        gap = self._open[bundle].gap
        heard_ms = max(lost.last_heard_ms, served.said_ms if served is not None else 0)
        self._open[bundle].gap = replace(gap, start_ms=min(gap.start_ms, heard_ms))

    def _begin(
        self, record: RecordRead, change: Record, bundle: str, cause: GapCause, why: str, before: str | None
    ) -> None:
        self._served.pop(bundle, None)
        if bundle in self._open:
            return
        reason = change.text("reason") if cause is not GapCause.SHUTDOWN else None
        self._open[bundle] = _Open(
            Gap(
                bundle=bundle,
                cause=cause,
                partition=record.partition,
                start_offset=record.offset,
                start_ms=record.timestamp_ms,
                before=before,
                why=why if reason is None else f"{why} ({reason})",
                brief=why if reason is None or len(reason) > _BRIEF_MAX else f"{why} ({reason})",
                operation=change.text("operation"),
            ),
            change.state,
            hand_over=_hands_over(change),
        )

    def _note_unassigned(self, record: RecordRead, bundle: str, state: State, *, on_request: bool) -> None:
        """Time Unassigned is on request after an unload, not after a broker declined, shut down or was lost."""
        held = self._open.get(bundle)
        if held is None:
            return
        self._end_waiting(held, record)
        held.state = state
        if state is State.UNASSIGNED:
            held.unassigned_since_ms = record.timestamp_ms
            held.on_request = on_request and held.gap.cause not in (GapCause.DECLINED, GapCause.SHUTDOWN)

    @staticmethod
    def _end_waiting(held: _Open, record: RecordRead) -> None:
        if held.unassigned_since_ms is None:
            return
        waited_ms = max(0, record.timestamp_ms - held.unassigned_since_ms)
        held.gap = replace(
            held.gap,
            unassigned_ms=held.gap.unassigned_ms + waited_ms,
            on_request_ms=held.gap.on_request_ms + (waited_ms if held.on_request else 0),
        )
        held.unassigned_since_ms = None

    def _close(self, bundle: str, record: RecordRead, end: GapEnd, owner: str | None) -> None:
        held = self._open.pop(bundle, None)
        if held is None:
            return
        self._end_waiting(held, record)
        end_ms = max(record.timestamp_ms, held.gap.start_ms)
        self._ended(replace(held.so_far(), end=end, end_offset=record.offset, end_ms=end_ms, after=owner))


def _release_cause(change: Record) -> tuple[GapCause, str]:
    """Cause of the gap that an accepted Releasing begins, with its description."""
    source, to = change.from_, change.to
    if to is not None:
        return GapCause.TRANSFER, f"transfer from {source} to {to}"
    if change.text("action") == Action.DECLINE:
        return GapCause.DECLINED, f"{source} gave it up"
    if _is_shutdown(change):
        return GapCause.SHUTDOWN, f"{source} shut down, and no other broker could take it"
    return GapCause.UNLOAD, f"unload from {source}"


def _is_shutdown(change: Record) -> bool:
    """Whether an owner that shuts down lets a bundle go that no other broker can take."""
    return change.to is None and _hands_over(change)


def _hands_over(change: Record) -> bool:
    """Whether an owner that shuts down lets a bundle go."""
    return change.from_ == change.broker and change.text("reason") == SHUTDOWN


def _had_owner(record: Record) -> bool:
    """Whether the first record seen of a bundle shows an earlier owner that had released it."""
    if record.state is State.ASSIGNING:
        return record.from_ is not None
    return record.text("action") != Action.DECLINE


def gap_fields(gap: Gap) -> dict[str, Any]:
    return {
        "bundle": gap.bundle,
        "cause": gap.cause.value,
        "partition": gap.partition,
        "start_offset": gap.start_offset,
        "start_ms": gap.start_ms,
        "end": gap.end.value,
        "end_offset": gap.end_offset,
        "end_ms": gap.end_ms,
        "length_ms": gap.length_ms,
        "on_request_ms": gap.on_request_ms,
        "unassigned_ms": gap.unassigned_ms,
        "from": gap.before,
        "to": gap.after,
        "operation": gap.operation,
        "repaired": gap.repaired,
        "why": gap.why,
        "certain": gap.certain,
    }


def with_standstill(gap: Mapping[str, Any], writers: WritersHeard | None) -> dict[str, Any]:
    """Fields of a gap, with how long the process of its lost owner stood still, as far as the registry shows that."""
    lost = gap["cause"] == GapCause.OWNER_LOST and writers is not None
    still_ms = writers.stood_still_ms(gap["from"], gap["start_ms"]) if lost and writers is not None else None
    still = (
        f"; {gap['from']} stood still for {seconds(still_ms)}: its process or event loop did not run"
        if still_ms
        else ""
    )
    return {**gap, "why": f"{gap['why']}{still}", "stood_still_ms": still_ms}
