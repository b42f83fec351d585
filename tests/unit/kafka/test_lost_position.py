"""Kafka has no record at a reader's position any more: a truncated log ends the reading, a lost beginning starts it over."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from statechannel.engine.inputs import Input, LeaderEpochBegan, PartitionBroken, PartitionOpened, PositionReached
from statechannel.kafka import reader as reader_module
from statechannel.kafka.admin import Place
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.reader import LogReader, ReaderTuning
from statechannel.kafka.topic_watch import TopicFindings
from statechannel.kafka.topics import TopicInfo
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.waits import wait_until

NAME, END = "c", 6
DELETED = END + 2
"""Where the log begins once records were deleted that nobody had read."""


class LosingKafka:
    """A Kafka with one partition that refuses a position once: the client library has one error for all causes.

    Attributes:
        error: Delivered once by the next poll.
        deletes: Records were deleted before they were read by the time of the error.
        epoch: Of the leader.
        cut: Where the leader's epoch begins: what other leaders wrote from there on was truncated.
        broken: What the watch finds about the topic.
        first: Offset at which the log begins.
        end: Where it ends.
        more: Records that are fetched together with the first.
        refusal: Raised instead of an answer about where it begins and ends.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.deletes = False
        self.epoch, self.cut = 1, 0
        self.broken: dict[Place, str] = {}
        self.answers = True
        self.first = 0
        self.end = END
        self.refusal: KafkaError | None = None
        self.more = 0
        self.inputs: list[Input] = []
        self.available: list[bool] = []
        self.failures: list[BaseException] = []
        self._at: int | None = None

    # As a consumer.

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        assert self._at is None, "the client refuses to be given a partition twice"
        (place,) = places
        self._at = place.offset
        if 0 <= (place.leader_epoch or 0) < self.epoch and place.leader_epoch is not None and self._at > self.cut:
            self.error = KafkaError(KafkaError._AUTO_OFFSET_RESET)

    def incremental_unassign(self, _: list[TopicPartition]) -> None:
        assert self._at is not None, "the client refuses to be taken what it does not have"
        self._at = None

    def get_watermark_offsets(self, *_: object, **how: object) -> tuple[int, int]:
        if self.refusal is not None and not how.get("cached"):
            raise KafkaException(self.refusal)
        return self.first, self.end

    def poll(self, timeout_s: float) -> Message | None:
        error, self.error = self.error, None
        if error is not None:
            if self.deletes:
                self.first, self.end = DELETED, DELETED + END
            return Message(NAME, 0, self._at, None, None, error=error)
        if self._at is not None and self._at < self.end:
            self._at += 1
            return Message(NAME, 0, self._at - 1, b"k", b"v", timestamp=(2, 7), leader_epoch=self.epoch)
        time.sleep(min(timeout_s, 0.005))
        return None

    def consume(self, count: int, _: float) -> list[Message]:
        records = [self.poll(0.0) for _ in range(min(count, self.more))]
        return [record for record in records if record is not None]

    def close(self) -> None:
        """Nothing to close."""

    # As a watch.

    def poll_watch(self, now_s: float, positions: Mapping[Place, int]) -> TopicFindings:
        return TopicFindings(
            now_s,
            answered=self.answers,
            broken=self.broken,
            ends=dict.fromkeys(positions, self.end) if self.answers else {},
        )

    # What the reader has delivered.

    def sink(self, inputs: list[Input]) -> None:
        for item in inputs:
            self.inputs += item.records if isinstance(item, RecordsRead) else [item]

    def of(self, kind: type[Input]) -> list[Any]:
        return [item for item in list(self.inputs) if isinstance(item, kind)]

    def offsets(self) -> list[int]:
        return [record.offset for record in self.of(RecordRead)]

    def wait_read(self, rounds: int) -> None:
        """Until the whole log was read so often."""
        wait_until(lambda: len(self.offsets()) >= END * rounds, lambda: self.inputs[-5:], pause_s=0.005)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> LosingKafka:
    kafka = LosingKafka()
    watch = SimpleNamespace(due=lambda _: True, hurry=lambda: None, poll=kafka.poll_watch, close=lambda: None)
    monkeypatch.setattr(reader_module, "Consumer", lambda _: kafka)
    monkeypatch.setattr(reader_module, "TopicWatch", lambda *_, **__: watch)
    return kafka


