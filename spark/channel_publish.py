"""The view as a compacted topic that other tools read: a record for each key that a batch has changed.

Delivered at least once and in no order across keys: the header `source-offset` says which record of the channel the value stands
for, and a reader drops what is older than what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCE_OFFSET = "source-offset"
SEQUENCE = "sequence"
_TOLD = ("partition", "state", "version", "from", "to", "id", "owner", "generation")

Publish = Callable[["DataFrame", "DataFrame | None", int], None]
"""Told the keys of what was folded as they are now, those of the same namespaces as they were, and the sequence."""


def to_topic(kafka: Mapping[str, str], topic: str) -> Publish:
    """Writes what has changed to this topic."""

    def publish(now: DataFrame, before: DataFrame | None, sequence: int) -> None:
        rows = changes(now, before, sequence)
        rows.write.format("kafka").options(**kafka).option("topic", topic).save()

    return publish


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
