"""Heat map of a report: who owned each bundle, and how long it was not served, by column of time. Pure.

Memory is bounded by the number of rows and columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from statechannel.audit.gaps import Gap, Gaps
from statechannel.audit.history import overlap
from statechannel.audit.report.time_buckets import WHOLE_LOG, ReportWindow, width_for
from statechannel.protocol.bundle import KeyParts, parse_key
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.record import Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View

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
    bundles = []
    for key in records:
        parts = parse_key(key)
        if parts is None or parts.is_namespace or (wanted and not any(overlap(parts, name) for name in wanted)):
            continue
        bundles.append((key.decode(), parts))
    bundles.sort(key=lambda bundle: (-gaps.get(bundle[0], (0, 0))[1], -records[bundle[0].encode()], bundle[0]))
    kept = sorted(bundles[:most], key=lambda bundle: (bundle[1].namespace, bundle[1].lower, -bundle[1].upper))
    return [name for name, _ in kept]


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


class HeatMap:
    """Feed it the records of the bundles' namespaces.

    Args:
        names: Bundles with a row, in order.
        owners: Index of each broker.
        others: Index of all other brokers.
        first_ms, last_ms: Span of time.
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
        key = judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or key is None or key.is_namespace:
            return
        at_ms = record.timestamp_ms
        if self._window.is_after(at_ms):
            return
        if key.state is State.DELETED:
            self._set(key.name, None, at_ms)
            for child in self._children(key):
                self._set(child, key.from_, at_ms)
        else:
            self._set(key.name, key.owner, at_ms)

    @staticmethod
    def _children(key: KeyState) -> list[str]:
        if key.ring is None or key.bounds is None:
            return []
        return [child.name for lower in key.bounds[:-1] if (child := key.ring.live.get(lower)) is not None]

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
