"""What a lenient reader keeps, takes and believes, at each of its bounds (protocol.md section 5, steps 1 to 3)."""

import pytest

from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.joiner import Aside, Joiner
from statechannel.protocol.log import RecordRead, Topic
from tests.support.lone_engine import heartbeat, mark

HEARTBEAT, MARK, NOTE = b"!heartbeat", b"!cold-start", b"!note"
HALF_LAG_MS = 50_000
NOW_MS = 1_000_000
END = 10
"""Of the log as of the start, in most of these tests."""


def record(offset: int, key: bytes = NOTE, value: bytes | None = b"12345", ms: int = NOW_MS) -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, offset, ms, key, value)


def clean(offset: int, clean_to: int, ms: int = NOW_MS) -> RecordRead:
    return record(offset, HEARTBEAT, heartbeat("b-1", clean_to), ms)


def aside(*records: RecordRead, kept_max: int = 100, kept_max_bytes: int = 100_000) -> Aside:
    """One that has read these records and has released none."""
    bounds = {"half_lag_ms": HALF_LAG_MS, "kept_max": kept_max, "kept_max_bytes": kept_max_bytes, "newest_format": 1}
    reading = Aside(Joiner(0, 1), Marks(), **bounds)
    for read in records:
        reading.read(read)
    return reading


def taken(reading: Aside) -> int:
    """Offset through which it has taken what it read."""
    return reading.joiner.applied


def test_nothing_is_missing_in_an_empty_partition() -> None:
    assert aside().vouched_for(0)
    assert not aside().vouched_by_log(NOW_MS)


@pytest.mark.parametrize(
    ("through", "end", "serves"),
    [(8, 10, False), (9, 10, True), (10, 10, True), (9, 11, False)],
)
def test_whoever_has_read_to_the_end_as_of_the_start_vouches(through: int, end: int, serves: bool) -> None:
    assert aside(clean(12, through)).vouched_for(end) is serves


OLD_MS, YOUNG_MS = NOW_MS - HALF_LAG_MS, NOW_MS - HALF_LAG_MS + 1


@pytest.mark.parametrize(("before_ms", "serves"), [(OLD_MS, False), (YOUNG_MS, True)])
def test_an_offset_that_is_missing_above_was_cleaned_only_behind_an_old_record(before_ms: int, serves: bool) -> None:
    assert aside(record(5, ms=before_ms), clean(7, 5)).vouched_by_log(NOW_MS) is serves
    assert aside(record(4, ms=before_ms), clean(7, 5)).vouched_by_log(NOW_MS) is serves, "part of them lies above"
    assert aside(record(4, ms=before_ms), clean(7, 6)).vouched_by_log(NOW_MS), "all of them lie below"


def test_what_was_taken_ages_the_offsets_behind_it() -> None:
    reading = aside(record(3, ms=OLD_MS), record(5), clean(8, 5), record(9))
    assert reading.release(END)
    assert taken(reading) == 5
    assert reading.vouched_by_log(NOW_MS)
    reading = aside(record(0, ms=OLD_MS), record(5, ms=OLD_MS), clean(8, 5), record(9))
    assert reading.release(END)
    assert not reading.vouched_by_log(NOW_MS)


@pytest.mark.parametrize("through", [0, 1])
def test_the_log_vouches_from_its_first_offset_on(through: int) -> None:
    reading = aside(record(0), clean(2, through))
    assert reading.release(END)
    assert reading.vouched_by_log(NOW_MS)


@pytest.mark.parametrize(
    ("ms", "serves"), [(NOW_MS - HALF_LAG_MS - 1, False), (NOW_MS - HALF_LAG_MS, False), (NOW_MS - HALF_LAG_MS + 1, True)]
)  # fmt: skip
def test_a_record_above_is_young_for_less_than_half_the_lag(ms: int, serves: bool) -> None:
    assert aside(clean(2, 1, ms)).vouched_by_log(NOW_MS) is serves


def test_the_last_offset_that_is_vouched_for_may_be_as_old_as_it_likes() -> None:
    assert aside(record(1, ms=1), clean(2, 1)).vouched_by_log(NOW_MS)
    assert not aside(record(1, ms=1), clean(2, 0)).vouched_by_log(NOW_MS)


