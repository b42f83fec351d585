"""What Kafka itself takes: records appended at once by one client, and read back by it."""

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from statechannel.kafka.client_settings import ClientSettings

VALUE = b"x" * 420
_WARM_UP = 3


def append_and_read_back(settings: ClientSettings, topic: str, records: int, *, hops: int) -> float:
    """Milliseconds until so many records, appended at once, were read back, `hops` times one after the other."""
    producer = Producer(settings.producer_config())
    consumer = Consumer(settings.consumer_config("bench-floor"))
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.assign([TopicPartition(topic, 0, end)])
    try:
        for _ in range(_WARM_UP):
            _hop(producer, consumer, topic, 1)
        began_ns = time.monotonic_ns()
        for _ in range(hops):
            _hop(producer, consumer, topic, records)
        return (time.monotonic_ns() - began_ns) / 1e6
    finally:
        consumer.close()


def _hop(producer: Producer, consumer: Consumer, topic: str, records: int) -> None:
    for number in range(records):
        producer.produce(topic, VALUE, str(number).encode(), 0)
    seen = 0
    while seen < records:
        message = consumer.poll(10)
        if message is None:
            raise RuntimeError("no record was read back within 10 s")
        seen += message.error() is None
    producer.poll(0)
