"""State topic: plans, their progress and requests of operators, in one partition, so that its order decides who executes.

Policy delete, not compact: all events of a key count, not only the last. Retention is long; an executor writes the
plan again when it starts. A lost topic only ends control from other hosts: the journal is on the executor's disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from shedders.kafka_rebalance.execution.state_records import StateBook
from statechannel.kafka.errors import (
    AppendOutcomeUnknownError,
    TopicPolicyError,
    translate,
)
from statechannel.kafka.tail import PartitionTail, Span
from statechannel.kafka.topic_policy import DAY_MS, ChannelTopics, Requirement, SettingRule, TopicPolicy
from statechannel.kafka.topics import ClusterAdmin, TopicAdmin, create_topics, inspect
from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

ROLE: Final = "partition-plans"
RETENTION_MS: Final = 30 * DAY_MS
RECORD_BYTES: Final = 1_000_000
_LABEL: Final = Topic.REQUESTS
"""Role of records when they are read; not used here."""


@dataclass(frozen=True, slots=True)
class StateTopics(ChannelTopics):
    """Name and topic policy; `channel` is the name."""

    @property
    def reader_group(self) -> str:
        """Consumer group that librdkafka requires; no offsets are committed."""
        return f"{self.channel}-reader"

    @property
    def policies(self) -> Mapping[str, TopicPolicy]:
        requirements = (
            Requirement("cleanup.policy", SettingRule.EXACTLY, "delete"),
            Requirement("message.timestamp.type", SettingRule.EXACTLY, "LogAppendTime"),
            Requirement("max.message.bytes", SettingRule.AT_LEAST, str(RECORD_BYTES)),
            Requirement("retention.ms", SettingRule.AT_LEAST, str(RETENTION_MS), hard=False),
        )
        return {self.channel: TopicPolicy(role=ROLE, requirements=requirements)}


class StateTopic:
    """Reader and writer of the topic. A context manager; for one thread, but `append` may be called from any.

    Args:
        settings: Connection settings of Kafka.
        name: Name of the topic.
        away_s: Time without heartbeats after which a holder expires.
        timeout_s: Time limit of one answer.
    """

    def __init__(self, settings: ClientSettings, name: str, *, away_s: float, timeout_s: float = 20.0) -> None:
        self._settings, self.name, self._timeout_s = settings, name, timeout_s
        self._topics = StateTopics(name)
        self._tail: PartitionTail | None = None
        self._producer: Producer | None = None
        self._next = 0
        self.book = StateBook(round(away_s * 1_000))

    def __enter__(self) -> StateTopic:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tail is not None:
            self._tail.close()
        if self._producer is not None:
            self._producer.flush(1.0)

    def exists(self) -> bool:
        """Whether the topic exists, with valid settings.

        Raises:
            TopicPolicyError: Its settings are invalid.
        """
        states = TopicAdmin(self._settings, timeout_s=self._timeout_s).describe([self.name])
        if self.name not in states:
            return False
        hard = inspect(states, self._settings, self._topics).hard
        if hard:
            lines = "\n  ".join(str(problem) for problem in hard)
            raise TopicPolicyError(
                f"the topic of partition plans has invalid settings:\n  {lines}",
                hint="Run the commands above, or use another topic: extensions.partitions.state_topic.",
            )
        return True

    def create(self, replication_factor: int) -> None:
        """Create the topic if it is missing.

        Raises:
            KafkaAdapterError: Kafka refuses it, or does not answer.
        """
        if self.exists():
            return
        nodes = len(ClusterAdmin(self._settings, timeout_s=self._timeout_s).cluster().nodes)
        factor = max(1, min(replication_factor, nodes))
        create_topics(self._settings, self._topics, replication_factor=factor, timeout_s=self._timeout_s)

    def read(self) -> StateBook:
        """Read new records up to the present end.

        Raises:
            KafkaAdapterError: Kafka is out of reach, or the topic is missing.
        """
        if self._tail is None:
            self._tail = PartitionTail(
                self._settings,
                _LABEL,
                self.name,
                0,
                group_id=self._topics.reader_group,
                timeout_s=self._timeout_s,
            )
        span = self._tail.span(start=self._next)
        if span.end < self._next:  # the topic was created again
            self._next = 0
            span = Span(low=span.low, start=span.low, end=span.end)
        if span.end > span.start:
            for record in self._tail.records(span):
                self.book.take(record.timestamp_ms, record.value)
        self._next = span.end
        return self.book

    def append(self, plan_id: str, values: Iterable[bytes]) -> None:
        """Write records and wait for their acknowledgement.

        Raises:
            AppendOutcomeUnknownError: No answer in time; the records may have been written or not.
            KafkaAdapterError: Kafka refused a record.
        """
        failures: list[KafkaError] = []
        ended: list[None] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            ended.append(None)
            if error is not None:
                failures.append(error)

        doing = f"writing to {self.name}"
        try:
            producer = self._open()
            count = 0
            for value in values:
                producer.produce(self.name, value=value, key=plan_id.encode(), partition=0, on_delivery=delivered)
                count += 1
            deadline_s = time.monotonic() + self._timeout_s
            while len(ended) < count and time.monotonic() < deadline_s:
                producer.poll(0.05)
        except (KafkaException, BufferError, TypeError, ValueError) as error:
            raise translate(error, doing, secrets=self._settings.secrets()) from None
        if failures:
            raise translate(failures[0], doing, secrets=self._settings.secrets())
        if len(ended) < count:
            raise AppendOutcomeUnknownError(
                f"Kafka did not confirm in {self._timeout_s:g} s while {doing}", hint="Check the status, then retry."
            )

    def _open(self) -> Producer:
        if self._producer is None:
            config = {
                **self._settings.producer_config(),
                "delivery.timeout.ms": max(1_000, round(self._timeout_s * 1_000)),
                "error_cb": lambda _error: None,
            }
            self._producer = Producer(config)
        return self._producer
