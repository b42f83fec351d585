"""A reader of one partition by itself: each phase, each bound, and what it makes of a log that is not as it was."""

from collections.abc import Sequence

import orjson
import pytest

from statechannel.protocol import overruling
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import KEPT_UP_S, Phase, Replica
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, heartbeat, mark

HEARTBEAT, MARK, NOTE = b"!heartbeat", b"!cold-start", b"!note"
LAG_S, HALF_LAG_S = 100.0, 50.0
NOW_S, NOW_MS = 1_000.0, 1_000_000
NEWER = b'{"format":2}'

Written = tuple[bytes, bytes | None]


def records(*written: Written, first: int = 0) -> list[RecordRead]:
    return [
        RecordRead(Topic.CHANNEL, 0, offset, NOW_MS + offset, key, value)
        for offset, (key, value) in enumerate(written, first)
    ]


def replica(**bounds: int) -> Replica:
    return Replica(0, 1, compaction_lag_s=LAG_S, **({"kept_records_max": 100} | bounds))


def opened(end: int, *, first: int = 0, **bounds: int) -> Replica:
    reader = replica(**bounds)
    reader.opened(NOW_S, 0, end)
    if first:
        reader.reached(NOW_S, first)  # the cleaner has taken what was there
    return reader


def reads(reader: Replica, read: Sequence[RecordRead], now_s: float = NOW_S) -> Replica:
    for record in read:
        reader.read(now_s, record)
    return reader


def caught_up() -> Replica:
    """It has judged a namespace from the first record on."""
    return reads(opened(1), records((NAMESPACE, CREATED)))


def waiting(**bounds: int) -> Replica:
    """It lacks the first offset, has read to the end as of its start, and nobody has vouched for that."""
    return reads(opened(3, first=1, **bounds), records((NAMESPACE, CREATED), (NOTE, b""), first=1))


def stopped() -> Replica:
    return reads(opened(2), records((NAMESPACE, NEWER)))


def broken() -> Replica:
    reader = opened(2)
    reader.broken("somebody has made the topic anew")
    return reader


def started_over() -> Replica:
    reader = opened(2)
    reader.start_over("somebody says so")
    return reader


def is_lenient(reader: Replica) -> bool:
    """Whether it takes even a log that begins with offset 0 only for what the cleaner may have left."""
    reader.opened(NOW_S, 0, 1)
    return not reads(reader, records((NAMESPACE, CREATED))).caught_up


def test_before_it_is_opened_nothing_was_read() -> None:
    reader = replica()
    assert reader.phase is Phase.CLOSED
    assert (reader.applied, reader.position, reader.end_offset) == (-1, 0, 0)
    assert (reader.timestamp_ms, reader.read_at_s, reader.current_at_s) == (0, 0.0, None)
    assert (reader.newer_format, reader.stopped_at_s) == (0, 0.0)
    assert reader.view.applied == -1
    reader.opened(NOW_S, 0, 2)
    assert reader.phase is Phase.READING
    assert (reader.applied, reader.read_at_s) == (-1, NOW_S)


def test_an_empty_partition_leaves_nothing_to_guess() -> None:
    assert opened(0).caught_up
    reader = caught_up()
    reader.reached(NOW_S, 5)
    reader.opened(NOW_S, 0, 0)
    assert reader.caught_up, "also for whoever met a gap before"


def test_complete_is_the_newest_moment_that_is_known() -> None:
    reader = replica()
    moments: list[float | None] = []
    for as_of_s in (None, 5.0, 4.0, None, 6.0):
        reader.complete_as_of(as_of_s)
        moments.append(reader.current_at_s)
    assert moments == [None, 5.0, 5.0, 5.0, 6.0]


# --- offsets -------------------------------------------------------------------------------------------------------


def test_a_log_whose_first_offsets_are_gone_is_read_leniently_at_once() -> None:
    reader = opened(3)
    reader.read(NOW_S, records((NAMESPACE, CREATED), first=1)[0])
    assert reader.phase is Phase.READING
    reader.read(NOW_S, records((NOTE, b""), first=2)[0])
    assert reader.phase is Phase.WAITING


@pytest.mark.parametrize("begin", [caught_up, waiting])
def test_an_offset_that_comes_again_is_another_topic(begin) -> None:
    reader = begin()
    before = reader.position
    assert reader.read(NOW_S, records((NOTE, b""), first=before - 1)[0]) is None
    assert reader.phase is Phase.BROKEN
    assert reader.position == before


