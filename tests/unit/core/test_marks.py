"""Which marks of cold starts count: the same for a member, for the audit and for Spark (protocol.md section 5)."""

from random import Random

import orjson
import pytest

from spark.channel.plan import BatchContents, ColdStartMark, ReadingPosition, Vouching, marked
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.replay.auditor import audit_part
from statechannel.replay.survey import CompleteFrom, ReadFacts, join_facts, known_of
from tests.support.lone_engine import CREATED, NAMESPACE, heartbeat, mark
from tests.support.mark_cases import AT, CASES, COLD_START, Case, marked_log

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
    """Whatever stands there, the story goes on across it."""
    log = marked_log(case, vouched=False)
    assert known_of(log, oldest_kept_ms=0) == CompleteFrom(1, 2, 1)
    assert join_facts(log, oldest_kept_ms=-1).lenient_to == 2
    assert join_facts(marked_log(case, vouched=True), oldest_kept_ms=-1).lenient_to == 4


@pytest.mark.parametrize("counts", [True, False])
def test_the_audit_takes_no_word_of_who_had_not_read_the_mark_below_it(counts: bool) -> None:
    rows = [
        (NAMESPACE, CREATED),
        (COLD_START, mark("b-1", 1) if counts else b"junk"),
        (b"!heartbeat", heartbeat("a-1", 1)),  # of a member that was paused, and holds the history before
        (b"!heartbeat", heartbeat("b-1", 2)),
    ]
    log = [RecordRead(Topic.CHANNEL, 0, offset, 1, key, value) for offset, (key, value) in enumerate(rows, 1)]
    assert known_of(log[:3], oldest_kept_ms=0) == (None if counts else CompleteFrom(1, 3, 1))
    assert join_facts(log[:3], oldest_kept_ms=0).lenient_to == (-1 if counts else 1)
    assert known_of(log, oldest_kept_ms=0) == (CompleteFrom(2, 4, 1) if counts else CompleteFrom(1, 3, 1))
    assert join_facts(log, oldest_kept_ms=0).lenient_to == 2


def test_a_heartbeat_that_is_read_leniently_voids_a_mark_that_is_judged() -> None:
    rows = [(NAMESPACE, CREATED), (b"!heartbeat", heartbeat("a-1", 0)), (COLD_START, mark("b-1", 0))]
    log = [RecordRead(Topic.CHANNEL, 0, offset, 1, key, value) for offset, (key, value) in enumerate(rows)]
    assert audit_part(0, 1, log, ReadFacts(lenient_to=1)).cold_starts == []
    assert [item.offset for item in audit_part(0, 1, [log[0], log[2]], ReadFacts(lenient_to=1)).cold_starts] == [2]


def test_the_table_view_agrees_with_a_member() -> None:
    """Whatever comes in whatever order, in one batch or in several."""
    for seed in range(300):
        check_agreement(Random(seed))


def check_agreement(rng: Random) -> None:
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
