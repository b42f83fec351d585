"""The replay of a whole log: what the local audit finds, found by many tasks.

All that crosses namespaces is settled for each partition as `ReadFacts`; the records of each namespace are folded apart, and what
is found adds up. The first pass takes it that a log has neither gaps nor records of a newer format, since most have none, and
finds out whether that holds; where it does not, the facts are gathered and the log is folded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark.channel.survey import below, find_stops, head_marks
from spark.errors import SparkJobError
from spark.replay.direct import DirectLog, shares_of
from spark.replay.fold import (
    FINDINGS,
    GAPS,
    HISTORY,
    LINE,
    NOTE_PARTITION,
    OWNED,
    PART,
    SPLIT,
    UNMARKED,
    VERDICT,
    FoldTask,
    bytes_of,
    direct_work_of,
    findings_of_all,
    gap_count_of,
    gap_sums_of,
    moves_of,
    origins_of,
    races_of,
    rejected_of,
    work_of,
)
from spark.replay.survey import PartitionSurvey, cleaned_partitions, known_points, named, survey
from statechannel.audit.engine import AuditResult, ReadMode, Wants
from statechannel.audit.history import history_order
from statechannel.audit.moments import AsOf, Cut
from statechannel.audit.observers import gap_order
from statechannel.errors import ExitCode
from statechannel.protocol.digest import digest_of
from statechannel.replay.auditor import GapsError, completeness, reading_of, summary
from statechannel.replay.survey import CompleteFrom, FormatStop, ReadFacts, story_facts, with_head

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@dataclass(frozen=True, slots=True)
class ReplayLog:
    """Records as rows, with what is known of the whole.

    Attributes:
        rows: partition, offset, timestamp_ms, key, value; those of partition -1 are notes of the reader.
        ends: Offset after the last record of each partition, empty ones too.
        now_ms: Behind every reading of the rows: what was younger than the lag then was not cleaned away before.
        check: Told the notes; raises where the source is not what it should be.
        direct: The same records for tasks that read them by themselves; None: only Spark reads them.
        likely_gapped: The survey comes first, since the log is known to have gaps, or likely to.
        why_gapped: Why a partition has gaps, for people; empty where only that is known.
        stored: The rows of an archive with what it says of them.
        first_offsets: First offset of each partition from whose head records were deleted.
    """

    name: str
    rows: DataFrame
    ends: Mapping[int, int]
    now_ms: Callable[[], int]
    check: Callable[[Sequence[bytes]], None] = lambda _: None
    direct: Callable[[], DirectLog] | None = None
    likely_gapped: bool = False
    why_gapped: Callable[[int], str] = lambda _: ""
    stored: DataFrame | None = None
    first_offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What is to be found; the fields are those of `AuditQuestion`."""

    read: ReadMode = ReadMode.AUTO
    as_of: AsOf | None = None
    compaction_lag_ms: int = 0
    wants: Wants = field(default_factory=Wants)
    verdicts: bool = False


_OFFSETS_OF_A_TASK = 100_000
_TASKS_MAX = 64
_SHARES_MAX = 6
"""More tasks that each read all would take longer than Spark, which reads all once and hands it around."""
_PASSES_MAX = 5
_LATEST_MS = 2**63 - 1
_JOINED_BYTES = 1 << 20


@dataclass(slots=True)
class _Seen:
    """What the fold itself saw of a partition."""

    records: int = 0
    inside: int = 0
    last: int = -1
    marks: int = 0
    stop: FormatStop | None = None

    def take(self, body: Mapping[str, Any]) -> None:
        self.records += body["records"]
        self.inside += body["inside"]
        self.marks += body["marks"]
        self.last = max(self.last, body["last"])
        if body["stop"] and (self.stop is None or body["stop"][0] < self.stop.offset):
            self.stop = FormatStop(*body["stop"])


