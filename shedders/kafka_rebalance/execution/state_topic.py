"""State topic: plans, their progress and requests of operators, in one partition, so that its order decides who executes.

Policy delete, not compact: all events of a key count, not only the last. Retention is long; an executor writes the
plan again when it starts. A lost topic only ends control from other hosts: the journal is on the executor's disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from shedders.kafka_rebalance.execution.state_records import StateBook
from statechannel.kafka.errors import (
    AppendOutcomeUnknownError,
    translate,
)
from statechannel.kafka.tail import PartitionTail, Span
from statechannel.kafka.topic_policy import plans_topic
from statechannel.kafka.topics import TopicAdmin, inspect, open_topics, refuse_unfit
from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

_LABEL: Final = Topic.REQUESTS
"""Role of records when they are read; not used here."""


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
            self._tail = PartitionTail(
                self._settings,
                _LABEL,
                self.name,
                0,
                group_id=self._topic.reader_group,
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
