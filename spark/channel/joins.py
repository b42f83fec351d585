"""Partitions that cannot go on from the snapshot: what of their log is read again, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import functions as F

from spark.channel.plan import UNKNOWN_END, BatchStep, JoinReason, ReadingPosition, WholeLog, join, why_join
from spark.channel.survey import BatchSurvey, head_marks, newest_old, survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from statechannel.kafka.admin import OffsetBounds

Older = Callable[[Mapping[int, int]], "DataFrame"]
"""Reads partitions up to these offsets, exclusive; with the unit of the fold beside each row."""


class Began(NamedTuple):
    """How things were when a batch began.

    Attributes:
        bounds: Of the partitions, as far as they are known.
    """

    ms: int
    bounds: Mapping[int, OffsetBounds]


class Joins(NamedTuple):
    """What came of the partitions that could not go on.

    Attributes:
        rows: All rows to be folded, of the other partitions too.
        older: To be let go when the rows are folded.
    """

    rows: DataFrame
    steps: dict[int, BatchStep]
    older: DataFrame | None = None


class JoinSettlement:
    """Settles joins.

    Args:
        wall_ms: See `ChannelTable`.
    """

    def __init__(self, partitions: int, compaction_lag_ms: int, older: Older, wall_ms: Callable[[], int]) -> None:
        self._partitions = partitions
        self._lag_ms = compaction_lag_ms
        self._older = older
        self._wall_ms = wall_ms

    def settle(
        self, places: Mapping[int, ReadingPosition], rows: DataFrame, surveyed: BatchSurvey, began: Began
    ) -> Joins:
        """Read what lies before the batch in the partitions that do not go on, and say how they are read."""
        joins = self._joining(places, surveyed, began)
        if not joins:
            return Joins(rows, {})
        # Only that: what the batch holds may have been cleaned away by now, and is archived all the same.
        older = self._older({number: surveyed.seen[number].first for number in joins})
        older = older.persist(StorageLevel.MEMORY_AND_DISK)
        log = older.unionByName(rows.where(F.col("partition").isin(list(joins))))
        steps = self._steps(places, log, surveyed, joins, began)
        joining = [number for number, step in steps.items() if step.plan.joins]
        return Joins(rows.unionByName(older.where(F.col("partition").isin(joining))), steps, older)

    def _joining(
        self, places: Mapping[int, ReadingPosition], surveyed: BatchSurvey, began: Began
    ) -> dict[int, JoinReason]:
        kept_ms = began.ms - self._lag_ms
        ends = {number: bounds.high for number, bounds in began.bounds.items()}
        reasons = (
            (n, why_join(places[n], seen, oldest_kept_ms=kept_ms, log_end=ends.get(n, UNKNOWN_END)))
            for n, seen in surveyed.seen.items()
        )
        return {number: why for number, why in reasons if why is not None}

    def _steps(
        self,
        places: Mapping[int, ReadingPosition],
        log: DataFrame,
        surveyed: BatchSurvey,
        joins: Mapping[int, JoinReason],
        began: Began,
    ) -> dict[int, BatchStep]:
        whole = survey(log.where(F.col("partition").isin(list(joins))), {}).seen
        # Asked behind the reading: what was younger than the lag even then was not cleaned away while it was read.
        now_ms = self._wall_ms()
        late = now_ms - began.ms > self._lag_ms // 2
        # The latest time of any record is right here, also one from the future: Kafka's cleaner used the clock that stamped it.
        newest_ms = max(now_ms, *(seen.newest_ms for seen in whole.values()))
        old = newest_old(log, whole, oldest_kept_ms=newest_ms - self._lag_ms)
        firsts = {number: began.bounds[number].low if number in began.bounds else 0 for number in joins}
        cold = {number: [mark.offset for mark in whole[number].marks] for number in joins if firsts[number] > 0}
        heads = head_marks(log, cold, {number: whole[number].stop for number in cold}) if cold else {}
        return {
            number: join(
                self._partitions,
                number,
                places[number],
                surveyed.seen[number],
                WholeLog(whole[number], old[number], late, firsts[number], heads.get(number)),
                why,
            )
            for number, why in joins.items()
        }
