"""Incidents of the registry at the edges of their conditions: kind and time of each, and what the processes are then."""

from typing import Any

import pytest

from statechannel.protocol.log import RecordRead, Topic
from statechannel.stories.incident import FORGED_SHOWN_MS, ForgedRecords
from statechannel.stories.processes import RegistryStory

Beat = tuple[int, str, dict[str, Any]]


def story_of(*beats: Beat, expiry_s: float = 6.0) -> RegistryStory:
    """Log time in milliseconds, process, and further fields of each heartbeat; the offset is its place."""
    story = RegistryStory(expiry_s)
    seqs: dict[str, int] = {}
    for offset, (at_ms, process, more) in enumerate(beats):
        seqs[process] = seqs.get(process, 0) + 1
        info = {
            "broker": process.partition("-")[0],
            "incarnation": process,
            "seq": seqs[process],
            "mode": "normal",
        } | more
        story.observe(RecordRead(Topic.REGISTRY, 0, offset, at_ms, b"", b""), info)
    return story


def steady(until_ms: int, *processes: str, since_ms: int = 1_000, step_ms: int = 1_000, **more: Any) -> list[Beat]:
    times = range(since_ms, until_ms + 1, step_ms)
    return [(at_ms, process, dict(more)) for at_ms in times for process in processes or ("b1-1",)]


def incidents_of(story: RegistryStory) -> list[tuple[int, str]]:
    return [(incident.at_ms, incident.kind.value) for incident in story.incidents if incident.kind != "started"]


def sent(at_ms: int, seq: int, sent_at_ms: int, **more: Any) -> Beat:
    return at_ms, "b1-1", {"seq": seq, "sent_at_ms": sent_at_ms} | more


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        # A process is lost once it was silent for longer than its expiry; the others are heard meanwhile.
        ([*steady(2_000, "b1-1", "b2-1"), *steady(8_000, "b2-1", since_ms=3_000)], []),
        ([*steady(2_000, "b1-1", "b2-1"), *steady(8_001, "b2-1", since_ms=3_000), (8_001, "b2-1", {})], []),
        ([*steady(2_000, "b1-1", "b2-1"), *steady(9_000, "b2-1", since_ms=3_000)], [(2_000, "lost")]),
        ([*steady(2_000, "b1-1", "b2-1"), *steady(8_000, "b2-1", since_ms=3_000), (8_600, "b2-1", {})], [(2_000, "lost")]),
        ([*steady(2_000, "b1-1", "b2-1", expiry_s=3), *steady(6_000, "b2-1", since_ms=3_000)], [(2_000, "lost")]),
        (
            [*steady(2_000, "b1-1", "b2-1"), *steady(9_000, "b2-1", since_ms=3_000), (9_500, "b1-1", {})],
            [(2_000, "lost"), (9_500, "lost")],
        ),
        ([*steady(2_000, "b1-1", "b2-1", leaving=True), *steady(20_000, "b2-1", since_ms=3_000)], [(1_000, "left")] * 2),
        # A silence of all is one incident, and no broker is lost by it.
        ([(1_000, "b1-1", {}), (4_000, "b1-1", {})], []),
        ([(1_000, "b1-1", {}), (4_001, "b1-1", {})], [(1_000, "silence")]),
        (
            [(1_000, "b1-1", {}), (1_000, "b2-1", {}), (90_000, "b1-1", {}), (96_000, "b1-1", {})],
            [(1_000, "silence"), (90_000, "silence")],
        ),
        (
            [(1_000, "b1-1", {}), (1_000, "b2-1", {}), *steady(97_000, "b1-1", since_ms=90_000)],
            [(1_000, "silence"), (1_000, "lost")],
        ),
        # A standstill is longer than half the expiry, and than two seconds.
        ([sent(1_000, 1, 0), sent(4_000, 2, 3_000)], []),
        ([sent(1_000, 1, 0), sent(3_900, 2, 3_001)], [(1_000, "standstill")]),
        ([sent(1_000, 1, 0, expiry_s=2), sent(2_000, 2, 2_000, expiry_s=2)], []),
        ([sent(1_000, 1, 0, expiry_s=2), sent(2_000, 2, 2_001, expiry_s=2)], [(1_000, "standstill")]),
        ([sent(1_000, 1, 0, expiry_s=8), sent(2_000, 2, 4_000, expiry_s=8)], []),
        # What was running when the memory of the registry begins has not just begun to lead.
        ([(1_000, "b1-1", {"leading": True})], [(1_000, "leader")]),
        ([(1_000, "b1-1", {"leading": True, "seq": 2})], []),
        ([(1_000, "b1-1", {"leading": True, "seq": 2}), (2_000, "b2-1", {"leading": True})], [(2_000, "leader")]),
        ([(1_000, "b1-1", {}), (2_000, "b1-1", {"leading": True}), (3_000, "b1-1", {"leading": True})], [(2_000, "leader")]),
        # Draining and leaving are reported once.
        (
            [(1_000, "b1-1", {}), (2_000, "b1-1", {"draining": True}), (3_000, "b1-1", {"draining": True, "leaving": True}),
             (4_000, "b1-1", {"draining": True, "leaving": True})],
            [(2_000, "left"), (3_000, "left")],
        ),
        ([(1_000, "b1-1", {"repair_paused": "2"}), (2_000, "b1-1", {"repair_paused": "3"})], [(2_000, "repair-paused")]),
        # Repair that is paused, for more brokers, and no more.
        (
            [(1_000, "b1-1", {}), (2_000, "b1-1", {"repair_paused": "2"}), (3_000, "b1-1", {"repair_paused": "3"}),
             (4_000, "b1-1", {})],
            [(2_000, "repair-paused"), (4_000, "repair-paused")],
        ),
        (
            [(1_000, "b1-1", {}), (2_000, "b1-1", {"repair_paused": "2"}), (3_000, "b1-1", {}),
             (4_000, "b1-1", {"repair_paused": "2"})],
            [(2_000, "repair-paused"), (3_000, "repair-paused"), (4_000, "repair-paused")],
        ),
    ],
)  # fmt: skip
def test_kind_and_time_of_incidents(beats: list[Beat], expected: list[tuple[int, str]]) -> None:
    assert incidents_of(story_of(*beats)) == expected


