"""Which marks of cold starts count: the same for a member, for the audit and for Spark (protocol.md section 5)."""

from random import Random

import orjson
import pytest

from spark.channel.plan import BatchContents, ColdStartMark, ReadingPosition, Vouching, marked
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.log import RecordRead
from statechannel.protocol.replica import Phase, Replica
from statechannel.replay.survey import CompleteFrom, known_of
from tests.support.lone_engine import mark
from tests.support.mark_cases import AT, CASES, Case, marked_log, two_marks_log

LAG_S = 100.0
NOW_S = 1_000.0


def joined(log: list[RecordRead]) -> Replica:
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=100)
    replica.learn_clock(0.0)
    replica.opened(NOW_S, 0, log[-1].offset + 1)
    for record in log:
        replica.read(NOW_S, record)
    return replica


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_member(case: Case) -> None:
    """Only a mark that counts keeps a joiner from what lies below it."""
    at_ms = int(NOW_S * 1_000)
    replica = joined(marked_log(case, vouched=False, at_ms=at_ms))
    assert replica.phase is (Phase.WAITING if case.counts else Phase.CAUGHT_UP)
    assert replica.marks.newest == (AT if case.counts else -1)
    assert joined(marked_log(case, vouched=True, at_ms=at_ms)).caught_up


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_audit(case: Case) -> None:
    """Only a mark that counts cuts the story."""
    known = known_of(marked_log(case, vouched=True), oldest_kept_ms=0)
    assert known == (CompleteFrom(4, 5, 1) if case.counts else CompleteFrom(1, 2, 1))


def test_the_story_goes_on_from_the_first_of_two_marks() -> None:
    assert known_of(two_marks_log(), oldest_kept_ms=0) == CompleteFrom(4, 6, 1)


@pytest.mark.parametrize("seed", range(300))
def test_the_table_view_agrees_with_a_member(seed: int) -> None:
    """Whatever comes in whatever order, in one batch or in several."""
    rng = Random(seed)
    member, place, batch = Marks(), ReadingPosition(), list[ColdStartMark | Vouching]()
    for offset in range(rng.randint(1, 12)):
        if rng.random() < 0.4:
            batch.append(Vouching(offset, -1))
            member.heartbeat_read(offset)
        elif rng.random() < 0.7:
            through = rng.randint(max(-1, offset - 4), offset + 1)
            batch.append(ColdStartMark(offset, through))
            member.read(offset, mark("b-1", through))
        else:
            member.read(offset, orjson.dumps({"through": offset - 1}))
        if rng.random() < 0.2:
            place, batch = carried(place, batch), []
    place = carried(place, batch)
    assert (-1 if place.mark is None else place.mark.offset) == member.newest


def carried(place: ReadingPosition, batch: list[ColdStartMark | Vouching]) -> ReadingPosition:
    heartbeats = tuple(item for item in batch if isinstance(item, Vouching))
    marks = tuple(item for item in batch if isinstance(item, ColdStartMark))
    newest, word = marked(place, BatchContents(len(batch), 0, 0, 0, 0, heartbeats=heartbeats, marks=marks))
    return ReadingPosition(mark=newest, word=word)
