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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import from_arrow_schema

from spark.archive import LATEST_MS, ROWS_IN_A_FILE, Archive, day_of
from spark.arrow_fold import fold_with
from spark.channel_digest import Published, published
from spark.channel_publish import Publish
from spark.errors import NewerFormatError
from spark.plan import Place, Reading, Step, Why, go_on, join, place_fields, read_place, why_join
from spark.schemas import ARCHIVE, DIFFERENCE_ROW, FOLD_OUT, RAW, RECORD_ROW, STATE, STATE_ROW
from spark.store import Pointer, SnapshotStore
from spark.survey import GROUP, Survey, facts_of_join, not_below, survey
from statechannel.core.bundle import is_namespace

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = structlog.get_logger(__name__)

_GROUPS_NAMED_MAX = 500
_DATE = f"date_format(timestamp_millis(greatest(0, least({LATEST_MS}, timestamp_ms))), 'yyyy-MM-dd') as dt"
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
        compacts: Put the batches of days that are over into one.
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
        compacts: bool = True,
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
        self._compacts = compacts
        self._compacted_before = ""
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
        self.compact()
        stopped = {number: step.stop for number, step in self.places().items() if step.stop is not None}
        if stopped:
            number, stop = min(stopped.items())
            raise NewerFormatError(self._log.topic, number, stop.offset, stop.format)
        return outcome

    def compact(self) -> None:
        """Put the batches of each day that is over in all partitions into one."""
        newest = [place.newest_ms for place in self.places().values() if place.position]
        today = day_of(min(newest, default=0))
        if not self._compacts or today == self._compacted_before:
            return
        for day in self._archive.to_compact(today):
            count = self._archive.compact(self._session, day, _spark_schema(ARCHIVE))
            _log.info("compacted a day of the archive", day=day, batches=count)
        self._compacted_before = today

    def _recover(self, base: Pointer | None) -> None:
        if self._clean:
            return
        removed = self._archive.recover(-1 if base is None else base.sequence)
        if removed:
            _log.warning("removed what an unfinished batch had left", folders=removed)

    def _take(self, base: Pointer | None, places: Mapping[int, Place], rows: DataFrame, found: Survey) -> Outcome:
        joins = {n: why for n, seen in found.seen.items() if (why := why_join(places[n], seen)) is not None}
        whole_log: DataFrame | None = None
        steps: dict[int, Step] = {}
        if joins:
            asked = {number: places[number] for number in joins}
            begun_ms = self._wall_ms()
            whole_log = self._with_older(rows, {number: found.seen[number].last + 1 for number in joins})
            found, joins = self._look_again(places, whole_log, found, joins)
            steps = self._join(places, whole_log, found, joins, begun_ms)
            rows = _beside(rows, whole_log, asked, steps)
        for number, seen in found.seen.items():
            if number not in joins:
                steps[number] = go_on(self._log.partitions, places[number], seen)
        _tell(steps)
        sequence, folder = self._store.begin(base)
        folded = self._fold(base, steps, rows, found.groups)
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
            if whole_log is not None:
                whole_log.unpersist()
        told = published(folder.uri)
        self._check({})
        after = dict(places) | {number: step.place for number, step in steps.items()}
        oldest_ms = min(seen.oldest_ms for seen in found.seen.values())
        pointer = self._store.publish(base, self._meta(base, after, steps, told, differences))
        return Outcome(
            pointer.sequence,
            records=number,
            verdicts=verdicts,
            oldest_unread_ms=max(0, self._wall_ms() - oldest_ms),
            published=told,
        )

    def _with_older(self, rows: DataFrame, ends: Mapping[int, int]) -> DataFrame:
        """The whole log of some partitions: what Kafka still has of it, and what this batch has read of it."""
        new = rows.where(F.col("partition").isin(list(ends)))
        older = with_group(self._whole_log(ends))
        only_there = older.join(new.select("partition", "offset"), ["partition", "offset"], "left_anti")
        return new.unionByName(only_there).persist(StorageLevel.MEMORY_AND_DISK)

    def _look_again(
        self, places: Mapping[int, Place], whole_log: DataFrame, found: Survey, joins: Mapping[int, Why]
    ) -> tuple[Survey, dict[int, Why]]:
        """Records that only this batch lacks are no gap: a table may be older than its checkpoint."""
        positions = {number: places[number].position for number in joins}
        again = survey(whole_log.where(not_below(positions)), positions)
        seen, groups = {**found.seen, **again.seen}, {**found.groups, **again.groups}
        still = {n: why for n in joins if (why := why_join(places[n], seen[n])) is not None}
        return Survey(seen, groups), still

    def _join(
        self, places: Mapping[int, Place], whole_log: DataFrame, found: Survey, joins: Mapping[int, Why], begun_ms: int
    ) -> dict[int, Step]:
        """Settle how the partitions that join are read."""
        if not joins:
            return {}
        whole = {number: one for number, one in survey(whole_log, {}).seen.items() if number in joins}
        # Asked behind the reading: what was younger than the lag even then was not cleaned away while it was read.
        now_ms = max(self._wall_ms(), *(one.newest_ms for one in whole.values()))
        facts = facts_of_join(whole_log, whole, oldest_kept_ms=now_ms - self._log.compaction_lag_ms)
        if now_ms - begun_ms > self._log.compaction_lag_ms // 2:
            facts = {number: one._replace(tentative=True) for number, one in facts.items()}
        return {
            number: join(self._log.partitions, number, places[number], found.seen[number], facts[number], why)
            for number, why in joins.items()
        }

    def _fold(
        self, base: Pointer | None, steps: Mapping[int, Step], rows: DataFrame, groups: Mapping[int, tuple[str, ...]]
    ) -> DataFrame:
        plans = {number: step.plan for number, step in steps.items()}
        records = rows.selectExpr(*RAW.names, "`group`", f"{RECORD_ROW} as row", f"cast(null as {_HELD_TYPE}) as held")
        held = self._held(base, steps, groups)
        if held is not None:
            records = records.unionByName(held.selectExpr(*_HELD_AS_ROWS))
        sorted_rows = records.repartition("partition", "group").sortWithinPartitions(
            "partition", "group", "row", "offset"
        )
        return sorted_rows.mapInArrow(fold_with(plans), _OUT_TYPE).persist(StorageLevel.MEMORY_AND_DISK)

    def _snapshot(self, base: Pointer | None) -> DataFrame | None:
        if base is None:
            return None
        return self._session.read.schema(_STATE_TYPE).parquet(self._store.folder(base.sequence).uri)

    def _held(
        self, base: Pointer | None, steps: Mapping[int, Step], groups: Mapping[int, tuple[str, ...]]
    ) -> DataFrame | None:
        """Rows of the snapshot that the fold goes on from."""
        snapshot = self._snapshot(base)
        return None if snapshot is None else snapshot.where(f"{_wanted(steps, groups)} and not {_made_anew(steps)}")

    def _untouched(
        self, base: Pointer | None, steps: Mapping[int, Step], groups: Mapping[int, tuple[str, ...]]
    ) -> DataFrame | None:
        """Rows of the snapshot that stay as they are."""
        snapshot = self._snapshot(base)
        return None if snapshot is None else snapshot.where(f"not ({_wanted(steps, groups)} or {_made_anew(steps)})")

    def _archive_rows(self, records: DataFrame, number: int, sequence: int) -> dict[str, int]:
        """Write them; how many have which verdict."""
        dated = records.selectExpr("*", _DATE)
        files = 1 + number // ROWS_IN_A_FILE
        placed = dated.coalesce(1) if files == 1 else dated.repartitionByRange(files, "partition", "offset")
        return self._archive.add(placed.sortWithinPartitions("partition", "offset"), sequence)

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
    return rows.selectExpr(*RAW.names, f"{GROUP} as `group`")


