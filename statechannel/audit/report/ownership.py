"""Ownership chart of a report: bundles by owner over time, and how many of them were not served, in bounded memory. Pure."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, Final

from statechannel.audit.ownership import lost_of
from statechannel.audit.report.time_buckets import NARROWEST_MS, WHOLE_LOG, ReportWindow, SpanSums, width_for
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View

OTHERS = "(others)"
"""Brokers beyond the limit. Not a valid broker id, because of the brackets."""
COLOURS: Final = 24
"""Number of distinct colours of brokers: twelve hues, each in two shades."""
_LAST_NUMBER = re.compile(r"([0-9]{1,9})[^0-9]*", re.ASCII)


def colours_of(names: Iterable[str]) -> dict[str, int]:
    """A colour for each broker, by its name alone, so that it is the same in every report.

    It is the last number of the name, else a hash. Of several brokers with the same colour, the later names take the next
    free ones.
    """
    colours: dict[str, int] = {}
    for name in sorted(names):
        number = _LAST_NUMBER.search(name[::-1])
        colour = (int(number[1][::-1]) if number else zlib.crc32(name.encode(errors="replace"))) % COLOURS
        if len(colours) < COLOURS:
            while colour in colours.values():
                colour = (colour + 1) % COLOURS
        colours[name] = colour
    return colours


def shared_style() -> str:
    """Colours of the report and of the live page: themes, signs, brokers."""
    return resources.files("statechannel.audit.report").joinpath("shared.css").read_text(encoding="utf-8")


class Area:
    """Bundles by owner over time: those that the audit counts as owned (Assigned, Releasing, Splitting).

    A bucket holds, for each broker, the sum over its bundles of the milliseconds that it owned them within the bucket; and the
    part of it in which it did not serve them: while Releasing, and since a lost owner was last heard.

    Args:
        points: Maximum number of buckets, at least 2.
        brokers: Maximum number of distinct brokers; the rest is merged.
        window: Records after it are ignored; those before it only set the owners at its start.

    Attributes:
        owned: Bundles by broker, as of now.
        first_ms, now_ms: Log time of the first record, and the newest time so far, within the window.
        owned_sums, idle_sums: Bundle-milliseconds by broker: owned, and owned but not served.
    """

    def __init__(self, points: int, brokers: int = 200, window: ReportWindow = WHOLE_LOG) -> None:
        self._brokers = brokers
        self._window = window
        self.owned_sums = SpanSums(points)
        self.idle_sums = SpanSums(points)
        self.owned: Counter[str] = Counter()
        self.first_ms: int | None = None
        self.now_ms = 0
        self._known: set[str] = set()
        self._since_ms: dict[str, int] = {}
        self._owner: dict[KeyState, str] = {}
        self._releasing_since_ms: dict[KeyState, int] = {}

    def joined(self, view: View) -> None:
        """Start from a joining reader's view: its states count from the first record judged after it."""
        for key in view.live():
            if key.owner is not None:
                self._owner[key] = self._name(key.owner)
                self.owned[self._owner[key]] += 1

    def overruled(self, at_ms: int, view: View) -> None:
        """Go on from the states behind a cold start, whose mark was observed already; its view has other objects."""
        if self._window.is_after(at_ms):
            return
        for key, since_ms in self._releasing_since_ms.items():
            self._add_idle(key, since_ms)
        for key in list(self._owner):
            self._set(key, None)
        self._releasing_since_ms.clear()
        for key in view.live():
            self._set(key, key.owner)
            if key.state is State.RELEASING:
                self._releasing_since_ms[key] = self.now_ms

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        if self._window.is_after(record.timestamp_ms):
            return
        self._pass(self._window.clamp(record.timestamp_ms))
        key = judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or key is None or key.is_namespace:
            return
        self._note_idle(key, judgement.record)
        if key.state is State.DELETED:
            self._split(key)
        else:
            self._set(key, key.owner)

    def end(self, now_ms: int) -> None:
        """End of the log: owned bundles were owned until this moment."""
        if self.first_ms is None:
            return
        self._pass(self._window.clamp(now_ms))
        for broker in list(self._since_ms):
            self._advance(broker)
        for key, since_ms in self._releasing_since_ms.items():
            self._add_idle(key, since_ms)

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
        for sums in (self.owned_sums, self.idle_sums):
            sums.reach(self.first_ms)
            sums.reach(self.now_ms)

    def _note_idle(self, key: KeyState, change: Record | None) -> None:
        """To be called before the owner changes."""
        since_ms = self._releasing_since_ms.pop(key, None)
        lost = lost_of(change) if change is not None and change.forced else None
        if lost is not None and self._owner.get(key) == lost.broker:
            since_ms = lost.last_heard_ms if since_ms is None else min(since_ms, lost.last_heard_ms)
        if since_ms is not None:
            self._add_idle(key, since_ms)
        if key.state is State.RELEASING:
            self._releasing_since_ms[key] = self.now_ms

    def _add_idle(self, key: KeyState, since_ms: int) -> None:
        broker = self._owner.get(key)
        if broker is not None and self.first_ms is not None:
            self.idle_sums.add(broker, max(since_ms, self.first_ms), self.now_ms)

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
        self.owned_sums.add(broker, self._since_ms.get(broker, self.now_ms), self.now_ms, self.owned[broker])
        self._since_ms[broker] = self.now_ms


