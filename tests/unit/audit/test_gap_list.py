"""Which gaps are listed, and their sums: of one part of a log, and of several that are added up."""

from typing import Any

import pytest

from statechannel.audit.gap_list import GapFilter, GapSums, sum_gap_rows, total_gap_sum
from statechannel.audit.moments import AsOf, LogWindow

CLOSED: dict[str, Any] = {
    "bundle": "t/n/a", "cause": "transfer", "from": "b1", "to": "b2", "start_offset": 10, "start_ms": 1_000,
    "end_offset": 12, "end_ms": 1_500, "length_ms": 400, "on_request_ms": 100, "certain": True,
}  # fmt: skip
OPEN = CLOSED | {"to": None, "end_offset": None, "end_ms": None, "length_ms": None, "on_request_ms": 0}


@pytest.mark.parametrize(
    ("wanted", "closed", "still"),
    [
        (GapFilter(), True, True),
        (GapFilter(causes=frozenset({"transfer", "unload"})), True, True),
        (GapFilter(causes=frozenset({"unload"})), False, False),
        (GapFilter(broker="b1"), True, True),
        (GapFilter(broker="b2"), True, False),
        (GapFilter(broker="b3"), False, False),
        (GapFilter(open_only=True), False, True),
        (GapFilter(longer_than_ms=399), True, True),
        (GapFilter(longer_than_ms=400), False, True),
        (GapFilter(window=LogWindow(since=AsOf(time_ms=1_500))), True, True),
        (GapFilter(window=LogWindow(since=AsOf(time_ms=1_501))), False, True),
        (GapFilter(window=LogWindow(since=AsOf(offset=13))), False, True),
        (GapFilter(window=LogWindow(until=AsOf(offset=10))), True, True),
        (GapFilter(window=LogWindow(until=AsOf(time_ms=999))), False, False),
    ],
)
def test_a_gap_is_selected_if_it_fits_all(wanted: GapFilter, closed: bool, still: bool) -> None:
    assert (wanted.has(CLOSED), wanted.has(OPEN)) == (closed, still)


GAPS = [
    CLOSED,
    CLOSED | {"bundle": "t/n/b", "length_ms": 900, "start_offset": 31, "on_request_ms": 7},
    CLOSED | {"bundle": "t/n/b", "length_ms": 900, "start_offset": 20},
    CLOSED | {"bundle": "t/n/c", "length_ms": 900, "start_offset": 0},
    CLOSED | {"bundle": "t/n/z", "length_ms": 5_000, "certain": False},
    OPEN | {"bundle": "t/n/d", "start_ms": 7_000},
    OPEN | {"bundle": "t/n/e", "start_ms": 6_000},
    OPEN | {"bundle": "t/n/f", "start_ms": 6_500, "on_request_ms": 3},
    CLOSED | {"bundle": "t/m/a", "length_ms": 0, "on_request_ms": 0},
    CLOSED | {"bundle": "t/k/a", "certain": False},
    OPEN | {"bundle": "t/k/b", "start_ms": 5_000},
    OPEN | {"bundle": "t/k/c", "certain": False, "start_ms": 1},
]
SUMS = [
    {
        "namespace": "t/k", "gaps": 1, "open": 1, "sum_ms": 0, "on_request_ms": 0, "worst_ms": 0, "worst_bundle": None,
        "worst_offset": None, "open_since_ms": 5_000, "uncertain": 2,
    },
    {
        "namespace": "t/m", "gaps": 1, "open": 0, "sum_ms": 0, "on_request_ms": 0, "worst_ms": 0,
        "worst_bundle": "t/m/a", "worst_offset": 10, "open_since_ms": None, "uncertain": 0,
    },
    {
        "namespace": "t/n", "gaps": 7, "open": 3, "sum_ms": 3_100, "on_request_ms": 310, "worst_ms": 900,
        "worst_bundle": "t/n/b", "worst_offset": 20, "open_since_ms": 6_000, "uncertain": 1,
    },
]  # fmt: skip


def sums_of(gaps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sums = GapSums()
    for gap in gaps:
        sums.take(gap)
    return sums.rows()


@pytest.mark.parametrize("gaps", [GAPS, GAPS[::-1]])
def test_the_sums_by_namespace_do_not_depend_on_the_order(gaps: list[dict[str, Any]]) -> None:
    assert sums_of(gaps) == SUMS


@pytest.mark.parametrize("parts", [2, 3, len(GAPS)])
def test_parts_add_up_to_the_whole(parts: int) -> None:
    rows = [sums_of(GAPS[number::parts]) for number in range(parts)]
    assert sum_gap_rows(rows).rows() == SUMS
    assert sum_gap_rows(rows[::-1]).rows() == SUMS
    total = total_gap_sum(row for part in rows for row in part)
    assert total == total_gap_sum(SUMS)
    names = ("gaps", "open", "sum_ms", "on_request_ms", "worst_ms", "worst_bundle", "open_since_ms", "uncertain")
    assert [total[name] for name in names] == [9, 4, 3_100, 310, 900, "t/n/b", 5_000, 3]
