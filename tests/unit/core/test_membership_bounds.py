"""Members of the registry at their bounds: who replaces whom, when silence is a loss, and what a heartbeat must have."""

from typing import Any

import orjson
import pytest

from statechannel.engine.membership import SMALL_BYTES, Membership, decode_member, decode_probe

EXPIRY_S = 6.0


def heartbeat(incarnation: str = "b-1", broker: str = "b", since: int = -1, **more: Any) -> dict[str, Any]:
    return {"broker": broker, "incarnation": incarnation, "since": since, **more}


@pytest.fixture
def members() -> Membership:
    return Membership(EXPIRY_S)


@pytest.mark.parametrize(("silent_s", "lost"), [(5.9, False), (6.0, False), (6.001, True)])
def test_silence_is_a_loss_beyond_the_expiry(members, silent_s, lost):
    members.heard(100.0, 7, 5_000, heartbeat())
    result = members.expire(100.0 + silent_s, keep="other")
    assert [item.broker for item in result] == (["b"] if lost else [])
    assert ("b" in members.alive, "b" in members.lost) == (not lost, lost)
    if lost:
        assert result[0] == ("b", "b-1", 5_000, 100.0 + silent_s, True)


def test_the_process_itself_is_never_lost(members):
    members.heard(100.0, 7, 5_000, heartbeat())
    assert members.expire(1_000.0, keep="b-1") == []


def test_what_a_member_keeps_of_its_heartbeats(members):
    first = members.heard(100.0, 7, 5_000, heartbeat(), live=False)
    assert (first.heard_at_s, first.heard_at_ms, first.first_offset, first.since) == (100.0, 5_000, 7, -1)
    assert first.heard_live is False
    again = members.heard(101.0, 9, 6_000, heartbeat(since=7, phase="caught-up"), live=True)
    assert again is first
    assert (again.heard_at_s, again.heard_at_ms, again.first_offset, again.since) == (101.0, 6_000, 7, 7)
    assert (again.heard_live, again.caught_up) == (True, True)
    late = members.heard(102.0, 11, 7_000, heartbeat(since=-1), live=False)
    assert (late.since, late.heard_live) == (7, True), "what is known once stays"


@pytest.mark.parametrize(
    ("phase", "accepting", "mode", "may"),
    [
        ("caught-up", True, "normal", True),
        ("joining", True, "normal", False),
        ("caught-up", False, "normal", False),
        ("caught-up", 1, "normal", False),
        ("caught-up", True, "safe", False),
    ],
)
def test_who_may_be_given_bundles(members, phase, accepting, mode, may):
    member = members.heard(1.0, 0, 0, heartbeat(phase=phase, accepting=accepting, mode=mode))
    assert member.accepting is may


@pytest.mark.parametrize(
    ("held_since", "since", "replaced"),
    [
        (-1, 0, False),  # not above the first offset of the one that is held (5)
        (-1, 5, False),
        (-1, 6, True),
        (0, 0, False),
        (0, 1, True),
        (5, 4, False),
        (5, 5, False),
        (5, 6, True),
    ],
)
def test_of_two_processes_the_later_one_that_was_read_back_counts(members, held_since, since, replaced):
    members.heard(1.0, 5, 1_000, heartbeat("b-1", since=held_since))
    result = members.heard(1.1, 50, 1_100, heartbeat("b-2", since=since))
    assert (result is not None) is replaced
    assert members.alive["b"].incarnation == ("b-2" if replaced else "b-1")


@pytest.mark.parametrize(("apart_ms", "replaced"), [(5_999, False), (6_000, True), (6_001, True)])
def test_one_that_was_not_read_back_waits_for_the_expiry_by_the_logs_times(members, apart_ms, replaced):
    members.heard(1.0, 5, 1_000, heartbeat("b-1", since=5))
    result = members.heard(99.0, 6, 1_000 + apart_ms, heartbeat("b-2", since=-1))
    assert (result is not None) is replaced


def test_a_goodbye_is_for_good_and_only_its_own(members):
    members.heard(1.0, 0, 1_000, heartbeat("b-1", since=0))
    assert members.heard(2.0, 1, 2_000, heartbeat("b-0", leaving=True), live=False) is None
    assert members.alive["b"].incarnation == "b-1"
    assert members.lost == {}
    assert members.heard(3.0, 2, 3_000, heartbeat("b-1", leaving=True), live=False) is None
    assert members.alive == {}
    assert members.lost["b"] == ("b", "b-1", 3_000, 3.0, False)
    assert members.heard(4.0, 3, 4_000, heartbeat("b-1", since=0)) is None, "a late record of it brings it not back"
    assert members.alive == {}
    assert members.heard(5.0, 4, 5_000, heartbeat("b-2")) is not None
    assert members.lost == {}


@pytest.mark.parametrize("leaving", [False, None, 1, "true"])
def test_only_true_is_a_goodbye(members, leaving):
    assert members.heard(1.0, 0, 1_000, heartbeat(leaving=leaving)) is not None


