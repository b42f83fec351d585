"""Timelines of bundles and namespaces: which keys are shown, and each of their records with the state after it. Pure.

Memory is bounded by the number of keys of the log and of marks on a timeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statechannel.audit.report.charts import shown, shown_row
from statechannel.audit.report.time_buckets import WHOLE_LOG, ReportWindow, wider
from statechannel.protocol.bundle import KeyParts, bundle_key, parse_key
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.states import State
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver
from statechannel.stories.bundle import history_fields, history_line, overlap, owners_after


class TreeSeen:
    """All namespaces and bundles that ever existed, with the number of records on each key.

    Args:
        window: Only records inside are counted.

    Attributes:
        records: By key. Keys that never existed are not in it, even if they have records.
    """

    def __init__(self, window: ReportWindow = WHOLE_LOG) -> None:
        self._window = window
        self.records: dict[bytes, int] = {}

    def joined(self, view: View) -> None:
        for key in view.existing():
            self.records.setdefault(key.key, 0)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        name = record.key
        if name is None:
            return
        key = judgement.key
        if judgement.verdict is Verdict.ACCEPTED and key is not None:
            self.records.setdefault(name, 0)
            for bundle, _ in owners_after(judgement) if key.bounds is not None else ():
                self.records.setdefault(bundle.key, 0)
        if name in self.records and self._window.holds(record.timestamp_ms):
            self.records[name] += 1


def bundles_of(records: Iterable[bytes], wanted: Sequence[KeyParts]) -> list[KeyParts]:
    """The bundles among these keys that overlap one of those; of none of them: all."""
    parts = (parse_key(key) for key in records)
    return [
        bundle
        for bundle in parts
        if bundle is not None
        and not bundle.is_namespace
        and (not wanted or any(overlap(bundle, name) for name in wanted))
    ]


def name_of(parts: KeyParts) -> str:
    return bundle_key(parts.namespace, parts.lower, parts.upper)


def choose(
    records: Mapping[bytes, int], gaps: Mapping[str, Sequence[int]], wanted: Sequence[KeyParts], most: int
) -> list[str]:
    """Keys whose timelines are shown, those with the longest gaps and most records first, each behind its ancestors.

    Args:
        records: Number of records by key.
        gaps: By bundle: number of gaps, and the sum of their lengths.
        wanted: Only keys that overlap one of these; empty: all.
        most: Maximum number of keys.
    """
    by_namespace: dict[str, list[KeyParts]] = {}
    for bundle in bundles_of(records, wanted):
        by_namespace.setdefault(bundle.namespace, []).append(bundle)
    exact = set(wanted)

    def rank(parts: KeyParts) -> tuple[bool, int, int, str, int]:
        name = name_of(parts)
        number, sum_ms = gaps.get(name, (0, 0))
        number_of_records = records[name.encode()] + number
        return parts not in exact, -sum_ms, -number_of_records, parts.namespace, parts.lower

    chosen: dict[str, None] = {}
    for parts in sorted((key for every in by_namespace.values() for key in every), key=rank):
        family = [parts.namespace, *_ancestors(parts, by_namespace[parts.namespace]), name_of(parts)]
        missing = [name for name in family if name not in chosen]
        if len(chosen) + len(missing) <= most:
            chosen.update(dict.fromkeys(missing))
        if len(chosen) >= most:
            break
    return list(chosen)


def _ancestors(parts: KeyParts, known: Iterable[KeyParts]) -> Iterator[str]:
    """Wider ranges that overlap this one, the widest first."""
    width = parts.upper - parts.lower
    wider = [key for key in known if key.upper - key.lower > width and overlap(key, parts)]
    for key in sorted(wider, key=lambda held: (held.lower - held.upper, held.lower)):
        yield name_of(key)


DERIVED = "derived"
"""Replaces the verdict if a state follows from a record of another key."""


class Band(NamedTuple):
    """The accepted state of a key; `state` is None while it does not exist."""

    state: str | None
    owner: str | None
    to: str | None
    version: int
    generation: int | None


_GONE = Band(None, None, None, 0, None)


@dataclass(slots=True)
class TimelineMark:
    """A record on a timeline, or several close together.

    Attributes:
        band: The state after it; None if unchanged.
        verdicts: Number of each.
        facts: Fields of the first of them.
    """

    first_ms: int
    last_ms: int
    offset: int
    last_offset: int
    verdicts: Counter[str]
    band: Band | None
    facts: dict[str, Any] = field(default_factory=dict)

    def take(self, later: TimelineMark) -> None:
        self.last_ms = max(self.last_ms, later.last_ms)
        self.last_offset = later.last_offset
        self.verdicts.update(later.verdicts)
        self.band = later.band or self.band


class KeyTimeline:
    """The timeline of one key.

    Args:
        points: Maximum number of marks; beyond it, the marks of one time bucket are merged.

    Attributes:
        width_ms: Of the buckets; 0: no merging.
        records: Number of marks before merging.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self.width_ms = 0
        self.records = 0
        self.start: Band | None = None
        self.marks: list[TimelineMark] = []

    def add(self, mark: TimelineMark) -> None:
        self.records += 1
        if self.marks:
            mark.first_ms = max(mark.first_ms, self.marks[-1].last_ms)
            mark.last_ms = max(mark.last_ms, mark.first_ms)
        self._put(self.marks, mark)
        while len(self.marks) > self._points:
            self.width_ms = wider(self.width_ms)
            merged: list[TimelineMark] = []
            for held in self.marks:
                self._put(merged, held)
            self.marks = merged

    def _put(self, marks: list[TimelineMark], mark: TimelineMark) -> None:
        if marks and self.width_ms and marks[-1].first_ms // self.width_ms == mark.first_ms // self.width_ms:
            marks[-1].take(mark)
        else:
            marks.append(mark)


