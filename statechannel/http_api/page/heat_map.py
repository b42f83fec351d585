"""Heat map of the page: who has which part of the hash ranges, and how often that changes, by column of time. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.http_api.page.bundle_table import BundleStep, ChangeJournal, Holding, LiveBundleTable

ROWS_MAX: Final = 2_048
COLUMNS_MAX: Final = 120
UNASKED: Final = -1
"""No broker has it: it was not looked up, or it waits for the next lookup."""
UNSERVED: Final = -2
"""It is between two owners, or its owner is lost."""
HeatBound = tuple[str, int]
"""A namespace and a lower bound."""
_CHANGES_MAX: Final = 9_999
_OWNERS_MORE: Final = 64
_GROWN: Final = 2
"""A new layout is made once there are this many times the bundles of the last one, or as small a part of them."""


class RowLayout:
    """Which bundles each row has: neighbours by namespace and lower bound, equally many in each row.

    Args:
        within: Namespace and lower bound of the first bundle, and of the first one after the last; None: all of them.

    Attributes:
        names: First bundle of each row.
    """

    def __init__(self, table: LiveBundleTable, within: tuple[HeatBound, HeatBound | None] | None = None) -> None:
        order = sorted(range(len(table.namespaces)), key=table.namespaces.__getitem__)
        self._ranks = array("I", [0] * len(order))
        for rank, number in enumerate(order):
            self._ranks[number] = rank
        parts = [(number, *table.span(number)) for number in order]
        most = ROWS_MAX
        if within is not None:
            most, (start, end) = 2 * ROWS_MAX, within
            parts = [(number, table.place_of(number, start), table.place_of(number, end)) for number in order]
        self.bundles = sum(last - first for _, first, last in parts)
        step = max(1, -(-self.bundles // most))
        self.bounds, self.names = array("Q"), list[str]()
        before = 0
        for number, first, last in parts:
            # A namespace begins a row of its own, unless there are too many of them.
            for at in range(first + (-before % step if len(parts) > most else 0), last, step):
                key = table.keys[at]
                self.bounds.append(self._ranks[number] << 32 | (key & 0xFFFFFFFF))
                held = table.get(key)
                self.names.append("" if held is None else table.name_of(key, held[0]))
            before += last - first
        ends = [
            self._ranks[number] << 32 | (table.keys[last - 1] & 0xFFFFFFFF)
            for number, first, last in parts
            if first < last
        ]
        self._span = None if within is None or not ends else (self.bounds[0], ends[-1])
        self._names_version = table.names_version
        self.bundles_per_row = step

    def row_of(self, key: int) -> int:
        """Row of a bundle; -1: none."""
        number = key >> 32
        if not self.bounds or number >= len(self._ranks):
            return -1
        at = self._ranks[number] << 32 | (key & 0xFFFFFFFF)
        if self._span is not None and not self._span[0] <= at <= self._span[1]:
            return -1
        return max(0, bisect_right(self.bounds, at) - 1)

    def fits(self, table: LiveBundleTable) -> bool:
        """Whether the rows are about equal still."""
        same = table.names_version == self._names_version
        return same and self.bundles <= _GROWN * max(len(table), 1) and len(table) <= _GROWN * max(self.bundles, 8)


class HeatCell(NamedTuple):
    """One row in one column.

    Attributes:
        owners: In pairs the number of a broker, UNASKED or UNSERVED, and how many bundles of the row it has: first
            UNSERVED, so that no merging of bundles hides a gap, then who has most.
        changes: How often, in that time, one of its bundles got another owner: also where it is back at its end.
    """

    owners: tuple[int, ...]
    changes: int

    @property
    def fields(self) -> tuple[int, ...]:
        return *self.owners[:2], self.changes, *self.owners[2:]


class RangeHeatMap:
    """Columns of a layout, the newest last, which is still open.

    Attributes:
        owners: Names of brokers by number; only ever grows: `fits` says when a new map is due.
        first: Number of the oldest column: its time is `first * width_ms`.
        corrections: How often older columns were corrected, as the loss of an owner is known only later.
    """

    def __init__(self, table: LiveBundleTable, layout: RowLayout, width_ms: int, at_ms: int) -> None:
        self.layout = layout
        self.width_ms = width_ms
        self.owners: list[str] = []
        self._numbers: dict[str, int] = {}
        self._counts: list[Counter[int]] = [Counter() for _ in layout.names]
        self._changes = Counter[int]()
        self._columns: deque[list[HeatCell]] = deque(maxlen=COLUMNS_MAX - 1)
        self._open = self._shown = at_ms // width_ms
        self._touched = set(range(len(layout.names)))
        self._stirred = set(self._touched)  # rows whose cell differs from that of the newest whole column
        self._lost: Mapping[str, int] = {}
        # By row: bundles whose owner was lost in the open column, with their next owner.
        self._gaps: dict[int, dict[int, int]] = {}
        self.corrections = 0
        for key, _, holding in table.rows():
            row = layout.row_of(key)
            if row >= 0:
                self._counts[row][self._number(holding)] += 1
        self._owners_at_first = len(self.owners)

    def fits(self, table: LiveBundleTable) -> bool:
        """Whether it need not be made again: the rows are about equal, and most of the brokers are there still."""
        return self.layout.fits(table) and len(self.owners) <= _GROWN * self._owners_at_first + _OWNERS_MORE

    @property
    def first(self) -> int:
        return self._open - len(self._columns)

    def _number(self, holding: Holding) -> int:
        owner = holding.owner
        if owner is None:
            return UNASKED if holding.state is State.UNASSIGNED else UNSERVED
        number = self._numbers.get(owner)
        if number is None:
            number = self._numbers[owner] = len(self.owners)
            self.owners.append(owner)
        return number

    def advance(self, at_ms: int) -> bool:
        """Begin the column of this time; whether that is a new one."""
        column = at_ms // self.width_ms
        if column <= self._open:
            return False
        for _ in range(min(column - self._open, COLUMNS_MAX)):
            # Columns without a change share one list.
            cells = self._columns[-1] if self._columns and not self._stirred else self._cells()
            self._stirred = self._changes.keys() | self._gaps.keys()  # the next cells differ from these
            self._changes.clear()
            for row, gaps in self._gaps.items():
                cells[row] = _unserved(cells[row], Counter(gaps.values()))
                self.corrections += 1
            self._gaps.clear()
            self._columns.append(cells)
        self._open = column
        return True

    def take(self, step: BundleStep) -> None:
        """Count a change."""
        row = self.layout.row_of(step.key)
        if row < 0:
            return
        counts, lost, heard_ms = self._counts[row], step.note.lost, step.note.last_heard_ms
        if lost is not None and heard_ms is not None:
            self._correct(lost, heard_ms, [row])
            self._gaps.setdefault(row, {})[step.key] = UNSERVED
        if step.after is not None and step.key in self._gaps.get(row, ()):
            self._gaps[row][step.key] = self._number(step.after)
        if step.before is not None:
            counts[self._number(step.before)] -= 1
        if step.after is not None:
            counts[self._number(step.after)] += 1
        if step.before is not None and step.after is not None and step.after.owner not in (None, step.before.owner):
            self._changes[row] += 1  # a hand-over is one change, whatever lies between the owners
        self._touched.add(row)
        self._stirred.add(row)

    def document(self) -> dict[str, Any]:
        """All of it: of each column only the cells that differ from the column before, or had changes."""
        columns: list[list[list[int]]] = []
        last: Sequence[HeatCell | None] = [None] * len(self._counts)
        for cells in (*self._columns, self._cells()):
            columns.append(_differing(last, cells))
            last = cells
        return {
            "width_ms": self.width_ms,
            "first": self.first,
            "rows": self.layout.names,
            "bundles_per_row": self.layout.bundles_per_row,
            "bundles": self.layout.bundles,
            "owners": self.owners,
            "columns": columns,
        }

    def changed(self) -> dict[str, Any] | None:
        """The cells of the newest column that changed since the last call; None: no change, and no new column."""
        if not self._touched and self._shown == self._open:
            return None
        self._shown = self._open
        cells = [[row, *self._cell(row).fields] for row in sorted(self._touched)]
        self._touched.clear()
        return {"column": self._open, "cells": cells}

    def _cells(self) -> list[HeatCell]:
        if not self._columns:
            return [self._cell(row) for row in range(len(self._counts))]
        cells = list(self._columns[-1])
        for row in self._stirred:
            cells[row] = self._cell(row)
        return cells

    def _cell(self, row: int) -> HeatCell:
        counts = self._counts[row]
        for name in self._lost:
            number = self._numbers.get(name)
            if number is not None and counts[number]:
                counts = counts.copy()
                counts[UNSERVED] += counts.pop(number)
        return HeatCell(_in_order(counts), min(self._changes[row], _CHANGES_MAX))

    def lose(self, brokers: Mapping[str, int]) -> None:
        """These are lost, no others, each since it was last heard: since then no broker serves their bundles."""
        if brokers.keys() != self._lost.keys():
            for name in brokers.keys() - self._lost.keys():
                self._correct(name, brokers[name], range(len(self._counts)))
            self._lost = brokers
            self._stirred = set(range(len(self._counts)))
            self._touched = set(self._stirred)

    def _correct(self, owner: str, since_ms: int, rows: Sequence[int]) -> None:
        """Older columns of these rows name an owner that was lost then."""
        number = self._numbers.get(owner, UNASKED)
        for at in range(max(0, since_ms // self.width_ms - self.first), len(self._columns)):
            if wrong := [row for row in rows if number >= 0 and number in self._columns[at][row].owners[::2]]:
                cells = list(self._columns[at])
                for row in wrong:
                    cells[row] = _unserved(cells[row], {number: self.layout.bundles_per_row})
                self._columns[at], self.corrections = cells, self.corrections + 1


def _in_order(counts: Mapping[int, int]) -> tuple[int, ...]:
    known = sorted((owner != UNSERVED, -bundles, owner) for owner, bundles in counts.items() if bundles > 0)
    return tuple(chain.from_iterable((owner, -bundles) for _, bundles, owner in known)) or (UNASKED, 0)


def _unserved(cell: HeatCell, bundles: Mapping[int, int]) -> HeatCell:
    """The same where that number of bundles of these owners was not served."""
    counts = Counter(dict(zip(cell.owners[::2], cell.owners[1::2], strict=True)))
    for owner, number in bundles.items():
        if owner != UNSERVED:
            taken = min(number, counts[owner])
            counts[owner] -= taken
            counts[UNSERVED] += taken
    return cell._replace(owners=_in_order(counts))


def _differing(last: Sequence[HeatCell | None], cells: Sequence[HeatCell]) -> list[list[int]]:
    if last is cells:
        return []
    return [
        [row, *cell.fields]
        for row, (before, cell) in enumerate(zip(last, cells, strict=True))
        if cell.changes or before is None or before.owners != cell.owners
    ]


def heat_map_of(
    journal: ChangeJournal,
    width_ms: int,
    now_ms: int,
    *,
    until: int | None = None,
    losses: Sequence[tuple[int, Mapping[str, int]]] = (),
    within: tuple[HeatBound, HeatBound | None] | None = None,
) -> RangeHeatMap:
    """The map of the changes that a journal has.

    Args:
        now_ms: End of the newest column.
        until: Number of the last change that is taken; None: all.
        losses: The brokers that are lost from each time on, the oldest first.
    """
    layout = RowLayout(journal.table, within)
    before = journal.as_of(journal.whole_from)
    first_ms = journal.steps[0].at_ms if journal.steps else now_ms
    heat = RangeHeatMap(journal.table if before is None else before, layout, width_ms, min(first_ms, now_ms))
    due = deque(losses)

    def advance(at_ms: int) -> None:
        while due and due[0][0] <= at_ms:
            since_ms, brokers = due.popleft()
            heat.advance(since_ms)
            heat.lose(brokers)
        heat.advance(at_ms)

    for step in journal.steps:
        if until is not None and step.place > until:
            break
        advance(step.at_ms)
        heat.take(step)
    advance(now_ms)
    return heat
