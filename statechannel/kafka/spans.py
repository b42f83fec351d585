"""Where the partitions of a topic begin and end now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from statechannel.kafka.errors import translate

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings


class LogSpan(NamedTuple):
    """Offsets of one partition.

    Attributes:
        low: First offset that the log still has a right to; it grows by retention and by deletion of records, not by compaction.
        end: Offset that the next record will have.
    """

    low: int
    end: int


def log_spans(settings: ClientSettings, topic: str, partitions: int, *, timeout_s: float = 20.0) -> dict[int, LogSpan]:
    """First and next offset of each partition.

    Raises:
        KafkaAdapterError: Nobody answers within the time, or there is no such partition.
    """
    admin = AdminClient(settings.admin_config())
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found: list[dict[int, int]] = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
        futures = admin.list_offsets(dict.fromkeys(places, spec), request_timeout=timeout_s)
        try:
            found.append({place.partition: one.result(timeout_s + 5.0).offset for place, one in futures.items()})
        except (KafkaException, TimeoutError) as error:
            raise translate(error, f"asking where {topic} begins and ends", secrets=settings.secrets()) from None
    lows, ends = found
    return {number: LogSpan(lows[number], ends[number]) for number in range(partitions)}