class KeyTimelines(JoinObserver):
    """Collects the timelines of the selected keys. Feed it the records of their namespaces.

    Args:
        window: Records before it only set the state at its start.
    """

    def __init__(self, names: Iterable[str], points: int, window: ReportWindow = WHOLE_LOG) -> None:
        self._window = window
        self.lanes = {name: KeyTimeline(points) for name in names}
        self._by_namespace: dict[str, list[str]] = {}
        for name in self.lanes:
            self._by_namespace.setdefault("/".join(name.split("/")[:2]), []).append(name)

    @property
    def namespaces(self) -> list[str]:
        return sorted(self._by_namespace)

    def joined(self, view: View, *, sure: bool) -> None:
        """Start from a joining reader's view: earlier states are unknown."""
        if not sure:
            return
        for key in view.existing():
            lane = self.lanes.get(key.name)
            if lane is not None:
                lane.start = _band(key)

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        """A cold start has changed the states of these keys."""
        note = {"note": f"{shown(cold_start.mark.writer)} started cold: what was accepted before is void"}
        for overruled in cold_start.overruled or ():
            lane, key = self.lanes.get(overruled.key), view.get(overruled.key)
            if lane is not None:
                band = _GONE if key is None else _band(key)
                times = cold_start.timestamp_ms, cold_start.timestamp_ms
                offsets = cold_start.offset, cold_start.offset
                self._put(lane, TimelineMark(*times, *offsets, Counter({DERIVED: 1}), band, dict(note)))

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        if record.key is None:
            return
        key = judgement.key
        accepted = judgement.verdict is Verdict.ACCEPTED and key is not None
        lane = self.lanes.get(record.key.decode(errors="replace"))
        if lane is not None:
            self._put(lane, _mark(record, judgement, _band(key) if accepted and key is not None else None))
        if accepted and key is not None and key.state in {State.ACTIVE, State.DELETED}:
            self._derive(record, judgement, key)

    def _derive(self, record: RecordRead, judgement: Judgement, key: KeyState) -> None:
        derived = {bundle.name: bundle for bundle, _ in owners_after(judgement) if bundle is not key}
        if key.is_namespace:
            for name in self._by_namespace.get(key.namespace, ()):
                if name != key.namespace and name not in derived and self._exists(name):
                    self._add(name, record, judgement, _GONE)
        for name, bundle in derived.items():
            self._add(name, record, judgement, _band(bundle))

    def _exists(self, name: str) -> bool:
        lane = self.lanes[name]
        bands = [mark.band for mark in lane.marks if mark.band is not None]
        last = bands[-1] if bands else lane.start
        return last is not None and last.state is not None

    def _add(self, name: str, record: RecordRead, judgement: Judgement, band: Band) -> None:
        lane = self.lanes.get(name)
        if lane is None:
            return
        mark = _mark(record, judgement, band)
        mark.verdicts = Counter({DERIVED: 1})
        mark.facts["note"] = f"follows from the record of {shown(mark.facts['key'])}"
        self._put(lane, mark)

    def _put(self, lane: KeyTimeline, mark: TimelineMark) -> None:
        if self._window.is_before(mark.first_ms):
            lane.start = mark.band or lane.start
        elif not self._window.is_after(mark.first_ms):
            lane.add(mark)


def _band(key: KeyState) -> Band:
    state = None if key.state is None else key.state.value
    return Band(state, shown(key.owner), shown(key.to), key.version, key.generation)


_PLACE = frozenset({"partition", "offset", "timestamp_ms", "key", "verdict"})
"""Facts of a record that its mark has otherwise."""


def _mark(record: RecordRead, judgement: Judgement, band: Band | None) -> TimelineMark:
    facts = shown_row(history_fields(history_line(record, judgement)))
    at_ms, verdicts = record.timestamp_ms, Counter({judgement.verdict.value: 1})
    return TimelineMark(at_ms, at_ms, record.offset, record.offset, verdicts, band, facts)


def lane_fields(name: str, lane: KeyTimeline, partition: int, parts: Sequence[int]) -> dict[str, Any]:
    """A timeline for the report.

    Args:
        parts: Lower and upper bound of the range; empty for a namespace.
    """
    return {
        "name": name,
        "namespace": "/".join(name.split("/")[:2]),
        "lower": parts[0] if parts else None,
        "upper": parts[1] if parts else None,
        "partition": partition,
        "records": lane.records,
        "width_ms": lane.width_ms,
        "start": None if lane.start is None else list(lane.start),
        "marks": [_mark_fields(mark) for mark in lane.marks],
    }


def _mark_fields(mark: TimelineMark) -> dict[str, Any]:
    number = mark.verdicts.total()
    fields: dict[str, Any] = {
        "ms": mark.first_ms,
        "offset": mark.offset,
        "verdict": next(iter(mark.verdicts)) if len(mark.verdicts) == 1 else "several",
        "rejected": sum(count for verdict, count in mark.verdicts.items() if verdict in _REJECTED_NAMES),
        "band": None if mark.band is None else list(mark.band),
    }
    if number > 1:
        listed = ", ".join(f"{verdict} {count}" for verdict, count in mark.verdicts.most_common())
        return fields | {"n": number, "last_ms": mark.last_ms, "last_offset": mark.last_offset, "note": listed}
    return fields | {name: value for name, value in mark.facts.items() if value is not None and name not in _PLACE}


_REJECTED_NAMES = frozenset(verdict.value for verdict in REJECTIONS)