@pytest.mark.parametrize(("through", "clean_to"), [(-1, -1), (1, 1), (2, 2), (3, 1), (4, 1)])
def test_a_heartbeat_vouches_for_what_lies_below_itself_and_lowers_nothing(through: int, clean_to: int) -> None:
    assert aside(clean(3, through)).clean_to == (clean_to if through < 3 else -1)
    assert aside(clean(2, 1), clean(3, through)).clean_to == max(1, clean_to)


def test_only_what_stands_on_the_key_of_the_marks_is_one() -> None:
    assert aside(record(4, NOTE, mark("c-1", 3))).floor == -1
    assert aside(record(4, b"t/n", mark("c-1", 3))).floor == -1
    assert aside(record(4, MARK, mark("c-1", 3))).floor == 4
    assert aside(clean(2, -1), record(4, MARK, mark("c-1", 1))).floor == -1, "a heartbeat lies between, so it is void"


def test_what_is_vouched_for_is_not_kept() -> None:
    reading = aside(record(0), record(1), record(2), clean(3, 1))
    assert reading.release(END)
    assert taken(reading) == 1
    assert [left.offset for left in reading.cut(1)] == [2, 3]


def test_what_lies_below_a_mark_that_counts_is_not_kept() -> None:
    reading = aside(record(0), record(1), record(2, MARK, mark("c-1", 1)), record(3))
    assert reading.release(END)
    assert taken(reading) == 2


@pytest.mark.parametrize(("younger_ms", "through"), [(-1, 0), (0, 0), (1, -1)])
def test_what_is_older_than_the_newest_by_half_the_lag_is_not_kept(younger_ms: int, through: int) -> None:
    reading = aside(record(0, ms=NOW_MS - HALF_LAG_MS + younger_ms), record(1, ms=NOW_MS))
    assert reading.release(END)
    assert taken(reading) == through
    assert reading.floor == through, "and no word for less serves any more"


def test_log_times_at_the_end_as_of_the_start_and_above_age_nothing() -> None:
    reading = aside(record(0), record(END, ms=NOW_MS + 2 * HALF_LAG_MS))
    assert reading.release(END)
    assert taken(reading) == -1
    assert reading.release(END + 1)
    assert taken(reading) == 0


@pytest.mark.parametrize(("kept_max", "through"), [(3, -1), (2, 0), (1, 1), (0, 2)])
def test_of_too_many_records_the_first_are_taken(kept_max: int, through: int) -> None:
    reading = aside(record(0), record(1), record(2), kept_max=kept_max)
    assert reading.release(END)
    assert taken(reading) == through


@pytest.mark.parametrize(("kept_max_bytes", "through"), [(15, -1), (14, 0), (10, 0), (9, 1), (0, 2)])
def test_of_too_many_bytes_the_first_are_taken(kept_max_bytes: int, through: int) -> None:
    reading = aside(record(0), record(1), record(2), record(3, value=None), kept_max_bytes=kept_max_bytes)
    assert reading.release(END)
    assert taken(reading) == through


@pytest.mark.parametrize(("bounds", "fits"), [
    ({"kept_max": 2}, True), ({"kept_max": 1}, False), ({"kept_max_bytes": 10}, True), ({"kept_max_bytes": 9}, False),
])  # fmt: skip
@pytest.mark.parametrize("end", [0, 4])
def test_what_came_after_the_start_is_never_taken_for_want_of_room(
    bounds: dict[str, int], fits: bool, end: int
) -> None:
    """A heartbeat that comes may vouch for less: its offset is where judging begins."""
    reading = aside(record(4), record(5), **bounds)
    assert reading.release(end) is fits
    assert taken(reading) == -1


def test_bytes_that_were_taken_count_no_more() -> None:
    reading = aside(kept_max_bytes=10)
    for offset in range(20):
        reading.read(record(offset, value=None if offset % 3 else b"12345"))
        assert reading.release(20)
        assert taken(reading) < offset
    assert taken(reading) >= 0


def test_a_cut_takes_through_its_offset_and_hands_back_the_rest() -> None:
    reading = aside(record(3), record(5), record(6))
    assert [left.offset for left in reading.cut(5)] == [6]
    assert taken(reading) == 5
    assert reading.cut(9) == []
    reading = aside(record(3), record(5))
    assert reading.cut(9) == []
    assert taken(reading) == 5
