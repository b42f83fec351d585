"""A follower of a side topic opens it again on request, in pieces, and does not mix what its readers hand over."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from statechannel.broker.topic_follower import PIECE_MAX_BYTES, TopicFollower, pieces_of
from statechannel.kafka.light_topic import LightBatch
from statechannel.protocol.side_record import SideRecord
from statechannel.settings.groups_engine import RuntimeSettings
from tests.support.log_lines import capture_logs
from tests.support.waits import until


class Reader:
    def __init__(self, sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> None:
        self.sink = sink
        self.failed = failed
        self.closed_within_s: list[float] = []
        self.ends = True
        self.last_error = "no broker answers"

    def start(self) -> None: ...

    def close(self, timeout_s: float = 5.0) -> bool:
        self.closed_within_s.append(timeout_s)
        return self.ends


class Rig:
    def __init__(self, **runtime: float) -> None:
        self.readers: list[Reader] = []
        self.taken: list[int] = []
        self.failures = 0
        self.follower = TopicFollower(
            "c-side",
            make_reader=self._make,
            decode=lambda record: record.offset,
            take=self._take,
            on_failure=self._failed,
            mono_s=lambda: 1_000.0,
            runtime=RuntimeSettings(**runtime),  # type: ignore[arg-type]
        )

    def _make(self, sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> Reader:
        self.readers.append(Reader(sink, failed))
        return self.readers[-1]

    def _take(self, batch: LightBatch, offsets: Sequence[int]) -> None:
        self.taken += offsets

    def _failed(self) -> None:
        self.failures += 1


def record(offset: int, size_bytes: int = 1) -> SideRecord:
    return SideRecord(b"k", bytes(size_bytes) if size_bytes else None, (), offset, 0)


def batch(*offsets: int) -> LightBatch:
    return LightBatch([record(offset) for offset in offsets], opened=False, backlog=0, caught_up=True)


LARGE = PIECE_MAX_BYTES


@pytest.mark.parametrize(
    ("sizes", "backlog", "caught_up", "pieces"),
    [
        ([], 0, True, [(0, True, 0, True)]),
        ([], 3, False, [(0, True, 0, False)]),
        ([0, 1, 1], 2, True, [(3, True, 2, True)]),
        ([LARGE, 1], 2, True, [(1, True, 1, False), (1, False, 1, True)]),
        ([LARGE - 1, 1, 1], 3, True, [(2, True, 2, False), (1, False, 1, True)]),
        ([2 * LARGE, 2 * LARGE], 1, True, [(1, True, 1, True), (1, False, 0, True)]),
        ([LARGE, LARGE, LARGE], 5, False, [(1, True, 1, False)] + 2 * [(1, False, 1, False)]),
    ],
)
def test_a_batch_in_pieces(sizes: list[int], backlog: int, caught_up: bool, pieces: list[tuple[int, bool, int, bool]]):
    whole = LightBatch(
        [record(n, size) for n, size in enumerate(sizes)], opened=True, backlog=backlog, caught_up=caught_up
    )
    found = list(pieces_of(whole))
    assert [(len(one.records), one.opened, one.backlog, one.caught_up) for one in found] == pieces
    assert [item.offset for one in found for item in one.records] == list(range(len(sizes)))
    assert not any(one.opened for one in pieces_of(whole._replace(opened=False)))


async def test_a_topic_that_is_opened_again_is_read_by_another_reader_alone() -> None:
    rig = Rig()
    rig.follower.reopen()  # nothing is followed yet
    assert (rig.readers, rig.follower.running, rig.follower.last_error) == ([], False, "")
    rig.follower.start()
    assert (rig.follower.running, rig.follower.last_error) == (True, "no broker answers")
    rig.follower.reopen()
    old, new = rig.readers
    await until(lambda: old.closed_within_s == [5.0])
    await asyncio.to_thread(old.sink, batch(1))
    await asyncio.to_thread(old.failed, OSError("late"))
    await asyncio.to_thread(new.sink, batch(2, 3))
    await until(lambda: bool(rig.taken))
    assert (rig.taken, rig.failures, rig.follower.failures) == ([2, 3], 0, 0)
    await rig.follower.close(7.0)
    assert (new.closed_within_s, rig.follower.running) == ([7.0], False)


@pytest.mark.parametrize("act", ["reopen", "close"])
async def test_a_restart_that_waits_is_not_made_as_well(act: str) -> None:
    rig = Rig(restart_first_wait_s=0.02)
    rig.follower.start()
    for _ in range(2):  # a reader may fail while its restart waits
        await asyncio.to_thread(rig.readers[0].failed, OSError("gone"))
    await until(lambda: rig.failures > 0)
    assert rig.follower.running
    if act == "reopen":
        rig.follower.reopen()
    else:
        await rig.follower.close()
    await asyncio.sleep(0.05)
    assert (len(rig.readers), rig.failures, rig.follower.failures) == (2 if act == "reopen" else 1, 1, 1)
    await rig.follower.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_a_reader_that_does_not_end_in_time_is_said(ends: bool) -> None:
    rig = Rig(restart_longest_wait_s=9.0)
    rig.follower.start()
    rig.readers[0].ends = ends
    with capture_logs() as lines:
        await rig.follower.close(2.0)
    assert [(line["event"], line["topic"], line["seconds"]) for line in lines] == (
        [] if ends else [("topic-reader-late", "c-side", 2.0)]
    )
    assert rig.follower.longest_wait_s == 9.0


async def test_beyond_its_limit_a_reader_is_restarted_after_the_longest_wait() -> None:
    rig = Rig(restarts_max=0, restart_longest_wait_s=0.01, restart_first_wait_s=60.0)
    rig.follower.start()
    await asyncio.to_thread(rig.readers[0].failed, OSError("gone"))
    await until(lambda: len(rig.readers) == 2)
    await rig.follower.close()


def test_a_reader_outlives_its_loop_without_harm() -> None:
    rig = Rig()

    async def start() -> None:
        rig.follower.start()

    asyncio.run(start())
    (reader,) = rig.readers
    reader.failed(OSError("gone"))
    thread = threading.Thread(target=lambda: [reader.sink(batch(number)) for number in range(6)], daemon=True)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()
    assert rig.taken == []
