"""State topic: plans, their progress and requests of operators, in one partition, so that its order decides who executes.

Policy delete, not compact: all events of a key count, not only the last. Retention is long; an executor writes the
plan again when it starts. A lost topic only ends control from other hosts: the journal is on the executor's disk.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from shedders.kafka_rebalance.execution.state_records import StateBook
from statechannel.kafka.tail import BlockingWriter, PartitionTail, Span, side_tail
from statechannel.kafka.topic_policy import plans_topic
from statechannel.kafka.topics import TopicAdmin, inspect, open_topics, refuse_unfit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statechannel.kafka.client_settings import ClientSettings


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
        self._topic = plans_topic(name)
        self._tail: PartitionTail | None = None
        self._writer: BlockingWriter | None = None
        self._opening = threading.Lock()
        self._next = 0
        self.book = StateBook(round(away_s * 1_000))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tail is not None:
            self._tail.close()
        if self._writer is not None:
            self._writer.close(1.0)

    def exists(self) -> bool:
        """Whether the topic exists, with valid settings.

        Raises:
            TopicPolicyError: Its settings are invalid.
        """
        states = TopicAdmin(self._settings, timeout_s=self._timeout_s).describe([self.name])
        if self.name not in states:
            return False
        refuse_unfit(inspect(states, self._settings, self._topic), self._topic)
        return True

    def create(self, replication_factor: int) -> None:
        """Create the topic if it is missing.

        Raises:
            KafkaAdapterError: Kafka refuses it, or does not answer.
        """
        open_topics(
            self._settings,
            self._topic,
            create=True,
            replication_factor=replication_factor,
            fit_nodes=True,
            timeout_s=self._timeout_s,
        )

    def read(self) -> StateBook:
        """Read new records up to the present end.

        Raises:
            KafkaAdapterError: Kafka is out of reach, or the topic is missing.
        """
        if self._tail is None:
            self._tail = side_tail(self._settings, self._topic, self._timeout_s)
        span = self._tail.span(start=self._next)
        if span.end < self._next:  # the topic was created again
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
        with self._opening:
            if self._writer is None:
                doing = f"writing to {self.name}"
                self._writer = BlockingWriter(self._settings, self.name, doing, timeout_s=self._timeout_s)
        self._writer.require(self._writer.write((0, plan_id.encode(), value) for value in values))
