"""What the heartbeats of the registry show of processes: when they were heard, stood still, left."""

from typing import Any

import pytest

from statechannel.protocol.log import RecordRead, Topic
from statechannel.stories.processes import EXPIRY_MS, TimesHeard, Unheard, WritersHeard, still_ms_between

B1 = ("b1", "b1-1")


def heard(*beats: tuple[int, str, dict[str, Any]], first: int = 0) -> WritersHeard:
    """The registry: log time, process, and further fields of each heartbeat."""
    writers = WritersHeard()
    for number, (at_ms, process, more) in enumerate(beats):
        info = {"broker": process.partition("-")[0], "incarnation": process} | more
        writers.observe(RecordRead(Topic.REGISTRY, 0, first + number, at_ms, b"", b""), info)
    return writers


def beats(*times_ms: int, process: str = "b1-1", **more: Any) -> list[tuple[int, str, dict[str, Any]]]:
    return [(at_ms, process, more) for at_ms in times_ms]


@pytest.mark.parametrize(
    ("before", "after", "still_ms"),
    [
        ({"seq": 1, "sent_at_ms": 0}, {"seq": 2, "sent_at_ms": 9_000}, 9_000),
        ({"seq": 1, "sent_at_ms": 0}, {"seq": 4, "sent_at_ms": 9_000}, 3_000),
        ({"seq": 1, "sent_at_ms": 5}, {"seq": 1, "sent_at_ms": 9_000}, 0),
        ({"seq": 2, "sent_at_ms": 5}, {"seq": 1, "sent_at_ms": 9_000}, 0),
        ({}, {"seq": 1, "sent_at_ms": 9_000}, 0),
        ({"seq": 1, "sent_at_ms": 5}, {}, 0),
        ({"seq": 1}, {"seq": 2, "sent_at_ms": 9_000}, 0),
        ({"seq": 1, "sent_at_ms": 5}, {"seq": 2, "sent_at_ms": "x"}, 0),
        ({"seq": "1", "sent_at_ms": 5}, {"seq": 2, "sent_at_ms": 6}, 0),
        ({"seq": 1, "sent_at_ms": 5}, {"seq": 2.0, "sent_at_ms": 6}, 0),
    ],
)
def test_how_long_a_process_stood_still(before: dict[str, Any], after: dict[str, Any], still_ms: int) -> None:
    assert still_ms_between(before, after) == still_ms


@pytest.mark.parametrize(
    ("times_ms", "last_ms", "after"),
    [
        ([7], 7, {6: 7, 7: None}),
        ([1, 5, 3], 5, {0: 1, 1: 3, 3: 5, 4: 5, 5: None}),
        ([5, 1, 3, 9], 9, {0: 5, 5: 9, 9: None}),
        ([1, 2, 3, 4, 5], 5, {0: 3, 3: 4, 4: 5}),
        ([9, 8, 7, 6, 5, 4], 9, {0: 8, 8: 9}),
    ],
)
def test_the_newest_times_are_kept_in_any_order(times_ms: list[int], last_ms: int, after: dict[int, int | None]):
    times = TimesHeard(most=2)
    for at_ms in times_ms:
        times.note(at_ms)
    assert times.last_ms == last_ms
    assert {at_ms: times.first_after_ms(at_ms) for at_ms in after} == after


def test_from_where_on_the_heartbeats_are_complete() -> None:
    assert heard().since_ms is None
    assert heard(*beats(5_000, 6_000)).since_ms == 0
    cleaned = heard(*beats(5_000, 6_000), first=3)
    assert (cleaned.since_ms, cleaned.newest_ms) == (5_000, 6_000)


def test_the_first_heartbeat_after_a_moment() -> None:
    writers = heard(*beats(1_000, 2_000), *beats(1_500, process="b1-2"))
    assert [writers.heard_after_ms(B1, at_ms) for at_ms in (0, 1_000, 1_999, 2_000)] == [1_000, 2_000, 2_000, None]
    assert writers.heard_after_ms(("b9", "b9-1"), 0) is None


