"""As of when a reader's position is: never later than what was known then, and it goes on where the end is never reached."""

from hypothesis import given
from hypothesis import strategies as st

from statechannel.kafka.partition_consumer import SeenEnds


def test_an_answer_about_the_end_is_all_that_is_known_of_a_quiet_log() -> None:
    ends = SeenEnds(10.0)
    ends.look(10.0, 7)
    assert ends.as_of_s(7) == 10.0
    assert not ends.confirm(20.0, 8, 7)  # one more record, which has not come yet
    assert not ends.confirm(9.0, 7, 7)  # older than what is known
    assert ends.confirm(20.0, 7, 7)
    assert ends.as_of_s(7) == 20.0
    ends.look(21.0, 8)  # a fetch that was sent before the question
    assert not ends.confirm(22.0, 7, 7)
    assert ends.as_of_s(7) == 20.0
    assert ends.as_of_s(8) == 20.0


def test_an_end_counts_from_the_look_before_the_end_before_came() -> None:
    ends = SeenEnds(10.0)
    ends.look(10.2, 100)
    assert ends.as_of_s(99) is None
    assert ends.as_of_s(100) == 10.0
    ends.look(11.0, 100)
    assert ends.as_of_s(100) == 10.0, "no answer of the broker came: who knows where the log ends by now"
    ends.look(11.1, 101)
    assert ends.as_of_s(100) == 10.0
    assert ends.as_of_s(101) == 10.0, "it was asked for at 10.0 at the earliest"
    ends.look(11.5, 102)
    assert ends.as_of_s(102) == 11.0, "it was asked for after 101 had come"


def test_an_answer_that_was_held_back_is_as_old_as_its_question() -> None:
    ends = SeenEnds(0.0)
    for tenth in range(1, 50):
        ends.look(tenth / 10, tenth)
    ends.look(30.0, 49)
    ends.look(30.05, 50)  # written by the broker at 4.9, and held back by the network
    assert ends.as_of_s(50) == 4.8
    ends.look(30.1, 80)
    assert ends.as_of_s(80) == 30.0


def test_where_more_comes_all_the_time_an_end_of_before_is_reached() -> None:
    ends = SeenEnds(0.0)
    for second in range(1, 20):
        ends.look(float(second), 100 * second)
    assert ends.as_of_s(99) is None
    assert ends.as_of_s(100) == 0.0
    assert ends.as_of_s(1_000) == 0.0, "not each end is remembered: the newest is waited for"
    assert ends.as_of_s(1_900) == 17.0


def test_after_an_end_that_was_reached_the_newest_then_is_waited_for_not_each_later_one() -> None:
    ends = SeenEnds(0.0)
    for second in (1, 2, 3):
        ends.look(float(second), 10 * second)
    assert ends.as_of_s(10) == 0.0
    ends.look(4.0, 40)
    assert ends.as_of_s(30) == 1.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0.01, 3.0), st.integers(0, 3)), max_size=60))
def test_it_is_never_later_than_the_truth(steps: list[tuple[int, int, float, int]]) -> None:
    """`grown` records are appended; the broker answers, or its answer arrives; so many are read."""
    now_s, end, position = 0.0, 0, 0
    ends, grown_at = SeenEnds(0.0), []
    cached, answer = -1, None
    for grown, read, wait_s, network in steps:
        now_s += wait_s
        for _ in range(grown):
            grown_at.append(now_s)
            end += 1
        if network == 1 and answer is None:
            answer = end  # on its way, for as long as the network likes; there is one at a time
        elif network > 1:
            cached, answer = max(cached, end if answer is None else answer), None
        now_s += wait_s
        ends.look(now_s, cached)
        position = min(max(cached, 0), position + read)
        as_of_s = ends.as_of_s(position)
        if as_of_s is not None:
            assert as_of_s <= now_s
            assert all(offset < position for offset, at_s in enumerate(grown_at) if at_s <= as_of_s)
