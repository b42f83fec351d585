"""One micro-batch of the channel's log: judged, archived, published.

The pointer of the snapshots is the only commit: it holds the positions that view and archive cover. What lies below a position
is dropped, so that a batch that is repeated, or a checkpoint that is lost, writes nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import structlog
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema

from spark.archive import Archive
from spark.arrow_fold import fold_with
from spark.channel_digest import Published, published
from spark.channel_publish import Publish
from spark.errors import NewerFormatError
from spark.plan import Place, Reading, Seen, Step, Why, go_on, join, place_fields, read_place, why_join
from spark.schemas import DIFFERENCE_ROW, FOLD_IN, FOLD_OUT, RAW, RECORD_ROW, STATE, STATE_ROW
from spark.store import Pointer, SnapshotStore
from spark.survey import Survey, facts_of_join, group_of, not_below, survey
from statechannel.core.verdict import Verdict

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = structlog.get_logger(__name__)

_GROUPS_NAMED_MAX = 500
_ROWS_IN_A_FILE = 1_000_000
_LATEST_MS = 253_402_300_799_000  # the end of the year 9999
_DIFFERENCES_MAX = 1_000
FORMAT = 1


@dataclass(frozen=True, slots=True)
class ChannelLog:
    """The topic, as it was when the job began.

    Attributes:
        compaction_lag_ms: Its `min.compaction.lag.ms`.
    """

    topic: str
    topic_id: str
    partitions: int
    compaction_lag_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch.

    Attributes:
        sequence: Of the snapshot that counts now; None if nothing was new and there is none.
        records: New records in the batch.
        verdicts: How many of them have which verdict; "" stands for those without one.
        oldest_unread_ms: How long the oldest of them had lain in the log.
    """

    sequence: int | None
    records: int = 0
    verdicts: Mapping[str, int] | None = None
    oldest_unread_ms: int = 0
    published: Published | None = None


