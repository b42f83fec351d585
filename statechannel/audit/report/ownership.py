"""Owners over time in a report: bundles by owner and how many were not served, and a heat map with a row for each bundle. Pure.

Memory is bounded by the numbers of buckets, brokers, rows and columns.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

from statechannel.audit.gaps import Gap, Gaps
from statechannel.audit.report.time_buckets import NARROWEST_MS, WHOLE_LOG, ReportWindow, TimeSums, width_for
from statechannel.audit.report.timelines import bundles_of, name_of
from statechannel.protocol.bundle import KeyParts
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.record import Record
from statechannel.protocol.states import State
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver
from statechannel.stories.bundle import lost_of, owners_after

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


def shared_file(name: str) -> str:
    """A file of the report and of the live page: colours of themes, signs and brokers; the heat map."""
    return resources.files("statechannel.audit.report").joinpath(name).read_text(encoding="utf-8")


class Area:
    """Bundles by owner over time: those that the audit counts as owned (Assigned, Releasing, Splitting).

    A bucket holds, for each broker, the sum over its bundles of the milliseconds that it owned them within the bucket; and the
    part of it in which it did not serve them: while Releasing, and since a lost owner was last heard.

    Args:
        points: Maximum number of buckets.
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
        self.owned_sums = TimeSums(points)
        self.idle_sums = TimeSums(points)
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
        for key, owner in owners_after(judgement):
            if key is judgement.key:
                self._note_idle(key, judgement.record)
            self._set(key, owner)

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
            self.idle_sums.add_span(broker, max(since_ms, self.first_ms), self.now_ms)

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
        self.owned_sums.add_span(broker, self._since_ms.get(broker, self.now_ms), self.now_ms, self.owned[broker])
        self._since_ms[broker] = self.now_ms