@contextmanager
def reading(
    kafka: LosingKafka, topic: Topic = Topic.CHANNEL, grace_s: float = 10.0, **tuning: Any
) -> Iterator[LogReader]:
    settings = ClientSettings("127.0.0.1:1", tuning=KafkaSettings.model_construct(topic_grace_s=grace_s))
    opened = LogReader(
        settings,
        {topic: TopicInfo(NAME, "id", 1, 1, {})},
        kafka.sink,
        group_id="g",
        tuning=ReaderTuning(poll_s=0.005, watch_s=0.01, watch_timeout_s=0.2, **tuning),
        on_availability=kafka.available.append,
        on_failure=kafka.failures.append,
    )
    opened.start()
    try:
        yield opened
    finally:
        assert opened.close()


@pytest.fixture
def reader(kafka: LosingKafka) -> Iterator[LogReader]:
    with reading(kafka) as opened:
        yield opened


def at_rest(kafka: LosingKafka) -> None:
    """Some steps of the reader later; positions come all the time, as the watch confirms them."""

    def happened() -> int:
        return sum(not isinstance(item, PositionReached) for item in list(kafka.inputs))

    count, ends_s = happened(), time.monotonic() + 0.1
    while time.monotonic() < ends_s:
        time.sleep(0.01)
        if happened() > count:
            count, ends_s = happened(), time.monotonic() + 0.1


CODES = pytest.mark.parametrize(
    "code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION]
)


@CODES
def test_a_truncated_log_ends_the_partition(kafka: LosingKafka, reader: LogReader, code: int) -> None:
    """What was judged is not what lies there now: to start over quietly would be to judge on after a loss."""
    kafka.wait_read(1)
    kafka.error = KafkaError(code)
    wait_until(lambda: kafka.of(PartitionBroken), lambda: kafka.inputs[-5:], pause_s=0.005)
    at_rest(kafka)
    (broken,) = kafka.of(PartitionBroken)
    assert (broken.topic, broken.partition) == (Topic.CHANNEL, 0)
    assert kafka.offsets() == list(range(END)), "nothing is read any more"
    assert len(kafka.of(PartitionOpened)) == 1


def test_who_asks_for_a_partition_that_has_ended_reads_it_from_its_beginning(kafka: LosingKafka, reader: LogReader):
    kafka.wait_read(1)
    kafka.error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    wait_until(lambda: kafka.of(PartitionBroken), lambda: kafka.inputs[-5:], pause_s=0.005)
    reader.restart(Topic.CHANNEL, 0)
    kafka.wait_read(2)
    assert kafka.offsets() == [*range(END), *range(END)]


@CODES
def test_where_records_were_deleted_before_they_were_read_the_reading_starts_over(
    kafka: LosingKafka, reader: LogReader, code: int
) -> None:
    kafka.wait_read(1)
    kafka.deletes = True
    kafka.error = KafkaError(code)
    kafka.wait_read(2)
    assert kafka.of(PartitionBroken) == []
    assert kafka.offsets() == [*range(END), *range(DELETED, DELETED + END)]
    assert [opened.first_offset for opened in kafka.of(PartitionOpened)] == [0, DELETED]


