"""The records of one namespace, judged from where the snapshot before them stands. Pure: the fold itself is the brokers'.

A group is what must be folded together: one namespace in one partition (keys of no known form make groups of their own). What
crosses groups is settled before, in `plan.py`, and comes as a `FoldPlan`.

Python workers fold between Arrow batches: rows come sorted by partition, group, kind of row and offset. What of a record is not
judged (headers, time) is handed on as Arrow holds it; only what the fold looks at becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from spark.core.schemas import ARCHIVE, DIFFERENCE_ROW, FOLD_OUT, LINE, RAW, RECORD_ROW, STATE, STATE_ROW, arrays_of
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.keys import KeyState
from statechannel.protocol.overruling import OverruledState, differences, lines_of
from statechannel.protocol.view import Judgement, View
from statechannel.protocol.view_rows import KeyRow, dump, restore
from statechannel.replay.survey import STRICT, ReadFacts


class FoldPlan(NamedTuple):
    """How the records of one partition are read in one batch.

    Attributes:
        position: Offset of the first record that is new; older ones are read only where a join needs them.
        joins: The view is rebuilt from the whole log, as a joining broker does; else it goes on from the snapshot.
        facts: What a join takes without a verdict, and where a newer format stops.
        switch: Offset of the heartbeat that vouched for a cold start: through it the archive has the verdicts of the view before,
            which had no gap. -1: the join follows none.
        keeps: No member has vouched yet for what was joined: the view stays as it is, and records get no verdict.
    """

    partitions: int
    position: int = 0
    joins: bool = False
    facts: ReadFacts = STRICT
    switch: int = -1
    keeps: bool = False

    @property
    def cold_start(self) -> bool:
        """Whether the join follows a cold start."""
        return self.switch >= 0


class Before(NamedTuple):
    """A key's accepted state before a record; all None where it did not exist, or is unknown."""

    state: str | None = None
    version: int | None = None
    from_: str | None = None
    to: str | None = None
    id: str | None = None


class Line(NamedTuple):
    """The archive's columns of a record beside its bytes and coordinates.

    Attributes:
        verdict: None where the record was taken leniently: a member that joins there has no verdict.
        why: For people, where the verdict does not say it all.
    """

    verdict: str | None = None
    why: str = ""
    kind: str | None = None
    id: str | None = None
    version: int | None = None
    state: str | None = None
    from_: str | None = None
    to: str | None = None
    base: str | None = None
    covers: int | None = None
    forced: bool | None = None
    broker: str | None = None
    incarnation: str | None = None
    action: str | None = None
    operation: str | None = None
    reason: str | None = None
    before: Before = Before()


_LENIENT = Line()
_NOTHING = Before()


class GroupFold:
    """Folds one group: first its rows of the snapshot before, then its records in the order of their offsets."""

    def __init__(self, partition: int, plan: FoldPlan) -> None:
        self._partition = partition
        self._plan = plan
        self._held: list[KeyRow] = []
        self._view: View | None = None
        self._before_join: View | None = None
        self._joiner: Joiner | None = None
        self._at_switch: dict[str, str] | None = None
        self.touched = False

    def hold(self, row: KeyRow) -> None:
        self._held.append(row)

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> Line | None:
        """Take in one record; None for those that are not archived: the old ones, and all from the stop on."""
        plan = self._plan
        if plan.facts.stop is not None and offset >= plan.facts.stop.offset:
            return None
        if plan.keeps:
            return _LENIENT if offset >= plan.position else None
        if not self.touched:
            self._begin()
        if offset > plan.switch:
            self._compare()
        decoded = self._read(offset, key, value)
        if offset < plan.position:
            return None
        if self._before_join is not None and offset <= plan.switch:
            return _judged(self._before_join, offset, key, value)
        return decoded

    def _read(self, offset: int, key: bytes | None, value: bytes | None) -> Line:
        if self._joiner is not None:
            if self._plan.facts.is_lenient(offset):
                self._joiner.read(offset, key, value)
                return _LENIENT
            self._end_join()
        if self._view is None:
            raise RuntimeError("a group has no view after its join")
        return _judged(self._view, offset, key, value)

    def rows(self) -> Iterator[KeyRow]:
        """The group's keys after all of its records."""
        if not self.touched and not self._plan.joins:
            yield from self._held
            return
        if not self.touched:
            self._begin()
        self._end_join()
        self._compare()
        if self._view is not None:
            yield from dump(self._view)

    def differences(self) -> list[OverruledState]:
        """Keys on which the view before a cold start and the one behind it do not agree; to be asked when the fold has ended."""
        if self._before_join is None or self._at_switch is None:
            return []
        return differences(lines_of(self._before_join), self._at_switch)

    def _begin(self) -> None:
        self.touched = True
        plan = self._plan
        held = restore(self._partition, plan.partitions, self._held)
        if not plan.joins:
            self._view = held
            return
        if plan.cold_start:
            self._before_join = held
        if plan.facts.tentative or plan.facts.lenient_to >= 0:
            self._joiner = Joiner(self._partition, plan.partitions)
        else:
            self._view = View(self._partition, plan.partitions)

    def _end_join(self) -> None:
        if self._joiner is None:
            return
        self._view = self._joiner.view()
        self._joiner = None

    def _compare(self) -> None:
        """Keep what the new view holds where it takes over, to be held against the view before."""
        if self._before_join is None or self._at_switch is not None:
            return
        self._end_join()
        if self._view is not None:
            self._at_switch = lines_of(self._view)


