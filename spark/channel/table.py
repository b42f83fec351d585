"""One micro-batch of the channel's log: judged, archived, published.

The pointer of the snapshots is the only commit: it holds the positions that view and archive cover. What lies below a position
is dropped, so that a batch that is repeated, or a checkpoint that is lost, writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark.channel.fold import fold_with
from spark.channel.joins import Began, JoinSettlement
from spark.channel.log import ChannelLog
from spark.channel.plan import (
    BatchStep,
    JoinReason,
    Reading,
    ReadingPosition,
    go_on,
    incomplete,
    place_fields,
    read_place,
)
from spark.channel.published import Published, PublishedChanges, published
from spark.channel.survey import EVERYTHING, GROUP, BatchSurvey, not_below, survey
from spark.core.archive import LATEST_MS, ROWS_IN_A_FILE, Archive, covers_of, day_of
from spark.core.schemas import ARCHIVE, DIFFERENCE_ROW, FOLD_OUT, RAW, RECORD_ROW, STATE, STATE_ROW
from spark.core.store import Pointer, SnapshotStore
from spark.errors import NewerFormatError, TableFormatError, TopicBrokenError
from statechannel.clocks import now_ms

if TYPE_CHECKING:
    from statechannel.kafka.admin import OffsetBounds


_log = structlog.get_logger(__name__)

_DATE = f"date_format(timestamp_millis(greatest(0, least({LATEST_MS}, timestamp_ms))), 'yyyy-MM-dd') as dt"
_DIFFERENCES_MAX = 1_000
FORMAT = 1


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of a batch.

    Attributes:
        sequence: Of the snapshot that counts now; None if nothing was new and there is none.
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
        whole_log: Reads partitions up to these offsets, exclusive.
        check: Sees that the topic can still be read from these positions on; says where its partitions begin and end.
        changes: Receives each snapshot that the pointer has named.
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
        check: Callable[[Mapping[int, int]], Mapping[int, OffsetBounds]],
        changes: PublishedChanges | None = None,
        compacts: bool = True,
        wall_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._session = session
        self._log = log
        self._store = store
        self._archive = archive
        self._whole_log = JoinSettlement(
            log.partitions, log.compaction_lag_ms, lambda ends: with_group(whole_log(ends)), wall_ms
        )
        self._check = check
        self._changes = changes
        self._wall_ms = wall_ms
        self._compacts = compacts
        self._compacted_before = ""
        self._clean = False

    def places(self) -> dict[int, ReadingPosition]:
        return self._places(self._store.latest())

    def process(self, batch: DataFrame) -> BatchOutcome:
        """Take in the rows of a batch (columns of `schemas.RAW`); those that are known already are dropped.

        Raises:
            NewerFormatError: A record of a newer format stops a partition; all before it is published.
            TableChangedError: Another job writes this table.
        """
        begun_ms = self._wall_ms()
        base = self._store.latest(mend=True)
        places = self._places(base)
        self._recover(base)
        if not self._clean:
            self._publish_changes(base)
        positions = {number: place.position for number, place in places.items()}
        began = Began(begun_ms, self._check(positions))
        rows = with_group(batch.where(not_below(positions))).persist(StorageLevel.MEMORY_AND_DISK)
        self._clean = False
        try:
            surveyed = survey(rows, positions)
            if not surveyed.seen:
                self._clean = True
                return BatchOutcome(None if base is None else base.sequence)
            newest, outcome = self._take(base, places, rows, surveyed, began)
        finally:
            rows.unpersist()
        self._publish_changes(newest)
        after = self._places(newest)
        self._compact(after)
        self._clean = True
        stopped = {number: stop for number in surveyed.seen if (stop := after[number].stop) is not None}
        if stopped:
            number, stop = min(stopped.items())
            raise NewerFormatError(self._log.topic, number, stop.offset, stop.format)
        return outcome

    def _publish_changes(self, newest: Pointer | None) -> None:
        if self._changes is not None:
            self._changes.publish(newest, self._read)

    def _compact(self, places: Mapping[int, ReadingPosition]) -> None:
        """Put the batches of each day that is over in all partitions into one."""
        newest = [place.newest_ms for place in places.values() if place.position]
        today = day_of(min(newest, default=0))
        if self._compacts and today != self._compacted_before:
            self._archive.compact_days(self._session, today, from_arrow_schema(ARCHIVE))
            self._compacted_before = today

    def _recover(self, base: Pointer | None) -> None:
        if self._clean:
            return
        removed = self._archive.recover(-1 if base is None else base.sequence)
        if removed:
            _log.warning("removed what an unfinished batch had left", folders=removed)

    def _places(self, base: Pointer | None) -> dict[int, ReadingPosition]:
        numbers = range(self._log.partitions)
        if base is None:
            return {number: ReadingPosition() for number in numbers}
        places, topic_id = read_meta(base.meta), base.meta["topic_id"]
        if topic_id != self._log.topic_id or set(places) != {str(number) for number in numbers}:
            raise TopicBrokenError(
                f"{self._store.root.uri} was made from the topic {base.meta['topic']} with the id {topic_id} and {len(places)} "
                f"partitions; {self._log.topic} has the id {self._log.topic_id} and {self._log.partitions} partitions",
                hint="It is another channel, or the topic was created again: start the job with other folders for table and "
                "checkpoint.",
            )
        return {number: places[str(number)] for number in numbers}

    def _take(
        self,
        base: Pointer | None,
        places: Mapping[int, ReadingPosition],
        rows: DataFrame,
        surveyed: BatchSurvey,
        began: Began,
    ) -> tuple[Pointer, BatchOutcome]:
        rows, steps, older = self._whole_log.settle(places, rows, surveyed, began)
        for number, seen in surveyed.seen.items():
            if number not in steps:
                steps[number] = go_on(self._log.partitions, number, places[number], seen)
        _log_steps(steps)
        sequence, folder = self._store.begin(base)
        needed = _needed(steps, surveyed)
        snapshot = None if base is None else self._read(base.sequence)
        folded = self._fold(snapshot, steps, rows, needed)
        try:
            number = sum(seen.records for seen in surveyed.seen.values())
            verdicts = self._archive_rows(folded.where(F.col("row") == RECORD_ROW).select("record.*"), number, sequence)
            state = folded.where(F.col("row") == STATE_ROW).select("state.*")
            whole = state
            if snapshot is not None:
                whole = state.unionByName(snapshot.where(f"not ({needed} or {_rebuilt(steps)})"))
            whole.coalesce(2).write.parquet(folder.place)
            differences = self._differences(folded, steps)
        finally:
            folded.unpersist()
            if older is not None:
                older.unpersist()
        published_figures = published(folder.uri)
        self._check({})
        after = dict(places) | {number: step.place for number, step in steps.items()}
        oldest_ms = min(seen.oldest_ms for seen in surveyed.seen.values())
        pointer = self._store.publish(base, self._meta(base, after, steps, published_figures, differences))
        return pointer, BatchOutcome(
            pointer.sequence,
            records=number,
            verdicts=verdicts,
            oldest_unread_ms=max(0, self._wall_ms() - oldest_ms),
            published=published_figures,
        )

    def _fold(
        self, snapshot: DataFrame | None, steps: Mapping[int, BatchStep], rows: DataFrame, needed: str
    ) -> DataFrame:
        plans = {number: step.plan for number, step in steps.items()}
        records = rows.selectExpr(*RAW.names, "`group`", f"{RECORD_ROW} as row", f"cast(null as {_HELD_TYPE}) as held")
        if snapshot is not None:
            held = snapshot.where(f"{needed} and not {_rebuilt(steps)}")
            records = records.unionByName(held.selectExpr(*_HELD_AS_ROWS))
        sorted_rows = records.repartition("partition", "group").sortWithinPartitions(
            "partition", "group", "row", "offset"
        )
        return sorted_rows.mapInArrow(fold_with(plans), _OUT_TYPE).persist(StorageLevel.MEMORY_AND_DISK)

    def _read(self, sequence: int) -> DataFrame:
        folder = self._store.folder(sequence)
        if not folder.exists():
            raise TableFormatError(self._store.root.uri, f"its pointer names the snapshot {sequence}, which is gone")
        return self._session.read.schema(_STATE_TYPE).parquet(f"{folder.pattern}/*.parquet")

    def _archive_rows(self, records: DataFrame, number: int, sequence: int) -> dict[str, int]:
        """Write them; how many have which verdict."""
        dated = records.selectExpr("*", _DATE)
        files = 1 + number // ROWS_IN_A_FILE
        placed = dated.coalesce(1) if files == 1 else dated.repartitionByRange(files, "partition", "offset")
        return self._archive.add(placed.sortWithinPartitions("partition", "offset"), sequence)

    def _differences(self, folded: DataFrame, steps: Mapping[int, BatchStep]) -> list[dict[str, Any]]:
        if not any(step.why is JoinReason.COLD_START for step in steps.values()):
            return []
        rows = folded.where(F.col("row") == DIFFERENCE_ROW).select("difference.*").collect()
        return [row.asDict() for row in rows]

    def _meta(
        self,
        base: Pointer | None,
        places: Mapping[int, ReadingPosition],
        steps: Mapping[int, BatchStep],
        published_figures: Published,
        differences: list[dict[str, Any]],
    ) -> dict[str, Any]:
        before = {} if base is None else base.meta
        cold_starts = list(before.get("cold_starts", ()))
        cold = {str(n): step.plan.facts.lenient_to for n, step in steps.items() if step.why is JoinReason.COLD_START}
        if cold:
            listed = differences[:_DIFFERENCES_MAX]
            cold_starts.append({"lenient_to": cold, "differences": listed, "differences_count": len(differences)})
        return {
            "format": FORMAT,
            "topic": self._log.topic,
            "topic_id": self._log.topic_id,
            "partitions": {str(number): place_fields(place) for number, place in sorted(places.items())},
            "tentative": any(place.reading is Reading.JOINING for place in places.values()),
            "incomplete": incomplete(before.get("incomplete", ()), steps),
            "cold_starts": cold_starts,
            "written_at_ms": self._wall_ms(),
            **asdict(published_figures),
        }


def read_meta(meta: Mapping[str, Any]) -> dict[str, ReadingPosition]:
    """Where each partition stands, if the pointer's `meta` has all that this job needs."""
    covers_of(meta)
    "".join(meta[name] for name in ("topic", "topic_id", "digest"))
    sum(meta[name] for name in ("keys", "bundles", "debts"))
    return {number: read_place(fields) for number, fields in meta["partitions"].items()}


