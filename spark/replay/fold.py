"""What the Python workers of a replay do: parts of a log, as Arrow batches, to what an audit finds in them.

A task gets all records of some namespaces, in the order of their offsets; the records of several partitions may lie between
each other. It hands back findings as rows of `FINDINGS`, and those of all tasks add up.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark.core.schemas import batch_of
from statechannel.audit import origins, rejections
from statechannel.audit.engine import GapCount, Wants
from statechannel.audit.gap_list import sum_gap_rows
from statechannel.audit.observers import Observers
from statechannel.audit.ownership import MoveCause, move_fields
from statechannel.audit.rejections import LostRaces, as_rows, race_counts, rejected_document
from statechannel.audit.transfer.line import format_verdict
from statechannel.protocol.codec import COLD_START_KEY
from statechannel.protocol.digest import line
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.overruling import OverruledState
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from statechannel.replay.auditor import AuditFindings, findings_of
from statechannel.replay.part import Observer, PartReader
from statechannel.replay.survey import STRICT, ReadFacts

if TYPE_CHECKING:
    from spark.replay.direct import Records, Share

FINDINGS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("content", pa.binary()),
    ]
)
"""What a task hands back. `content` is JSON, but for `line` (of the digest, under its key) and `verdict` (under its offset)."""

PART, LINE, VERDICT, GAPS, HISTORY, OWNED, SPLIT = "part", "line", "verdict", "gaps", "history", "owned", "split"
NOTE_PARTITION: Final = -1
"""Rows of this partition are not records but notes of the source's reader, to be passed on."""

UNMARKED: Final = STRICT._replace(cold_starts=())
"""How a partition without gaps and cold starts is read: a task has not all of its records, and is given the cold starts."""

_LISTED = 2_000
_ROWS_IN_A_BATCH = 5_000
_THRESHOLDS = (200_000, 20, 50)
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class FoldTask:
    """What is to be found.

    Attributes:
        facts: By partition; those that are not named are read strictly, and have no cold start.
        story: By partition, where what happened is known from further back than `facts` say; it is read twice then.
        outside: First offset of each partition that is not looked at, only counted. Those that are not named are read whole.
        verdicts: A row for each verdict, in addition.
        columns: Those that records come with: `timestamp_ms` only where times are looked at.
    """

    partitions: int
    facts: Mapping[int, ReadFacts] = field(default_factory=dict)
    story: Mapping[int, ReadFacts] = field(default_factory=dict)
    outside: Mapping[int, int] = field(default_factory=dict)
    wants: Wants = field(default_factory=Wants)
    verdicts: bool = False
    columns: Sequence[str] = ("partition", "offset", "timestamp_ms", "key", "value")


def work_of(task: FoldTask) -> Work:
    """The function for `mapInArrow` of rows that are records."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _fold(task, batches)

    return work


def direct_work_of(task: FoldTask, read: Callable[[Share, Sequence[str]], Records], shares: Sequence[Share]) -> Work:
    """The function for `mapInArrow` of rows that are numbers of shares."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _fold(task, read(shares[number], task.columns))

    return work


def _fold(task: FoldTask, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)  # what a fold holds lives as long as the fold: looking through it finds nothing
    try:
        yield from _Run(task).all(records)
    finally:
        gc.set_threshold(*before)