def test_an_offset_that_comes_again_while_it_reads_is_another_topic() -> None:
    reader = reads(opened(9), records((NAMESPACE, CREATED), (NOTE, b"")))
    reader.read(NOW_S, records((NOTE, b""), first=1)[0])
    assert reader.phase is Phase.BROKEN


LATE_S = NOW_S + HALF_LAG_S
KEPT_UP_TO_S = NOW_S + KEPT_UP_S


def meets_gap(reader: Replica, now_s: float, *, by_position: bool) -> Replica:
    """One offset is missing above what the reader has read."""
    after = reader.position + 1
    if by_position:
        reader.reached(now_s, after)
    else:
        reader.read(now_s, records((NOTE, b""), first=after)[0])
    return reader


@pytest.mark.parametrize("begin", [caught_up, waiting])
@pytest.mark.parametrize("by_position", [False, True])
def test_a_gap_above_what_was_read_long_ago_starts_over_and_the_next_reading_is_lenient(
    begin, by_position: bool
) -> None:
    reader = meets_gap(begin(), LATE_S, by_position=by_position)
    assert reader.phase is Phase.START_OVER
    assert is_lenient(reader)
    assert not is_lenient(opened(9)), "another reader, which has met none"


@pytest.mark.parametrize(("begin", "now_s"), [(caught_up, KEPT_UP_TO_S - 0.1), (waiting, LATE_S - 0.1)])
@pytest.mark.parametrize("by_position", [False, True])
def test_offsets_that_were_written_lately_never_held_a_record(begin, now_s: float, by_position: bool) -> None:
    reader = begin()
    before, missing = reader.phase, reader.position
    meets_gap(reader, now_s, by_position=by_position)
    assert (reader.phase, reader.unused) == (before, [(missing, missing)])
    assert reader.position == missing + (1 if by_position else 2)


def test_how_long_ago_counts_from_when_the_log_was_last_read_to_its_end() -> None:
    reader = caught_up()
    reader.complete_as_of(LATE_S)
    assert meets_gap(reader, LATE_S + KEPT_UP_S - 0.1, by_position=True).caught_up
    assert meets_gap(reader, LATE_S + KEPT_UP_S, by_position=True).phase is Phase.START_OVER


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("age_ms", [49_999, 50_000])
def test_kafkas_clock_tells_how_long_ago_the_record_before_the_gap_was_written(age_ms: int, by_position: bool) -> None:
    reader = waiting()
    reader.learn_clock(reader.timestamp_ms + age_ms - 2 * LATE_S * 1000)
    meets_gap(reader, 2 * LATE_S, by_position=by_position)
    assert reader.phase is (Phase.WAITING if age_ms < 50_000 else Phase.START_OVER)


def test_a_log_that_is_younger_than_half_the_lag_is_judged_strictly_across_its_gaps() -> None:
    log = [*records((NAMESPACE, CREATED)), *records((NAMESPACE, b"junk"), (NOTE, b""), first=2)]
    reader = replica()
    reader.learn_clock(0.0)
    reader.opened(NOW_S, 0, 4)
    reads(reader, log)
    assert (reader.caught_up, reader.strict, reader.unused) == (True, True, [(1, 1)])
    bulk = replica(tail_records=0)
    bulk.learn_clock(0.0)
    bulk.opened(NOW_S, 0, 4)
    reads(bulk, log[bulk.read_many(NOW_S, log) :])
    assert (bulk.caught_up, bulk.strict) == (True, True)
    assert bulk.view.get("t/n") is not None
    assert len(bulk.view.ledger.open) == 1


def test_the_first_offsets_have_no_record_before_them_to_tell_their_age() -> None:
    reader = replica()
    reader.learn_clock(0.0)
    reader.opened(NOW_S, 0, 3)
    reads(reader, records((NAMESPACE, CREATED), (NOTE, b""), first=1))
    assert reader.phase is Phase.WAITING


def test_a_gap_in_a_strict_reading_starts_over_and_the_next_reading_is_lenient() -> None:
    reader = reads(opened(9), records((NAMESPACE, CREATED)))
    reader.reached(NOW_S, 2)
    assert reader.phase is Phase.START_OVER
    assert is_lenient(reader)


def test_offsets_that_are_missing_to_the_very_end_were_there_at_the_start_or_never() -> None:
    reader = opened(3, first=1)
    reader.reached(NOW_S, 3)
    assert reader.phase is Phase.WAITING
    assert reader.position == 3
    for now_s, phase in ((LATE_S - 0.1, Phase.WAITING), (LATE_S, Phase.START_OVER)):
        reader = opened(3, first=1)
        reader.reached(now_s, 4)
        assert reader.phase is phase


