"""Every channel log that tests have left in a Kafka, judged record by record by the product and by the second implementation.

So the rules are compared on what real members wrote, with their late copies, races and cleanings, and not on made-up logs alone.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from statechannel.kafka.errors import is_topic_missing
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.log import RecordRead, Topic
from tests.unit.core.against_twin import difference

RECORDS_MAX = 20_000
"""A partition with more is left out, and counted: the floods of the tests are for other checks."""
READ_S = 60.0

Place = tuple[str, int]


def judge_logs(bootstrap_servers: str) -> Counter[str]:
    """Read and compare all of them; how many partitions and records there were.

    Raises:
        AssertionError: The two implementations differ.
    """
    counts = Counter[str]()
    topics = _channel_topics(bootstrap_servers)
    ends = _ends(bootstrap_servers, topics)
    logs = _read(bootstrap_servers, [place for place, end in ends.items() if 0 < end <= RECORDS_MAX])
    for (topic, partition), records in logs.items():
        counts["partitions"] += 1
        counts["records"] += len(records)
        differs = difference(records, partition, topics[topic])
        assert not differs, f"{topic} partition {partition}: {differs}"
    counts["partitions left out"] = sum(end > RECORDS_MAX for end in ends.values())
    return counts


def _channel_topics(bootstrap_servers: str) -> Mapping[str, int]:
    """Their names, each with the number of its partitions."""
    topics = AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=READ_S).topics
    return {
        name: len(metadata.partitions)
        for name, metadata in topics.items()
        if ChannelTopics(name).names[Topic.REGISTRY] in topics
    }


def _ends(bootstrap_servers: str, topics: Mapping[str, int]) -> Mapping[Place, int]:
    """High watermarks; a topic that its test has deleted just now has none."""
    places = [TopicPartition(name, partition) for name, count in topics.items() for partition in range(count)]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    ends: dict[Place, int] = {}
    for place, future in admin.list_offsets({place: OffsetSpec.latest() for place in places}).items():
        with suppress(KafkaException):
            ends[place.topic, place.partition] = future.result(READ_S).offset
    return ends


def _read(bootstrap_servers: str, places: Sequence[Place]) -> Mapping[Place, Sequence[RecordRead]]:
    """All records of these partitions, but for those that are deleted meanwhile."""
    logs: dict[Place, list[RecordRead]] = {place: [] for place in places}
    unread = set(places)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "judged-logs",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(*place, 0) for place in places])
        deadline_s = time.monotonic() + READ_S
        while unread:
            assert time.monotonic() < deadline_s, f"not read within {READ_S:g} s: {sorted(unread)[:4]}"
            for message in consumer.consume(2_000, 0.5):
                place = (message.topic(), message.partition())
                error = message.error()
                if error is None:
                    logs[place].append(
                        RecordRead(
                            Topic.CHANNEL,
                            place[1],
                            message.offset(),
                            message.timestamp()[1],
                            message.key(),
                            message.value(),
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(place)
                elif is_topic_missing(error):
                    unread.discard(place)
                    logs.pop(place, None)
    finally:
        consumer.close()
    return logs