def _places(base: Pointer | None, partitions: int) -> dict[int, Place]:
    told = {} if base is None else base.meta["partitions"]
    return {number: read_place(told[str(number)]) if str(number) in told else Place() for number in range(partitions)}


def _beside(rows: DataFrame, whole_log: DataFrame, asked: Mapping[int, Place], steps: Mapping[int, Step]) -> DataFrame:
    """The rows to be folded, where the whole log of some partitions was asked for: all of it only of those that join."""
    joining = [str(number) for number, step in steps.items() if step.plan.joins]
    new = not_below({number: place.position for number, place in asked.items()})
    wanted = whole_log.where(f"partition in ({', '.join(joining)}) or {new}" if joining else new)
    return rows.where(~F.col("partition").isin(list(asked))).unionByName(wanted)


def _wanted(steps: Mapping[int, Step], groups: Mapping[int, tuple[str, ...]]) -> str:
    """Which rows of the snapshot the fold needs: those of namespaces that have a record, and whole partitions that join."""
    wanted = ["false"]
    for number, step in steps.items():
        # Other groups hold no state; and a namespace has no letter that SQL would understand.
        names = [name for name in groups.get(number, ()) if is_namespace(name)]
        here = f"partition = {number}"
        if not step.plan.joins and len(names) <= _GROUPS_NAMED_MAX:
            here += f" and namespace in ({', '.join(repr(name) for name in names)})" if names else " and false"
        wanted.append(f"({here})")
    return f"({' or '.join(wanted)})"


def _made_anew(steps: Mapping[int, Step]) -> str:
    """Partitions whose view is made anew, and of which nothing before is looked at."""
    numbers = [str(number) for number, step in steps.items() if step.plan.joins and not step.plan.cold_start]
    return f"(partition in ({', '.join(numbers)}))" if numbers else "(false)"


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


_STATE_TYPE = _spark_schema(STATE)
_OUT_TYPE = _spark_schema(FOLD_OUT)
_HELD_TYPE = _STATE_TYPE.simpleString()
_HELD_AS_ROWS = (
    "partition",
    *(f"cast(null as {one.dataType.simpleString()}) as `{one.name}`" for one in _spark_schema(RAW).fields[1:]),
    "namespace as `group`",
    f"{STATE_ROW} as row",
    f"struct({', '.join(f'`{name}`' for name in STATE.names)}) as held",
)