def test_a_record_right_behind_the_end_may_follow_a_gap_that_ends_there() -> None:
    reader = opened(3, first=1)
    reader.read(NOW_S, records((NOTE, b""), first=3)[0])
    assert reader.phase is Phase.WAITING


@pytest.mark.parametrize("begin", [replica, stopped, broken, started_over])
def test_who_reads_no_more_takes_nothing_in(begin) -> None:
    reader = begin()
    before = reader.phase, reader.position, reader.why
    assert reader.read(NOW_S, records((NAMESPACE, CREATED), first=reader.position)[0]) is None
    assert reader.read_many(NOW_S, records((NAMESPACE, CREATED), first=reader.position)) == 0
    reader.reached(NOW_S, reader.position + 5)
    reader.learn_clock(0.0)
    assert (reader.phase, reader.position, reader.why) == before
    assert reader.view.get("t/n") is None


def test_what_was_reached_already_says_nothing() -> None:
    for reader in (caught_up(), waiting()):
        phase = reader.phase
        reader.reached(NOW_S, reader.position)
        reader.reached(NOW_S, reader.position - 1)
        assert reader.phase is phase


def test_who_is_caught_up_takes_in_one_record_after_the_other() -> None:
    reader = caught_up()
    for record in records((NOTE, b""), (NAMESPACE, b"junk"), (NOTE, None), first=1):
        assert reader.read(NOW_S, record) is not None
        assert (reader.applied, reader.position) == (record.offset, record.offset + 1)
        assert reader.timestamp_ms == record.timestamp_ms
    assert reader.caught_up


# --- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [lambda: opened(5), caught_up, waiting])
def test_a_newer_format_stops_every_reader_before_the_record(begin) -> None:
    reader = begin()
    before = reader.position
    judgement = reader.read(NOW_S, records((NAMESPACE, NEWER), first=before)[0])
    assert reader.phase is Phase.STOPPED
    assert (reader.newer_format, reader.position) == (2, before)
    assert f"offset {before} of partition 0" in reader.why
    assert (judgement is not None) is (begin is caught_up)


def test_a_newer_format_stops_a_lenient_reader_that_is_on_its_way() -> None:
    reader = reads(opened(9, first=1), records((NAMESPACE, CREATED), (NAMESPACE, NEWER), (NOTE, b""), first=1))
    assert reader.phase is Phase.STOPPED
    assert reader.position == 2


# --- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after_s", "phase"), [(HALF_LAG_S, Phase.READING), (HALF_LAG_S + 1, Phase.START_OVER)])
@pytest.mark.parametrize("first", [0, 1])
def test_a_reading_may_take_half_the_lag(first: int, after_s: float, phase: Phase) -> None:
    reader = opened(9, first=first)
    reads(reader, records((NAMESPACE, CREATED), first=first), NOW_S + after_s)
    assert reader.phase is phase


@pytest.mark.parametrize(("after_s", "phase"), [(HALF_LAG_S, Phase.WAITING), (HALF_LAG_S + 1, Phase.START_OVER)])
def test_a_lenient_reading_ends_within_half_the_lag(after_s: float, phase: Phase) -> None:
    reader = opened(2, first=1)
    reads(reader, records((NAMESPACE, CREATED), first=1), NOW_S + after_s)
    assert reader.phase is phase


def test_what_was_judged_from_the_first_record_on_counts_however_long_it_took() -> None:
    assert reads(opened(1), records((NAMESPACE, CREATED)), NOW_S + HALF_LAG_S + 1).caught_up


def test_kafkas_clock_is_no_reason_to_end_a_reading_early() -> None:
    """What lies above has not been read yet, and may be as old as it likes."""
    log = records((NAMESPACE, CREATED), (HEARTBEAT, heartbeat("b-1", 1)), (NAMESPACE, b"junk"), first=1)
    reader = reads(opened(4, first=1), log[:2])
    reader.learn_clock(0.0)
    assert reader.phase is Phase.READING
    reads(reader, log[2:])
    assert reader.caught_up


