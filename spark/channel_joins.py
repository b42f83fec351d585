"""Partitions that cannot go on from the snapshot: what of their log is read again, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from spark.plan import Place, Step, Whole, Why, join, why_join
from spark.survey import Survey, newest_old, not_below, survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Older = Callable[[Mapping[int, int]], "DataFrame"]
"""Reads partitions from their beginning to these offsets, exclusive; with the unit of the fold beside each row."""


class Joins(NamedTuple):
    """What came of the partitions that could not go on.

    Attributes:
        rows: All rows to be folded, of the other partitions too.
        found: What is new, where there was more than the batch held.
        steps: Of the partitions that join.
        older: To be let go when the rows are folded.
    """

    rows: DataFrame
    found: Survey
    steps: dict[int, Step]
    older: DataFrame | None = None


class WholeLog:
    """Settles joins.

    Args:
        wall_ms: See `ChannelTable`.
    """

    def __init__(self, partitions: int, compaction_lag_ms: int, older: Older, wall_ms: Callable[[], int]) -> None:
        self._partitions = partitions
        self._lag_ms = compaction_lag_ms
        self._older = older
        self._wall_ms = wall_ms

    def settle(self, places: Mapping[int, Place], rows: DataFrame, found: Survey, begun_ms: int) -> Joins:
        """Read what lies before the batch in the partitions that do not go on, and say how they are read.

        Args:
            begun_ms: When the batch began.
        """
        joins = self._joining(places, found, begun_ms)
        if not joins:
            return Joins(rows, found, {})
        asked = {number: places[number] for number in joins}
        # Only that: what the batch holds may have been cleaned away by now, and is archived all the same.
        older = self._older({number: found.seen[number].first for number in joins})
        older = older.persist(StorageLevel.MEMORY_AND_DISK)
        log = older.unionByName(rows.where(F.col("partition").isin(list(joins))))
        # Records that only the batch lacks are no gap: a table may be older than its checkpoint.
        new = not_below({number: place.position for number, place in asked.items()})
        again = survey(log.where(new), {number: place.position for number, place in asked.items()})
        found = Survey({**found.seen, **again.seen}, {**found.needed, **again.needed})
        steps = self._steps(places, log, found, self._joining(places, found, begun_ms), begun_ms)
        joining = [str(number) for number, step in steps.items() if step.plan.joins]
        wanted = older.where(f"partition in ({', '.join(joining)}) or {new}" if joining else new)
        return Joins(rows.unionByName(wanted), found, steps, older)

    def _joining(self, places: Mapping[int, Place], found: Survey, begun_ms: int) -> dict[int, Why]:
        kept_ms = begun_ms - self._lag_ms
        reasons = ((n, why_join(places[n], seen, oldest_kept_ms=kept_ms)) for n, seen in found.seen.items())
        return {number: why for number, why in reasons if why is not None}

    def _steps(
        self, places: Mapping[int, Place], log: DataFrame, found: Survey, joins: Mapping[int, Why], begun_ms: int
    ) -> dict[int, Step]:
        if not joins:
            return {}
        whole = survey(log.where(F.col("partition").isin(list(joins))), {}).seen
        # Asked behind the reading: what was younger than the lag even then was not cleaned away while it was read.
        now_ms = self._wall_ms()
        late = now_ms - begun_ms > self._lag_ms // 2
        newest_ms = max(now_ms, *(one.newest_ms for one in whole.values()))
        old = newest_old(log, whole, oldest_kept_ms=newest_ms - self._lag_ms)
        return {
            number: join(
                self._partitions,
                number,
                places[number],
                found.seen[number],
                Whole(whole[number], old[number], late),
                why,
            )
            for number, why in joins.items()
        }
