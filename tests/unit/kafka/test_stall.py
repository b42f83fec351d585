"""A consumer that gets nothing although the log goes on is recreated; nothing is lost or comes twice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition

from statechannel.engine.inputs import Input, PartitionOpened
from statechannel.kafka import light_topic, partition_consumer, reader, tail
from statechannel.kafka.admin import Place
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.kafka.partition_consumer import DOUBLINGS_MAX, PollClock, Stall
from statechannel.kafka.topic_watch import TopicFindings
from statechannel.kafka.topics import TopicInfo
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.waits import WAIT_S, wait_until

QUICK = ClientSettings("127.0.0.1:1", tuning=KafkaSettings.model_construct(stall_timeout_s=0.05))

# --- what a stall is ------------------------------------------------------------------------------------------------


def looks(stall: Stall, *answers: tuple[float, int, int | None]) -> list[bool]:
    return [stall.look(*answer) for answer in answers]


@pytest.mark.parametrize(
    ("answers", "stalled"),
    [
        (((0.0, 5, 5), (99.0, 5, 5)), False),  # nothing to read
        (((0.0, 5, 6), (9.9, 5, 6)), False),  # not yet
        (((0.0, 5, 6), (10.0, 5, 6)), True),
        (((0.0, 5, 5), (50.0, 5, 6), (59.9, 5, 6)), False),  # what came a moment ago is still on its way
        (((0.0, 5, 5), (50.0, 5, 6), (60.0, 5, 9)), True),
        (((0.0, 5, 6), (9.0, 6, 8), (18.9, 6, 8)), False),  # it moves
        (((0.0, 5, 6), (9.0, 6, 8), (19.0, 6, 8)), True),
        (((0.0, 5, 6), (9.0, 5, None), (20.0, 5, 6), (29.9, 5, 6)), False),  # Kafka was away
        (((0.0, 5, 6), (9.0, 5, None), (20.0, 5, 6), (30.0, 5, 6)), True),
        (((0.0, 5, 6), (9.0, 5, 4), (20.0, 5, 6)), False),
    ],
)
def test_a_reader_stands_still_that_polls_in_vain_while_there_is_something_to_read(
    answers: tuple[tuple[float, int, int | None], ...], stalled: bool
) -> None:
    result = looks(Stall(10.0), *answers)
    assert result == [False] * (len(answers) - 1) + [stalled]


def test_where_a_new_consumer_does_not_help_the_patience_doubles_up_to_a_bound() -> None:
    stall = Stall(1.0)
    renewed_s = [second for second in range(300) if stall.look(float(second), 5, 6)]
    apart_s = [later - earlier for earlier, later in zip([0, *renewed_s], renewed_s, strict=False)]
    assert apart_s[: DOUBLINGS_MAX + 3] == [1, 2, 4, 8, 16, 32, 32, 32]
    stall.look(300.0, 6, 7)
    assert looks(stall, (300.9, 6, 7), (301.0, 6, 7)) == [False, True]


def test_a_process_that_is_stopped_while_it_polls_has_not_waited_for_records() -> None:
    clock = PollClock()
    slow = SimpleNamespace(poll=lambda _: time.sleep(0.2))
    assert clock.poll(slow, 0.01) is None  # type: ignore[arg-type]
    assert clock.polled_s == pytest.approx(0.01)


# --- a Kafka whose clients fall silent ------------------------------------------------------------------------------


class SilentKafka:
    """Partitions of one topic by their length; of each client, the partitions at which offset it falls silent."""

    def __init__(self, ends: dict[int, int], *silent: dict[int, int]) -> None:
        self.ends = ends
        self.silent = list(silent)
        self.clients: list[Client] = []
        self.answers = True
        self.lets_close = threading.Event()
        self.lets_close.set()

    def client(self, config: object) -> Client:
        number = len(self.clients)
        self.clients.append(Client(self, self.silent[number] if number < len(self.silent) else {}))
        return self.clients[-1]

    def marks(self, place: TopicPartition) -> tuple[int, int]:
        return (0, self.ends[place.partition])

    def watch(self, *_: object, **__: object) -> Any:
        def poll(now_s: float, positions: Mapping[Place, int]) -> TopicFindings:
            ends = {place: self.ends[place[1]] for place in positions} if self.answers else {}
            return TopicFindings(now_s, answered=self.answers, ends=ends)

        return SimpleNamespace(due=lambda _: True, hurry=lambda: None, poll=poll, close=lambda: None)


class Client:
    def __init__(self, kafka: SilentKafka, silent: dict[int, int]) -> None:
        self.kafka, self.silent = kafka, silent
        self.at: dict[int, int] = {}
        self.given: list[tuple[int, int]] = []
        self.is_closed = False

    def assign(self, places: list[TopicPartition]) -> None:
        self.at = {}
        self.incremental_assign(places)

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        assert not self.is_closed
        assert not self.at.keys() & {place.partition for place in places}, "Kafka's client refuses to be given it twice"
        self.at |= {place.partition: place.offset for place in places}
        self.given += [(place.partition, place.offset) for place in places]

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for place in places:
            del self.at[place.partition]

    def unassign(self) -> None:
        self.at = {}

    def get_watermark_offsets(self, place: TopicPartition, **how: object) -> tuple[int, int]:
        return (
            (0, self.kafka.ends[place.partition] if self.at else -1001)
            if how.get("cached")
            else self.kafka.marks(place)
        )

    def poll(self, timeout_s: float) -> Message | None:
        assert not self.is_closed
        for partition, offset in self.at.items():
            if offset < min(self.kafka.ends[partition], self.silent.get(partition, offset + 1)):
                self.at[partition] += 1
                return Message("c", partition, offset, b"k", b"v", timestamp=(2, 7))
        time.sleep(min(timeout_s, 0.01))
        return None

    def consume(self, *_: object) -> list[Message]:
        return []

    def close(self) -> None:
        self.kafka.lets_close.wait(WAIT_S)
        self.is_closed = True


@pytest.fixture
def silent_kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SilentKafka]]:
    nodes: list[SilentKafka] = []

    def make(*args: dict[int, int]) -> SilentKafka:
        kafka = SilentKafka(*args)
        nodes.append(kafka)
        for module in (partition_consumer, reader):
            monkeypatch.setattr(module, "Consumer", kafka.client)
        for asking in (partition_consumer, reader):
            monkeypatch.setattr(asking, "TopicWatch", kafka.watch)
        return kafka

    yield make
    for kafka in nodes:
        kafka.lets_close.set()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]


def until(done: Callable[[], bool]) -> Callable[[], bool]:
    ends_s = time.monotonic() + WAIT_S

    def stop() -> bool:
        return done() or time.monotonic() > ends_s

    return stop


# --- a partition's tail ---------------------------------------------------------------------------------------------


def follow(kafka: SilentKafka, done: Callable[[list[int]], bool]) -> list[int]:
    """Offsets that a follower was given."""
    offsets: list[int] = []
    stop = until(lambda: done(offsets))
    with tail.PartitionTail(QUICK, Topic.CHANNEL, "c", 0, group_id="g") as opened:
        for batch in opened.follow(0, stop):
            offsets.extend(record.offset for record in batch)
    return offsets


def test_a_follower_goes_on_with_a_new_client(silent_kafka: Callable[..., SilentKafka], caplog):
    kafka = silent_kafka({0: 10}, {0: 3}, {0: 7})
    assert follow(kafka, lambda offsets: len(offsets) >= 10) == list(range(10))
    assert [client.given for client in kafka.clients] == [[(0, 0)], [(0, 3)], [(0, 7)]]
    first, second = warnings_of(caplog)
    assert "c-0" in first
    assert "offset 3" in first
    assert "offset 7" in second
    wait_until(lambda: all(client.is_closed for client in kafka.clients), "a client stays open", pause_s=0.01)


def test_a_follower_that_nobody_gives_anything_asks_for_few_clients(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 10}, *[{0: 3}] * 1_000)
    ends_s = time.monotonic() + 1.0
    assert follow(kafka, lambda _: time.monotonic() > ends_s) == [0, 1, 2]
    assert 2 <= len(kafka.clients) <= 12


def test_a_follower_at_the_end_keeps_its_client(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 3})
    ends_s = time.monotonic() + 0.5
    assert follow(kafka, lambda _: time.monotonic() > ends_s) == [0, 1, 2]
    assert len(kafka.clients) == 1


def test_a_follower_keeps_its_client_while_kafka_is_away(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 10}, {0: 3})
    kafka.answers = False
    ends_s = time.monotonic() + 0.5
    assert follow(kafka, lambda _: time.monotonic() > ends_s) == [0, 1, 2]
    assert len(kafka.clients) == 1


def test_a_slow_user_of_a_follower_is_no_stall(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 6})
    with tail.PartitionTail(QUICK, Topic.CHANNEL, "c", 0, group_id="g") as opened:
        for batch in opened.follow(0, stop=until(lambda: kafka.clients[0].at[0] == 6)):
            if batch:
                time.sleep(3 * QUICK.tuning.stall_timeout_s)
    assert len(kafka.clients) == 1


def test_a_bounded_reading_goes_on_with_a_new_client_too(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 10}, {0: 3})
    with tail.PartitionTail(QUICK, Topic.CHANNEL, "c", 0, group_id="g", timeout_s=WAIT_S) as opened:
        assert [record.offset for record in opened.records(tail.Span(0, 1, 9))] == list(range(1, 9))
    assert [client.given for client in kafka.clients] == [[(0, 1)], [(0, 3)]]


def test_who_gives_up_soon_tries_a_new_client_before(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 10}, {0: 3})
    patient = ClientSettings("127.0.0.1:1", tuning=KafkaSettings.model_construct(stall_timeout_s=WAIT_S))
    with tail.PartitionTail(patient, Topic.CHANNEL, "c", 0, group_id="g", timeout_s=4.0) as opened:
        assert len(list(opened.records(tail.Span(0, 0, 10)))) == 10
    assert len(kafka.clients) == 2


def test_a_bounded_reading_ends_at_its_time_limit_though_clients_are_replaced(silent_kafka: Callable[..., SilentKafka]):
    kafka = silent_kafka({0: 10}, *[{0: 3}] * 1_000)
    with (
        tail.PartitionTail(QUICK, Topic.CHANNEL, "c", 0, group_id="g", timeout_s=0.5) as opened,
        pytest.raises(KafkaUnavailableError, match="reading c-0"),
    ):
        list(opened.records(tail.Span(0, 0, 9)))
    assert len(kafka.clients) > 1


# --- the reader of a member -----------------------------------------------------------------------------------------


def open_reader(partitions: int) -> tuple[reader.LogReader, list[RecordRead], list[Input]]:
    records: list[RecordRead] = []
    others: list[Input] = []

    def sink(inputs: list[Input]) -> None:
        for item in inputs:
            if isinstance(item, RecordRead | RecordsRead):
                records.extend(item.records if isinstance(item, RecordsRead) else [item])
            else:
                others.append(item)

    info = TopicInfo("c", "id", partitions, 1, {})
    opened = reader.LogReader(QUICK, {Topic.CHANNEL: info}, sink, group_id="g", tuning=reader.ReaderTuning(poll_s=0.01))
    return opened, records, others


def step(opened: reader.LogReader, done: Callable[[], bool], times: int = 2_000) -> None:
    """Let the reader do its steps until this is so."""
    for _ in range(times):
        if done():
            return
        opened._step()
    raise AssertionError("too many steps")


def test_a_reader_goes_on_with_a_new_client_in_all_its_partitions(silent_kafka: Callable[..., SilentKafka], caplog):
    kafka = silent_kafka({0: 5, 1: 6}, {1: 2})
    opened, records, others = open_reader(2)
    step(opened, lambda: len(records) >= 11)
    kafka.ends[0] = 8
    step(opened, lambda: len(records) >= 14)
    results = {partition: [r.offset for r in records if r.partition == partition] for partition in (0, 1)}
    assert results == {0: list(range(8)), 1: list(range(6))}
    assert [sorted(client.given) for client in kafka.clients] == [[(0, 0), (1, 0)], [(0, 5), (1, 2)]]
    assert [type(item) for item in others].count(PartitionOpened) == 2, "nobody is told to start over"
    (warning,) = warnings_of(caplog)
    assert "c-1" in warning
    assert "offset 2" in warning


def test_traffic_of_another_partition_does_not_hide_a_stall(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 0, 1: 6}, {1: 2})
    opened, records, _ = open_reader(2)

    def more() -> bool:
        kafka.ends[0] = kafka.clients[0].at.get(0, 0) + len(records) % 2
        return sum(record.partition == 1 for record in records) == 6

    step(opened, more)
    assert len(kafka.clients) == 2


def test_a_partition_is_read_again_from_its_beginning_by_the_new_client(silent_kafka: Callable[..., SilentKafka]):
    kafka = silent_kafka({0: 5, 1: 6}, {1: 2})
    opened, records, others = open_reader(2)
    step(opened, lambda: len(records) >= 11)
    opened.restart(Topic.CHANNEL, 1)
    step(opened, lambda: len(records) >= 17)
    assert [r.offset for r in records if r.partition == 1] == [*range(6), *range(6)]
    assert len(kafka.clients) == 2
    assert others.count(PartitionOpened(Topic.CHANNEL, 1, 0, 6)) == 2


def test_a_reader_whose_sink_blocks_keeps_its_client(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 8})
    records: list[Input] = []

    def slow(inputs: list[Input]) -> None:
        records.extend(item for item in inputs if isinstance(item, RecordRead))
        time.sleep(2 * QUICK.tuning.stall_timeout_s)

    info = TopicInfo("c", "id", 1, 1, {})
    opened = reader.LogReader(QUICK, {Topic.CHANNEL: info}, slow, group_id="g", tuning=reader.ReaderTuning(poll_s=0.01))
    step(opened, lambda: len(records) >= 8)
    assert len(kafka.clients) == 1


def test_a_reader_keeps_its_client_while_kafka_is_away(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 5}, {0: 2})
    opened, records, _ = open_reader(1)
    step(opened, lambda: len(records) >= 2)
    kafka.answers = False
    for _ in range(30):
        opened._step()
    assert len(kafka.clients) == 1
    kafka.answers = True
    step(opened, lambda: len(records) >= 5)
    assert len(kafka.clients) == 2


# --- all of them ----------------------------------------------------------------------------------------------------


def test_a_client_that_does_not_close_holds_nobody_up(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 10}, {0: 3})
    kafka.lets_close.clear()
    opened, records, _ = open_reader(1)
    step(opened, lambda: len(records) >= 10)
    assert [client.is_closed for client in kafka.clients] == [False, False]


def test_a_reader_of_load_data_goes_on_with_a_new_client(silent_kafka: Callable[..., SilentKafka]) -> None:
    kafka = silent_kafka({0: 10}, {0: 3}, {0: 7})
    got: list[light_topic.LightBatch] = []
    opened = light_topic.LightReader(QUICK, "c", got.append, group_id="g")
    opened.start()
    wait_until(lambda: sum(len(batch.records) for batch in got) >= 10, lambda: got, pause_s=0.01)
    assert opened.close(WAIT_S)
    assert [record.offset for batch in got for record in batch.records] == list(range(10))
    assert [client.given for client in kafka.clients] == [[(0, 0)], [(0, 3)], [(0, 7)]]
    assert sum(batch.opened for batch in got) == 1
    assert sum(batch.backlog for batch in got) == 10


# --- the pace of a reader --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "gathers"),
    [
        ([149], [False]),
        ([150], [True]),
        ([150, 75], [True, True]),
        ([150, 74], [True, False]),
        ([150, 74, 149, 150], [True, False, False, True]),
    ],
)
def test_records_wait_for_each_other_where_there_are_many_a_second(counts: list[int], gathers: list[bool]) -> None:
    pace, now_s, before = reader.Pace(100.0), 100.0, False
    for count, expected in zip(counts, gathers, strict=True):
        for _ in range(count):
            pace.count(1)
        now_s += 5.0
        assert pace.review(now_s) is (expected is not before)
        assert pace.gathers is expected
        before = expected


def test_a_review_that_comes_early_does_not_take_a_few_records_for_many() -> None:
    pace = reader.Pace(100.0)
    pace.count(20)
    assert not pace.review(100.1)
    assert not pace.gathers