def in_modes(*modes: tuple[int, str, dict[str, Any]]) -> list[int]:
    """Times of the incidents about modes, of a process that was in normal mode for three seconds."""
    beats = steady(3_000) + [(at_ms, "b1-1", {"mode": mode} | more) for at_ms, mode, more in modes]
    return [incident.at_ms for incident in story_of(*beats).incidents if incident.kind == "mode"]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ([(4_000, "safe", {})], [4_000]),
        ([(6_000, "safe", {})], [6_000]),
        ([(6_001, "safe", {})], [3_000]),
        ([(4_000, "safe", {}), (5_000, "safe", {}), (6_000, "normal", {})], [4_000, 6_000]),
        ([(4_000, "settling", {})], []),
        ([(4_000, "settling", {}), (5_000, "normal", {})], [5_000]),
        ([(4_000, "starting", {}), (5_000, "normal", {})], []),
        ([(4_000, "odd", {})], [4_000]),
        ([(4_000, "odd", {"sent_at_ms": 1_000, "safe_since_ms": 500})], [4_000]),
        ([(4_000, "odd", {}), (5_000, "safe", {})], [4_000, 5_000]),
        ([(4_000, "safe", {"sent_at_ms": 1_000, "safe_since_ms": 500})], [3_500]),
        ([(4_000, "settling", {"sent_at_ms": 1_000, "safe_since_ms": 500})], [3_500]),
        ([(4_000, "safe", {"sent_at_ms": 1_000, "safe_since_ms": -90_000})], [1_000]),
        ([(4_000, "safe", {"sent_at_ms": 1_000, "safe_since_ms": 90_000})], [4_000]),
        ([(4_000, "safe", {"sent_at_ms": 1_000, "safe_since_ms": "x"})], [4_000]),
        ([(4_000, "safe", {"safe_since_ms": 500})], [4_000]),
        ([(4_000, "safe", {}), (5_000, "settling", {"sent_at_ms": 1_000, "safe_since_ms": 500})], [4_000]),
    ],
)
def test_when_a_process_was_in_safe_mode(modes: list[tuple[int, str, dict[str, Any]]], expected: list[int]) -> None:
    assert in_modes(*modes) == expected


def test_a_process_that_stood_still_was_not_in_safe_mode_meanwhile() -> None:
    story = story_of(sent(1_000, 1, 0), sent(2_000, 2, 1_000), sent(12_000, 3, 11_000, mode="safe"))
    assert incidents_of(story) == [(2_000, "silence"), (2_000, "standstill"), (12_000, "mode")]
    later = story_of(
        sent(1_000, 1, 0), sent(2_000, 2, 1_000), sent(12_000, 3, 11_000), sent(13_000, 4, 12_000),
        sent(19_000, 5, 13_000, mode="safe"),
    )  # fmt: skip
    assert incidents_of(later)[-1] == (13_000, "mode")
    near = story_of(
        sent(1_000, 1, 0), sent(2_000, 2, 1_000), sent(12_000, 3, 11_000), sent(13_000, 4, 12_000),
        sent(18_000, 5, 13_000, mode="safe"),
    )  # fmt: skip
    assert incidents_of(near)[-1] == (18_000, "mode")