# --- what waits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "phase"),
    [
        ({"kept_records_max": 2}, Phase.WAITING),
        ({"kept_records_max": 1}, Phase.START_OVER),
        ({"kept_max_bytes": 10}, Phase.WAITING),
        ({"kept_max_bytes": 9}, Phase.START_OVER),
    ],
)
def test_who_may_keep_no_more_starts_over(bounds: dict[str, int], phase: Phase) -> None:
    reader = reads(waiting(**bounds), records((NOTE, b"12345"), (NOTE, b"12345"), first=3))
    assert reader.phase is phase


def test_a_heartbeat_that_vouches_may_be_longer_than_what_may_be_kept() -> None:
    reader = reads(waiting(kept_max_bytes=9), records((HEARTBEAT, heartbeat("b-1", 2)), first=3))
    assert reader.caught_up
    assert reader.applied == 3


def test_a_cold_start_takes_everything_that_was_read() -> None:
    reader = reads(waiting(), records((BUNDLE, b"junk"), first=3))
    assert reader.assume() == ["t/n", BUNDLE.decode()]
    assert reader.caught_up
    assert reader.view.applied == reader.applied == 3
    assert reader.view.get("t/n") is not None
    assert not reader.view.ledger.open


def test_whoever_judges_has_nothing_to_assume() -> None:
    reader = caught_up()
    view = reader.view
    assert reader.assume() == []
    assert reader.view is view


# --- the bulk of a replay ------------------------------------------------------------------------------------------

LONG = records((NAMESPACE, CREATED), (HEARTBEAT, heartbeat("b-1", 0)), (NOTE, b""), (NOTE, b""), (NOTE, b""))


@pytest.mark.parametrize(("tail", "taken"), [({}, 4), ({"tail_records": 0}, 4), ({"tail_records": 2}, 3)])
def test_the_bulk_ends_before_the_tail(tail: dict[str, int], taken: int) -> None:
    reader = opened(5, **tail)
    assert reader.read_many(NOW_S, LONG) == taken
    assert reader.position == taken
    assert reader.timestamp_ms == LONG[taken - 1].timestamp_ms
    assert reader.phase is Phase.READING
    assert reads(reader, LONG[taken:]).caught_up


def test_a_bulk_goes_on_where_the_one_before_ended() -> None:
    reader = opened(5)
    assert reader.read_many(NOW_S, LONG[:2]) == 2
    assert reader.read_many(NOW_S, LONG[2:]) == 2
    assert reader.position == 4
    assert reader.timestamp_ms == LONG[3].timestamp_ms


def test_a_bulk_that_begins_behind_the_position_is_left_alone() -> None:
    reader = opened(5)
    assert reader.read_many(NOW_S, LONG[1:]) == 0
    assert (reader.position, reader.timestamp_ms) == (0, 0)


@pytest.mark.parametrize(("after_s", "taken"), [(HALF_LAG_S, 4), (HALF_LAG_S + 1, 0)])
def test_no_bulk_is_taken_by_who_has_to_start_over(after_s: float, taken: int) -> None:
    assert opened(5).read_many(NOW_S + after_s, LONG) == taken


def test_what_comes_before_a_gap_is_not_judged_in_vain() -> None:
    reader, others = opened(9), []
    broken_off = [*LONG[:3], *records((NOTE, b""), first=5)]
    assert reader.read_many(NOW_S, broken_off, others) == 3
    assert (reader.position, reader.timestamp_ms, others) == (3, LONG[2].timestamp_ms, LONG[:3])
    assert not reader.view.keys
    reader.read(NOW_S, broken_off[3])
    assert (reader.phase, reader.has_met_gap) == (Phase.START_OVER, True)
    assert reader.why == reads(opened(9), broken_off).why


@pytest.mark.parametrize("end", [5, 6])
def test_what_comes_before_a_gap_in_the_tail_is_judged(end: int) -> None:
    reader = opened(end)
    assert reader.read_many(NOW_S, [*LONG[:3], *records((NOTE, b""), first=5)]) == 3
    assert reader.view.keys


def test_a_newer_format_before_a_gap_stops_the_reader() -> None:
    reader = opened(9)
    written = [*LONG[:1], *records((NAMESPACE, NEWER), first=1), *records((NOTE, b""), first=5)]
    assert reader.read_many(NOW_S, written) == 1
    assert reads(reader, written[1:]).phase is Phase.STOPPED


def lenient(end: int = 9) -> Replica:
    return reads(opened(end, first=1), records((NAMESPACE, CREATED), first=1))