def area_fields(areas: Sequence[Area], unserved: TimeSums, *, points: int, brokers: int) -> dict[str, Any]:
    """The sum of the areas of all partitions, for the report; `points` and `brokers` as of `Area`.

    Args:
        unserved: Bundle-milliseconds within gaps.
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


def _added_up(width_ms: int, parts: Iterable[TimeSums]) -> dict[int, Counter[str]]:
    rows: dict[int, Counter[str]] = {}
    for part in parts:
        for at, sums in part.by_width(width_ms):
            rows.setdefault(at, Counter()).update(sums)
    return rows


def _covered_ms(at: int, width_ms: int, first_ms: int, last_ms: int) -> int:
    """The part of a bucket that the log covers: the first and last ones are partial."""
    return max(1, min(at + width_ms, last_ms) - max(at, first_ms))


# --- heat map ---

NOBODY_OWNS: Final = -1
"""Index of the owner while there is none."""


def heat_names(
    records: Mapping[bytes, int], gaps: Mapping[str, Sequence[int]], wanted: Sequence[KeyParts], most: int
) -> list[str]:
    """Bundles with a row: those with the longest gaps and the most records, ordered by namespace and range.

    Args:
        records: Number of records by key.
        gaps: By bundle: number of gaps, and the sum of their lengths.
        wanted: Only bundles that overlap one of these; empty: all.
        most: Maximum number of rows.
    """
    bundles = {name_of(bundle): bundle for bundle in bundles_of(records, wanted)}
    worst = sorted(bundles, key=lambda name: (-gaps.get(name, (0, 0))[1], -records[name.encode()], name))[:most]
    return sorted(worst, key=lambda name: (bundles[name].namespace, bundles[name].lower, -bundles[name].upper))


class _Row:
    """Owner of one bundle by column, as runs, and the milliseconds of gaps of each column that has any."""

    def __init__(self, at_ms: int) -> None:
        self.owner = NOBODY_OWNS
        self.since_ms = at_ms
        self.runs: list[tuple[int, int]] = []
        self.gaps_ms: dict[int, int] = {}
        self._column = 0
        self._held_ms: Counter[int] = Counter()

    def pass_to(self, until_ms: int, first: int, width_ms: int) -> None:
        """Its owner had it until this moment; moments in log order."""
        while self.since_ms < until_ms:
            column = self.since_ms // width_ms - first
            if column != self._column:
                self.close()
                self._column = column
            end_ms = min(until_ms, (column + first + 1) * width_ms)
            if not self._held_ms and end_ms < until_ms and self.since_ms % width_ms == 0:
                # Complete columns of one owner are one run.
                self._run(column, self.owner)
                end_ms = max(end_ms, until_ms // width_ms * width_ms)
            else:
                self._held_ms[self.owner] += end_ms - self.since_ms
            self.since_ms = end_ms

    def close(self) -> None:
        """End the current column: the owner of most of its time has it."""
        if self._held_ms:
            self._run(self._column, max(self._held_ms, key=lambda owner: (self._held_ms[owner], owner)))
        self._held_ms.clear()

    def _run(self, column: int, owner: int) -> None:
        if not self.runs or self.runs[-1][1] != owner:
            self.runs.append((column, owner))


class HeatMap(JoinObserver):
    """Feed it the records of the bundles' namespaces.

    Args:
        names: Bundles with a row, in order.
        owners: Index of each broker; `others`: of all other ones.
        columns: Maximum number of columns, at least 2.
    """

    def __init__(
        self,
        names: Iterable[str],
        owners: Mapping[str, int],
        others: int,
        first_ms: int,
        last_ms: int,
        columns: int,
        window: ReportWindow = WHOLE_LOG,
    ) -> None:
        self._owners, self._others = owners, others
        self._first_ms, self._last_ms = first_ms, last_ms
        self._window = window
        self.width_ms = width_for(first_ms, last_ms, columns)
        self._first = first_ms // self.width_ms
        self.rows = {name: _Row(first_ms) for name in names}
        self._gaps = Gaps(self._add_gap)

    def taken(self, record: RecordRead, decoded: Record) -> None:
        self._gaps.taken(record, decoded)

    def joined(self, view: View, *, sure: bool) -> None:
        self._gaps.joined(view, sure=sure)
        if sure:
            for key in view.live():
                self._set(key.name, key.owner, self._first_ms)

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        self._gaps.overruled(cold_start, view)
        for overruled in cold_start.overruled or ():
            key = view.get(overruled.key)
            self._set(overruled.key, None if key is None else key.owner, cold_start.timestamp_ms)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        self._gaps.observe(record, judgement)
        if not self._window.is_after(record.timestamp_ms):
            for key, owner in owners_after(judgement):
                self._set(key.name, owner, record.timestamp_ms)

    def _set(self, name: str, owner: str | None, at_ms: int) -> None:
        row = self.rows.get(name)
        if row is not None:
            row.pass_to(min(max(at_ms, row.since_ms), self._last_ms), self._first, self.width_ms)
            row.owner = NOBODY_OWNS if owner is None else self._owners.get(owner, self._others)

    def _add_gap(self, gap: Gap) -> None:
        row = self.rows.get(gap.bundle)
        if row is None or not gap.certain or not self._window.overlaps(gap.start_ms, gap.end_ms):
            return
        end_ms = self._last_ms if gap.end_ms is None else min(gap.end_ms - gap.on_request_ms, self._last_ms)
        at_ms = max(gap.start_ms, self._first_ms)
        while at_ms < end_ms:
            column = at_ms // self.width_ms
            until_ms = min(end_ms, (column + 1) * self.width_ms)
            row.gaps_ms[column - self._first] = row.gaps_ms.get(column - self._first, 0) + until_ms - at_ms
            at_ms = until_ms

    def fields(self) -> dict[str, Any]:
        """Fields of the report; to be called once, at the end of the log.

        Bundles without an owner in all of the time have no row.
        """
        for gap in self._gaps.open():
            self._add_gap(gap)
        rows = []
        for name, row in self.rows.items():
            row.pass_to(self._last_ms, self._first, self.width_ms)
            row.close()
            runs = [list(run) for run in row.runs]
            gaps = [list(cell) for cell in sorted(row.gaps_ms.items())]
            if not gaps and all(owner == NOBODY_OWNS for _, owner in runs):
                continue
            rows.append({"name": name, "runs": runs, "gaps": gaps})
        return {
            "first_ms": self._first * self.width_ms,
            "width_ms": self.width_ms,
            "chosen": len(self.rows),
            "columns": self._last_ms // self.width_ms - self._first + 1,
            "rows": rows,
        }
