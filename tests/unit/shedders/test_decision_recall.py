"""Looking back through the topic of decisions: only what is wanted is kept, and bounds end it whatever lies there."""

import random
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from shedders.decisions.builder import outcome_record
from shedders.decisions.history import Back, RecallBounds, Want, look_back
from shedders.decisions.record import AnyRecord, DecisionRecord, OutcomeRecord, Subject, encode, key_of
from statechannel.protocol.log import RecordRead, Topic
from tests.support.decision_records import AT_MS, IDS, WHOLE, record

CYCLE = record(1)
PLACED = record(2, why="w" * 400).model_copy(update={"subject": Subject.PLACE.value})
ENDED = outcome_record(IDS[2], WHOLE, "done", "there", operation=None, at_ms=AT_MS, term=7, leader="b1", took_ms=None)
VALUES = {id(item): encode(item) for item in (CYCLE, PLACED, ENDED)}


class Log:
    """A topic of these records, of which None is junk; `reads` counts those that were read."""

    def __init__(self, records: Sequence[AnyRecord | None], low: int = 0) -> None:
        self.low, self.end = low, low + len(records)
        self.records = records
        self.reads = 0
        self.now_s = 0.0
        self.takes_s = 0.0

    def __call__(self, start: int, end: int) -> Iterator[RecordRead]:
        for offset in range(start, end):
            self.reads += 1
            self.now_s += self.takes_s
            record = self.records[offset - self.low]
            key, value = (b"x", b"{}") if record is None else (key_of(record), VALUES[id(record)])
            yield RecordRead(Topic.REQUESTS, 0, offset, AT_MS, key, value)

    def back(self, want: Want, bounds: RecallBounds | None = None) -> Back:
        return look_back(self, self.low, self.end, want, bounds or RecallBounds(), lambda: self.now_s)


def is_cycle(record: AnyRecord) -> bool:
    return isinstance(record, DecisionRecord) and record.subject == Subject.SHED.value


def is_end(record: AnyRecord) -> bool:
    return isinstance(record, OutcomeRecord)


@pytest.mark.parametrize("seed", range(20))
def test_as_if_all_had_been_read(seed: int) -> None:
    rng = random.Random(seed)
    weights = [rng.choice([0, 1, 20]) for _ in range(3)]
    records = rng.choices([CYCLE, PLACED, ENDED, None], [*weights, 1], k=rng.choice([0, 1, 63, 64, 65, 700, 6_000]))
    log = Log(records, low=rng.choice([0, 17]))
    count = rng.choice([1, 2, 20])
    with_ends = rng.random() < 0.5
    recalled = log.back(Want(count, is_cycle, is_end if with_ends else None))

    wanted = [n for n, record in enumerate(records) if record is not None and is_cycle(record)][-count:]
    first = wanted[0] if len(wanted) == count else 0
    kept = [
        n for n, record in enumerate(records)
        if n in wanted or (with_ends and n >= first and (record is None or is_end(record)))
    ]  # fmt: skip
    assert [read.offset - log.low for read in recalled.reads] == kept
    assert recalled.ended == ""


def test_not_further_than_must_be() -> None:
    log = Log([*[PLACED] * 100_000, CYCLE, *[PLACED] * 10])
    assert [read.offset for read in log.back(Want(1, is_cycle)).reads] == [100_000]
    assert log.reads == 64


def test_memory_does_not_grow_with_what_is_not_wanted() -> None:
    log = Log([CYCLE, *[PLACED] * 5_000])
    tracemalloc.start()
    try:
        recalled = log.back(Want(1, is_cycle))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [read.offset for read in recalled.reads] == [0]
    assert peak_bytes < 2**20, "five thousand records of a kilobyte lay there"


@pytest.mark.parametrize("wanted", [CYCLE, PLACED])
def test_of_what_is_wanted_so_much_is_held(wanted: DecisionRecord) -> None:
    size_bytes = len(VALUES[id(wanted)])
    log = Log([wanted] * 5_000)
    want = Want(4_000, lambda item: isinstance(item, DecisionRecord), is_end)
    recalled = log.back(want, RecallBounds(held_bytes=100 * size_bytes))
    assert [read.offset for read in recalled.reads] == list(range(4_900, 5_000)), "the newest"
    assert "bytes was reached at offset" in recalled.ended


def test_the_newest_of_a_flood_behind_what_is_wanted() -> None:
    log = Log([CYCLE, *[ENDED] * 5_000])
    recalled = log.back(Want(1, is_cycle, is_end), RecallBounds(held_bytes=10 * len(VALUES[id(ENDED)])))
    assert [read.offset for read in recalled.reads] == list(range(4_991, 5_001))
    assert recalled.ended


def test_time_is_up() -> None:
    """Then what was read of the last stretch is left out: behind it there would be a gap."""
    log = Log([CYCLE, *[PLACED] * 3_000, *[ENDED] * 70])
    log.takes_s = 0.01
    recalled = log.back(Want(1, is_cycle, is_end), RecallBounds(time_s=5.0))
    assert [read.offset for read in recalled.reads] == list(range(log.end - 64, log.end))
    assert recalled.ended.startswith("the limit of 5 s was reached at offset ")
    assert log.reads < 510


def test_so_many_records() -> None:
    log = Log([CYCLE, *[PLACED] * 999])
    assert log.back(Want(1, is_cycle), RecallBounds(records=999)) == Back([], "the limit of 999 records was reached")
    assert log.reads == 999
    assert [read.offset for read in log.back(Want(1, is_cycle), RecallBounds(records=1_000)).reads] == [0]
    assert log.back(Want(2, is_cycle), RecallBounds(records=1_000)).ended == "", "there is nothing more"