def area_fields(areas: Sequence[Area], unserved: SpanSums, *, points: int, brokers: int) -> dict[str, Any]:
    """The sum of the areas of all partitions, for the report.

    Args:
        unserved: Bundle-milliseconds within gaps.
        points: Maximum number of buckets.
        brokers: Maximum number of distinct brokers; the rest is merged.
    """
    begun = [area for area in areas if area.first_ms is not None]
    first_ms = min((area.first_ms for area in begun if area.first_ms is not None), default=0)
    last_ms = max((area.now_ms for area in begun), default=0)
    least_ms = max((area.owned_sums.width_ms for area in begun), default=NARROWEST_MS)
    width_ms = width_for(first_ms, last_ms, points, max(least_ms, unserved.width_ms))
    rows, idle = (_added_up(width_ms, [getattr(area, sums) for area in areas]) for sums in ("owned_sums", "idle_sums"))
    gaps = _added_up(width_ms, [unserved])
    owned: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for area in areas:
        owned.update(area.owned)
    for sums in rows.values():
        total.update(sums)
    ranked = sorted(
        owned.keys() | total.keys(), key=lambda owner: (owner == OTHERS, -owned[owner], -total[owner], owner)
    )
    kept = [owner for owner in ranked if owner != OTHERS][:brokers]
    rest = [owner for owner in ranked if owner not in set(kept)]
    span_ms = last_ms - first_ms
    groups = [(owner, [owner]) for owner in kept] + ([(OTHERS, rest)] if rest else [])
    colours = colours_of(kept)

    def mean(at: int, sum_ms: int) -> float:
        return round(sum_ms / _covered_ms(at, width_ms, first_ms, last_ms), 3)

    not_served, nothing = [], Counter[str]()
    for at in sorted(idle.keys() | gaps.keys()):
        figures = [mean(at, sum(idle.get(at, nothing)[owner] for owner in group)) for _, group in groups]
        between_ms = gaps.get(at, nothing).total() - idle.get(at, nothing).total()
        if (between := mean(at, max(0, between_ms))) or any(figures):
            not_served.append([at, *figures, between])
    return {
        "first_ms": first_ms,
        "last_ms": last_ms,
        "width_ms": width_ms,
        "brokers": [
            {
                "name": name,
                "colour": colours.get(name),
                "end": sum(owned[owner] for owner in group),
                "mean": round(sum(total[owner] for owner in group) / span_ms, 3) if span_ms else None,
            }
            for name, group in groups
        ],
        "rows": [
            [at, *(mean(at, sum(row[owner] for owner in group)) for _, group in groups)]
            for at, row in sorted(rows.items())
        ],
        "unserved": not_served,
    }


def _added_up(width_ms: int, parts: Iterable[SpanSums]) -> dict[int, Counter[str]]:
    rows: dict[int, Counter[str]] = {}
    for part in parts:
        for at, sums in part.by_width(width_ms):
            rows.setdefault(at, Counter()).update(sums)
    return rows


def _covered_ms(at: int, width_ms: int, first_ms: int, last_ms: int) -> int:
    """The part of a bucket that the log covers: the first and last ones are partial."""
    return max(1, min(at + width_ms, last_ms) - max(at, first_ms))