def with_group(rows: DataFrame) -> DataFrame:
    """Rows of a log with their unit of the fold."""
    return rows.selectExpr(*RAW.names, f"{GROUP} as `group`")


def _needed(steps: Mapping[int, BatchStep], surveyed: BatchSurvey) -> str:
    """Which rows of the snapshot the fold needs; the others stay as they are."""
    rows = [
        (EVERYTHING if step.plan.joins else surveyed.needed.get(number, EVERYTHING)).condition(number)
        for number, step in steps.items()
    ]
    return f"({' or '.join(rows) or 'false'})"


def _rebuilt(steps: Mapping[int, BatchStep]) -> str:
    """Partitions whose view is rebuilt, without anything before."""
    numbers = [str(number) for number, step in steps.items() if step.plan.joins and not step.plan.cold_start]
    return f"(partition in ({', '.join(numbers)}))" if numbers else "(false)"


def _log_steps(steps: Mapping[int, BatchStep]) -> None:
    for number, step in sorted(steps.items()):
        if step.missing is not None:
            _log.error(
                "records were cleaned away before they were read: the archive is incomplete", **asdict(step.missing)
            )
        if step.why is not None:
            _log.warning(
                "the view is rebuilt, as a joining broker does",
                partition=number,
                why=step.why.value,
                lenient_to=step.plan.facts.lenient_to,
                tentative=step.plan.facts.tentative,
            )


