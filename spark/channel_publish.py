"""The view as a compacted topic that other tools read: a record for each key that differs from the snapshot told before.

Only snapshots that a pointer has named are told; a mark beside the pointer says which one was told last, and moves behind the
telling. So the topic ends with the view whatever is killed when. Delivered at least once and in no order across keys: the header
`source-offset` says which record of the channel the value stands for, and a reader drops what is older than what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.store import Pointer, SnapshotStore

_log = structlog.get_logger(__name__)

SOURCE_OFFSET = "source-offset"
SEQUENCE = "sequence"
_TOLD = ("partition", "state", "version", "from", "to", "id", "owner", "generation")

Write = Callable[["DataFrame"], None]
"""Writes rows of key, value and headers."""
_MARK = "PUBLISHED-"


class Changes:
    """What others are told of a table.

    Args:
        name: Of whoever is told; each has a mark of its own.
    """

    def __init__(self, store: SnapshotStore, name: str, write: Write) -> None:
        self._store = store
        self._mark = store.root / f"{_MARK}{name}"
        self._write = write

    def tell(self, newest: Pointer | None, read: Callable[[int], DataFrame]) -> None:
        """Tell what differs from what was told last; everything where that is not there any more.

        Args:
            read: A snapshot by its sequence.
        """
        told = self._mark.read()
        last = int(told) if told is not None and told.isdigit() else None
        if newest is None or last == newest.sequence:
            return
        known = last is not None and self._store.folder(last).exists()
        if last is not None and not known:
            _log.warning("all keys are told again: those that are gone since then cannot be known", told_last=last)
        before = read(last) if last is not None and known else None
        self._write(changes(read(newest.sequence), before, newest.sequence))
        self._mark.write(b"%d" % newest.sequence)


def to_topic(kafka: Mapping[str, str], topic: str) -> Write:
    """Writes to this topic."""

    def write(rows: DataFrame) -> None:
        rows.write.format("kafka").options(**kafka).option("topic", topic).save()

    return write


def changes(now: DataFrame, before: DataFrame | None, sequence: int) -> DataFrame:
    """Key, value and headers of each key whose accepted state is another one than before; a null for those that are gone."""
    exists = now.where(F.col("state").isNotNull())
    new = exists.select(
        F.col("key").cast("binary").alias("key"),
        F.to_json(F.struct(*(F.col(name) for name in _TOLD)), {"ignoreNullFields": "false"})
        .cast("binary")
        .alias("value"),
        _headers(F.col("offset"), sequence),
    )
    if before is None:
        return new
    was = before.where(F.col("state").isNotNull()).select(
        "key", F.col("id").alias("was_id"), F.col("offset").alias("at")
    )
    same = exists.join(was.select("key", "was_id"), "key").where(F.col("id") == F.col("was_id")).select("key")
    changed = new.join(same.select(F.col("key").cast("binary").alias("key")), "key", "left_anti")
    gone = was.join(exists.select("key"), "key", "left_anti").select(
        F.col("key").cast("binary").alias("key"),
        F.lit(None).cast("binary").alias("value"),
        _headers(F.col("at"), sequence),
    )
    return changed.unionByName(gone)


def _headers(offset: Column, sequence: int) -> Column:
    said = ((SOURCE_OFFSET, offset), (SEQUENCE, F.lit(sequence)))
    return F.array(
        *(
            F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in said
        )
    ).alias("headers")
