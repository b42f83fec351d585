"""Whether a log says anything of a bundle, a namespace or a topic at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from spark.replay_fold import bytes_of
from statechannel.audit.history import History
from statechannel.core.inputs import RecordRead, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def named(rows: DataFrame, name: str) -> bool:
    """Whether any record is about it; see `History.is_named`."""
    prefix = History(name).namespace.encode()
    near = rows.where(F.startswith(F.col("key"), F.lit(prefix))).select("key", "value")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        history = History(name)
        for batch in batches:
            keys, values = (bytes_of(batch.column(column)) for column in ("key", "value"))
            if history.is_named(RecordRead(Topic.CHANNEL, 0, 0, 0, *pair) for pair in zip(keys, values, strict=True)):
                yield pa.RecordBatch.from_arrays([pa.array([True])], names=["named"])
                return

    return bool(near.mapInArrow(work, "named boolean").limit(1).collect())
