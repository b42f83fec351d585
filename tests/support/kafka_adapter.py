"""What the tests of the Kafka adapter share: an inbox for inputs, a channel, numbered appends."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from statechannel.engine.effects import Append
from statechannel.engine.inputs import Appended, AppendFailed, Input, PositionReached
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.reader import LogReader, ReaderTuning
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import TopicInfo, create_topics
from statechannel.kafka.writer import LogWriter
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.settings.groups_cluster import ChannelSettings, KafkaSettings
from tests.support.waits import WAIT_S

T = TypeVar("T")

# Short enough to see the cleaner at work (kafka-platform 4.3).
CLEANED = ChannelSettings.model_construct(
    min_compaction_lag_ms=500, max_compaction_lag_ms=3_600_000, segment_ms=300, min_cleanable_dirty_ratio=0.01
)


class Inbox:
    """Takes inputs from the adapter's threads; tests wait on it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.inputs: list[Input] = []

    def put(self, item: Input) -> None:
        self.many([item])

    def many(self, items: list[Input]) -> None:
        with self._changed:
            for item in items:
                self.inputs.extend(item.records if isinstance(item, RecordsRead) else [item])
            self._changed.notify_all()

    def wait_for(self, done: Callable[[list[Input]], bool], timeout_s: float = WAIT_S) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: done(self.inputs), timeout_s):
                raise TimeoutError(f"waited {timeout_s} s; last inputs: {self.inputs[-5:]}")

    def of(self, kind: type[T]) -> list[T]:
        with self._changed:
            return [i for i in self.inputs if isinstance(i, kind)]

    def wait_position(self, position: int, topic: Topic = Topic.CHANNEL) -> None:
        self.wait_for(
            lambda inputs: any(
                isinstance(i, PositionReached) and i.topic is topic and i.position >= position for i in reversed(inputs)
            )
        )

    def wait_answers(self, count: int) -> list[Appended | AppendFailed]:
        kinds = (Appended, AppendFailed)
        self.wait_for(lambda inputs: sum(isinstance(i, kinds) for i in inputs) >= count)
        return [i for i in self.inputs if isinstance(i, kinds)]


@dataclass
class Channel:
    """A created channel, and ways to write to it and read from it."""

    settings: ClientSettings
    topics: ChannelTopics
    infos: dict[str, TopicInfo]
    tokens: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def info(self) -> TopicInfo:
        return self.infos[self.topics.channel]

    def append(self, key: bytes, value: bytes | None, topic: Topic = Topic.CHANNEL) -> Append:
        return Append(next(self.tokens), topic, 0, key, value)

    @contextmanager
    def writer(self, inbox: Inbox) -> Iterator[LogWriter]:
        writer = LogWriter(self.settings, self.topics.names, inbox.put)
        try:
            yield writer
        finally:
            writer.close(0.1)

    @contextmanager
    def reader(
        self, inbox: Inbox, *, tuning: ReaderTuning | None = None, availability: Callable[[bool], None] | None = None
    ) -> Iterator[LogReader]:
        reader = LogReader(
            self.settings,
            {Topic.CHANNEL: self.info},
            inbox.many,
            group_id=self.topics.reader_group,
            tuning=tuning,
            on_availability=availability,
        )
        reader.start()
        try:
            yield reader
        finally:
            assert reader.close(WAIT_S), "the reader's thread did not end"

    def write(self, *records: tuple[bytes, bytes | None]) -> list[int]:
        """Append in order, wait, and return the offsets."""
        inbox = Inbox()
        with self.writer(inbox) as writer:
            for key, value in records:
                writer.append(self.append(key, value))
            assert writer.flush(WAIT_S)
        failures = inbox.of(AppendFailed)
        assert not failures, failures
        return [answer.offset for answer in inbox.of(Appended)]

    def read_all(self, end: int) -> list[RecordRead]:
        """All records that a reader from the beginning finds up to `end`."""
        inbox = Inbox()
        with self.reader(inbox):
            inbox.wait_position(end)
        return inbox.of(RecordRead)


def make_channel(
    bootstrap_servers: str, prefix: str, *, lags: ChannelSettings | None = None, tuning: KafkaSettings | None = None
) -> Channel:
    settings = ClientSettings(bootstrap_servers, tuning=tuning or KafkaSettings())
    topics = ChannelTopics(prefix, lags or ChannelSettings())
    infos = create_topics(settings, topics, replication_factor=1, timeout_s=WAIT_S)
    return Channel(settings, topics, dict(infos))