@pytest.mark.parametrize("deletes", [False, True])
def test_a_lost_position_is_not_explained_before_kafka_has_answered_about_the_topic(
    kafka: LosingKafka, reader: LogReader, deletes: bool
) -> None:
    kafka.wait_read(1)
    kafka.answers, kafka.deletes = False, deletes
    kafka.error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    at_rest(kafka)
    assert kafka.of(PartitionBroken) == []
    assert len(kafka.offsets()) == END
    kafka.answers = True
    done: Callable[[], object] = lambda: kafka.of(PartitionBroken) or len(kafka.offsets()) == 2 * END  # noqa: E731
    wait_until(done, lambda: kafka.inputs[-5:], pause_s=0.005)
    assert bool(kafka.of(PartitionBroken)) != deletes


def test_a_log_that_was_truncated_and_is_as_long_as_before_is_not_read_on(kafka: LosingKafka, reader: LogReader):
    """The end of the log shows nothing then, and a consumer that begins behind the truncation would not look at it."""
    kafka.wait_read(1)
    kafka.epoch, kafka.cut, kafka.end = 2, END - 2, END + 2
    kafka.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    done: Callable[[], object] = lambda: kafka.of(PartitionBroken) or len(kafka.offsets()) > END  # noqa: E731
    wait_until(done, lambda: kafka.inputs[-5:], pause_s=0.005)
    assert kafka.of(PartitionBroken)
    assert kafka.offsets() == list(range(END))


def test_a_topic_that_the_broker_does_not_know_for_a_moment_is_read_on(kafka: LosingKafka, reader: LogReader) -> None:
    kafka.wait_read(1)
    kafka.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown")
    at_rest(kafka)
    assert kafka.of(PartitionBroken) == []
    kafka.end += 2
    wait_until(lambda: len(kafka.offsets()) >= END + 2, lambda: kafka.inputs[-5:], pause_s=0.005)
    assert kafka.offsets() == list(range(END + 2)), "it goes on where it was"
    assert len(kafka.of(PartitionOpened)) == 1


def test_what_the_watch_finds_broken_ends_the_partition_once(kafka: LosingKafka, reader: LogReader) -> None:
    kafka.wait_read(1)
    kafka.broken = {(NAME, 0): "topic c was re-created"}
    wait_until(lambda: kafka.of(PartitionBroken), lambda: kafka.inputs[-5:], pause_s=0.005)
    at_rest(kafka)
    assert [broken.detail for broken in kafka.of(PartitionBroken)] == ["topic c was re-created"]


def test_an_error_that_says_nothing_of_the_position_changes_nothing(kafka: LosingKafka, reader: LogReader) -> None:
    kafka.wait_read(1)
    kafka.error = KafkaError(KafkaError._TRANSPORT, "connection reset")
    at_rest(kafka)
    assert kafka.offsets() == list(range(END))
    assert {type(item) for item in kafka.inputs} <= {PartitionOpened, LeaderEpochBegan, RecordRead, PositionReached}


# --- opening, availability, and the end of the log --------------------------------------------------------------------


def test_a_log_that_is_read_to_its_end_is_reported_so_an_empty_one_at_once(kafka: LosingKafka) -> None:
    kafka.end = 0
    with reading(kafka):
        wait_until(lambda: kafka.of(PositionReached), lambda: kafka.inputs, pause_s=0.005)
        opened, reached, *_ = kafka.inputs
        assert (opened.first_offset, opened.end_offset) == (0, 0)  # type: ignore[union-attr]
        assert (reached.position, reached.as_of_s is not None) == (0, True)  # type: ignore[union-attr]
        kafka.end = 3
        wait_until(lambda: kafka.of(PositionReached)[-1].position == 3, lambda: kafka.inputs[-5:], pause_s=0.005)
        assert kafka.offsets() == [0, 1, 2]


def test_a_log_whose_beginning_is_gone_is_read_from_what_is_left(kafka: LosingKafka) -> None:
    kafka.first = 4
    with reading(kafka):
        wait_until(lambda: len(kafka.offsets()) == END - 4, lambda: kafka.inputs[-5:], pause_s=0.005)
    assert kafka.offsets() == [4, 5]
    assert [(opened.first_offset, opened.end_offset) for opened in kafka.of(PartitionOpened)] == [(4, END)]


