"""The Kafka that the measurements run on: an embedded broker of their own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statechannel.embedded import BrokerOptions, KafkaServer
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import create_topics


@contextmanager
def kafka(heap_mib: int = 256) -> Iterator[str]:
    """Address of a fresh embedded broker that ends with the block."""
    with kafka_server(heap_mib) as server:
        yield server.bootstrap_servers


@contextmanager
def kafka_server(heap_mib: int = 256) -> Iterator[KafkaServer]:
    """The same, with its process."""
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        server = KafkaServer(Path(folder) / "kafka", options=BrokerOptions(heap_mib=heap_mib))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def make_channel(bootstrap: str, name: str) -> tuple[ClientSettings, ChannelTopics]:
    """Create the topics of a channel."""
    settings = ClientSettings(bootstrap)
    topics = ChannelTopics(name)
    create_topics(settings, topics, replication_factor=1, timeout_s=60.0)
    return settings, topics