class _Part:
    """One partition's records in one task."""

    def __init__(self, partition: int, task: FoldTask, observe: Observer | None) -> None:
        self.partition = partition
        self.records = 0
        self.inside = 0
        self.last = -1
        self.last_inside = -1
        self.in_order = True
        self.outside = task.outside.get(partition)
        self.observers = Observers(task.wants)
        self.marks = 0
        facts = task.facts.get(partition, UNMARKED)
        observers = (self.observers.observe(() if observe is None else (observe,)), self.observers.join_observer)
        story = task.story.get(partition, facts)
        self.reader = PartReader(partition, task.partitions, facts, *(observers if story == facts else ()))
        self.storyteller: PartReader | None = None
        if story != facts and (
            any(observers) or not all(story.is_lenient(item.offset) for item in story.cold_starts or ())
        ):
            self.storyteller = PartReader(partition, task.partitions, story, *observers)

    def take(
        self, offsets: np.ndarray[Any, Any], times: Sequence[int] | None, keys: pa.Array, values: pa.Array
    ) -> None:
        if offsets[0] <= self.last or not bool(np.all(offsets[1:] > offsets[:-1])):
            self.in_order = False
            return
        self.records += len(offsets)
        self.last = int(offsets[-1])
        size = len(offsets) if self.outside is None else int(np.searchsorted(offsets, self.outside))
        if not size:
            return
        self.inside += size
        self.last_inside = int(offsets[size - 1])
        names = bytes_of(keys)
        self.marks += names[:size].count(COLD_START_KEY)
        rows = zip(
            repeat(Topic.CHANNEL),
            repeat(self.partition),
            offsets[:size].tolist(),
            repeat(0) if times is None else times,
            names,
            bytes_of(values),
            strict=False,  # the endless ones end with the others
        )
        if self.storyteller is not None:
            held = list(rows)
            self.storyteller.read(held)
            self.reader.read(held)
        else:
            self.reader.read(rows)

    def findings(self) -> Iterator[tuple[str, int, int, bytes | None, bytes]]:
        part = self.reader.result()
        history = part if self.storyteller is None else self.storyteller.result()
        self.observers.ended(part)
        seen, number = self.observers, self.partition
        findings = findings_of(part)
        body: dict[str, Any] = {
            "records": self.records,
            "inside": self.inside,
            "last": self.last_inside,
            "in_order": self.in_order,
            "verdicts": {verdict.value: count for verdict, count in findings.verdicts.items()},
            "owners": dict(findings.owners),
            "bundles": findings.bundles,
            "namespaces": findings.namespaces,
            "debts": [[key.decode(), debt] for _, key, debt in findings.debts],
            "stop": list(findings.stops.get(number, ())),
            "marks": self.marks,
            "overruled": [
                [item.offset, [list(state) for state in item.overruled]]
                for item in history.cold_starts
                if item.overruled
            ],
        }
        if seen.gaps is not None:
            body["gap_count"] = list(seen.count_gaps())
        if seen.races is not None:
            body["races"] = [[*race, count] for race, count in seen.races.counts.items()]
        if seen.moves is not None:
            body["moves"] = [[*move, count] for move, count in seen.moves.counts.items()]
        gaps = seen.end_gaps()
        body["gap_sums"] = seen.gap_sums.rows()
        if seen.rejections is not None:
            body["rejected"] = as_rows(seen.rejections)
        if seen.origins is not None:
            body["origins"] = origins.as_rows(seen.origins)
        yield PART, number, -1, None, orjson.dumps(body)
        for key in part.view.existing():
            yield LINE, number, -1, key.key, line(key)
        lists: dict[str, Iterable[dict[str, Any]]] = {GAPS: gaps, OWNED: seen.owned}
        if seen.history is not None:
            lists[HISTORY] = seen.history.rows
        for kind, every in lists.items():
            rows = iter(every)
            while some := list(islice(rows, _LISTED)):
                yield kind, number, -1, None, orjson.dumps(some)


class _Run:
    def __init__(self, task: FoldTask) -> None:
        self._task = task
        self._parts: dict[int, _Part] = {}
        self._verdicts: list[tuple[str, int, int, bytes | None, bytes]] = []
        self._notes: list[tuple[str, int, int, bytes | None, bytes]] = []

    def all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            self._take(batch)
            if self._verdicts:
                yield from _rows(self._verdicts)
                self._verdicts.clear()
        yield from _rows(row for part in self._parts.values() for row in part.findings())
        yield from _rows(self._notes)

    def _take(self, batch: pa.RecordBatch) -> None:
        partitions = batch.column("partition")
        bounds = pc.min_max(partitions).as_py()
        if bounds["min"] == bounds["max"]:
            self._take_of(bounds["min"], batch)
            return
        numbers = partitions.to_numpy(zero_copy_only=False)
        for number in np.unique(numbers).tolist():
            self._take_of(number, batch.filter(pa.array(numbers == number)))

    def _take_of(self, partition: int, batch: pa.RecordBatch) -> None:
        if partition == NOTE_PARTITION:
            for offset, content in zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            ):
                self._notes.append((SPLIT, partition, offset, None, content))
            return
        part = self._parts.get(partition)
        if part is None:
            observe = self._keep_verdict if self._task.verdicts else None
            part = self._parts[partition] = _Part(partition, self._task, observe)
        if not part.in_order:
            return
        times = batch.column("timestamp_ms").to_pylist() if "timestamp_ms" in self._task.columns else None
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        part.take(offsets, times, batch.column("key"), batch.column("value"))

    def _keep_verdict(self, record: RecordRead, judgement: Judgement) -> None:
        self._verdicts.append((VERDICT, record.partition, record.offset, record.key, format_verdict(record, judgement)))


