"""A topic of the planner, with one partition: its creation, and a reader and a writer that are opened when they are needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from statechannel.kafka.tail import BlockingWriter, PartitionTail, Span, side_tail
from statechannel.kafka.topics import TopicAdmin, inspect, open_topics, refuse_unfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import SideTopic
    from statechannel.protocol.log import RecordRead


class PlannerTopic:
    """The topic. A context manager; for one thread, but records may be written from any.

    Args:
        settings: Connection settings of Kafka.
        topic: Its name and policy.
        timeout_s: Time limit of one answer.
    """

    def __init__(self, settings: ClientSettings, topic: SideTopic, timeout_s: float) -> None:
        self.name = topic.name
        self._settings, self._topic, self._timeout_s = settings, topic, timeout_s
        self._tail: PartitionTail | None = None
        self._writer: BlockingWriter | None = None
        self._opening = threading.Lock()
        self._next = 0

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

    def _new_records(self) -> Iterator[RecordRead]:
        """Records up to the present end that were not read yet. If the topic was created again: `_forget`, then all of them."""
        if self._tail is None:
            self._tail = side_tail(self._settings, self._topic, self._timeout_s)
        span = self._tail.span(start=self._next)
        if span.end < self._next:
            self._next = 0
            self._forget()
            span = Span(low=span.low, start=span.low, end=span.end)
        if span.end > span.start:
            yield from self._tail.records(span)
        self._next = span.end

    def _forget(self) -> None:
        """Drop what the records of an earlier topic of this name left."""

    def _write(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Write keys and values, and wait for their acknowledgement."""
        with self._opening:
            if self._writer is None:
                doing = f"writing to {self.name}"
                self._writer = BlockingWriter(self._settings, self.name, doing, timeout_s=self._timeout_s)
        self._writer.require(self._writer.write((0, key, value) for key, value in records))
