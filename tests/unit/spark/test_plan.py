"""What is settled before any namespace is folded: gaps, stops, joins, cold starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark.channel.plan import (
    BatchContents,
    ColdStartMark,
    JoinReason,
    Missing,
    Reading,
    ReadingPosition,
    Vouching,
    WholeLog,
    ends_cold_start,
    facts_of_join,
    go_on,
    join,
    marked,
    place_fields,
    read_place,
    why_join,
)
from statechannel.protocol.cold_start_marks import HeadMark
from statechannel.replay.survey import FormatStop, ReadFacts

HOUR_MS = 3_600_000


def seen(
    first: int, last: int, *mark: ColdStartMark | Vouching, gap_end: int = -1, stop: FormatStop | None = None
) -> BatchContents:
    heartbeats = tuple(item for item in mark if isinstance(item, Vouching))
    marks = tuple(item for item in mark if isinstance(item, ColdStartMark))
    return BatchContents(last - first + 1, first, last, first, last, gap_end, gap_end, stop, heartbeats, marks)


AT_10 = ReadingPosition(position=10, newest_ms=9)
JOINING = ReadingPosition(position=10, newest_ms=9, reading=Reading.JOINING)
READ_TO_10 = replace(JOINING, read_to=10)


class TestWhyJoin:
    @pytest.mark.parametrize(
        ("place", "contents", "why"),
        [
            pytest.param(AT_10, seen(10, 20), None, id="goes-on"),
            pytest.param(AT_10, seen(15, 20, gap_end=15), JoinReason.GAP, id="gap-at-the-start"),
            pytest.param(AT_10, seen(10, 20, gap_end=17), JoinReason.GAP, id="gap-in-the-middle"),
            pytest.param(ReadingPosition(), seen(5, 9, gap_end=5), JoinReason.GAP, id="late-first-start"),
            pytest.param(JOINING, seen(10, 20), None, id="joining-and-nobody-vouches"),
            pytest.param(JOINING, seen(10, 20, Vouching(12, -1)), None, id="joining-in-debt"),
            pytest.param(JOINING, seen(10, 20, Vouching(12, 12)), None, id="joining-and-a-lie"),
            pytest.param(JOINING, seen(10, 20, Vouching(12, 11)), JoinReason.AGAIN, id="joining-and-vouched"),
            pytest.param(JOINING, seen(15, 20, Vouching(16, 15), gap_end=15), JoinReason.GAP, id="joining-and-a-gap"),
            pytest.param(AT_10, seen(10, 20, ColdStartMark(12, 11)), None, id="mark-alone"),
            pytest.param(
                AT_10, seen(10, 20, ColdStartMark(12, 11), Vouching(14, 13)), JoinReason.COLD_START, id="mark-vouched"
            ),
            pytest.param(
                AT_10, seen(10, 20, ColdStartMark(12, 11), Vouching(14, 11)), None, id="who-vouches-has-not-read-it"
            ),
            pytest.param(
                AT_10, seen(10, 20, Vouching(11, 10), ColdStartMark(12, 9), Vouching(14, 13)), None, id="mark-void"
            ),
        ],
    )
    def test_table(self, place: ReadingPosition, contents: BatchContents, why: JoinReason | None) -> None:
        assert why_join(place, contents) == why

    def test_a_log_that_ends_with_old_records_is_not_read_again(self) -> None:
        """Else who is far behind would read the whole log for each batch, only to find that nobody can vouch for it."""
        contents = seen(10, 20, Vouching(12, 11))
        assert why_join(JOINING, contents, oldest_kept_ms=contents.newest_ms) is None
        assert why_join(JOINING, contents, oldest_kept_ms=contents.newest_ms - 1) is JoinReason.AGAIN

    @pytest.mark.parametrize(
        ("contents", "old", "log_end", "why"),
        [
            pytest.param(seen(12, 18, gap_end=12), True, 20, None, id="less-than-twice-as-far"),
            pytest.param(seen(12, 19, gap_end=12), True, 90, JoinReason.GAP, id="twice-as-far"),
            pytest.param(seen(10, 19), True, 90, None, id="twice-as-far-without-a-gap"),
            pytest.param(seen(12, 18, Vouching(14, 13), gap_end=12), False, 90, JoinReason.GAP, id="vouched"),
            pytest.param(seen(12, 18, Vouching(14, 13), gap_end=12), True, 90, None, id="vouched-for-what-is-old"),
            pytest.param(seen(12, 18, Vouching(14, -1), gap_end=12), False, 90, None, id="in-debt"),
            pytest.param(seen(12, 18, gap_end=12), True, 19, JoinReason.GAP, id="to-the-end"),
            pytest.param(seen(12, 18, gap_end=12), False, 19, JoinReason.GAP, id="to-the-end-of-a-log-that-lives"),
            pytest.param(seen(12, 18, gap_end=12, stop=FormatStop(18, 2)), True, 90, JoinReason.GAP, id="to-a-stop"),
            pytest.param(seen(10, 18), True, 19, JoinReason.AGAIN, id="to-the-end-without-a-gap"),
            pytest.param(seen(10, 18), False, 19, None, id="live-without-a-gap"),
        ],
    )
    def test_a_backlog_that_nobody_vouched_for(
        self, contents: BatchContents, old: bool, log_end: int, why: JoinReason | None
    ) -> None:
        kept_ms = contents.newest_ms if old else contents.newest_ms - 1
        assert why_join(READ_TO_10, contents, oldest_kept_ms=kept_ms, log_end=log_end) == why

    def test_a_gap_that_was_passed_over_is_read_at_the_end_once(self) -> None:
        passed = go_on(1, 0, READ_TO_10, seen(12, 15, gap_end=12)).place
        assert passed.passed
        assert why_join(passed, seen(16, 18), log_end=90) is None
        assert why_join(passed, seen(16, 18), log_end=19) is JoinReason.AGAIN
        whole = WholeLog(seen(2, 18, gap_end=12), newest_old=18)
        again = join(1, 0, passed, seen(16, 18), whole, JoinReason.AGAIN).place
        assert (again.reading, again.passed) == (Reading.JOINING, False)
        assert why_join(again, seen(19, 20), log_end=21) is None

    def test_a_place_of_an_older_pointer_is_read_once(self) -> None:
        assert why_join(JOINING, seen(12, 13, gap_end=12)) is JoinReason.GAP

    @pytest.mark.parametrize("size", [1, 7, 1_000])
    def test_all_readings_of_a_backlog_add_up_to_less_than_three_logs(self, size: int) -> None:
        firsts = range(1, 3_000, size + 1)
        end, read, place = firsts[-1] + size, [], ReadingPosition()
        for first in firsts:
            contents = seen(first, first + size - 1, gap_end=first)
            why = why_join(place, contents, oldest_kept_ms=end, log_end=end)
            if why is None:
                place = go_on(1, 0, place, contents).place
            else:
                read.append(contents.last + 1)
                place = join(1, 0, place, contents, WholeLog(contents, newest_old=contents.last), why).place
            assert place.reading is Reading.JOINING
        assert read[-1] == place.position, "the view has all of it"
        assert sum(read) < 3 * end

    def test_a_mark_in_one_batch_and_its_heartbeat_in_a_later_one(self) -> None:
        first = go_on(1, 0, AT_10, seen(10, 20, ColdStartMark(12, 11)))
        assert first.place.mark == ColdStartMark(12, 11)
        assert first.place.word == 12
        second = go_on(1, 0, first.place, seen(21, 30, Vouching(25, -1)))
        assert second.place.mark == ColdStartMark(12, 11)
        assert why_join(second.place, seen(31, 40, Vouching(33, 32))) is JoinReason.COLD_START

    def test_a_word_of_an_earlier_batch_makes_a_mark_void(self) -> None:
        first = go_on(1, 0, AT_10, seen(10, 20, Vouching(15, -1)))
        assert why_join(first.place, seen(21, 30, ColdStartMark(22, 14), Vouching(24, 23))) is None
        assert why_join(first.place, seen(21, 30, ColdStartMark(22, 15), Vouching(24, 23))) is JoinReason.COLD_START

    def test_of_two_marks_that_read_equally_far_the_first_counts(self) -> None:
        mark, word = marked(AT_10, seen(10, 20, ColdStartMark(12, 11), ColdStartMark(13, 11)))
        assert (mark, word) == (ColdStartMark(12, 11), 12)


class TestGoOn:
    def test_up_to_the_end(self) -> None:
        step = go_on(1, 0, AT_10, seen(10, 20))
        assert (step.plan.joins, step.plan.keeps, step.plan.position) == (False, False, 10)
        assert (step.place.position, step.place.newest_ms, step.place.stop) == (21, 20, None)

    def test_up_to_a_stop(self) -> None:
        step = go_on(1, 0, AT_10, seen(10, 15, stop=FormatStop(15, 2)))
        assert (step.place.position, step.place.stop) == (15, FormatStop(15, 2))
        assert go_on(1, 0, step.place, seen(15, 20)).place.stop is None

    def test_joining_keeps_the_view(self) -> None:
        step = go_on(1, 0, JOINING, seen(10, 20))
        assert step.plan.keeps
        assert step.place.reading is Reading.JOINING
        assert step.missing is None

    def test_joining_with_another_gap_tells_of_it(self) -> None:
        step = go_on(8, 5, READ_TO_10, seen(12, 20, gap_end=15))
        assert step.plan.keeps
        assert (step.place.position, step.place.read_to, step.place.reading) == (21, 10, Reading.JOINING)
        assert step.missing == Missing(5, 10, 14, 9, 15, None)


VOUCHED = seen(5, 20, Vouching(15, 14), gap_end=5)


class TestFactsOfJoin:
    @pytest.mark.parametrize(
        ("whole", "facts"),
        [
            pytest.param(WholeLog(seen(0, 20)), ReadFacts(), id="no-gap-no-guess"),
            pytest.param(WholeLog(seen(0, 20), newest_old=20), ReadFacts(), id="no-gap-however-old"),
            pytest.param(WholeLog(seen(0, 20), late=True), ReadFacts(), id="no-gap-however-late"),
            pytest.param(
                WholeLog(seen(0, 20, stop=FormatStop(20, 2))), ReadFacts(stop=FormatStop(20, 2)), id="no-gap-and-a-stop"
            ),
            pytest.param(WholeLog(seen(5, 20, gap_end=5)), ReadFacts(-1, tentative=True), id="nobody-vouches"),
            pytest.param(WholeLog(seen(5, 20, Vouching(15, 14), gap_end=5)), ReadFacts(14), id="vouched"),
            pytest.param(
                WholeLog(seen(5, 20, Vouching(15, 14), Vouching(18, 3), gap_end=5)),
                ReadFacts(14),
                id="the-highest-counts",
            ),
            pytest.param(
                WholeLog(seen(5, 20, Vouching(15, 14), Vouching(18, 18), gap_end=5)), ReadFacts(14), id="a-lie-does-not"
            ),
            pytest.param(
                WholeLog(seen(5, 20, Vouching(15, 14), gap_end=5), newest_old=14), ReadFacts(14), id="as-old-as-vouched"
            ),
            pytest.param(
                WholeLog(seen(5, 20, Vouching(15, 14), gap_end=5), newest_old=15),
                ReadFacts(14, tentative=True),
                id="older-behind",
            ),
            pytest.param(
                WholeLog(seen(5, 20, Vouching(15, 14), gap_end=5), late=True), ReadFacts(14, tentative=True), id="late"
            ),
            pytest.param(
                WholeLog(seen(0, 20, ColdStartMark(12, 11), Vouching(15, 14)), newest_old=20),
                ReadFacts(14),
                id="mark-without-gaps",
            ),
            pytest.param(
                WholeLog(seen(0, 20, Vouching(15, 14), ColdStartMark(16, 15))),
                ReadFacts(14, tentative=True),
                id="mark-not-vouched",
            ),
            pytest.param(
                WholeLog(seen(0, 20, Vouching(15, 14), ColdStartMark(16, 13))),
                ReadFacts(),
                id="a-void-mark-changes-nothing",
            ),
            pytest.param(
                WholeLog(seen(0, 20, ColdStartMark(16, 16))), ReadFacts(), id="nobody-has-read-its-own-mark-before-it"
            ),
            pytest.param(
                WholeLog(seen(5, 20, Vouching(15, 14), ColdStartMark(16, 13), gap_end=5)),
                ReadFacts(14),
                id="nor-does-it-with-gaps",
            ),
            pytest.param(
                WholeLog(VOUCHED, first_offset=5), ReadFacts(14, tentative=True, head_lost=5), id="its-head-is-lost"
            ),
            pytest.param(
                WholeLog(VOUCHED, first_offset=5, head=(12, HeadMark("a-1", 11, 4, -1))),
                ReadFacts(14, tentative=True, head_lost=5),
                id="more-was-deleted-than-restated",
            ),
            pytest.param(
                WholeLog(VOUCHED, first_offset=5, head=(12, HeadMark("a-1", 11, 5, -1))), ReadFacts(14), id="restated"
            ),
            pytest.param(
                WholeLog(VOUCHED, first_offset=5, head=(17, HeadMark("a-1", 11, 5, -1))),
                ReadFacts(14, tentative=True),
                id="restated-above-what-is-vouched-for",
            ),
        ],
    )
    def test_table(self, whole: WholeLog, facts: ReadFacts) -> None:
        assert facts_of_join(whole) == facts


class TestJoin:
    def test_a_cold_start_over_a_lost_head_waits_for_who_restates_it(self) -> None:
        contents = seen(10, 20, ColdStartMark(12, 11), Vouching(15, 14))
        log = seen(5, 20, ColdStartMark(12, 11), Vouching(15, 14), gap_end=5)
        lost = join(1, 0, AT_10, contents, WholeLog(log, first_offset=5), JoinReason.COLD_START)
        assert not lost.plan.joins, "its view holds what the log does not"
        head = 13, HeadMark("a-1", 12, 5, -1)
        restated = join(1, 0, AT_10, contents, WholeLog(log, first_offset=5, head=head), JoinReason.COLD_START)
        assert restated.plan.joins

    def test_behind_a_gap_that_somebody_vouches_for(self) -> None:
        contents = seen(15, 30, Vouching(21, 20), gap_end=18)
        step = join(1, 0, AT_10, contents, WholeLog(seen(3, 30, Vouching(21, 20), gap_end=18)), JoinReason.GAP)
        assert step.plan.facts == ReadFacts(20)
        assert (step.place.position, step.place.reading, step.place.strict_from) == (31, Reading.STRICT, 21)
        assert step.missing is not None
        assert (step.missing.from_offset, step.missing.to_offset) == (10, 17)
        assert (step.missing.from_ms, step.missing.to_ms, step.missing.strict_from) == (9, 18, 21)

    def test_nobody_vouches_then_somebody_does(self) -> None:
        contents = seen(15, 30, gap_end=15)
        first = join(1, 0, AT_10, contents, WholeLog(contents), JoinReason.GAP)
        assert (first.place.position, first.place.reading, first.place.read_to) == (31, Reading.JOINING, 31)
        assert first.missing is not None
        assert first.missing.strict_from is None
        later = seen(31, 40, Vouching(35, 28))
        second = join(1, 0, first.place, later, WholeLog(seen(15, 40, Vouching(35, 28), gap_end=15)), JoinReason.AGAIN)
        assert second.place.reading is Reading.STRICT
        assert second.missing is None
        assert second.place.strict_from == 31, "what was archived while joining has no verdict"

    def test_what_the_reading_of_the_whole_log_brings_back_is_not_missing(self) -> None:
        """A checkpoint that is ahead of the table: Kafka still has what lies between."""
        step = join(1, 0, AT_10, seen(15, 30, gap_end=15), WholeLog(seen(0, 30)), JoinReason.GAP)
        assert step.missing is None
        assert step.plan.facts == ReadFacts()
        assert step.place.strict_from == 10

    def test_a_gap_below_the_position_is_not_missing(self) -> None:
        whole = WholeLog(seen(2, 30, Vouching(25, 24), gap_end=10))
        step = join(1, 0, JOINING, seen(10, 30, Vouching(25, 24)), whole, JoinReason.AGAIN)
        assert step.missing is None

    def test_a_newer_format_ends_the_batch(self) -> None:
        contents = seen(15, 25, Vouching(21, 20), gap_end=15, stop=FormatStop(25, 3))
        step = join(1, 0, AT_10, contents, WholeLog(contents), JoinReason.GAP)
        assert (step.place.position, step.place.stop, step.plan.facts.stop) == (
            25,
            FormatStop(25, 3),
            FormatStop(25, 3),
        )
        assert step.place.read_to == 25

    def test_two_partitions_are_told_apart(self) -> None:
        contents = seen(15, 30, gap_end=15)
        step = join(8, 5, AT_10, contents, WholeLog(contents), JoinReason.GAP)
        assert step.missing is not None
        assert (step.plan.partitions, step.missing.partition) == (8, 5)


class TestColdStart:
    BATCH = seen(10, 30, ColdStartMark(12, 9), Vouching(14, 13), Vouching(20, 19))

    def test_the_first_heartbeat_ends_it(self) -> None:
        step = join(
            1,
            0,
            AT_10,
            self.BATCH,
            WholeLog(seen(0, 30, *self.BATCH.marks, *self.BATCH.heartbeats)),
            JoinReason.COLD_START,
        )
        assert (step.plan.facts, step.plan.switch) == (ReadFacts(13), 14)
        assert (step.place.mark, step.place.position, step.place.strict_from) == (None, 31, 0)
        assert step.missing is None

    @pytest.mark.parametrize(
        ("whole", "vouching"),
        [
            pytest.param(WholeLog(seen(0, 30), newest_old=25, late=True), Vouching(14, 13), id="no-gap"),
            pytest.param(WholeLog(seen(3, 30, gap_end=3)), Vouching(14, 13), id="all-young"),
            pytest.param(WholeLog(seen(3, 30, gap_end=3), newest_old=15), Vouching(20, 19), id="the-next-one-is-safe"),
            pytest.param(WholeLog(seen(3, 30, gap_end=3), newest_old=22), None, id="none-is-safe"),
            pytest.param(WholeLog(seen(3, 30, gap_end=3), late=True), None, id="late"),
        ],
    )
    def test_which_heartbeat(self, whole: WholeLog, vouching: Vouching | None) -> None:
        assert ends_cold_start(AT_10, self.BATCH, whole) == vouching

    def test_where_none_is_safe_the_view_stands_and_the_mark_is_kept(self) -> None:
        step = join(1, 0, AT_10, self.BATCH, WholeLog(seen(3, 30, gap_end=3), newest_old=22), JoinReason.COLD_START)
        assert not step.plan.joins
        assert step.place.mark == ColdStartMark(12, 9)
        assert why_join(step.place, seen(31, 40, Vouching(33, 32))) is JoinReason.COLD_START


@pytest.mark.parametrize(
    "place",
    [ReadingPosition(), ReadingPosition(7, 8, Reading.JOINING, 3, 5, ColdStartMark(4, 2), FormatStop(7, 2), 6, True)],
    ids=["first", "all"],
)
def test_a_place_as_json_and_back(place: ReadingPosition) -> None:
    assert read_place(place_fields(place)) == place


def test_a_place_of_an_older_pointer() -> None:
    fields = place_fields(replace(JOINING, read_to=10))
    del fields["read_to"], fields["passed"]
    assert read_place(fields) == JOINING