def test_who_was_ever_heard_is_known(members):
    members.heard(1.0, 0, 1_000, heartbeat("b-1", since=0))
    members.heard(1.0, 1, 1_000, heartbeat("b-2"))
    members.heard(1.0, 2, 1_000, heartbeat("c-1", "c", leaving=True))
    assert [members.knows(item) for item in ("b-1", "b-2", "c-1", "d-1")] == [True, True, True, False]


def test_tables_keep_their_newest():
    members = Membership(EXPIRY_S, remembered_max=2)
    for number in range(4):
        members.heard(1.0, number, 1_000, heartbeat(f"x-{number}", f"x{number}", leaving=True))
    assert [members.knows(f"x-{number}") for number in range(4)] == [False, False, True, True]
    assert list(members.gone) == [("x2", "x-2"), ("x3", "x-3")]


def test_those_who_are_heard_are_not_displaced_by_newcomers():
    members = Membership(EXPIRY_S, members_max=3)
    for name in "abc":
        assert members.heard(1.0, 0, 1_000, heartbeat(f"{name}-1", name)) is not None
    assert not members.overflowed(1.0)
    for number in range(100):
        assert members.heard(2.0, number, 2_000, heartbeat(f"x-{number}", f"x{number}")) is None
    assert list(members.alive) == ["a", "b", "c"]
    assert members.heard(2.0, 7, 2_000, heartbeat("a-1", "a")) is members.alive["a"]
    assert members.heard(2.0, 8, 2_000, heartbeat("me-1", "me"), own_id=True) is members.alive["me"]
    assert [members.overflowed(at_s) for at_s in (2.0, 8.0, 8.001)] == [True, True, False]


def test_one_that_is_lost_and_heard_again_is_not_lost_though_there_is_no_room():
    members = Membership(EXPIRY_S, members_max=1)
    members.heard(1.0, 0, 1_000, heartbeat("a-1", "a"))
    assert [member.broker for member in members.expire(9.0, keep="")] == ["a"]
    members.heard(9.0, 1, 9_000, heartbeat("b-1", "b"))
    assert members.heard(9.0, 2, 9_000, heartbeat("a-1", "a")) is None
    assert (members.lost, members.overflowed(9.0)) == ({}, True)


def test_who_was_silent_by_the_logs_times_makes_room_in_a_backlog():
    members = Membership(EXPIRY_S, members_max=10)
    for number in range(1_000):
        members.heard(1.0, number, number * 100, heartbeat(f"x-{number}", f"x{number}"), live=False)
    assert len(members.alive) == 10
    assert min(broker.heard_at_ms for broker in members.alive.values()) >= 1_000 * 100 - 2 * EXPIRY_S * 1000 - 2_000


def test_what_makes_room_is_silence_of_more_than_two_expiries():
    for silent_ms, stays in ((12_000, True), (12_001, False)):
        members = Membership(EXPIRY_S, members_max=1)
        members.heard(1.0, 0, 50_000, heartbeat("a-1", "a"), live=False)
        assert (members.heard(1.0, 1, 50_000 + silent_ms, heartbeat("b-1", "b"), live=False) is None) is stays
        assert list(members.alive) == (["a"] if stays else ["b"])


@pytest.mark.parametrize(("after_ms", "again"), [(999, False), (1_000, True)])
def test_room_is_made_once_in_a_second(after_ms, again):
    members = Membership(EXPIRY_S, members_max=1)
    members.heard(1.0, 0, 50_000, heartbeat("a-1", "a"), live=False)
    assert members.heard(1.0, 1, 61_500, heartbeat("b-1", "b"), live=False) is None
    assert (members.heard(1.0, 2, 61_500 + after_ms, heartbeat("b-1", "b"), live=False) is not None) is again


def test_where_there_is_room_nobody_makes_any():
    members = Membership(EXPIRY_S, members_max=2)
    members.heard(1.0, 0, 50_000, heartbeat("a-1", "a"), live=False)
    members.heard(1.0, 1, 90_000, heartbeat("b-1", "b"), live=False)
    assert list(members.alive) == ["a", "b"]


def test_there_is_room_for_whoever_takes_a_members_place():
    members = Membership(EXPIRY_S, members_max=1)
    members.heard(1.0, 0, 50_000, heartbeat("a-1", "a", since=0))
    assert members.heard(1.0, 1, 50_001, heartbeat("a-2", "a", since=1)) is members.alive["a"]
    assert members.alive["a"].incarnation == "a-2"


