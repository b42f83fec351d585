"""What a reader delivers of what its client fetches, to the last input, and what it does with each finding about its topics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from statechannel.engine.inputs import HeadLost, Input, PartitionBroken, PartitionOpened, PositionReached
from statechannel.kafka import reader as reader_module
from statechannel.kafka.admin import Place
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.reader import LogReader, ReaderTuning
from statechannel.kafka.topic_watch import TopicFindings
from statechannel.kafka.topics import TopicInfo
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.scripted_consumer import ScriptedConsumer
from tests.support.waits import wait_until

NOW_S = 1_000.0
"""The reader's clock stands still unless a test moves it."""
UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


def message(offset: int, partition: int = 0, code: int | None = None) -> Message:
    error = None if code is None else KafkaError(code)
    return Message("c", partition, offset, b"k", b"v", error=error, timestamp=(2, 7))


def end(offset: int, partition: int = 0) -> Message:
    return message(offset, partition, KafkaError._PARTITION_EOF)


class Client(ScriptedConsumer):
    """One client after the other is this one.

    Attributes:
        ends: Where partitions end, as of the last fetch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[int, int] = {}
        self.configs: list[Any] = []
        self.given: list[tuple[int, int]] = []
        self.taken: list[int] = []

    def make(self, config: object) -> Client:
        self.configs.append(config)
        return self

    def get_watermark_offsets(self, place: TopicPartition, timeout: float = 0.0, cached: bool = False) -> Any:
        return (0, self.ends.get(place.partition, -1001)) if cached else super().get_watermark_offsets(place, timeout)

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.given += [(place.partition, place.offset) for place in places]

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.taken += [place.partition for place in places]

    def poll(self, timeout_s: float) -> Message | None:
        if not self.script:
            time.sleep(0.001)
        return super().poll(timeout_s)


class Watch:
    """Finds what a test has written down; `how`: what it was made with."""

    def __init__(self) -> None:
        self.findings: deque[TopicFindings] = deque()
        self.hurried = self.closed = 0
        self.asked: list[Mapping[Place, int]] = []
        self.how: dict[str, Any] = {}

    def make(self, *_: object, **how: Any) -> Watch:
        self.how = how
        return self

    def due(self, _: float) -> bool:
        return bool(self.findings)

    def hurry(self) -> None:
        self.hurried += 1

    def poll(self, _: float, positions: Mapping[Place, int]) -> TopicFindings:
        self.asked.append(positions)
        return self.findings.popleft()

    def close(self) -> None:
        self.closed += 1


class Rig:
    def __init__(self, client: Client, watch: Watch) -> None:
        self.client, self.watch = client, watch
        self.inputs: list[Input] = []
        self.available: list[bool] = []
        self.found: list[TopicFindings] = []
        self.failures: list[BaseException] = []
        self.now_s = NOW_S
        self.reader: Any = None

    def open(
        self,
        *script: Message | None,
        marks: Any = (0, 3),
        ends: dict[int, int] | None = None,
        topic: Topic = Topic.CHANNEL,
        partitions: int = 1,
        **tuning: Any,
    ) -> None:
        self.client.marks = marks
        self.client.ends = {0: 3, 1: 3} if ends is None else ends
        self.client.script.extend(script)
        self.reader = LogReader(
            ClientSettings("h:1", tuning=KafkaSettings.model_construct(topic_grace_s=60.0, stall_timeout_s=0.0)),
            {topic: TopicInfo("c", "id", partitions, 1, {})},
            self.inputs.extend,
            group_id="g",
            tuning=ReaderTuning(**{"poll_s": 0.001, **tuning}),
            on_availability=self.available.append,
            on_findings=self.found.append,
            on_failure=self.failures.append,
            clock=lambda: self.now_s,
        )
        self.reader.start()

    def fetch(self, *script: Message | None) -> None:
        """Let it read these, and go on for some steps."""
        self.client.script.extend(script)
        wait_until(lambda: not self.client.script, lambda: self.inputs, pause_s=0.001)
        self.steps()

    def find(self, *, answered: bool = True, asked_s: float | None = None, **facts: Any) -> None:
        at_s = time.monotonic() if asked_s is None else asked_s
        self.watch.findings.append(TopicFindings(at_s, answered=answered, **facts))
        wait_until(lambda: not self.watch.findings, lambda: self.inputs, pause_s=0.001)
        self.steps()

    def steps(self, count: int = 3) -> None:
        until = len(self.client.asked.get("poll", [])) + count
        wait_until(lambda: len(self.client.asked.get("poll", [])) >= until, lambda: self.failures, pause_s=0.001)

    def rows(self) -> list[Any]:
        """Inputs in short: `[0, 1]` are records that came together."""
        return [short(item) for item in list(self.inputs)]


def short(item: Any) -> Any:
    if isinstance(item, RecordsRead):
        return [one.offset for one in item.records]
    if isinstance(item, RecordRead):
        return item.offset if item.partition == 0 else (item.partition, item.offset)
    if isinstance(item, PositionReached):
        return ("at", item.partition, item.position, item.as_of_s)
    if isinstance(item, PartitionOpened):
        return ("opened", item.partition, item.first_offset, item.end_offset)
    if isinstance(item, PartitionBroken):
        return ("broken", item.partition)
    return item


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    client, watch = Client(), Watch()
    monkeypatch.setattr(reader_module, "Consumer", client.make)
    monkeypatch.setattr(reader_module, "TopicWatch", watch.make)
    monkeypatch.setattr(reader_module, "close_aside", lambda _: None)
    made = Rig(client, watch)
    yield made
    if made.reader is not None:
        assert made.reader.close()


OPENED = ("opened", 0, 0, 3)
AT_END = ("at", 0, 3, NOW_S)


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "script", "rows"),
    [
        ({}, [message(0)], [OPENED, 0]),
        ({}, [message(0), message(1)], [OPENED, [0, 1]]),
        ({}, [message(0), message(2)], [OPENED, [0, 2], AT_END]),
        ({}, [message(2)], [OPENED, 2, AT_END]),
        ({}, [message(1), end(3)], [OPENED, 1, AT_END]),  # the last record was compacted
        ({}, [end(3)], [OPENED, AT_END]),
        ({"marks": (2, 2), "ends": {0: 2}}, [], [("opened", 0, 2, 2), ("at", 0, 2, NOW_S)]),
        ({"topic": Topic.REQUESTS}, [message(0), message(1)], [OPENED, 0, 1]),
        ({"topic": Topic.REGISTRY}, [message(0), message(1)], [OPENED, [0, 1]]),
        ({"portion_bytes": 2}, [message(0), message(1)], [OPENED, [0, 1]]),
        ({"portion_bytes": 1}, [message(0), message(1)], [OPENED, 0, 1]),
        ({"batch_records": 2}, [message(0), message(1), message(2)], [OPENED, [0, 1], 2, AT_END]),
        # An end that moves on meanwhile is not reached; what was known before stays so.
        ({"ends": {0: 9}}, [message(2), None, message(3)], [OPENED, 2, AT_END, 3]),
        # A full delivery says nothing of the end, whose moment is known already.
        ({"ends": {0: 5}, "batch_records": 2}, [message(2), None, message(3), message(4)], [OPENED, 2, AT_END, [3, 4]]),
        # Of several partitions, or with an event in between, each comes singly.
        (
            {"partitions": 2},
            [message(0), message(0, 1), message(2), message(2, 1)],
            [OPENED, ("opened", 1, 0, 3), 0, (1, 0), 2, (1, 2), AT_END, ("at", 1, 3, NOW_S)],
        ),
        ({"partitions": 2}, [end(3, 1)], [OPENED, ("opened", 1, 0, 3), ("at", 1, 3, NOW_S)]),
        ({}, [message(0), message(0, 0, KafkaError._TRANSPORT), message(1)], [OPENED, 0, 1]),
        ({}, [message(0, 7, KafkaError._PARTITION_EOF), message(1)], [OPENED, 1]),  # of nothing that is read
    ],
)
def test_what_is_delivered(rig: Rig, how: dict[str, Any], script: list[Message | None], rows: list[Any]) -> None:
    rig.open(**how)
    rig.fetch(*script)
    assert rig.rows() == rows
    assert {call[1] for call in rig.client.asked.get("consume", [])} <= {0}, "nobody waits for a second record"


def test_a_delivery_has_no_more_records_than_the_bound(rig: Rig) -> None:
    rig.open(batch_records=3)
    rig.fetch(*[message(offset) for offset in range(7)])
    assert [row for row in rig.rows() if isinstance(row, list | int)] == [[0, 1, 2], [3, 4, 5], 6]


def test_records_name_their_topic_and_the_bytes_of_a_portion(rig: Rig) -> None:
    rig.open()
    rig.fetch(message(0), message(1))
    (portion,) = (item for item in rig.inputs if isinstance(item, RecordsRead))
    assert portion.records[1] == RecordRead(Topic.CHANNEL, 0, 1, 7, b"k", b"v")
    assert portion.size_bytes == 2


def test_a_position_is_as_of_the_moment_at_which_the_end_was_seen(rig: Rig) -> None:
    rig.open(message(2))
    rig.fetch()
    rig.now_s += 1.0
    rig.steps()  # looks at the end, which has not moved
    rig.client.ends = {0: 4}
    rig.now_s += 1.0
    rig.steps()
    rig.fetch(message(3))
    assert rig.rows() == [OPENED, 2, AT_END, 3, ("at", 0, 4, NOW_S)]
    rig.client.ends = {0: 5}
    rig.now_s += 1.0
    rig.fetch(message(4))
    assert rig.rows()[5:] == [4, ("at", 0, 5, NOW_S + 1.0)], "the look before 4 was seen"


# --- what the watch finds -----------------------------------------------------------------------------------------------


def test_only_partitions_that_are_read_are_watched(rig: Rig) -> None:
    rig.open(message(0), message(1), partitions=2)
    rig.fetch()
    rig.find(broken={("c", 1): "it is another one"})
    rig.find()
    assert rig.watch.hurried == 2, "as soon as each is open"
    assert rig.watch.asked == [{("c", 0): 2, ("c", 1): 0}, {("c", 0): 2}]
    assert rig.rows()[-1] == ("broken", 1)
    assert rig.client.taken == [1]
    assert rig.found[0].broken
    assert rig.watch.how["compacted"] == {"c"}


@pytest.mark.parametrize(
    ("topic", "compacted"), [(Topic.CHANNEL, {"c"}), (Topic.REGISTRY, set()), (Topic.REQUESTS, set())]
)
def test_only_the_channels_own_log_must_begin_at_0(rig: Rig, topic: Topic, compacted: set[str]) -> None:
    rig.open(topic=topic)
    assert rig.watch.how["compacted"] == compacted


def test_a_lost_head_is_said_once_and_again_when_more_is_lost(rig: Rig) -> None:
    rig.open()
    for first in (4, 4, 6):
        rig.find(first_offsets={("c", 0): first})
    assert [item for item in rig.inputs if isinstance(item, HeadLost)] == [HeadLost(0, 4), HeadLost(0, 6)]


@pytest.mark.parametrize(("position", "end_offset", "confirmed"), [(3, 3, True), (3, 4, False), (2, 3, False)])
def test_an_answer_about_the_end_makes_a_position_newer(rig: Rig, position: int, end_offset: int, confirmed: bool):
    rig.open(message(position - 1))
    rig.fetch()
    count = len(rig.inputs)
    rig.now_s += 50.0
    rig.find(ends={("c", 0): end_offset})
    later = rig.inputs[count:]
    assert len(later) == confirmed
    for item in later:
        assert isinstance(item, PositionReached)
        assert item.as_of_s == pytest.approx(NOW_S + 50.0, abs=20.0)
        assert item.as_of_s <= NOW_S + 50.0
    rig.find(asked_s=time.monotonic() - 100.0, ends={("c", 0): end_offset})
    assert len(rig.inputs) == count + confirmed, "it was asked earlier"


def test_availability_is_told_at_each_change(rig: Rig) -> None:
    rig.open()
    rig.steps()
    for answered in (True, False, False, True):
        rig.find(answered=answered)
    rig.find(answered=False)
    rig.fetch(message(0))
    assert rig.available == [True, False, True, False, True], "a record is an answer as well"


@pytest.mark.parametrize(("code", "row"), [(UNKNOWN, None)])
def test_a_doubt_ends_with_the_next_answer(rig: Rig, code: int, row: Any) -> None:
    """The same topic: it is read on where it was; a lost position: from the beginning."""
    rig.open(message(0), message(1))
    rig.fetch()
    hurried, given = rig.watch.hurried, list(rig.client.given)
    asked_s = time.monotonic()
    rig.fetch(message(2, 0, code))
    assert rig.client.taken == [0]
    assert rig.watch.hurried == hurried + 1
    rig.find(asked_s=asked_s - 1.0, ends={("c", 0): 2})
    rig.find(answered=False)
    rig.find(ends={("c", 0): 9}, doubtful=frozenset({("c", 0)}))
    assert rig.client.given == given, "it was asked before, or there was no answer, or no clear one"
    assert rig.rows() == [OPENED, [0, 1]], "a position in doubt is not confirmed"
    rig.fetch(end(3))
    assert rig.rows() == [OPENED, [0, 1]], "what comes late of it is dropped"
    rig.find(ends={("c", 0): 9})
    assert rig.client.given[1:] == [(0, 0 if row else 2)]
    assert rig.rows()[2:] == ([row] if row else [])


def test_a_partition_that_was_given_up_is_read_again_on_request(rig: Rig) -> None:
    rig.open(message(0), message(1), partitions=2)
    rig.fetch()
    rig.find(broken={("c", 1): "gone"})
    rig.reader.restart(Topic.CHANNEL, 1)
    wait_until(lambda: rig.rows()[-1] == ("opened", 1, 0, 3), rig.rows, pause_s=0.001)
    assert rig.client.given == [(0, 0), (1, 0), (1, 0)]
    rig.reader.restart(Topic.CHANNEL, 0)
    wait_until(lambda: rig.rows()[-1] == ("opened", 0, 0, 3), rig.rows, pause_s=0.001)
    assert rig.client.taken == [1, 0]
    with pytest.raises(ValueError, match="no partition 2"):
        rig.reader.restart(Topic.CHANNEL, 2)


def test_a_client_that_brings_nothing_is_replaced_in_all_partitions(rig: Rig) -> None:
    rig.open(message(0), message(1), partitions=2)
    rig.fetch()
    rig.find(ends={("c", 0): 9, ("c", 1): 0})
    assert len(rig.client.configs) == 1
    rig.find(ends={("c", 0): 9, ("c", 1): 0})
    assert len(rig.client.configs) == 2
    assert rig.client.given[2:] == [(0, 2), (1, 0)]


# --- how often it looks, and at which pace it fetches -------------------------------------------------------------------


@pytest.mark.parametrize(("quiet_s", "age_s", "asks"), [(None, 99.0, False), (0.01, 0.005, False), (0.01, 99.0, True)])
def test_a_log_that_is_quiet_for_too_long_is_asked_for_its_end(
    rig: Rig, quiet_s: float | None, age_s: float, asks: bool
) -> None:
    rig.open(message(2), quiet_s=quiet_s)
    rig.fetch()
    rig.now_s += age_s
    hurried = rig.watch.hurried
    ends_s = time.monotonic() + 0.05
    while time.monotonic() < ends_s:
        rig.steps(1)
    assert (rig.watch.hurried > hurried) is asks


@pytest.mark.parametrize(("gather_ms", "answered", "renewed"), [(0, True, 1), (50, False, 1), (50, True, 2)])
def test_many_records_one_by_one_are_gathered_if_that_is_wanted(rig: Rig, gather_ms: int, answered: bool, renewed: int):
    rig.open(gather_ms=gather_ms)
    for offset in range(40):
        rig.client.script.extend([message(offset), None])
    rig.fetch()
    rig.find(answered=answered)
    assert len(rig.client.configs) == renewed
    pauses = [config["fetch.queue.backoff.ms"] for config in rig.client.configs]
    assert pauses == [20, gather_ms][:renewed]
    assert rig.client.given[1:] == [(0, 40)] * (renewed - 1)


def test_the_clients_error_that_no_broker_is_there_makes_it_look(rig: Rig) -> None:
    rig.open()
    rig.steps()
    hurried = rig.watch.hurried
    (config,) = rig.client.configs
    config["error_cb"](KafkaError(KafkaError._TRANSPORT))
    assert rig.watch.hurried == hurried
    config["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert rig.watch.hurried == hurried + 1


# --- its life -----------------------------------------------------------------------------------------------------------


def test_it_is_closed_with_its_client_and_its_watch(rig: Rig) -> None:
    before = set(threading.enumerate())
    rig.open(message(0))
    rig.fetch()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon, "no process waits for it"
    assert rig.reader.close()
    assert (rig.client.closed, rig.watch.closed) == (1, 1)
    count = len(rig.inputs)
    rig.client.script.append(message(1))
    time.sleep(0.01)
    assert len(rig.inputs) == count
    assert rig.failures == []


def test_one_that_never_began_is_closed(rig: Rig) -> None:
    unused = LogReader(ClientSettings("h:1"), {}, rig.inputs.extend, group_id="g")
    assert unused.close(0.0)