def test_a_lenient_bulk_goes_on_over_gaps_and_ends_before_the_last_record() -> None:
    reader = lenient()
    read = [
        *records((NOTE, b""), (HEARTBEAT, heartbeat("b-1", 1)), first=2),
        *records((NOTE, b""), (NOTE, b""), first=7),
    ]
    others: list[RecordRead] = []
    assert reader.read_many(NOW_S, read, others) == 3
    assert (reader.position, reader.timestamp_ms, reader.phase) == (8, NOW_MS + 7, Phase.READING)
    assert others == read[:3]
    assert reads(reader, read[3:]).phase is Phase.WAITING


@pytest.mark.parametrize("last", [(NAMESPACE, NEWER), (MARK, mark("c-1", 0))])
def test_a_lenient_bulk_ends_before_what_may_end_the_reading(last: Written) -> None:
    assert lenient().read_many(NOW_S, records((NOTE, b""), last, (NOTE, b""), first=2)) == 1


def test_a_lenient_bulk_leaves_alone_what_was_read() -> None:
    assert lenient().read_many(NOW_S, records((NOTE, b""), (NOTE, b""), first=1)) == 0


def test_a_heartbeat_in_the_bulk_makes_a_mark_void_like_any_other() -> None:
    reader = opened(7)
    assert reader.read_many(NOW_S, [*LONG, *records((NOTE, b""), (MARK, mark("c-1", 0)), first=5)]) == 6
    reader.read(NOW_S, records((MARK, mark("c-1", 0)), first=6)[0])
    assert reader.marks.newest == -1


# --- cold starts, for whoever judges -------------------------------------------------------------------------------


def restated(writer: str, covers: int, kind: str = "assert", **fields: object) -> bytes:
    head = {"format": 1, "kind": kind, "id": f"as-{writer}", "covers": covers, "version": 9, "state": "Assigned"}
    head |= {"asserts": "p9", "base": "p9", "from": None, "to": "y", "by": {"broker": "x", "incarnation": writer}}
    return orjson.dumps(head | fields)


STALE = BUNDLE, restated("c-1", 0)
MARKED = MARK, mark("c-1", 0)


def crossed(*written: Written) -> Replica:
    """A strict reader of a namespace and what follows it."""
    log = records((NAMESPACE, CREATED), *written)
    reader = reads(opened(len(log)), log)
    assert reader.caught_up
    return reader


def version(reader: Replica) -> int:
    held = reader.view.get(BUNDLE.decode())
    assert held is not None
    return held.version


def test_the_asserts_of_a_cold_start_count_behind_its_mark() -> None:
    reader = crossed(STALE, MARKED)
    assert version(reader) == 9
    assert [difference.key for difference in reader.overruled] == [BUNDLE.decode()]


def test_a_rejected_proposal_of_the_same_process_does_not() -> None:
    assert version(crossed((BUNDLE, restated("c-1", 0, "proposal")), MARKED)) == 1


def test_what_looks_like_a_mark_on_another_key_is_none() -> None:
    assert version(crossed(STALE, (NOTE, MARKED[1]))) == 1
    reader = reads(caught_up(), records((NOTE, mark("c-1", 0)), first=1))
    assert reader.marks.newest == -1


def test_what_it_asserts_behind_its_mark_is_only_stale() -> None:
    for again in (b"junk", None, mark("c-1", 0)):
        assert version(crossed(MARKED, STALE, (MARK, again))) == 1


def test_a_mark_without_asserts_costs_nothing() -> None:
    log = records((NAMESPACE, CREATED), MARKED, (NOTE, b""))
    reader = opened(3)
    view = reader.view
    assert reads(reader, log).view is view
    assert reader.marks.newest == 1


def test_who_is_caught_up_does_not_change_its_view_by_a_mark() -> None:
    """Its engine has it join anew: what it has acted on is not to be taken back in silence."""
    reader = crossed(STALE)
    view = reader.view
    reads(reader, records(MARKED, first=2))
    assert reader.marks.newest == 2
    assert reader.view is view
    assert not reader.overruled
    assert version(reader) == 1


def test_a_heartbeat_makes_room_for_the_asserts_of_a_later_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overruling, "RESTATED_MAX", 1)
    others = BUNDLE, restated("d-1", 0)
    later = BUNDLE, restated("c-1", 2)
    assert version(crossed(others, (HEARTBEAT, heartbeat("b-1", -1)), later, (MARK, mark("c-1", 2)))) == 9
    assert version(crossed(others, (HEARTBEAT, b"junk"), later, (MARK, mark("c-1", 2)))) == 1