@pytest.mark.parametrize(
    ("seen", "read_ms", "at_ms", "expected"),
    [
        (beats(1_000, 2_000), 0, 2_000, Unheard("b1", 2_000, 0, EXPIRY_MS)),
        (beats(1_000, 2_000), 9_000, 2_000, Unheard("b1", 2_000, 7_000, EXPIRY_MS)),
        (beats(1_000, 2_000), 1_000, 2_500, Unheard("b1", 2_000, 0, EXPIRY_MS)),
        (beats(1_000, 2_000), 0, 1_999, None),
        ([*beats(2_000), *beats(5_000, process="b2-1")], 0, 2_000, Unheard("b1", 2_000, 3_000, EXPIRY_MS)),
        (beats(2_000, process="b2-1"), 0, 9_000, None),
        ([*beats(1_000), *beats(2_000, leaving=True)], 0, 3_000, None),
        ([*beats(1_000, leaving=True), *beats(2_000)], 0, 3_000, Unheard("b1", 2_000, 0, EXPIRY_MS)),
        ([*beats(1_000), *beats(2_000, process="b1-2")], 0, 1_500, None),
        ([*beats(1_000), *beats(2_000, process="b1-2", leaving=True)], 0, 3_000, None),
        (beats(2_000, expiry_s=2.5), 0, 2_000, Unheard("b1", 2_000, 0, 2_500)),
        (beats(2_000, expiry_s=0.5), 0, 2_000, Unheard("b1", 2_000, 0, 500)),
        (beats(2_000, expiry_s=0), 0, 2_000, Unheard("b1", 2_000, 0, EXPIRY_MS)),
        (beats(2_000, expiry_s=3_600), 0, 2_000, Unheard("b1", 2_000, 0, EXPIRY_MS)),
        (beats(2_000, expiry_s="2"), 0, 2_000, Unheard("b1", 2_000, 0, EXPIRY_MS)),
        (beats(9_000, 2_000), 0, 2_000, Unheard("b1", 2_000, 0, EXPIRY_MS)),
        ([*beats(9_000), *beats(2_000, process="b2-1")], 0, 2_000, Unheard("b1", 2_000, 0, EXPIRY_MS)),
    ],
)
def test_an_owner_that_was_not_heard_after_a_moment(
    seen: list[tuple[int, str, dict[str, Any]]], read_ms: int, at_ms: int, expected: Unheard | None
) -> None:
    writers = heard(*seen)
    writers.read_ms = read_ms
    assert writers.unheard_since("b1", at_ms) == expected


def test_owners_that_have_missed_heartbeats_now() -> None:
    writers = heard(
        *beats(1_000, process="b2-1"), *beats(1_500), *beats(2_501, process="b3-1"), *beats(4_000, process="b4-1")
    )
    late = writers.unheard_now(["b4", "b3", "b2", "b1", "b9"])
    assert [(item.broker, item.silent_ms) for item in late] == [("b1", 2_500), ("b2", 3_000)]
    writers.read_ms = 4_001
    assert [item.broker for item in writers.unheard_now(["b3", "b4"])] == ["b3"]


@pytest.mark.parametrize(("silent_ms", "may_come_back"), [(7_000, True), (7_001, False)])
def test_only_an_owner_that_is_not_lost_yet_has_a_time_left(silent_ms: int, may_come_back: bool) -> None:
    assert ("7 s" in Unheard("b1", 0, silent_ms, 7_000).sentence()) is may_come_back


def test_standstills_are_known_by_when_they_began() -> None:
    def beat(at_ms: int, seq: int, sent_at_ms: int, process: str = "b1-1") -> tuple[int, str, dict[str, Any]]:
        return at_ms, process, {"seq": seq, "sent_at_ms": sent_at_ms}

    writers = heard(
        beat(10_000, 1, 0), beat(11_000, 2, 1_000), beat(13_001, 3, 3_000), beat(15_002, 4, 5_001),
        beat(90_000, 5, 80_001), beat(90_500, 6, 80_500), beat(50_000, 1, 0, "b2-1"),
    )  # fmt: skip
    found = {at_ms: writers.stood_still_ms("b1", at_ms) for at_ms in (11_500, 11_501, 14_501, 14_502, 16_502, 16_503)}
    assert found == {11_500: None, 11_501: 2_001, 14_501: 2_001, 14_502: 75_000, 16_502: 75_000, 16_503: None}
    assert writers.stood_still_ms("b2", 50_000) is None
    assert writers.stood_still_ms(None, 50_000) is None
