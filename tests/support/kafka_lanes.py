"""Where tests get a real Kafka from: an address, else the embedded broker, else a container."""

import fcntl
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from statechannel.embedded import BrokerOptions, EmbeddedKafkaError, KafkaServer
from statechannel.embedded.detached import up
from tests.support.waits import KNOWN_S, WAIT_S

BOOTSTRAP_VARIABLE = "STATECHANNEL_TEST_BOOTSTRAP"

# What every broker of the tests needs so that the real cleaner can be watched at work.
CLEANER_PROPERTIES = {"log.cleaner.backoff.ms": "200", "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024)}


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka that tests share: its address and where it came from (for the summary)."""

    bootstrap_servers: str
    lane: str


def embedded_options() -> BrokerOptions:
    return BrokerOptions(fast_cleaner=True, start_timeout_s=WAIT_S)


SHARED = BrokerOptions(fast_cleaner=True, heap_mib=384, start_timeout_s=WAIT_S)
"""Of the broker that all workers of a run share: it holds the topics of all their tests."""


_ASKING = (
    "statechannel.kafka.admin:BoundedAdmin.__init__",
    "statechannel.kafka.tail:PartitionTail.__init__",
    "statechannel.kafka.tail:append_and_wait",
    "statechannel.kafka.topics:create_topics",
    "statechannel.kafka.topics:inspect_topics",
    "statechannel.kafka.topics:open_topics",
    "statechannel.kafka.topics:verify_topics",
    "spark.channel.log:ChannelTopic.__init__",
)
"""What asks Kafka with a time-out of its own: 20 s, for which a machine may starve Kafka beside ten others that start."""
_FIRST_NICE = -15


def serve_first(pid: int | None) -> None:
    """Let a broker run before those that wait for it, where this may be done.

    It is a session of its own, and Linux shares processors out among sessions (sched_autogroup): where those of others, or
    the tests' own, are preferred, a broker gets a hundredth, and its port takes connections that nobody answers.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(_FIRST_NICE), encoding="utf-8")


def ask_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test does not say itself waits for Kafka as long as tests wait: functions, and commands of the shell."""
    monkeypatch.setenv("STATECHANNEL_KAFKA__COMMAND_TIMEOUT_S", str(min(WAIT_S, 600)))
    monkeypatch.setenv("STATECHANNEL_KAFKA__TOPIC_GRACE_S", str(KNOWN_S))
    for name in _ASKING:
        if name.partition(":")[0] in sys.modules:
            monkeypatch.setitem(pkgutil.resolve_name(name).__kwdefaults__, "timeout_s", WAIT_S)


@contextmanager
def shared_kafka(folder: Path, at_end: Callable[[Kafka], None] = lambda _: None) -> Iterator[Kafka]:
    """Yield the first Kafka that can be had. None at all fails the tests: it never skips them.

    Args:
        folder: Data folder of the embedded broker. Processes that name the same folder share the broker; the last one stops it.
        at_end: Called before the Kafka is stopped, or, where it is not the embedded broker, before this process leaves it.
    """
    address = os.environ.get(BOOTSTRAP_VARIABLE)
    if address:
        kafka = Kafka(address, f"the Kafka at {address}")
        yield kafka
        at_end(kafka)
        return
    with folder.with_name(f"{folder.name}.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            status, _ = up(folder, options=SHARED)
        except EmbeddedKafkaError as error:
            with _container(error) as container:
                yield container
                at_end(container)
            return
        serve_first(status.pid)
        kafka = Kafka(str(status.bootstrap_servers), "the embedded broker")
        try:
            yield kafka
        finally:
            with suppress(BlockingIOError):  # another process uses it
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    at_end(kafka)
                finally:
                    KafkaServer(folder, options=SHARED).stop()


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