_STATE_TYPE = from_arrow_schema(STATE)
_OUT_TYPE = from_arrow_schema(FOLD_OUT)
_HELD_TYPE = _STATE_TYPE.simpleString()
_HELD_AS_ROWS = (
    "partition",
    *(
        f"cast(null as {field.dataType.simpleString()}) as `{field.name}`"
        for field in from_arrow_schema(RAW).fields[1:]
    ),
    "namespace as `group`",
    f"{STATE_ROW} as row",
    f"struct({', '.join(f'`{name}`' for name in STATE.names)}) as held",
)


class TableFigures:
    """What the batches say, and the alarm where the archive is about to miss records.

    Args:
        alarm_after_ms: A quarter of the compaction lag: what lies unread for longer may soon be cleaned away.
    """

    def __init__(self, registry: CollectorRegistry, alarm_after_ms: int) -> None:
        self._alarm_after_ms = alarm_after_ms
        self._alarmed = False
        self.records = 0
        self.verdicts = Counter(
            "statechannel_spark_verdicts_total", "Records archived, by verdict.", ["verdict"], registry=registry
        )
        self.oldest_s = self._gauge(
            registry, "oldest_unread_seconds", "How long the oldest record of the batch waited."
        )
        self.alarm = self._gauge(registry, "archive_lag_alarm", "1: that is more than a quarter of the compaction lag.")
        self.sequence = self._gauge(registry, "snapshot_sequence", "Newest snapshot.")
        self.keys = self._gauge(registry, "view_keys", "Keys with an accepted state.")
        self.bundles = self._gauge(registry, "view_bundles", "Live bundles.")
        self.debts = self._gauge(registry, "view_debts", "Keys in debt.")

    @staticmethod
    def _gauge(registry: CollectorRegistry, name: str, meaning: str) -> Gauge:
        return Gauge(f"statechannel_spark_{name}", meaning, registry=registry)

    def begins(self, pointer: Pointer | None) -> None:
        if pointer is None:
            return
        self.sequence.set(pointer.sequence)
        for gauge, name in ((self.keys, "keys"), (self.bundles, "bundles"), (self.debts, "debts")):
            gauge.set(pointer.meta[name])

    def took(self, outcome: BatchOutcome) -> None:
        for verdict, count in (outcome.verdicts or {}).items():
            self.verdicts.labels(verdict or "none").inc(count)
        self.records += outcome.records
        self.oldest_s.set(outcome.oldest_unread_ms / 1_000)
        if outcome.sequence is not None:
            self.sequence.set(outcome.sequence)
        if outcome.published is not None:
            self.keys.set(outcome.published.keys)
            self.bundles.set(outcome.published.bundles)
            self.debts.set(outcome.published.debts)
        late = 0 < self._alarm_after_ms < outcome.oldest_unread_ms
        self.alarm.set(late)
        if late and not self._alarmed:
            _log.error(
                "the archive is late: records may be cleaned away before it reads them",
                oldest_unread_s=outcome.oldest_unread_ms // 1_000,
                alarm_after_s=self._alarm_after_ms // 1_000,
            )
        self._alarmed = late