class Replay:
    """One replay.

    Args:
        tasks: Number of parts of the fold; None chooses by the length of the log.
        presorted: Rows are not sorted before the fold: where all runs in one process, they come in the order of the source,
            which is that of the log. The fold sees whether it holds, and if not, they are sorted and folded again.
    """

    def __init__(
        self,
        session: SparkSession,
        log: ReplayLog,
        request: ReplayRequest,
        *,
        tasks: int | None = None,
        presorted: bool | None = None,
    ) -> None:
        self._session = session
        self._log = log
        self._request = request
        self._cores = session.sparkContext.defaultParallelism
        self._tasks_asked = tasks
        length = sum(log.ends.values())
        self._tasks = tasks or min(_TASKS_MAX, max(self._cores, length // _OFFSETS_OF_A_TASK))
        local = (session.sparkContext.master or "").startswith("local")
        self._presorted = local if presorted is None else presorted
        self._survey: dict[int, PartitionSurvey] | None = None
        self._outside: dict[int, int] = {}
        self._folded: DataFrame | None = None
        self._bodies: list[tuple[int, dict[str, Any]]] = []
        self._seen: dict[int, _Seen] = {}
        self._gapped: list[int] = []
        self._facts: dict[int, ReadFacts] = {}
        self._known: dict[int, CompleteFrom | None] = {}
        self.passes = 0

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def run(self) -> AuditResult:
        """Fold the log, as often as it takes to know how it is to be read.

        Raises:
            GapsError: A full read was asked for and a partition has gaps.
            SparkJobError: The log changed again and again while it was read.
        """
        self._outside = self._first_outside()
        if self._log.likely_gapped:
            self._facts = self._facts_of(self._look())
        while not self._fold():
            if self.passes >= _PASSES_MAX:
                raise SparkJobError(
                    f"{self._log.name} was another one at each of {self.passes} readings",
                    hint="It is cleaned while it is read, faster than it can be read: export it, or give Spark more cores.",
                    exit_code=ExitCode.SPARK_FAILED,
                )
        return self._result()

    def _fold(self) -> bool:
        """One pass; whether the log was read as it has to be."""
        self.passes += 1
        self._forget()
        task = FoldTask(
            len(self._log.ends),
            dict(self._facts),
            self._story(),
            self._outside,
            self._request.wants,
            verdicts=self._request.verdicts,
            columns=self._columns(),
        )
        self._folded = self._folded_by(task).persist(StorageLevel.MEMORY_AND_DISK)
        folded = self._folded.where(F.col("kind").isin(PART, SPLIT)).collect()
        self._log.check([row["content"] for row in folded if row["kind"] == SPLIT])
        self._bodies = [(row["partition"], orjson.loads(row["content"])) for row in folded if row["kind"] == PART]
        if not all(body["in_order"] for _, body in self._bodies):
            if not self._presorted:
                raise SparkJobError(
                    f"{self._log.name} holds an offset twice",
                    hint="Each record may be there once: name the right folder, or move away what was copied into it.",
                    exit_code=ExitCode.TABLE_UNUSABLE,
                )
            self._presorted = False
            return False
        self._seen = {partition: _Seen() for partition in self._log.ends}
        for partition, body in self._bodies:
            if partition not in self._seen:
                raise SparkJobError(
                    f"{self._log.name} holds records of partition {partition}, but has {len(self._log.ends)} partitions",
                    hint="Say how many partitions the channel has.",
                    exit_code=ExitCode.TABLE_UNUSABLE,
                )
            self._seen[partition].take(body)
        suspects = [
            number
            for number, seen in sorted(self._seen.items())
            if not seen.inside == seen.last + 1 == self._end_of(number)
        ]
        self._gapped = sorted(self._cleaned(suspects))
        self._check_reading()
        needed = self._needed()
        if all(self._facts.get(number, UNMARKED) == facts for number, facts in needed.items()):
            return True
        self._facts = needed
        return False

    def _check_reading(self) -> None:
        """Raise where a full read was asked for and is not possible."""
        why = self._log.why_gapped(self._gapped[0]) if self._gapped and self._request.read is ReadMode.FULL else ""
        if why:
            raise GapsError(f"partition {self._gapped[0]} {why}")
        reading_of(self._request.read, self._gapped)

    def _needed(self) -> dict[int, ReadFacts]:
        """How each partition has to be read, by what was seen of it."""
        needed = {number: UNMARKED._replace(stop=seen.stop) for number, seen in self._seen.items()}
        special = {*self._gapped, *(number for number, seen in self._seen.items() if seen.marks)}
        if special:
            looked = self._survey
            if looked is None or not all(self._is_as_surveyed(number, looked) for number in special):
                looked = self._look()
            facts = self._facts_of(looked)
            needed |= {number: facts[number] for number in special}
        return needed

    def _look(self) -> dict[int, PartitionSurvey]:
        self._survey = survey(self._inside())
        return self._survey

    def _is_as_surveyed(self, partition: int, looked: Mapping[int, PartitionSurvey]) -> bool:
        """Whether the fold has read the log that the survey has seen."""
        folded, surveyed = self._seen[partition], looked.get(partition, PartitionSurvey())
        return (surveyed.records, surveyed.last) == (folded.inside, folded.last)

    def _facts_of(self, looked: Mapping[int, PartitionSurvey]) -> dict[int, ReadFacts]:
        oldest_kept_ms = self._log.now_ms() - self._request.compaction_lag_ms
        seen = {number: looked.get(number, PartitionSurvey()) for number in self._log.ends}
        suspects = [n for n, part in seen.items() if not part.records == part.last + 1 == self._end_of(n)]
        gapped = sorted(self._cleaned(suspects))
        facts = {
            number: part.facts(oldest_kept_ms=oldest_kept_ms) if number in gapped else part.strict
            for number, part in seen.items()
        }
        facts |= self._with_heads({number: facts[number] for number in gapped if self._log.first_offsets.get(number)})
        self._known = self._known_of(gapped, facts, oldest_kept_ms)
        return facts

    def _with_heads(self, facts: Mapping[int, ReadFacts]) -> dict[int, ReadFacts]:
        """Facts of partitions from whose heads records were deleted."""
        cold = {number: [start.offset for start in each.cold_starts or ()] for number, each in facts.items()}
        heads = head_marks(self._inside(), cold, {n: each.stop for n, each in facts.items()}) if facts else {}
        first = self._log.first_offsets
        return {number: with_head(each, heads.get(number), first[number]) for number, each in facts.items()}

    def _known_of(
        self, gapped: Sequence[int], facts: Mapping[int, ReadFacts], oldest_kept_ms: int
    ) -> dict[int, CompleteFrom | None]:
        """Offsets from which partitions with gaps are complete; by the whole log where the requested moment is too early."""
        points: dict[int, CompleteFrom | None] = dict.fromkeys(gapped)
        early = [number for number in gapped if facts[number].tentative and self._outside]
        for rows, numbers in ((self._inside(), set(gapped) - set(early)), (self._records(), early)):
            if numbers:
                of_these = rows.where(F.col("partition").isin(*numbers))
                stops = find_stops(of_these) if early else {n: facts[n].stop for n in numbers}
                limits = {number: stop.offset for number, stop in stops.items() if stop is not None}
                points |= known_points(of_these.where(below(limits)), oldest_kept_ms=oldest_kept_ms)
        return points

    def _story(self) -> dict[int, ReadFacts]:
        return {number: story_facts(facts, self._known.get(number)) for number, facts in self._facts.items()}

    def _cleaned(self, suspects: Sequence[int]) -> set[int]:
        """Those of the partitions with missing offsets that may have been cleaned."""
        if not suspects:
            return set()
        rows = self._inside().where(F.col("partition").isin(*suspects))
        ends = {number: self._end_of(number) for number in suspects}
        oldest_kept_ms = self._log.now_ms() - self._request.compaction_lag_ms
        return cleaned_partitions(rows, ends, oldest_kept_ms=oldest_kept_ms)

    def _end_of(self, partition: int) -> int:
        """Offset after the last of what is looked at; if it has no gaps, it has as many records."""
        end = self._log.ends[partition]
        as_of = self._request.as_of
        if as_of is not None and as_of.offset is not None:
            return min(end, as_of.offset + 1)
        return self._outside.get(partition, end)

    def _first_outside(self) -> dict[int, int]:
        as_of = self._request.as_of
        if as_of is not None and as_of.offset is not None:
            return dict.fromkeys(self._log.ends, as_of.offset + 1)
        if as_of is None or as_of.time_ms is None or as_of.time_ms >= _LATEST_MS:
            return {}
        later = self._records().where(F.col("timestamp_ms") > as_of.time_ms)
        return {
            row["partition"]: row["first"]
            for row in later.groupBy("partition").agg(F.min("offset").alias("first")).collect()
        }

    def _records(self) -> DataFrame:
        return self._log.rows.where(F.col("partition") != NOTE_PARTITION)

    def _inside(self) -> DataFrame:
        return self._records().where(below(self._outside))

    def _columns(self) -> list[str]:
        wants = self._request.wants
        timed = (wants.gaps, wants.gap_count, wants.moves, wants.owned, wants.rejected, wants.origins)
        times = ["timestamp_ms"] if any(timed) or wants.has_history else []
        return ["partition", "offset", *times, "key", "value"]

    def _folded_by(self, task: FoldTask) -> DataFrame:
        """The findings of tasks that have the records of whole namespaces, in the order of their offsets."""
        findings = from_arrow_schema(FINDINGS)
        shares = self._tasks_asked or self._cores
        if self._presorted and self._log.direct is not None and shares <= _SHARES_MAX:
            direct = self._log.direct()
            work = direct_work_of(task, direct.read, shares_of(direct.sizes(), shares))
            return self._session.range(0, shares, 1, shares).mapInArrow(work, findings)
        return self._parted(task.columns).mapInArrow(work_of(task), findings)

    def _parted(self, columns: Sequence[str]) -> DataFrame:
        rows = self._log.rows.select(*columns)
        if self._outside:
            # What lies outside is only counted.
            inside = F.expr(below(self._outside))
            rows = rows.withColumns({name: F.when(inside, F.col(name)) for name in ("key", "value")})
        group = F.substring_index(F.col("key").cast("string"), "/", 2)
        parted = rows.repartition(self._tasks, group)
        return parted if self._presorted else parted.sortWithinPartitions("offset")

    def _result(self) -> AuditResult:
        findings = findings_of_all(self._facts, self._story(), self._log.ends, self._bodies)
        wants = self._request.wants
        answer = summary(
            findings,
            digest=digest_of(self._joined(LINE, "key")),
            records=sum(seen.records for seen in self._seen.values()),
            end_offsets=self._log.ends,
            read=reading_of(self._request.read, self._gapped),
        )
        unsure = [number for number, facts in self._facts.items() if facts.tentative]
        complete = completeness({number: self._known.get(number) for number in self._gapped}, unsure)
        cuts = None
        if wants.cuts and self._request.as_of is not None:
            cuts = {number: Cut(seen.inside, seen.last) for number, seen in sorted(self._seen.items())}
        return AuditResult(
            answer,
            gaps=sorted(self._listed(GAPS), key=gap_order) if wants.gaps else None,
            gap_count=gap_count_of(self._bodies) if wants.gap_count else None,
            races=races_of(self._bodies) if wants.races else None,
            history=self._history(wants),
            named=wants.history is None or named(self._records(), wants.history),
            owned=sorted(self._listed(OWNED), key=lambda row: str(row["bundle"])) if wants.owned else None,
            moves=moves_of(self._bodies) if wants.moves else None,
            cuts=cuts,
            gap_sums=gap_sums_of(self._bodies) if wants.gaps else None,
            rejected=rejected_of(self._bodies) if wants.rejected else None,
            origins=origins_of(self._bodies) if wants.origins else None,
            states=[*self._states()] if wants.states else None,
            complete=complete,
        )

    def _history(self, wants: Wants) -> list[dict[str, Any]] | None:
        if not wants.has_history:
            return None
        return sorted(self._listed(HISTORY), key=history_order if wants.history is None else _place)

    def _states(self) -> Iterator[bytes]:
        for piece in self._joined(LINE, "key"):
            yield from piece.splitlines(keepends=True)

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        rows = self.findings(kind).select("content").collect()
        return [load for row in rows for load in orjson.loads(row["content"])]

    def findings(self, kind: str) -> DataFrame:
        """Rows of `spark.replay.fold.FINDINGS` of one kind, of the newest pass."""
        if self._folded is None:
            raise RuntimeError("nothing was folded yet")
        return self._folded.where(F.col("kind") == kind)

    def outside(self) -> dict[int, int]:
        """First offset of each partition that is behind the moment asked for; those without one are left out."""
        return dict(self._outside)

    def stops(self) -> dict[int, int]:
        """Offsets at which a newer format has stopped the reading."""
        return {number: facts.stop.offset for number, facts in self._facts.items() if facts.stop is not None}

    def verdict_lines(self) -> Iterator[bytes]:
        """Lines of the file of verdicts, in log order, some of them at a time."""
        return self._joined(VERDICT, "partition", "offset")

    def _joined(self, kind: str, *order: str) -> Iterator[bytes]:
        """Contents in order, joined to pieces: the driver never holds more than a few."""
        ordered = self.findings(kind).select(*order, "content").orderBy(*order).select("content")
        rows: Iterator[Row] = ordered.mapInArrow(_join, "content binary").toLocalIterator(prefetchPartitions=True)
        for row in rows:
            yield bytes(row["content"])

    def _forget(self) -> None:
        if self._folded is not None:
            self._folded.unpersist()
            self._folded = None


def _place(line: Mapping[str, Any]) -> tuple[int, int]:
    return line["partition"], line["offset"]


def _join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[bytes] = []
    size = 0
    for batch in batches:
        for content in bytes_of(batch.column("content")):
            held.append(content or b"")
            size += len(held[-1])
            if size >= _JOINED_BYTES:
                yield _piece(held)
                held, size = [], 0
    if held:
        yield _piece(held)


def _piece(held: Sequence[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"".join(held)], pa.binary())], names=["content"])
