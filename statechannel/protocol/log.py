"""Records of the channel's topics, as delivered by readers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Topic(StrEnum):
    """The topics of a channel, by role; the adapter knows their names."""

    CHANNEL = "channel"
    REGISTRY = "registry"
    REQUESTS = "requests"


class RecordRead(NamedTuple):
    """One record, in log order. `timestamp_ms` is the log's own time (LogAppendTime).

    A named tuple, because replay creates one for every record of the log and it costs a third of a frozen dataclass.
    """

    topic: Topic
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class RecordsRead(NamedTuple):
    """A non-empty batch of records of one partition in log order, equivalent to single records, but faster in a replay."""

    records: Sequence[RecordRead]
    size_bytes: int = 0
