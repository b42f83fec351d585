"""As of when a reader's position is: never later than what was known then, and it goes on where the end is never reached."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statechannel.kafka.reader import SeenEnds


def test_an_end_that_is_news_counts_from_the_look_before() -> None:
    ends = SeenEnds(10.0)
    ends.look(10.2, 100)
    assert ends.as_of_s(99) is None
    assert ends.as_of_s(100) == 10.0
    ends.look(11.0, 100)
    assert ends.as_of_s(100) == 10.0, "no answer of the broker came: who knows where the log ends by now"
    ends.look(11.1, 101)
    assert ends.as_of_s(100) == 10.0
    assert ends.as_of_s(101) == 11.0


def test_where_more_comes_all_the_time_an_end_of_before_is_reached() -> None:
    ends = SeenEnds(0.0)
    for second in range(1, 20):
        ends.look(float(second), 100 * second)
    assert ends.as_of_s(99) is None
    assert ends.as_of_s(100) == 0.0
    assert ends.as_of_s(1_000) == 0.0, "not each end is remembered: the newest is waited for"
    assert ends.as_of_s(1_900) == 18.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0.01, 3.0)), max_size=60))
def test_it_is_never_later_than_the_truth(steps: list[tuple[int, int, float]]) -> None:
    """`grown` records are appended, the client hears of it (or does not), so many are read."""
    now_s, end, position = 0.0, 0, 0
    ends, grown_at = SeenEnds(0.0), []
    cached = -1
    for grown, read, wait_s in steps:
        now_s += wait_s
        for _ in range(grown):
            grown_at.append(now_s)
            end += 1
        if read % 2:
            cached = end
        now_s += wait_s
        ends.look(now_s, cached)
        position = min(max(cached, 0), position + read)
        as_of_s = ends.as_of_s(position)
        if as_of_s is not None:
            assert as_of_s <= now_s
            assert all(offset < position for offset, at_s in enumerate(grown_at) if at_s <= as_of_s)
