"""Logs of the tests as frames, and what the core says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql.pandas.types import from_arrow_schema

from spark.channel.log import ChannelLog
from spark.channel.table import ChannelTable
from spark.core.archive import Archive
from spark.core.schemas import RAW
from spark.core.store import SnapshotStore
from statechannel.kafka.admin import OffsetBounds
from statechannel.protocol.log import RecordRead

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

LAG_MS = 3_600_000


def frame_of(session: SparkSession, records: Iterable[RecordRead]) -> DataFrame:
    """Records as the Kafka source would give them."""
    rows = [(r.partition, r.offset, r.timestamp_ms, r.key, r.value, None) for r in records]
    columns = zip(*rows, strict=True) if rows else [[] for _ in RAW]
    table = pa.table([pa.array(list(c), f.type) for c, f in zip(columns, RAW, strict=True)], schema=RAW)
    return session.createDataFrame(table, schema=from_arrow_schema(RAW))


class LogTopic:
    """A log that stands for the topic: what lies in it now, whatever was cleaned away.

    Attributes:
        first: Offset below which all records were deleted.
    """

    def __init__(self, session: SparkSession, partitions: int) -> None:
        self.session = session
        self.partitions = partitions
        self.records: list[RecordRead] = []
        self.first = 0

    def whole(self, ends: Mapping[int, int]) -> DataFrame:
        """As the job reads it for a join."""
        return frame_of(self.session, [r for r in self.records if r.offset < ends.get(r.partition, 0)])

    def check(self, positions: Mapping[int, int]) -> dict[int, OffsetBounds]:
        """Where it begins and ends; nothing is ever wrong with it."""
        last = {number: [r.offset for r in self.records if r.partition == number] for number in positions}
        return {number: OffsetBounds(self.first, max(offsets, default=-1) + 1) for number, offsets in last.items()}


def table_on(topic: LogTopic, folder: Path, **options: Any) -> ChannelTable:
    """View and archive of a log in a folder."""
    log = ChannelLog("bundle-state", "id-1", topic.partitions, LAG_MS)
    options.setdefault("wall_ms", lambda: max((r.timestamp_ms for r in topic.records), default=0))
    return ChannelTable(
        topic.session,
        log,
        SnapshotStore(str(folder / "view")),
        Archive(str(folder / "archive")),
        whole_log=topic.whole,
        check=topic.check,
        **options,
    )


def archived(folder: Path) -> list[dict[str, Any]]:
    """All rows of the archive, in the order of the log, read without Spark."""
    files = sorted(map(str, (folder / "archive").glob("dt=*/batch=*/*.parquet")))
    result = ds.dataset(
        files, format="parquet", partitioning="hive", partition_base_dir=str(folder / "archive")
    ).to_table()
    rows: list[dict[str, Any]] = result.to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def pieces(records: Sequence[RecordRead], cuts: Sequence[int]) -> list[list[RecordRead]]:
    """A log in batches that end at these places."""
    bounds = [0, *sorted(cuts), len(records)]
    return [list(records[a:b]) for a, b in pairwise(bounds)]