@pytest.mark.parametrize(("at_ms", "late"), [(3_000, False), (3_001, True)])
def test_the_time_without_a_leader_is_named_where_it_was_long(at_ms: int, late: bool) -> None:
    story = story_of((1_000, "b2-1", {}), (2_000, "b1-1", {"leading": True}), (at_ms, "b2-1", {"leading": True}))
    message = [incident.message for incident in story.incidents if incident.kind == "leader"][-1]
    assert ("1.0 s" in message) is late
    assert (story.leader, story.led_ms, story.processes["b2"].claim) == ("b2", at_ms, 2)


def test_what_is_known_of_leaders() -> None:
    story = story_of((1_000, "b1-1", {"leading": True}), (2_000, "b2-1", {}), (3_000, "b1-1", {}))
    assert (story.leader, story.led_ms) == ("b1", 1_000)
    assert [story.processes[name].leads_since_ms for name in ("b1", "b2")] == [None, None]
    assert story.processes["b1"].claim == 0
    running = story_of((1_000, "b1-1", {"leading": True, "seq": 2}))
    assert (running.processes["b1"].claim, running.processes["b1"].leads_since_ms) == (None, 1_000)
    left = story_of((1_000, "b1-1", {"leading": True}), (2_000, "b1-1", {"leading": True, "leaving": True}))
    assert left.processes["b1"].leads_since_ms is None


def test_a_claim_that_was_given_up_and_is_made_again_counts() -> None:
    beats = [
        *steady(2_000, "b1-1", leading=True),
        *steady(9_000, "b2-1", since_ms=3_000),
        (9_500, "b2-1", {"leading": True}),
    ]
    woken: list[Beat] = [*beats, (10_000, "b1-1", {"leading": True})]
    assert (story_of(*woken).leader, story_of(*woken).processes["b1"].leads_since_ms) == ("b2", None)
    again = story_of(*woken, (11_000, "b1-1", {}), (12_000, "b1-1", {"leading": True}))
    assert (again.leader, again.processes["b1"].leads_since_ms) == ("b1", 12_000)


def test_two_processes_that_use_one_id_now() -> None:
    story = story_of((1_000, "b1-1", {}), (2_000, "b1-2", {}), (3_000, "b1-1", {}), (3_000, "b2-1", {}))
    assert [story.doubled_at(at_ms) for at_ms in (3_000, 14_999, 15_000)] == [["b1"], ["b1"], []]
    assert story.processes["b1"].incarnation == "b1-2"
    assert story.processes["b1"].last_ms == 2_000
    assert story_of((1_000, "b1-1", {}), (2_000, "b1-2", {})).doubled == {}, "a successor"


def test_a_clock_that_was_set_back_leaves_no_time_that_is_still_to_come() -> None:
    ahead = steady(90_000, "b1-1", "b2-1", since_ms=88_000, leading=True)
    ahead += [(90_000, "b2-2", {}), (90_000, "b2-1", {})]
    story = story_of(*ahead, (10_000, "b1-1", {}))
    assert (story.newest_ms, story.led_ms, story.heard_from_ms) == (10_000, 10_000, 10_000)
    assert story.doubled == {"b2": 10_000}
    assert story.processes["b2"].last_ms == 10_000
    assert story.processes["b1"].leads_since_ms is None
    story = story_of(*ahead, *steady(17_000, "b1-1", since_ms=10_000))
    assert incidents_of(story)[-1] == (10_000, "lost")


def test_a_process_says_by_its_own_clock_when_it_sent() -> None:
    story = story_of(sent(1_000, 1, 990), sent(2_000, 2, 1_950), (3_000, "b1-1", {"seq": 3, "sent_at_ms": "x"}))
    assert story.processes["b1"].clock_behind_ms == 10
    assert story_of((1_000, "b1-1", {})).processes["b1"].clock_behind_ms is None


def test_what_processes_say_of_forged_records_counts_for_an_hour() -> None:
    forged = {"records": 1, "topic": "channel", "partition": 0, "offset": 7}
    first: list[Beat] = [(1_000, "b1-1", {"forged": forged}), (2_000, "b1-1", {"forged": forged | {"offset": 9}})]
    assert story_of(*first).forgeries == {("b1", "b1-1"): ForgedRecords(1, "channel", 0, 7, 1_000)}
    story = story_of(
        *first,
        (3_000, "b1-1", {"forged": forged | {"records": 2, "offset": 8}}), (3_000, "b2-1", {"forged": forged | {"records": 0}}),
        (3_500, "b1-1", {"forged": forged | {"records": "many"}}), (3_600, "b1-1", {"forged": None}),
    )  # fmt: skip
    assert story.forgeries == {("b1", "b1-1"): ForgedRecords(2, "channel", 0, 8, 3_000)}
    shown = [("b1", ForgedRecords(2, "channel", 0, 8, 3_000))]
    assert [story.forged_at(3_000 + FORGED_SHOWN_MS + more) for more in (0, 1)] == [shown, []]
    assert incidents_of(story) == [(3_000, "forged")]
