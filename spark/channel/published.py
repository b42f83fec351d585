"""What a published snapshot holds, read back from where it was written: its digest, and how much it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.dataset as ds
import structlog
from pyspark.sql import functions as F

from spark.core.store import Folder
from statechannel.protocol.digest import digest_of, line_of
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.core.store import Pointer, SnapshotStore


_COLUMNS = ["key", "lower", "state", "version", "from", "to", "id", "debt_since"]


@dataclass(frozen=True, slots=True)
class Published:
    """Figures of a snapshot, as its pointer has them.

    Attributes:
        digest: Of all accepted states, as records.md section 8, has it.
        keys: With an accepted state. `bundles`: live ones. `namespaces`: Active ones.
    """

    digest: str
    keys: int
    bundles: int
    namespaces: int
    debts: int


def published(uri: str) -> Published:
    folder = Folder(uri)
    table = ds.dataset(folder.path, filesystem=folder.files, format="parquet").to_table(columns=_COLUMNS)
    debts = table.num_rows - table.column("debt_since").null_count
    table = table.filter(pc.is_valid(table.column("state"))).sort_by("key")
    columns = [table.column(name).to_pylist() for name in ("key", "version", "state", "from", "to", "id")]
    is_bundle = pc.greater_equal(table.column("lower"), 0)
    is_deleted = pc.equal(table.column("state"), State.DELETED.value)
    live = pc.and_(is_bundle, pc.invert(is_deleted))
    active = pc.and_(pc.invert(is_bundle), pc.equal(table.column("state"), State.ACTIVE.value))
    return Published(
        digest=digest_of(line_of(*fields) for fields in zip(*columns, strict=True)),
        keys=table.num_rows,
        bundles=int(pc.sum(live).as_py() or 0),
        namespaces=int(pc.sum(active).as_py() or 0),
        debts=debts,
    )


_log = structlog.get_logger(__name__)

SOURCE_OFFSET = "source-offset"
SEQUENCE = "sequence"
_FIELDS = ("partition", "state", "version", "from", "to", "id", "owner", "generation")

Write = Callable[["DataFrame"], None]
"""Writes rows of key, value and headers."""
_MARK = "PUBLISHED-"


class PublishedChanges:
    """The changes of a table that others receive.

    Args:
        name: Of the receiver; each has a mark of its own.
    """

    def __init__(self, store: SnapshotStore, name: str, write: Write) -> None:
        self._store = store
        self._mark = f"{_MARK}{name}"
        self._write = write

    def publish(self, newest: Pointer | None, read: Callable[[int], DataFrame]) -> None:
        """Publish what differs from what was published last; everything where that snapshot is gone.

        Args:
            read: A snapshot by its sequence.
        """
        mark = (self._store.root / self._mark).read()
        if mark is None or not mark.isdigit():
            mark = self._store.copy_of(self._mark)
        last = int(mark) if mark is not None and mark.isdigit() else None
        if newest is None or last == newest.sequence:
            return
        known = last is not None and self._store.folder(last).exists()
        if mark is not None and not known:
            _log.warning("all keys are published again: those that are gone since then are unknown", last=last)
        before = read(last) if last is not None and known else None
        self._write(changes(read(newest.sequence), before, newest.sequence))
        self._store.write(self._mark, b"%d" % newest.sequence, newest.sequence)


def to_topic(kafka: Mapping[str, str], topic: str) -> Write:

    def write(rows: DataFrame) -> None:
        rows.write.format("kafka").options(**kafka).option("topic", topic).save()

    return write


def changes(now: DataFrame, before: DataFrame | None, sequence: int) -> DataFrame:
    """Key, value and headers of each key whose accepted state is another one than before; a null for those that are gone."""
    exists = now.where(F.col("state").isNotNull())
    new = exists.select(
        F.col("key").cast("binary").alias("key"),
        F.to_json(F.struct(*(F.col(name) for name in _FIELDS)), {"ignoreNullFields": "false"})
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
    headers = ((SOURCE_OFFSET, offset), (SEQUENCE, F.lit(sequence)))
    return F.array(
        *(
            F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in headers
        )
    ).alias("headers")