def test_sizes_count_to_the_byte():
    members = Membership(EXPIRY_S, members_max_bytes=200_000)
    for number in range(3):
        members.heard(1.0, number, 0, heartbeat("a-1", "a", n=number), size_bytes=100_000)
    assert members.heard(1.0, 3, 0, heartbeat("b-1", "b"), size_bytes=100_001) is None
    assert members.heard(1.0, 4, 0, heartbeat("b-1", "b"), size_bytes=100_000) is not None
    assert members.heard(1.0, 5, 0, heartbeat("c-1", "c"), size_bytes=SMALL_BYTES + 1) is None
    mine = members.heard(1.0, 6, 0, heartbeat("me-1", "me", n=6), size_bytes=SMALL_BYTES + 1, own_id=True)
    assert mine.info["n"] == 6, "there is room for the reader's own"


def test_large_heartbeats_are_bounded_by_their_size_and_small_ones_are_not():
    members = Membership(EXPIRY_S, members_max_bytes=250_000)
    assert members.heard(1.0, 0, 0, heartbeat("a-1", "a", n=1), size_bytes=100_000) is not None
    assert members.heard(1.0, 1, 0, heartbeat("b-1", "b"), size_bytes=100_000) is not None
    assert members.heard(1.0, 2, 0, heartbeat("c-1", "c"), size_bytes=100_000) is None
    assert members.heard(1.0, 3, 0, heartbeat("d-1", "d"), size_bytes=SMALL_BYTES) is not None
    grown = members.heard(2.0, 4, 1_000, heartbeat("a-1", "a", n=2), size_bytes=200_000)
    assert (grown.heard_at_s, grown.info["n"]) == (2.0, 1), "it is heard, and what it says now is not kept"
    members.heard(2.0, 5, 1_000, heartbeat("b-1", "b", leaving=True), size_bytes=100_000)
    members.heard(3.0, 6, 2_000, heartbeat("d-2", "d", since=5), size_bytes=10)
    grown = members.heard(3.0, 7, 2_000, heartbeat("a-1", "a", n=3), size_bytes=200_000)
    assert grown.info["n"] == 3, "others have made room"


def test_rank_is_the_place_among_those_that_are_caught_up(members):
    for broker, phase in (("a", "joining"), ("b", "caught-up"), ("c", "caught-up"), ("d", "caught-up")):
        members.heard(1.0, 0, 1_000, heartbeat(f"{broker}-1", broker, phase=phase))
    assert [members.rank(broker) for broker in ("a", "b", "c", "d", "e")] == [0, 0, 1, 2, 3]


def test_ages_of_a_backlog_come_from_the_logs_times(members):
    members.heard(100.0, 0, 1_000, heartbeat("a-1", "a"))
    members.heard(100.0, 1, 4_500, heartbeat("b-1", "b"))
    members.heard(100.0, 2, 9_000, heartbeat("c-1", "c"))
    members.settle_backlog(200.0, 4_500)
    assert {name: broker.heard_at_s for name, broker in members.alive.items()} == {"a": 196.5, "b": 200.0, "c": 200.0}
    members.hear_all(300.0)
    assert {broker.heard_at_s for broker in members.alive.values()} == {300.0}


SOUND = {"format": 1, "kind": "member", "broker": "b", "incarnation": "b-1", "seq": 1, "since": -1}


def test_a_sound_heartbeat_is_read_with_its_listeners_by_name():
    listeners = {"pulsar": "pulsar://b:6650", "http": 8080, "none": None}
    member = decode_member(orjson.dumps(SOUND | {"listeners": listeners}))
    assert member == SOUND | {"listeners": {"pulsar": "pulsar://b:6650"}}
    for odd in (None, [], "x", 5):
        assert decode_member(orjson.dumps(SOUND | {"listeners": odd})) == SOUND | {"listeners": {}}


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2}, {"format": 0}, {"format": None}, {"kind": "heartbeat"}, {"kind": None},
        {"broker": ""}, {"broker": None}, {"broker": 1}, {"incarnation": ""}, {"incarnation": None},
        {"seq": None}, {"seq": True}, {"seq": 1.0}, {"seq": "1"}, {"since": None}, {"since": True}, {"since": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_heartbeat(changed):
    assert decode_member(orjson.dumps(SOUND | changed)) is None
    (name,) = changed
    assert decode_member(orjson.dumps({field: value for field, value in SOUND.items() if field != name})) is None


@pytest.mark.parametrize("value", [None, b"", b"[]", b"null", b"7", b'"member"', b"\xff", b"{"])
def test_what_is_no_object(value):
    assert decode_member(value) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ("b-1", 7)),
        ({"seq": 0}, ("b-1", 0)),
        ({"seq": "7"}, None), ({"seq": [7]}, None), ({"seq": True}, None), ({"seq": None}, None),
        ({"incarnation": ""}, None), ({"incarnation": 1}, None), ({"incarnation": None}, None),
        ({"kind": "member"}, None), ({"format": 2}, None),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_a_probe(changed, expected):
    probe = {"format": 1, "kind": "probe", "broker": "b", "incarnation": "b-1", "seq": 7}
    assert decode_probe(orjson.dumps(probe | changed)) == expected
    for name in changed if expected is None else ():
        assert decode_probe(orjson.dumps({field: value for field, value in probe.items() if field != name})) is None
