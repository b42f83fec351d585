"""A topic is followed through failures of its reader; batches of a closed session count no more."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from loaddata.live.topics import Clocks, LoadFollower
from loaddata.report.record import BrokerLoadReport
from loaddata.view.table_view import Fate, TableView
from statechannel.broker.topic_follower import pieces_of
from statechannel.kafka.light_topic import LightBatch
from statechannel.protocol.side_record import InvalidRecord, SideRecord
from statechannel.settings.groups_engine import RuntimeSettings
from tests.support.load_reports import DECODE, NOW_MS, null, record

QUICK = RuntimeSettings(restarts_max=2, restart_window_s=60.0, restart_first_wait_s=0.01, restart_longest_wait_s=0.05)


class Reader:
    """Hands over what the test tells it to, in a thread of its own as the real one."""

    def __init__(self, sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> None:
        self.sink = sink
        self.failed = failed
        self.closed = threading.Event()
        self.last_error = ""

    def start(self) -> None:
        """Nothing is read until the test says so."""

    def close(self, timeout_s: float = 5.0) -> bool:
        self.closed.set()
        return True

    async def give(self, *records: SideRecord, opened: bool = False, backlog: int = 0, caught_up: bool = True) -> None:
        batch = LightBatch(records, opened, backlog, caught_up)
        await asyncio.to_thread(self.sink, batch)
        await asyncio.sleep(0)

    async def fail(self) -> None:
        await asyncio.to_thread(self.failed, RuntimeError("gone"))


class Rig:
    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.refuse = 0
        self.outcomes: list[tuple[int, Fate]] = []
        self.opened = 0
        self.now_s = 50.0
        self.view: TableView[BrokerLoadReport] = TableView()
        self.following = LoadFollower(
            "t-broker-load",
            self.view,
            make_reader=self._make,
            decode=DECODE,
            on_record=self._record,
            on_opened=self._opened,
            clocks=Clocks(lambda: self.now_s, lambda: NOW_MS + 60_000),
            runtime=QUICK,
        )

    def _make(self, sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> Reader:
        if self.refuse:
            self.refuse -= 1
            raise RuntimeError("no client today")
        self.readers.append(Reader(sink, failed))
        return self.readers[-1]

    def _record(self, record: SideRecord, report: BrokerLoadReport | InvalidRecord | None, outcome: Fate) -> None:
        self.outcomes.append((record.offset, outcome))

    def _opened(self) -> None:
        self.opened += 1

    async def readers_are(self, count: int) -> None:
        for _ in range(500):
            if len(self.readers) == count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{len(self.readers)} readers")

    def ages(self) -> Sequence[float]:
        return [entry.age_s for entry in self.view.seen(self.now_s).values()]


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_batches_reach_the_view_and_who_listens(rig: Rig) -> None:
    rig.following.start()
    rig.following.start()
    [reader] = rig.readers
    await reader.give(opened=True, caught_up=False)
    assert (rig.opened, rig.following.caught_up) == (1, False)
    await reader.give(record("b1", 0), record("b2", 1), null("b2", 2, names=1), backlog=3)
    assert rig.following.caught_up
    assert rig.outcomes == [(0, Fate.TAKEN), (1, Fate.TAKEN), (2, Fate.HONOURED)]
    assert rig.ages() == [60.0], "it lay there: as old as the log says"
    await reader.give(record("b1", 3, seq=2))
    assert rig.ages() == [0.0], "it came live"
    await rig.following.close()
    assert reader.closed.is_set()


async def test_a_record_from_the_future_makes_no_report_behind_it_old(rig: Rig) -> None:
    rig.following.start()
    [reader] = rig.readers
    ahead = record("b9", 0, timestamp_ms=NOW_MS + 7_200_000)
    await reader.give(ahead, record("b1", 1), record("b2", 2), opened=True)
    assert rig.ages()[1:] == [0.0, 0.0]
    await rig.following.close()


async def test_a_batch_of_large_records_is_handed_over_in_stretches(rig: Rig) -> None:
    """What waits for the loop is decoded; a hundred reports of a megabyte must not all wait at once."""
    rig.following.start()
    [reader] = rig.readers
    await reader.give(opened=True, caught_up=False)
    large = [SideRecord(b"b1", b"x" * 600_000, (), offset, NOW_MS) for offset in range(3)]
    await reader.give(*large, record("b1", 3, seq=2, timestamp_ms=NOW_MS), record("b2", 4), backlog=4)
    assert [offset for offset, _ in rig.outcomes] == [0, 1, 2, 3, 4]
    assert rig.opened == 1
    assert rig.following.caught_up
    assert rig.ages() == [60.0, 0.0], "b1's lay there, b2's came live"
    batch = LightBatch([SideRecord(*item) for item in large], opened=True, backlog=2, caught_up=True)
    expected = [(2, True, 2, True), (1, False, 0, True)]
    assert [(len(item.records), item.opened, item.backlog, item.caught_up) for item in pieces_of(batch)] == expected
    lying = batch._replace(backlog=3)
    assert [(item.backlog, item.caught_up) for item in pieces_of(lying)] == [(2, False), (1, True)]


async def test_a_batch_behind_another_is_older_by_the_logs_time(rig: Rig) -> None:
    rig.following.start()
    await rig.readers[0].give(record("b1", 0, timestamp_ms=NOW_MS - 7_000), record("b2", 1))
    assert rig.ages() == [7.0, 0.0]


async def test_a_reader_that_fails_is_begun_again_and_again(rig: Rig) -> None:
    rig.following.start()
    for number in range(1, 5):  # more often than its limit: it slows down, but never gives up
        await rig.readers[-1].fail()
        await rig.readers_are(number + 1)
    assert rig.following.failures == 4
    assert rig.following.running
    await rig.readers[-1].give(record("b1", 0))
    assert len(rig.view) == 1


async def test_a_reader_that_cannot_be_made_is_tried_again(rig: Rig) -> None:
    rig.refuse = 2
    rig.following.start()
    await rig.readers_are(1)
    assert rig.following.failures == 2


async def test_what_a_reader_of_before_hands_over_counts_no_more(rig: Rig) -> None:
    rig.following.start()
    [old] = rig.readers
    await old.give(record("b1", 0))
    await rig.following.close()
    assert (len(rig.view), rig.following.caught_up, rig.following.running) == (0, False, False)
    await old.give(record("b1", 1))
    await old.fail()
    assert rig.outcomes == [(0, Fate.TAKEN)]
    rig.following.start()
    await rig.readers_are(2)
    await rig.readers[1].give(record("b1", 0))
    assert len(rig.view) == 1


async def test_closing_while_a_revival_waits(rig: Rig) -> None:
    rig.following.start()
    await rig.readers[0].fail()
    await asyncio.sleep(0)
    await rig.following.close()
    await asyncio.sleep(0.1)
    assert len(rig.readers) == 1


async def test_a_loop_that_is_busy_holds_the_reader_back(rig: Rig) -> None:
    rig.following.start()
    [reader] = rig.readers
    given = threading.Semaphore(0)

    def many() -> None:
        for number in range(20):
            reader.sink(LightBatch([SideRecord(*record("b1", number, seq=number + 1))], False, 0, True))
            given.release()

    thread = threading.Thread(target=many)
    thread.start()
    thread.join(0.3)  # the loop does nothing meanwhile
    assert thread.is_alive()
    assert sum(given.acquire(blocking=False) for _ in range(20)) == 4
    await asyncio.to_thread(thread.join)
    await asyncio.sleep(0.01)
    assert len(rig.outcomes) == 20