def test_a_topic_that_is_unknown_for_longer_than_the_grace_does_not_exist(kafka: LosingKafka) -> None:
    kafka.refusal = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with reading(kafka, grace_s=0.3):
        at_rest(kafka)
        assert kafka.inputs == [], "a broker may not know it yet"
        wait_until(lambda: kafka.of(PartitionBroken), pause_s=0.005)
        at_rest(kafka)
    assert len(kafka.inputs) == 1


def test_a_topic_that_becomes_known_within_the_grace_is_read(kafka: LosingKafka) -> None:
    kafka.refusal = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with reading(kafka, grace_s=60.0):
        at_rest(kafka)
        kafka.refusal = None
        kafka.wait_read(1)
    assert kafka.of(PartitionBroken) == []


def test_a_kafka_that_does_not_answer_when_a_topic_is_opened_is_away_until_it_does(kafka: LosingKafka) -> None:
    kafka.refusal = KafkaError(KafkaError._TIMED_OUT)
    kafka.answers = False
    with reading(kafka):
        wait_until(lambda: kafka.available == [False], lambda: kafka.available, pause_s=0.005)
        kafka.refusal, kafka.answers = None, True
        kafka.wait_read(1)
    assert kafka.available == [False, True]


def test_a_broker_that_refuses_has_answered(kafka: LosingKafka) -> None:
    kafka.refusal = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    with reading(kafka):
        time.sleep(0.4)  # twice the time after which silence counts
        assert False not in kafka.available


@pytest.mark.parametrize("quiet_s", [None, 0.02])
def test_a_quiet_log_is_confirmed_to_be_complete(kafka: LosingKafka, quiet_s: float | None) -> None:
    """Nobody leads, so nobody writes to the channel: a member learns all the same that it has read everything."""

    def moments() -> list[float]:
        return [reached.as_of_s for reached in kafka.of(PositionReached) if reached.as_of_s is not None]

    with reading(kafka, quiet_s=quiet_s):
        kafka.wait_read(1)
        before = len(moments())
        wait_until(lambda: len(moments()) >= before + 5, moments, pause_s=0.005)
    assert moments() == sorted(moments())
    assert {reached.position for reached in kafka.of(PositionReached)[-5:]} == {END}


def test_an_error_of_the_sink_ends_the_reader_and_is_reported(kafka: LosingKafka) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the sink is broken")

    kafka.sink = fail  # type: ignore[method-assign]
    with reading(kafka):
        wait_until(lambda: kafka.failures, pause_s=0.005)
    assert [str(error) for error in kafka.failures] == ["the sink is broken"]


@pytest.mark.parametrize(("topic", "together"), [(Topic.CHANNEL, True), (Topic.REQUESTS, False)])
def test_small_records_come_together_requests_one_by_one(kafka: LosingKafka, topic: Topic, together: bool) -> None:
    kinds: list[type] = []
    deliver = kafka.sink

    def note(inputs: list[Input]) -> None:
        kinds.extend(type(item) for item in inputs)
        deliver(inputs)

    kafka.sink = note  # type: ignore[method-assign]
    kafka.more = 3
    with reading(kafka, topic):
        kafka.wait_read(1)
    assert (RecordsRead in kinds) is together
    assert kafka.offsets() == list(range(END))


def test_records_that_are_large_together_come_one_by_one(kafka: LosingKafka) -> None:
    kafka.more = 3
    with reading(kafka, portion_bytes=1):
        kafka.wait_read(1)
    assert kafka.offsets() == list(range(END))


def test_a_topic_that_is_not_read_cannot_be_restarted(kafka: LosingKafka, reader: LogReader) -> None:
    with pytest.raises(ValueError, match="no partition 1"):
        reader.restart(Topic.CHANNEL, 1)