def _judged(view: View, offset: int, key: bytes | None, value: bytes | None) -> Line:
    held = view.keys.get(key) if key is not None else None
    before = _NOTHING if held is None or held.state is None else _before(held)
    return _line(view.read(offset, key, value), before)


def _before(key: KeyState) -> Before:
    return Before(str(key.state), key.version, key.from_, key.to, key.accepted_id)


def _line(judgement: Judgement, before: Before) -> Line:
    record = judgement.record
    verdict = judgement.verdict.value
    if record is None:
        return Line(verdict, judgement.why, before=before)
    return Line(
        verdict,
        judgement.why,
        record.kind.value,
        record.id,
        record.version,
        record.state.value,
        record.from_,
        record.to,
        record.base,
        record.covers,
        record.forced,
        record.broker,
        record.incarnation,
        record.text("action"),
        record.text("operation"),
        record.text("reason"),
        before,
    )


# --- between Arrow batches ----------------------------------------------------------------------------------------------

_STATES_IN_A_BATCH = 5_000
Fold = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def fold_with(plans: Mapping[int, FoldPlan]) -> Fold:
    """A function for `mapInArrow` that folds by these plans, one for each partition of the channel."""

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        run = _Run(plans)
        for batch in batches:
            yield from run.take(batch)
        yield from run.end()

    return fold


class _Run:
    """One task: groups one after the other."""

    def __init__(self, plans: Mapping[int, FoldPlan]) -> None:
        self._plans = plans
        self._place: tuple[int, str] | None = None
        self._group: GroupFold | None = None
        self._states: list[tuple[Any, ...]] = []
        self._differences: list[OverruledState] = []

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        columns = {name: batch.column(name) for name in batch.schema.names}
        partitions, groups = columns["partition"].to_pylist(), columns["group"].to_pylist()
        kinds, offsets = columns["row"].to_pylist(), columns["offset"].to_pylist()
        keys, values = columns["key"].to_pylist(), columns["value"].to_pylist()
        held = columns["held"].to_pylist() if STATE_ROW in kinds else []
        lines: list[Line] = []
        kept: list[int] = []
        for index, place in enumerate(zip(partitions, groups, strict=True)):
            if place != self._place:
                self._end_group()
                self._place = place
                self._group = GroupFold(place[0], self._plans[place[0]])
            group = self._group
            if group is None:
                raise RuntimeError("a row came before its group")
            if kinds[index] == STATE_ROW:
                # Behind the partition a struct has the fields of a row, in their order.
                group.hold(KeyRow._make([*held[index].values()][1:]))
                continue
            line = group.read(offsets[index], keys[index], values[index])
            if line is not None:
                lines.append(line)
                kept.append(index)
        if lines:
            yield _records(batch, kept, lines)
        if len(self._states) >= _STATES_IN_A_BATCH:
            yield from self._flush()

    def end(self) -> Iterator[pa.RecordBatch]:
        self._end_group()
        yield from self._flush()

    def _end_group(self) -> None:
        if self._group is None or self._place is None:
            return
        partition = self._place[0]
        self._states.extend((partition, *row) for row in self._group.rows())
        self._differences.extend(self._group.differences())
        self._group = None

    def _flush(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self._states), _STATES_IN_A_BATCH):
            yield _out(STATE_ROW, "state", _struct(STATE, self._states[start : start + _STATES_IN_A_BATCH]))
        self._states = []
        if self._differences:
            schema = FOLD_OUT.field("difference").type
            yield _out(DIFFERENCE_ROW, "difference", _struct(pa.schema(list(schema)), self._differences))
            self._differences = []


def _records(batch: pa.RecordBatch, kept: list[int], lines: list[Line]) -> pa.RecordBatch:
    rows = batch if len(kept) == batch.num_rows else batch.take(pa.array(kept, pa.int64()))
    before = _struct(LINE, [(*line[:-1], *line.before) for line in lines])
    raw = [rows.column(name) for name in RAW.names]
    columns = [*raw, rows.column("group"), *before.flatten()]
    return _out(RECORD_ROW, "record", pa.StructArray.from_arrays(columns, fields=list(ARCHIVE)))


def _struct(schema: pa.Schema, rows: Iterable[tuple[Any, ...]]) -> pa.StructArray:
    return pa.StructArray.from_arrays(arrays_of(rows, schema), fields=list(schema))


def _out(kind: int, name: str, content: pa.StructArray) -> pa.RecordBatch:
    size = len(content)
    columns = [
        pa.array([kind] * size, pa.int32()),
        *(content if field.name == name else pa.nulls(size, field.type) for field in list(FOLD_OUT)[1:]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FOLD_OUT)