class ChannelTable:
    """View and archive of one channel.

    Args:
        whole_log: Reads partitions from their beginning to these offsets (exclusive).
        publish: Called before the pointer moves; what it is told may be told again.
        wall_ms: The clock that ages of records are shown by, and joins are judged by.
    """

    def __init__(
        self,
        session: SparkSession,
        log: ChannelLog,
        store: SnapshotStore,
        archive: Archive,
        *,
        whole_log: Callable[[Mapping[int, int]], DataFrame],
        check: Callable[[Mapping[int, int]], None] = lambda _: None,
        publish: Publish | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._session = session
        self._log = log
        self._store = store
        self._archive = archive
        self._whole_log = whole_log
        self._check = check
        self._publish = publish
        self._wall_ms = wall_ms
        self._clean = False

    def places(self) -> dict[int, Place]:
        """Where the reading of each partition stands."""
        return _places(self._store.latest(), self._log.partitions)

    def process(self, batch: DataFrame) -> Outcome:
        """Take in the rows of a batch (columns of `schemas.RAW`); those that are known already are dropped.

        Raises:
            NewerFormatError: A record of a newer format stops a partition; all before it is published.
            TableChangedError: Somebody else writes this table.
        """
        base = self._store.latest()
        places = _places(base, self._log.partitions)
        self._recover(base)
        positions = {number: place.position for number, place in places.items()}
        self._check(positions)
        rows = with_group(batch.where(not_below(positions))).persist(StorageLevel.MEMORY_AND_DISK)
        self._clean = False
        try:
            found = survey(rows, positions)
            if not found.seen:
                self._clean = True
                return Outcome(None if base is None else base.sequence)
            outcome = self._take(base, places, rows, found)
        finally:
            rows.unpersist()
        self._clean = True
        stopped = {number: step.stop for number, step in self.places().items() if step.stop is not None}
        if stopped:
            number, stop = min(stopped.items())
            raise NewerFormatError(self._log.topic, number, stop.offset, stop.format)
        return outcome

    def _recover(self, base: Pointer | None) -> None:
        if self._clean:
            return
        removed = self._archive.recover(-1 if base is None else base.sequence)
        if removed:
            _log.warning("removed what an unfinished batch had left", folders=removed)

    def _take(self, base: Pointer | None, places: Mapping[int, Place], rows: DataFrame, found: Survey) -> Outcome:
        joins = {n: why for n, seen in found.seen.items() if (why := why_join(places[n], seen)) is not None}
        older, steps = self._join(places, found.seen, joins)
        for number, seen in found.seen.items():
            if number not in steps:
                steps[number] = go_on(self._log.partitions, places[number], seen)
        _tell(steps)
        sequence, folder = self._store.begin(base)
        folded = self._fold(base, steps, rows if older is None else _beside(rows, older, joins), found.groups)
        try:
            number = sum(seen.records for seen in found.seen.values())
            verdicts = self._archive_rows(folded.where(F.col("row") == RECORD_ROW).select("record.*"), number, sequence)
            state = folded.where(F.col("row") == STATE_ROW).select("state.*")
            rest = self._untouched(base, steps, found.groups)
            whole = state if rest is None else state.unionByName(rest)
            whole.coalesce(2).write.parquet(folder.uri)
            differences = self._differences(folded, steps)
            if self._publish is not None:
                snapshot = self._snapshot(base)
                before = None if snapshot is None else snapshot.where(_wanted(steps, found.groups))
                self._publish(state, before, sequence)
        finally:
            folded.unpersist()
            if older is not None:
                older.unpersist()
        told = published(folder.uri)
        self._check({})
        after = dict(places) | {number: step.place for number, step in steps.items()}
        oldest_ms = min(seen.oldest_ms for seen in found.seen.values())
        pointer = self._store.publish(base, self._meta(base, after, steps, told, differences))
        return Outcome(
            pointer.sequence,
            records=sum(seen.records for seen in found.seen.values()),
            verdicts=verdicts,
            oldest_unread_ms=max(0, self._wall_ms() - oldest_ms),
            published=told,
        )

    def _join(
        self, places: Mapping[int, Place], seen: Mapping[int, Seen], joins: Mapping[int, Why]
    ) -> tuple[DataFrame | None, dict[int, Step]]:
        """Read the whole log of the partitions that join, once, and settle how."""
        if not joins:
            return None, {}
        ends = {number: seen[number].last + 1 for number in joins}
        older = with_group(self._whole_log(ends)).persist(StorageLevel.MEMORY_AND_DISK)
        begun_ms = self._wall_ms()
        all_seen = survey(older, {}).seen
        # Asked behind the reading: what was younger than the lag even then was not cleaned away while it was read.
        now_ms = max(self._wall_ms(), *(one.newest_ms for one in all_seen.values()))
        facts = facts_of_join(older, all_seen, oldest_kept_ms=now_ms - self._log.compaction_lag_ms)
        if now_ms - begun_ms > self._log.compaction_lag_ms // 2:
            facts = {number: one._replace(tentative=True) for number, one in facts.items()}
        steps = {
            number: join(self._log.partitions, number, places[number], seen[number], facts[number], why)
            for number, why in joins.items()
        }
        return older, steps

    def _fold(
        self, base: Pointer | None, steps: Mapping[int, Step], rows: DataFrame, groups: Mapping[int, tuple[str, ...]]
    ) -> DataFrame:
        plans = {number: step.plan for number, step in steps.items()}
        held_type = _spark_schema(FOLD_IN)["held"].dataType
        records = rows.select(
            *RAW.names, "group", F.lit(RECORD_ROW).alias("row"), F.lit(None).cast(held_type).alias("held")
        )
        held = self._held(base, steps, groups)
        if held is not None:
            raw = _spark_schema(RAW)
            records = records.unionByName(
                held.select(
                    "partition",
                    *(F.lit(None).cast(raw[name].dataType).alias(name) for name in RAW.names[1:]),
                    F.col("namespace").alias("group"),
                    F.lit(STATE_ROW).alias("row"),
                    F.struct(*(F.col(name) for name in STATE.names)).alias("held"),
                )
            )
        sorted_rows = records.repartition("partition", "group").sortWithinPartitions(
            "partition", "group", "row", "offset"
        )
        return sorted_rows.mapInArrow(fold_with(plans), _spark_schema(FOLD_OUT)).persist(StorageLevel.MEMORY_AND_DISK)

    def _snapshot(self, base: Pointer | None) -> DataFrame | None:
        if base is None:
            return None
        return self._session.read.schema(_spark_schema(STATE)).parquet(self._store.folder(base.sequence).uri)

    def _held(
        self, base: Pointer | None, steps: Mapping[int, Step], groups: Mapping[int, tuple[str, ...]]
    ) -> DataFrame | None:
        """Rows of the snapshot that the fold goes on from."""
        snapshot = self._snapshot(base)
        return None if snapshot is None else snapshot.where(_wanted(steps, groups) & ~_made_anew(steps))

    def _untouched(
        self, base: Pointer | None, steps: Mapping[int, Step], groups: Mapping[int, tuple[str, ...]]
    ) -> DataFrame | None:
        """Rows of the snapshot that stay as they are."""
        snapshot = self._snapshot(base)
        return None if snapshot is None else snapshot.where(~(_wanted(steps, groups) | _made_anew(steps)))

    def _archive_rows(self, records: DataFrame, number: int, sequence: int) -> dict[str, int]:
        """Write them; how many have which verdict."""
        time_ms = F.greatest(F.lit(0), F.least(F.lit(_LATEST_MS), F.col("timestamp_ms")))
        dated = records.withColumn("dt", F.date_format(F.timestamp_millis(time_ms), "yyyy-MM-dd"))
        files = 1 + number // _ROWS_IN_A_FILE
        placed = dated.coalesce(1) if files == 1 else dated.repartitionByRange(files, "partition", "offset")
        counts = Observation("verdicts")
        names = ["", *(verdict.value for verdict in Verdict)]
        said = F.coalesce(F.col("verdict"), F.lit(""))
        observed = placed.observe(counts, *(F.count(F.when(said == name, 1)).alias(f"v:{name}") for name in names))
        self._archive.add(observed.sortWithinPartitions("partition", "offset"), sequence)
        return {name.removeprefix("v:"): count for name, count in counts.get.items() if count}

    def _differences(self, folded: DataFrame, steps: Mapping[int, Step]) -> list[dict[str, Any]]:
        if not any(step.why is Why.COLD_START for step in steps.values()):
            return []
        rows = folded.where(F.col("row") == DIFFERENCE_ROW).select("difference.*").collect()
        return [row.asDict() for row in rows]

    def _meta(
        self,
        base: Pointer | None,
        places: Mapping[int, Place],
        steps: Mapping[int, Step],
        told: Published,
        differences: list[dict[str, Any]],
    ) -> dict[str, Any]:
        before = {} if base is None else base.meta
        missing = list(before.get("incomplete", ()))
        cold_starts = list(before.get("cold_starts", ()))
        for number, step in sorted(steps.items()):
            if step.missing is not None:
                missing.append(asdict(step.missing))
            if step.why in (Why.GAP, Why.AGAIN) and step.place.reading is Reading.STRICT:
                missing = [_ended(one, number, step.place.strict_from) for one in missing]
        cold = {str(n): step.plan.facts.lenient_to for n, step in steps.items() if step.why is Why.COLD_START}
        if cold:
            told_of = {"differences": differences[:_DIFFERENCES_MAX], "differences_count": len(differences)}
            cold_starts.append({"lenient_to": cold, **told_of})
        return {
            "format": FORMAT,
            "topic": self._log.topic,
            "topic_id": self._log.topic_id,
            "partitions": {str(number): place_fields(place) for number, place in sorted(places.items())},
            "tentative": any(place.reading is Reading.JOINING for place in places.values()),
            "incomplete": missing,
            "cold_starts": cold_starts,
            "written_at_ms": self._wall_ms(),
            **told.fields(),
        }


def with_group(rows: DataFrame) -> DataFrame:
    """Rows of a log with the unit of the fold beside them."""
    return rows.select(*RAW.names, group_of(F.col("key")).alias("group"))


def _places(base: Pointer | None, partitions: int) -> dict[int, Place]:
    told = {} if base is None else base.meta["partitions"]
    return {number: read_place(told[str(number)]) if str(number) in told else Place() for number in range(partitions)}


def _beside(rows: DataFrame, older: DataFrame, joins: Mapping[int, Why]) -> DataFrame:
    """The partitions that join from the beginning, the others from their positions."""
    return rows.where(~F.col("partition").isin(list(joins))).unionByName(older)


def _wanted(steps: Mapping[int, Step], groups: Mapping[int, tuple[str, ...]]) -> Any:
    """Which rows of the snapshot the fold needs: those of namespaces that have a record, and whole partitions that join."""
    wanted = F.lit(False)
    for number, step in steps.items():
        here = F.col("partition") == number
        names = groups.get(number, ())
        if not step.plan.joins and len(names) <= _GROUPS_NAMED_MAX:
            here = here & F.col("namespace").isin(list(names))
        wanted = wanted | here
    return wanted


def _made_anew(steps: Mapping[int, Step]) -> Any:
    """Partitions whose view is made anew, and of which nothing before is looked at."""
    numbers = [number for number, step in steps.items() if step.plan.joins and not step.plan.cold_start]
    return F.col("partition").isin(numbers) if numbers else F.lit(False)


def _ended(missing: dict[str, Any], partition: int, strict_from: int) -> dict[str, Any]:
    if missing["partition"] != partition or missing["strict_from"] is not None:
        return missing
    return missing | {"strict_from": strict_from}


def _tell(steps: Mapping[int, Step]) -> None:
    for number, step in sorted(steps.items()):
        if step.missing is not None:
            _log.error(
                "records were cleaned away before they were read: the archive is incomplete", **asdict(step.missing)
            )
        if step.why is not None:
            _log.warning(
                "the view is made anew, as a joining broker does",
                partition=number,
                why=step.why.value,
                lenient_to=step.plan.facts.lenient_to,
                tentative=step.plan.facts.tentative,
            )


def _spark_schema(schema: Any) -> StructType:
    return from_arrow_schema(schema)
