"""Over how many partitions a channel distributes its keys: the number that its log names, whatever its topic has now.

Kafka lets anybody add partitions to a topic, and takes none back. Processes that took the number from Kafka at different times
would look for a namespace in different partitions, and give its bundles to two owners.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from statechannel.kafka.errors import TopicPolicyError
from statechannel.kafka.tail import PartitionTail, Span
from statechannel.protocol.codec import HEARTBEAT_KEY
from statechannel.protocol.digest import first_count
from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import ChannelTopics
    from statechannel.kafka.topics import TopicInfo

FIRST_WINDOW: Final = 500
SCANNED_MAX: Final = 100_000
"""Offsets: brokers of this version write a heartbeat every second, so that it is among the last records."""


def as_used(settings: ClientSettings, topics: ChannelTopics, info: TopicInfo, *, timeout_s: float) -> TopicInfo:
    """The channel's topic with the number of partitions that the channel uses; further ones are left alone.

    Raises:
        TopicPolicyError: The topic has fewer partitions than the channel uses: it is not the one that the channel began with.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    with PartitionTail(
        settings, Topic.CHANNEL, topics.channel, 0, group_id=topics.reader_group, timeout_s=timeout_s
    ) as tail:
        used = _used(tail, info.partitions)
    if used > info.partitions:
        raise TopicPolicyError(
            f"The topic {info.name} has {info.partitions} partitions, and its channel uses {used}.",
            hint="The topic was created again with fewer partitions. Add the missing ones: `kafka-topics.sh --bootstrap-server "
            f"{settings.bootstrap_servers} --alter --topic {info.name} --partitions {used}`. Brokers that start then say what "
            "to do about the lost records; `statechannel doctor` does, too.",
        )
    return replace(info, partitions=used)


def _used(tail: PartitionTail, in_kafka: int) -> int:
    """The first number among the newest records that name one, so that a single heartbeat at the end decides nothing.

    Heartbeats and marks of imports name it. Brokers of older versions name none, and write heartbeats to each partition that they
    use: then those that hold records count. A channel with neither is new, and uses all.
    """
    span, window = tail.span(), FIRST_WINDOW
    end, has_heartbeat = span.end, False
    while end > span.low and span.end - end < SCANNED_MAX:
        start = max(span.low, end - window)
        records = list(tail.records(Span(span.low, start, end)))
        named = first_count(records)
        if named is not None:
            return named
        has_heartbeat = has_heartbeat or any(record.key == HEARTBEAT_KEY for record in records)
        end, window = start, window * 4
    if not has_heartbeat:  # an import that was killed names the number in its first record alone
        head = Span(span.low, span.low, min(end, span.low + FIRST_WINDOW))
        return first_count(tail.records(head)) or in_kafka
    return next(number for number in range(in_kafka, 0, -1) if tail.end_of(number - 1) > 0)
