"""Where tests get a real Kafka from: an address, else the embedded broker, else a container."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from statechannel.embedded import BrokerOptions, EmbeddedKafkaError, KafkaServer

BOOTSTRAP_VARIABLE = "STATECHANNEL_TEST_BOOTSTRAP"

# What every broker of the tests needs so that the real cleaner can be watched at work.
CLEANER_PROPERTIES = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
}


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka that tests share: its address and where it came from (for the summary)."""

    bootstrap_servers: str
    lane: str


def embedded_options() -> BrokerOptions:
    return BrokerOptions(fast_cleaner=True)


@contextmanager
def shared_kafka(folder: Path) -> Iterator[Kafka]:
    """Yield the first Kafka that can be had. None at all fails the tests: it never skips them."""
    address = os.environ.get(BOOTSTRAP_VARIABLE)
    if address:
        yield Kafka(address, f"the Kafka at {address}")
        return
    server = KafkaServer(folder, options=embedded_options())
    try:
        server.start()
    except EmbeddedKafkaError as error:
        with _container(error) as container:
            yield container
        return
    try:
        yield Kafka(server.bootstrap_servers, "the embedded broker")
    finally:
        server.stop()


@contextmanager
def _container(embedded_error: EmbeddedKafkaError) -> Iterator[Kafka]:
    why_not = f"embedded broker: {embedded_error} ({embedded_error.hint})"
    try:
        importlib.import_module("docker").from_env().ping()
    except Exception as error:
        pytest.fail(
            f"no Kafka for the tests. {why_not}; container: no Docker engine answers ({error}). "
            f"Or name one in {BOOTSTRAP_VARIABLE}.",
            pytrace=False,
        )
    module = importlib.import_module("testcontainers.community.kafka")
    container = module.KafkaContainer().with_kraft()
    for name, value in CLEANER_PROPERTIES.items():
        container = container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    with container as running:
        yield Kafka(running.get_bootstrap_server(), f"a container (because of {why_not})")
