"""Every channel log that tests have left in a Kafka, judged record by record by the product and by the second implementation.

So the rules are compared on what real members wrote, with their late copies, races and cleanings, and not on made-up logs alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from statechannel.protocol.log import RecordRead, Topic
from tests.unit.core.against_twin import difference

RECORDS_MAX = 20_000
"""A partition with more is left out, and counted: the floods of the tests are for other checks."""
READ_S = 60.0
_SUFFIX = "-registry"

Place = tuple[str, int]


def judge_logs(bootstrap_servers: str) -> Counter[str]:
    """Read and compare all of them; how many partitions and records there were.

    Raises:
        AssertionError: The two implementations differ.
    """
    counts = Counter[str]()
    places, sizes = _places(bootstrap_servers), Counter[str]()
    for place, records in _read(bootstrap_servers, places).items():
        sizes[place[0]] += 1
        counts["partitions"] += 1
        counts["records"] += len(records)
        differs = difference(records, place[1], sum(1 for topic, _ in places if topic == place[0]))
        assert not differs, f"{place[0]} partition {place[1]}: {differs}"
    counts["partitions left out"] = sum(end > RECORDS_MAX for end in places.values())
    return counts


def _places(bootstrap_servers: str) -> Mapping[Place, int]:
    """Partitions of channel topics, with their ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    topics = admin.list_topics(timeout=READ_S).topics
    wanted = [
        TopicPartition(name, partition)
        for name, found in topics.items()
        if f"{name}{_SUFFIX}" in topics
        for partition in found.partitions
    ]
    ends: dict[Place, int] = {}
    for place, future in admin.list_offsets({place: OffsetSpec.latest() for place in wanted}).items():
        try:
            ends[place.topic, place.partition] = future.result(READ_S).offset
        except KafkaException:  # deleted by its test just now
            continue
    return ends


def _read(bootstrap_servers: str, ends: Mapping[Place, int]) -> Mapping[Place, Sequence[RecordRead]]:
    found: dict[Place, list[RecordRead]] = {place: [] for place, end in ends.items() if 0 < end <= RECORDS_MAX}
    missing = set(found)
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
        consumer.assign([TopicPartition(*place, 0) for place in found])
        deadline_s = time.monotonic() + READ_S
        while missing and time.monotonic() < deadline_s:
            for message in consumer.consume(2_000, 0.5):
                place = (message.topic(), message.partition())
                if message.error() is not None:
                    missing.discard(place)
                    continue
                record = RecordRead(
                    Topic.CHANNEL, place[1], message.offset(), message.timestamp()[1], message.key(), message.value()
                )
                found[place].append(record)
    finally:
        consumer.close()
    return {place: records for place, records in found.items() if place not in missing}
