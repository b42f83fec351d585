"""Bundles owned by each broker over time, in a bounded number of buckets. Pure functions over an audit's observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from statechannel.audit.report.time_buckets import NARROWEST_MS, wider, width_for
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View

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
        """Apply one judged record."""
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


def area_fields(areas: Sequence[Area], *, points: int, shown: int) -> dict[str, Any]:
    """The sum of the areas of all partitions, for the report.

    Args:
        points: Maximum number of buckets.
        shown: Maximum number of distinct brokers; the rest is merged.
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
    kept = [owner for owner in ranked if owner != OTHERS][:shown]
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
