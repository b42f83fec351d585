"""Charts and tables of a report, in bounded memory: bundles by owner, gaps in service, rejected records over time. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from statechannel.audit.gap_list import GapSums
from statechannel.audit.gaps import Gap, GapCause, Gaps, gap_fields
from statechannel.audit.rejections import Rejections, rejected_document
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import MEANING, REJECTIONS, Verdict
from statechannel.protocol.view import Judgement, View


class TimeCounts:
    """Counts events, and the longest of them, by bucket of time; buckets become wider as the span grows.

    Args:
        points: Maximum number of buckets, at least 2.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._width_ms = NARROWEST_MS
        self._buckets: dict[int, tuple[int, int]] = {}
        self._span: tuple[int, int] | None = None

    def add(self, at_ms: int, length_ms: int = 0) -> None:
        first, last = self._span or (at_ms, at_ms)
        self._span = min(first, at_ms), max(last, at_ms)
        width_ms = width_for(*self._span, self._points, self._width_ms)
        while self._width_ms < width_ms:
            self._widen(wider(self._width_ms))
        self._put(self._buckets, at_ms // self._width_ms, 1, length_ms)

    def _widen(self, width_ms: int) -> None:
        times = width_ms // self._width_ms
        merged: dict[int, tuple[int, int]] = {}
        for index, (count, longest) in self._buckets.items():
            self._put(merged, index // times, count, longest)
        self._buckets, self._width_ms = merged, width_ms

    @staticmethod
    def _put(buckets: dict[int, tuple[int, int]], index: int, count: int, longest: int) -> None:
        held = buckets.get(index, (0, 0))
        buckets[index] = held[0] + count, max(held[1], longest)

    def fields(self) -> dict[str, Any]:
        """Width, and by the first millisecond of each bucket: number, and the longest."""
        rows = [[index * self._width_ms, *held] for index, held in sorted(self._buckets.items())]
        return {"width_ms": self._width_ms, "rows": rows}


def shown(text: str | None, most: int = 160) -> str | None:
    """Foreign text for display: without control and bidirectional characters, truncated."""
    if text is None:
        return None
    cut = text if len(text) <= most else f"{text[: most - 1]}\u2026"
    return cut.translate(_HIDDEN)


def _hidden() -> dict[int, str]:
    spans: Iterable[range] = (
        range(0x20),
        range(0x7F, 0xA0),
        range(0x200B, 0x2010),
        range(0x2028, 0x202F),
        range(0x2060, 0x2070),
        range(0xD800, 0xE000),
        range(0xFEFF, 0xFF00),
    )
    return {code: "\ufffd" for span in spans for code in span}


_HIDDEN = _hidden()


_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# Each divides the next, so that what was summed up by one can be summed up further by the next.
_WIDTHS_MS = (
    1,
    10,
    100,
    500,
    _SECOND,
    5 * _SECOND,
    10 * _SECOND,
    30 * _SECOND,
    _MINUTE,
    5 * _MINUTE,
    10 * _MINUTE,
    30 * _MINUTE,
    _HOUR,
    2 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
)
NARROWEST_MS = _WIDTHS_MS[0]


def wider(width_ms: int) -> int:
    """The next width, a multiple of this one; 0 is the initial width."""
    for candidate in _WIDTHS_MS:
        if candidate > width_ms:
            return candidate
    return width_ms * 2


def width_for(first_ms: int, last_ms: int, most: int, width_ms: int = NARROWEST_MS) -> int:
    """The narrowest width by which this span fits into the number of buckets.

    Args:
        most: Number of buckets, at least 2: a span may lie across a bound of any two.
        width_ms: Where to begin.
    """
    while last_ms // width_ms - first_ms // width_ms >= most:
        width_ms = wider(width_ms)
    return width_ms


OTHERS = "(others)"
"""Brokers beyond the limit. Not a valid broker id, because of the brackets."""


class Area:
    """Bundles by owner over time: those that the audit counts as owned (Assigned, Releasing, Splitting).

    A bucket holds, for each broker, the sum over its bundles of the milliseconds that it owned them within the bucket.

    Args:
        points: Maximum number of buckets, at least 2.
        brokers: Maximum number of distinct brokers; the rest is merged.

    Attributes:
        width_ms: Of a bucket; they begin at multiples of it.
        owned: Bundles by broker, as of now.
        first_ms, now_ms: Log time of the first record, and the newest time so far.
    """

    def __init__(self, points: int, brokers: int = 200) -> None:
        self._points = points
        self._brokers = brokers
        self.width_ms = NARROWEST_MS
        self.owned: Counter[str] = Counter()
        self.first_ms: int | None = None
        self.now_ms = 0
        self._known: set[str] = set()
        self._since_ms: dict[str, int] = {}
        self._sums: dict[int, dict[str, int]] = {}
        self._owner: dict[KeyState, str] = {}

    def joined(self, view: View) -> None:
        """Start from a joining reader's view: its states count from the first record judged after it."""
        for key in view.live():
            if key.owner is not None:
                self._owner[key] = self._name(key.owner)
                self.owned[self._owner[key]] += 1

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        self._pass(record.timestamp_ms)
        key = judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or key is None or key.is_namespace:
            return
        if key.state is State.DELETED:
            self._split(key)
        else:
            self._set(key, key.owner)

    def end(self, now_ms: int) -> None:
        """End of the log: owned bundles were owned until this moment."""
        if self.first_ms is None:
            return
        self._pass(now_ms)
        for broker in list(self._since_ms):
            self._advance(broker)

    def sums(self, width_ms: int) -> Iterator[tuple[int, dict[str, int]]]:
        """Bundle-milliseconds by broker, by the first millisecond of buckets of that width, which may repeat."""
        for index, sums in self._sums.items():
            yield index * self.width_ms // width_ms * width_ms, sums

    def _name(self, broker: str) -> str:
        if broker not in self._known and len(self._known) >= self._brokers:
            return OTHERS
        self._known.add(broker)
        return broker

    def _pass(self, now_ms: int) -> None:
        if self.first_ms is None:
            self.first_ms = self.now_ms = now_ms
            self._since_ms = dict.fromkeys(self.owned, now_ms)
        # The log's clock may step back when its leader moves.
        self.now_ms = max(self.now_ms, now_ms)
        width_ms = width_for(self.first_ms, self.now_ms, self._points, self.width_ms)
        while self.width_ms < width_ms:
            self._widen(wider(self.width_ms))

    def _widen(self, width_ms: int) -> None:
        times = width_ms // self.width_ms
        merged: dict[int, dict[str, int]] = {}
        for index, sums in self._sums.items():
            row = merged.setdefault(index // times, {})
            for broker, sum_ms in sums.items():
                row[broker] = row.get(broker, 0) + sum_ms
        self._sums, self.width_ms = merged, width_ms

    def _split(self, key: KeyState) -> None:
        owner = key.from_
        self._set(key, None)
        if key.ring is None or key.bounds is None:
            return
        for lower in key.bounds[:-1]:
            child = key.ring.live.get(lower)
            if child is not None:
                self._set(child, owner)

    def _set(self, key: KeyState, owner: str | None) -> None:
        before = self._owner.get(key)
        after = None if owner is None else self._name(owner)
        if before == after:
            return
        if before is not None:
            self._advance(before)
            self.owned[before] -= 1
            del self._owner[key]
        if after is not None:
            self._advance(after)
            self.owned[after] += 1
            self._owner[key] = after

    def _advance(self, broker: str) -> None:
        """Add the time that the broker has owned bundles since its last update."""
        at_ms, count = self._since_ms.get(broker, self.now_ms), self.owned[broker]
        self._since_ms[broker] = self.now_ms
        while count and at_ms < self.now_ms:
            index = at_ms // self.width_ms
            until_ms = min(self.now_ms, (index + 1) * self.width_ms)
            row = self._sums.setdefault(index, {})
            row[broker] = row.get(broker, 0) + count * (until_ms - at_ms)
            at_ms = until_ms


def area_fields(areas: Sequence[Area], *, points: int, brokers: int) -> dict[str, Any]:
    """The sum of the areas of all partitions, for the report.

    Args:
        points: Maximum number of buckets.
        brokers: Maximum number of distinct brokers; the rest is merged.
    """
    begun = [area for area in areas if area.first_ms is not None]
    first_ms = min((area.first_ms for area in begun if area.first_ms is not None), default=0)
    last_ms = max((area.now_ms for area in begun), default=0)
    width_ms = width_for(first_ms, last_ms, points, max((area.width_ms for area in begun), default=NARROWEST_MS))
    rows: dict[int, Counter[str]] = {}
    owned: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for area in areas:
        owned.update(area.owned)
        for at, sums in area.sums(width_ms):
            rows.setdefault(at, Counter()).update(sums)
            total.update(sums)
    ranked = sorted(
        owned.keys() | total.keys(), key=lambda owner: (owner == OTHERS, -owned[owner], -total[owner], owner)
    )
    kept = [owner for owner in ranked if owner != OTHERS][:brokers]
    rest = [owner for owner in ranked if owner not in set(kept)]
    span_ms = last_ms - first_ms
    groups = [(owner, [owner]) for owner in kept] + ([(OTHERS, rest)] if rest else [])
    return {
        "first_ms": first_ms,
        "last_ms": last_ms,
        "width_ms": width_ms,
        "brokers": [
            {
                "name": name,
                "end": sum(owned[owner] for owner in group),
                "mean": round(sum(total[owner] for owner in group) / span_ms, 3) if span_ms else None,
            }
            for name, group in groups
        ],
        "rows": [
            [
                at,
                *(
                    round(sum(row[owner] for owner in group) / _covered_ms(at, width_ms, first_ms, last_ms), 3)
                    for _, group in groups
                ),
            ]
            for at, row in sorted(rows.items())
        ],
    }


def _covered_ms(at: int, width_ms: int, first_ms: int, last_ms: int) -> int:
    """The part of a bucket that the log covers: the first and last ones are partial."""
    return max(1, min(at + width_ms, last_ms) - max(at, first_ms))


class GapsFound:
    """Adds up gaps as they end.

    Args:
        kept: Number of longest gaps that are kept in full.
        points: Number of buckets on the axis of time.

    Attributes:
        finder: Observer of judged and of leniently read records.
        by_bundle: Number, and the sum of the lengths.
    """

    def __init__(self, kept: int, points: int) -> None:
        self.finder = Gaps(self._take)
        self._kept = kept
        self._longest: list[tuple[int, int, Gap]] = []
        self._number = 0
        self._times = TimeCounts(points)
        self._sums = GapSums()
        self._by_cause: Counter[tuple[str, str]] = Counter()
        self._sum_by_cause_ms: Counter[str] = Counter()
        self.by_bundle: dict[str, list[int]] = {}

    def _take(self, gap: Gap) -> None:
        if not gap.certain:
            return
        self._number += 1
        length_ms = gap.length_ms or 0
        self._sums.take(gap_fields(gap))
        self._by_cause[gap.bundle.rpartition("/")[0], gap.cause.value] += 1
        self._sum_by_cause_ms[gap.cause.value] += length_ms
        self._times.add(gap.start_ms, length_ms)
        bundle = self.by_bundle.setdefault(gap.bundle, [0, 0])
        bundle[0] += 1
        bundle[1] += length_ms
        if gap.length_ms is None:
            return
        heapq.heappush(self._longest, (gap.length_ms, -self._number, gap))
        if len(self._longest) > self._kept:
            heapq.heappop(self._longest)

    def end(self) -> list[Gap]:
        """End of the log: open gaps stay open. To be called once."""
        still = [gap for gap in self.finder.open() if gap.certain]
        for gap in still:
            self._take(gap)
        return still

    def fields(self, still: list[Gap], namespaces: int) -> dict[str, Any]:
        """Fields of the report.

        Args:
            still: Those that are open.
            namespaces: Maximum number of namespaces, those with the longest gaps.
        """
        longest = [gap for _, _, gap in heapq.nlargest(max(0, self._kept - len(still)), self._longest)]
        kept = sorted([*still[: self._kept], *longest], key=lambda gap: (gap.start_ms, gap.partition, gap.start_offset))
        ranked = sorted(self._sums.rows(), key=lambda row: (-row["open"], -row["worst_ms"], row["namespace"]))
        causes: Counter[str] = Counter()
        for (_, cause), count in self._by_cause.items():
            causes[cause] += count
        return {
            "all": self._number,
            "open": len(still),
            "by_cause": [
                {"cause": cause, "count": count, "sum_ms": self._sum_by_cause_ms[cause]}
                for cause, count in sorted(causes.items())
            ],
            "namespaces_all": len(ranked),
            "namespaces": [row | {"causes": self._causes(row["namespace"])} for row in ranked[:namespaces]],
            "rows": [_gap_row(gap) for gap in kept],
            "times": self._times.fields(),
        }

    def _causes(self, namespace: str) -> str:
        counts = {cause.value: self._by_cause[namespace, cause.value] for cause in GapCause}
        return ", ".join(f"{cause} {count}" for cause, count in counts.items() if count)


def _gap_row(gap: Gap) -> dict[str, Any]:
    return {name: shown(value) if isinstance(value, str) else value for name, value in gap_fields(gap).items()}


_REJECTED = frozenset(REJECTIONS)
_ORDER = {reason.value: number for number, reason in enumerate(REJECTIONS)}
NOBODY = "(cannot be decoded)"
"""Writer of undecodable records. Not a valid broker id, because of the brackets."""


class RejectedFound:
    """Counts rejected records over time.

    Args:
        points: Number of buckets on the axis of time.
    """

    def __init__(self, points: int) -> None:
        self._rejections = Rejections()
        self._times = TimeCounts(points)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        if judgement.verdict in _REJECTED:
            self._rejections.observe(record, judgement)
            self._times.add(record.timestamp_ms)

    def fields(self, writers: int) -> dict[str, Any]:
        """Fields of the report.

        Args:
            writers: Maximum number of listed writers, those with the most records.
        """
        document = rejected_document(self._rejections)
        reasons: dict[str | None, Counter[str]] = {}
        for group in document["groups"]:
            reasons.setdefault(group["writer"], Counter())[group["reason"]] += group["records"]
        by_reason = sorted(document["by_reason"], key=lambda row: _ORDER[row["reason"]])
        return {
            "all": document["records"],
            "by_reason": [row | {"meaning": MEANING[Verdict(row["reason"])]} for row in by_reason],
            "writers_all": len(document["by_writer"]),
            "by_writer": [
                row | {"writer": shown(row["writer"]) or NOBODY, "reasons": _listed(reasons[row["writer"]])}
                for row in document["by_writer"][:writers]
            ],
            "newest": [_rejected_row(row) for row in document["newest"]],
            "times": self._times.fields(),
        }


def _rejected_row(rejected: dict[str, Any]) -> dict[str, Any]:
    winner = rejected["winner"]
    row = {name: shown(value) if isinstance(value, str) else value for name, value in rejected.items()}
    return row | {
        "meaning": MEANING[Verdict(rejected["reason"])],
        "winner": None
        if winner is None
        else f"{winner['state']} v{winner['version']} of {shown(winner['by']) or 'an assert'}",
    }


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: _ORDER[item[0]]))
