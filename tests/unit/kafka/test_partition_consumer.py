"""What a fetch brings and where it leaves the position; and when the end of a log is asked for, to see a client that is stuck."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from statechannel.kafka import partition_consumer
from statechannel.kafka.admin import Place
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.partition_consumer import EndWatch, PartitionConsumer, close_aside
from statechannel.kafka.topic_watch import TopicFindings
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.scripted_consumer import ScriptedConsumer, end, event, record
from tests.support.waits import wait_until

PLACE = ("c", 0)
SETTINGS = ClientSettings("h:1", tuning=KafkaSettings.model_construct(stall_timeout_s=10.0))


class Watch:
    """Answers at once that the log ends there; None: no round is complete, an empty map: no answer."""

    made: list[Watch]

    def __init__(self, _: object, topics: Sequence[object], *, interval_s: float, timeout_s: float) -> None:
        self.interval_s = interval_s
        self.end: int | None = None
        self.polls: list[Mapping[Place, int]] = []
        self.closed = 0
        self.made.append(self)

    def poll(self, now_s: float, positions: Mapping[Place, int]) -> TopicFindings | None:
        self.polls.append(positions)
        return None if self.end is None else TopicFindings(now_s, answered=True, ends={PLACE: self.end})

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def watches(monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    Watch.made = []
    monkeypatch.setattr(partition_consumer, "TopicWatch", Watch)
    return Watch.made


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedConsumer]:
    made: list[ScriptedConsumer] = []

    def make(_: object) -> ScriptedConsumer:
        made.append(ScriptedConsumer())
        return made[-1]

    monkeypatch.setattr(partition_consumer, "Consumer", make)
    return made


def open_consumer(settings: ClientSettings = SETTINGS) -> PartitionConsumer:
    return PartitionConsumer(settings, "g", lambda _: None)


# --- a fetch --------------------------------------------------------------------------------------------------------

AWAY, UNKNOWN = KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("script", "offsets", "codes", "advanced", "position"),
    [
        ([], [], [], False, 5),
        ([record(5)], [5], [], True, 6),
        ([record(0)], [0], [], True, 1),
        ([record(5), record(6), record(9)], [5, 6, 9], [], True, 10),
        ([end(7)], [], [], True, 7),
        ([end(0)], [], [], True, 5),
        ([end()], [], [], True, 5),
        ([record(5), end(9)], [5], [], True, 9),
        ([record(8), end(6)], [8], [], True, 9),
        ([event(AWAY)], [], [AWAY], False, 5),
        ([event(AWAY), record(5), event(UNKNOWN)], [5], [AWAY, UNKNOWN], True, 6),
        ([event(AWAY), end(6)], [], [AWAY], True, 6),
    ],
)
def test_a_fetch(
    clients: list[ScriptedConsumer],
    script: list[Message],
    offsets: list[int],
    codes: list[int],
    advanced: bool,
    position: int,
) -> None:
    consumer = open_consumer()
    consumer.start(PLACE, 5)
    clients[0].script.extend(script)
    fetched = consumer.fetch(10, 0.2)
    assert [message.offset() for message in fetched.records] == offsets
    assert [error.code() for error in fetched.errors] == codes
    assert (fetched.advanced, consumer.position) == (advanced, position)


def test_a_fetch_brings_no_more_than_was_asked_for_and_waits_only_for_the_first(clients: list[ScriptedConsumer]):
    consumer = open_consumer()
    consumer.start(PLACE, 0)
    clients[0].script.extend(record(offset) for offset in range(5))
    assert [len(consumer.fetch(3, 0.2).records) for _ in range(3)] == [3, 2, 0]
    assert clients[0].asked == {"poll": [0.2] * 3, "consume": [(2, 0), (2, 0)]}


def test_one_partition_after_the_other(clients: list[ScriptedConsumer], watches: list[Watch]) -> None:
    consumer = open_consumer()
    assert consumer.position == 0
    consumer.start(("a", 1), 7)
    assert (clients[0].held, consumer.position) == ([("a", 1, 7)], 7)
    consumer.start(("b", 2), 0)
    assert (clients[0].held, consumer.position) == ([("b", 2, 0)], 0)
    consumer.move_to(4)
    assert (clients[0].held, consumer.position) == ([("b", 2, 4)], 4)
    consumer.stop()
    assert clients[0].held == []
    consumer.stop()
    consumer.close()
    assert clients[0].closed == 1
    assert len(clients) == 1
    assert watches == [], "who stops reading needs no client to ask for the end"


def test_a_reader_that_is_closed_while_it_reads_closes_its_watch_once(
    clients: list[ScriptedConsumer], watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, clients)
    consumer = open_consumer()
    consumer.start(PLACE, 0)
    clock.fetch(consumer, 0.0)
    clock.fetch(consumer, 6.0)
    consumer.start(PLACE, 5)
    assert [watch.closed for watch in watches] == [1], "that of the partition before"
    clock.fetch(consumer, 0.0)
    clock.fetch(consumer, 6.0)
    consumer.close()
    consumer.close()
    assert [watch.closed for watch in watches] == [1, 1]


class Clock:
    """A time that goes on only in polls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clients: list[ScriptedConsumer]) -> None:
        self.now_s, self.lasts_s = 1_000.0, 0.0
        self._clients = clients
        monkeypatch.setattr(partition_consumer.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(ScriptedConsumer, "poll", self._poll)

    def _poll(self, _: float) -> None:
        self.now_s += self.lasts_s

    def fetch(self, consumer: PartitionConsumer, lasts_s: float, known_end: int | None = None) -> None:
        self.lasts_s = lasts_s
        consumer.fetch(10, lasts_s, known_end=known_end)


@pytest.mark.parametrize(("patience_s", "known_end", "after_s"), [(None, 9, 10.0), (4.0, 9, 4.0), (4.0, None, 6.0)])
def test_a_client_that_brings_nothing_is_replaced_where_it_stood(
    clients: list[ScriptedConsumer],
    watches: list[Watch],
    monkeypatch: pytest.MonkeyPatch,
    patience_s: float | None,
    known_end: int | None,
    after_s: float,
) -> None:
    """Patience runs from the moment at which it is known that there is something to read."""
    clock = Clock(monkeypatch, clients)
    consumer = open_consumer()
    consumer.start(PLACE, 3, patience_s=patience_s)
    clock.fetch(consumer, 0.0, known_end)
    waited_s = 0.0
    while len(clients) == 1 and waited_s < 30.0:
        clock.fetch(consumer, 1.0, known_end)
        waited_s += 1.0
        for watch in watches:
            watch.end = 9
    assert waited_s == after_s + (1.0 if known_end is None else 0.0)
    assert (clients[0].places, clients[1].held) == ([("c", 0, 3)], [("c", 0, 3)])
    wait_until(lambda: clients[0].closed, pause_s=0.005)
    assert clients[1].closed == 0


# --- the watch over the end -----------------------------------------------------------------------------------------

Step = tuple[float, int, int | None]
"""Seconds of polling in all, the position, and the end as Kafka answers then."""


@pytest.mark.parametrize(
    ("known_end", "steps", "stalled", "asked"),
    [
        (None, [(0.0, 5, 9), (4.9, 5, 9)], False, 0),  # not yet
        (None, [(0.0, 5, 9), (5.0, 5, 9), (14.9, 5, 9)], False, 2),  # known since 5 s
        (None, [(0.0, 5, 9), (5.0, 5, 9), (15.0, 5, 9)], True, 2),
        (9, [(0.0, 5, 9), (5.0, 5, 9), (9.9, 5, 9)], False, 2),  # known from the beginning
        (9, [(0.0, 5, 9), (5.0, 5, 9), (10.0, 5, 9)], True, 2),
        (9, [(0.0, 5, 9), (5.0, 5, None), (10.0, 5, None)], False, 2),  # no round is complete
        (9, [(0.0, 5, 9), (10.0, 5, 5)], False, 1),  # it ends where the reader is
        (9, [(0.0, 5, 9), (4.9, 6, 9), (9.8, 7, 9), (14.7, 8, 9)], False, 0),  # records come: nothing is asked
        (9, [(0.0, 5, 9), (4.9, 6, 9), (14.9, 6, 9)], True, 1),
    ],
)
def test_when_a_reader_is_stalled(
    watches: list[Watch], known_end: int | None, steps: list[Step], stalled: bool, asked: int
) -> None:
    watching = EndWatch(SETTINGS, PLACE, 10.0)
    said = []
    for polled_s, position, answer in steps:
        Watch.poll = answering(answer)  # type: ignore[method-assign]
        said.append(watching.stalled(polled_s, position, known_end))
    assert said == [False] * (len(steps) - 1) + [stalled]
    assert sum(len(watch.polls) for watch in watches) == asked
    assert [watch.interval_s for watch in watches] == [5.0] * bool(asked)
    watching.close()
    assert [watch.closed for watch in watches] == [1] * bool(asked)


def answering(end_offset: int | None) -> Callable[..., Any]:
    def poll(self: Watch, now_s: float, positions: Mapping[Place, int]) -> TopicFindings | None:
        self.polls.append(positions)
        ends = {} if end_offset is None else {PLACE: end_offset}
        return TopicFindings(now_s, answered=True, ends=ends)

    return poll


# --- the rest -------------------------------------------------------------------------------------------------------


def test_offsets_and_times_are_asked_of_the_client(clients: list[ScriptedConsumer]) -> None:
    consumer = open_consumer()
    clients[0].marks = (2, 8)
    clients[0].times = [TopicPartition("c", 0, 4)]
    assert consumer.watermarks(PLACE, 1.5) == (2, 8)
    assert consumer.offsets_at([PLACE], 99, 2.5) == [TopicPartition("c", 0, 4)]
    assert clients[0].asked == {"marks": [("c", 0, 1.5)], "times": [(("c", 0, 99), 2.5)]}


def test_a_client_is_closed_aside_by_a_thread_that_keeps_no_process_alive() -> None:
    closing, goes_on = threading.Event(), threading.Event()
    client = ScriptedConsumer()

    def close() -> None:
        closing.set()
        goes_on.wait(60)

    client.close = close  # type: ignore[method-assign]
    before = set(threading.enumerate())
    close_aside(client)  # type: ignore[arg-type]
    (thread,) = set(threading.enumerate()) - before
    assert closing.wait(60)
    assert thread.daemon
    goes_on.set()
    thread.join()
