"""Following a light topic: its batches, where it starts over, and what it does when something fails (a scripted client)."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from statechannel.kafka import partition_consumer
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.light_topic import LightBatch, LightReader, LightReaderTuning
from tests.support.scripted_consumer import ScriptedConsumer, end, event, record
from tests.support.waits import wait_until

Row = tuple[list[int], bool, int, bool]
"""A batch: offsets, whether it opens, how many of the backlog, whether it has caught up."""
TUNING = LightReaderTuning(poll_s=0.001, reopen_s=0.01)


class Rig:
    def __init__(self, client: ScriptedConsumer) -> None:
        self.client: Any = client
        self.batches: list[LightBatch] = []
        self.failures: list[BaseException] = []
        self.sink: Callable[[LightBatch], None] = self.batches.append
        self.reader = LightReader(
            ClientSettings("h:1"), "c", self._take, group_id="g", tuning=TUNING, on_failure=self.failures.append
        )

    def _take(self, batch: LightBatch) -> None:
        self.sink(batch)

    def start(self, *script: Message | None, marks: tuple[int, int] | int | None = (0, 3)) -> None:
        self.client.script.extend(script)
        self.client.marks = marks
        self.reader.start()

    def wait(self, done: Callable[[], object]) -> None:
        wait_until(done, lambda: (self.batches, self.failures), pause_s=0.001)

    def steps(self, count: int = 5) -> None:
        """Wait for some more polls."""
        until = len(self.client.asked.get("poll", [])) + count
        self.wait(lambda: len(self.client.asked.get("poll", [])) >= until)

    def rows(self) -> list[Row]:
        return [([one.offset for one in b.records], b.opened, b.backlog, b.caught_up) for b in list(self.batches)]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    client = ScriptedConsumer()
    monkeypatch.setattr(partition_consumer, "Consumer", lambda _: client)
    rig = Rig(client)
    yield rig
    rig.reader.close()


OPENED: Row = ([], True, 0, False)
FIRST: Row = ([0], False, 1, False)


@pytest.mark.parametrize(
    ("marks", "script", "rows"),
    [
        ((4, 4), [], [([], True, 0, True)]),  # empty: caught up at once
        ((1, 3), [record(1), record(2)], [OPENED, ([1, 2], False, 2, True)]),
        ((0, 3), [record(0), None, record(2), None, record(3)], [OPENED, FIRST, ([2], False, 1, True), ([3], False, 0, True)]),
        ((0, 3), [record(1), record(2), record(3), record(4)], [OPENED, ([1, 2, 3, 4], False, 2, True)]),
        ((0, 3), [record(0), None, end(3), end(3)], [OPENED, FIRST, ([], False, 0, True)]),  # a gap at the end
        ((0, 3), [end(2), None, record(2)], [OPENED, ([2], False, 1, True)]),
    ],
)  # fmt: skip
def test_batches_say_how_much_of_the_backlog_they_are_and_when_it_ends(
    rig: Rig, marks: tuple[int, int], script: list[Message | None], rows: list[Row]
) -> None:
    rig.start(*script, marks=marks)
    rig.wait(lambda: len(rig.batches) >= len(rows))
    rig.steps()
    assert rig.rows() == rows
    assert rig.reader.wait_caught_up(0.0)
    assert rig.client.places == [("c", 0, marks[0])]


def test_until_the_backlog_is_read_it_has_not_caught_up(rig: Rig) -> None:
    rig.start(record(0), record(1))
    rig.wait(lambda: len(rig.batches) == 2)
    assert not rig.reader.wait_caught_up(0.01)
    rig.client.script.append(record(2))
    assert rig.reader.wait_caught_up(60)


def test_a_record_has_its_headers_and_the_time_of_the_log(rig: Rig) -> None:
    rig.start(record(2, headers=[("a", b"1")]))
    rig.wait(lambda: len(rig.batches) == 2)
    (read,) = rig.batches[1].records
    assert (read.key, read.value, read.headers, read.offset, read.timestamp_ms) == (b"k", b"v", (("a", b"1"),), 2, 7)


@pytest.mark.parametrize("code", [KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_where_its_place_is_gone_it_starts_over(rig: Rig, code: int) -> None:
    rig.start(record(0), record(1), record(2), event(code))
    rig.wait(lambda: len(rig.batches) == 3)
    rig.client.script.append(record(2))
    rig.wait(lambda: len(rig.batches) == 4)
    assert rig.rows() == [OPENED, ([0, 1, 2], False, 3, True), OPENED, ([2], False, 1, True)]
    assert rig.client.places == [("c", 0, 0)] * 2


def test_as_long_as_its_topic_is_gone_it_fetches_nothing(rig: Rig) -> None:
    rig.start(record(0))
    rig.wait(lambda: len(rig.batches) == 2)
    rig.client.marks = KafkaError.UNKNOWN_TOPIC_OR_PART
    rig.client.script.append(event(KafkaError.UNKNOWN_TOPIC_OR_PART))
    rig.wait(lambda: len(rig.client.asked["marks"]) > 3)
    assert rig.client.held == []


def test_an_outage_is_bridged_and_said_once(rig: Rig, caplog, monkeypatch):
    log = logging.getLogger("statechannel.kafka.light_topic")
    monkeypatch.setattr(log, "filters", [])
    with caplog.at_level(logging.INFO, logger=log.name):
        rig.start(event(KafkaError._TRANSPORT), None, event(KafkaError._TRANSPORT))
        rig.steps()
        assert "_TRANSPORT" in rig.reader.last_error
        rig.client.script.append(record(2))
        rig.wait(lambda: len(rig.batches) == 2)
    assert rig.reader.last_error == ""
    assert rig.rows() == [OPENED, ([2], False, 1, True)]
    assert len([line for line in caplog.records if "_TRANSPORT" in line.getMessage()]) == 1


@pytest.mark.parametrize("marks", [KafkaError._TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE, None])
def test_a_topic_that_cannot_be_opened_is_tried_again(rig: Rig, marks: int | None) -> None:
    began_s = time.monotonic()
    rig.start(record(2), marks=marks)
    rig.wait(lambda: len(rig.client.asked.get("marks", [])) > 5)
    assert time.monotonic() - began_s > 4 * TUNING.reopen_s, "with a pause between two tries"
    assert rig.batches == []
    assert bool(rig.reader.last_error) is (marks is not None)
    rig.client.marks = (0, 3)
    rig.wait(lambda: len(rig.batches) == 2)
    assert rig.rows() == [OPENED, ([2], False, 1, True)]
    assert rig.reader.last_error == ""


def test_a_sink_that_fails_ends_it(rig: Rig) -> None:

    def fail(_: object) -> None:
        raise RuntimeError("broken")

    rig.sink = fail
    rig.start()
    rig.wait(lambda: rig.client.closed)
    assert [str(error) for error in rig.failures] == ["broken"]
    assert rig.reader.close()


def test_it_is_closed_with_its_client(rig: Rig) -> None:
    rig.start(record(0))
    rig.wait(lambda: len(rig.batches) == 2)
    assert rig.reader.close()
    assert rig.client.closed == 1


def test_one_that_never_began_is_closed_as_well(rig: Rig) -> None:
    assert rig.reader.close()
    assert rig.client.closed == 1


def test_closing_does_not_wait_for_ever_and_no_process_waits_for_it(rig: Rig) -> None:
    goes_on = threading.Event()
    rig.sink = lambda _: goes_on.wait(60) and None  # type: ignore[func-returns-value]
    before = set(threading.enumerate())
    rig.start()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    assert not rig.reader.close(0.01)
    goes_on.set()
    assert rig.reader.close()
