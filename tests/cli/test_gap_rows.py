"""Rows of `audit gaps`: one for an event of one broker with many bundles, as among the incidents of `status`."""

from typing import Any

import pytest

from statechannel.cli.audit.gaps import together

NAMESPACE = "shop/orders"


def gap(number: int, start_ms: int, length_ms: int | None = 6_000, **fields: Any) -> dict[str, Any]:
    return {
        "bundle": f"{NAMESPACE}/0x{number:08x}_0x{number + 1:08x}",
        "cause": "owner-lost",
        "start_ms": start_ms,
        "length_ms": length_ms,
        "unassigned_ms": 0,
        "on_request_ms": 0,
        "end": "open" if length_ms is None else "assigned",
        "from": "b1",
        "to": None if length_ms is None else "b2",
        "why": f"gone for {length_ms} ms",
        "certain": True,
    } | fields


def test_gaps_of_one_broker_that_began_together_are_one_row() -> None:
    (row,) = together([gap(1, 1_000, 20_100), gap(2, 1_400, 22_200, to="b3", on_request_ms=7), gap(3, 5_900, 21_000)])
    assert row["bundle"] == "3 bundles of shop/orders"
    assert (row["start_ms"], row["length_ms"], row["lengths"]) == (1_000, 22_200, "20.10 s to 22.20 s")
    assert (row["to"], row["on_request_ms"], row["why"]) == ("b2, b3", 7, "of the longest: gone for 22200 ms")


def test_equal_lengths_are_no_range_and_namespaces_that_differ_are_not_named() -> None:
    (row,) = together([gap(1, 1_000), gap(2, 1_000, bundle="a/b/0x0_0x1")])
    assert (row["bundle"], row["lengths"]) == ("2 bundles", "6.00 s")
    (still,) = together([gap(1, 1_000, None), gap(2, 1_000, None)])
    assert (still["bundle"], still["length_ms"], still["to"]) == ("2 bundles of shop/orders", None, None)
    assert "lengths" not in still


@pytest.mark.parametrize(
    "other",
    [
        gap(2, 6_001),
        gap(2, 1_000) | {"from": "b2"},
        gap(2, 1_000, cause="declined"),
        gap(2, 1_000, None),
        gap(2, 1_000, certain=False),
        gap(2, 1_000, requested_by="ann@desk"),
        gap(1, 2_000, 100),
    ],
    ids=["later", "another broker", "another cause", "open", "uncertain", "on request", "the same bundle again"],
)
def test_all_other_gaps_have_rows_of_their_own(other: dict[str, Any]) -> None:
    first = gap(1, 1_000)
    assert together([first, other]) == [first, other], "unchanged, as in JSON"


def test_only_the_newest_rows_are_kept() -> None:
    events = [gap(number, 10_000 * event + number) for event in range(5) for number in range(3)]
    assert [row["start_ms"] for row in together(events, 2)] == [30_000, 40_000]
