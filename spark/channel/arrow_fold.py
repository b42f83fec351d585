"""The fold between Arrow batches: what `mapInArrow` calls in the Python workers.

Rows come sorted by partition, group, kind of row and offset. What of a record is not judged (headers, time) is handed on as Arrow
holds it; only what the fold looks at becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from spark.channel.fold import FoldPlan, GroupFold, Line, OverruledKey
from spark.core.schemas import ARCHIVE, DIFFERENCE_ROW, FOLD_OUT, LINE, RAW, RECORD_ROW, STATE, STATE_ROW, arrays_of
from statechannel.protocol.view_rows import KeyRow

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
        self._differences: list[OverruledKey] = []

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
