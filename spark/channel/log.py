"""The channel's topic as the jobs read it: what it is, whether it still is, and its records as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from spark.errors import TopicBrokenError
from statechannel.kafka.admin import BoundsAsker, OffsetBounds
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.partition_count import as_used
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import TopicAdmin, TopicInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EARLIEST = -2
"""Kafka's number for the beginning of a partition."""
_LAG = "min.compaction.lag.ms"


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


def raw_rows(rows: DataFrame) -> DataFrame:
    """What the Kafka source gives, as `schemas.RAW`."""
    return rows.selectExpr("partition", "offset", "unix_millis(timestamp) as timestamp_ms", "key", "value", "headers")


class ChannelTopic:
    """Asks Kafka about one topic, and reads it.

    Args:
        kafka: Options of Spark's source.
        accept_lost_head: Go on where records were deleted (not compacted) before they were read.

    Raises:
        TopicMissingError: It does not exist.
    """

    def __init__(
        self,
        client: ClientSettings,
        name: str,
        kafka: Mapping[str, str],
        *,
        accept_lost_head: bool = False,
        timeout_s: float = 20.0,
    ) -> None:
        self.name = name
        self._client = client
        self._kafka = dict(kafka)
        self._accept_lost_head = accept_lost_head
        self._admin = TopicAdmin(client, timeout_s=timeout_s)
        self._bounds = BoundsAsker(client, timeout_s=timeout_s)
        topic = self._describe()
        used = as_used(client, ChannelTopics(name), topic, timeout_s=timeout_s)
        self.log = ChannelLog(name, topic.topic_id, used.partitions, int(topic.settings.get(_LAG, "0")))

    def _describe(self) -> TopicInfo:
        topic = self._admin.describe([self.name]).get(self.name)
        if topic is None:
            raise TopicMissingError(
                f"the topic {self.name} does not exist at {self._client.bootstrap_servers}",
                hint="Check --channel and --bootstrap-servers, or create the topics with `statechannel init`.",
            )
        return topic

    def bounds(self, partitions: Iterable[int]) -> dict[int, OffsetBounds]:
        answers = self._bounds.ask((self.name, partition) for partition in partitions)
        return {number: bounds for (_, number), bounds in answers.items()}

    def check(self, positions: Mapping[int, int]) -> dict[int, OffsetBounds]:
        """See that the topic is the one that was opened, and has all that is still to be read; where it begins and ends.

        Args:
            positions: Next offset of each partition.

        Raises:
            TopicBrokenError: It was created again, ends before a position, or lost records that were not read.
        """
        now = self._describe()
        if now.topic_id != self.log.topic_id:
            raise TopicBrokenError(
                f"the topic {self.name} was re-created (id {now.topic_id}, was {self.log.topic_id})",
                hint="What was read stays as it is. Start the job with other folders for table and checkpoint.",
            )
        bounds_of = self.bounds(positions)
        for number, bounds in bounds_of.items():
            position = positions[number]
            if bounds.high < position:
                raise TopicBrokenError(
                    f"{self.name}-{number} ends at {bounds.high}, before the position {position} that was already read",
                    hint="Kafka lost records, or the topic was created again; see its brokers' logs.",
                )
            if bounds.low > position and not self._accept_lost_head:
                raise TopicBrokenError(
                    f"{self.name}-{number} has lost its head: the offsets {position} to {bounds.low - 1} were deleted "
                    "before they were read",
                    hint="The channel's topic must be compacted and never trimmed. --accept-lost-head joins behind them, and "
                    "the archive marks them as missing.",
                )
        return bounds_of

    def first(self, positions: Mapping[int, int]) -> dict[str, str]:
        """What a query reads, and where it begins, as options of its source."""
        starts = {number: position or EARLIEST for number, position in positions.items()}
        return {"assign": orjson.dumps({self.name: sorted(starts)}).decode(), "startingOffsets": self._json(starts)}

    def whole(self, session: SparkSession, ends: Mapping[int, int]) -> DataFrame:
        """Rows of `schemas.RAW` of partitions up to these offsets."""
        return raw_rows(self.read(session, ends, {}, {"includeHeaders": "true"}))

    def read(
        self, session: SparkSession, ends: Mapping[int, int], starts: Mapping[int, int], options: Mapping[str, str]
    ) -> DataFrame:
        """What the Kafka source gives of partitions up to these offsets, exclusive.

        Args:
            options: Further ones of the source.
        """
        reader = session.read.format("kafka").options(**self._kafka).options(**options)
        reader = reader.option("assign", orjson.dumps({self.name: sorted(ends)}).decode())
        reader = reader.option("startingOffsets", self._json({n: starts.get(n, EARLIEST) for n in ends}))
        return reader.option("endingOffsets", self._json(ends)).load()

    def _json(self, offsets: Mapping[int, int]) -> str:
        return orjson.dumps({self.name: {str(number): offset for number, offset in offsets.items()}}).decode()