def bytes_of(column: pa.Array) -> list[bytes | None]:
    """Values of a column of bytes or texts, several times as fast as by Arrow's own way, which makes an object for each."""
    size = len(column)
    _, places, content = column.buffers()
    width = np.int64 if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type) else np.int32
    ends = np.frombuffer(places, dtype=width)[column.offset : column.offset + size + 1]
    first, last = int(ends[0]), int(ends[-1])
    data = b"" if content is None else content.slice(first, last - first).to_pybytes()
    values: list[bytes | None] = [data[start:end] for start, end in pairwise((ends - first).tolist())]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values


def _rows(rows: Iterable[tuple[str, int, int, bytes | None, bytes]]) -> Iterator[pa.RecordBatch]:
    held: list[tuple[str, int, int, bytes | None, bytes]] = []
    for row in rows:
        held.append(row)
        if len(held) == _ROWS_IN_A_BATCH:
            yield batch_of(held, FINDINGS)
            held = []
    if held:
        yield batch_of(held, FINDINGS)


# --- sums of all tasks --------------------------------------------------------------------------------------------------

Bodies = Sequence[tuple[int, Mapping[str, Any]]]
"""Contents of the rows of the kind `part`, with their partitions."""


def findings_of_all(
    facts: Mapping[int, ReadFacts], story: Mapping[int, ReadFacts], partitions: Iterable[int], bodies: Bodies
) -> AuditFindings:
    """What the answer is made of; partitions without a record are in it too.

    Args:
        facts, story: See `FoldTask`.
    """
    findings = AuditFindings()
    overruled: dict[tuple[int, int], list[OverruledState]] = {}
    for partition, body in bodies:
        for offset, states in body["overruled"]:
            overruled.setdefault((partition, offset), []).extend(OverruledState(*state) for state in states)
    for number in partitions:
        settled = facts.get(number, UNMARKED)
        history = story.get(number, settled)
        findings.cold_starts += [
            (number, item._replace(overruled=tuple(sorted(overruled.get((number, item.offset), ())))))
            if not history.is_lenient(item.offset)
            else (number, item)
            for item in settled.cold_starts or ()
        ]
        findings.tentative |= settled.tentative
        if settled.head_lost:
            findings.heads_lost[number] = settled.head_lost
        if settled.stop is not None:
            findings.stops[number] = settled.stop
    for partition, body in bodies:
        part = AuditFindings(
            verdicts=Counter({Verdict(name): count for name, count in body["verdicts"].items()}),
            owners=Counter(body["owners"]),
            bundles=body["bundles"],
            namespaces=body["namespaces"],
            debts=[(partition, key.encode(), debt) for key, debt in body["debts"]],
        )
        findings.add(part)
    return findings


def gap_count_of(bodies: Bodies) -> GapCount:
    counts = [body["gap_count"] for _, body in bodies]
    return GapCount(sum(count[0] for count in counts), sum(count[1] for count in counts))


def races_of(bodies: Bodies) -> list[dict[str, Any]]:
    races = LostRaces()
    for _, body in bodies:
        for reason, writer, winner, count in body["races"]:
            races.counts[Verdict(reason), writer, winner] += count
    return list(race_counts(races))


def gap_sums_of(bodies: Bodies) -> list[dict[str, Any]]:
    return sum_gap_rows(body["gap_sums"] for _, body in bodies).rows()


def rejected_of(bodies: Bodies) -> dict[str, Any]:
    return rejected_document(rejections.added_up(body["rejected"] for _, body in bodies))


def origins_of(bodies: Bodies) -> dict[str, Any]:
    return origins.put_together(body["origins"] for _, body in bodies)


def moves_of(bodies: Bodies) -> list[dict[str, Any]]:
    counts: Counter[tuple[int, MoveCause]] = Counter()
    for _, body in bodies:
        for hour_ms, cause, count in body["moves"]:
            counts[hour_ms, MoveCause(cause)] += count
    return list(move_fields(counts.items()))
