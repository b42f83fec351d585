"""What a member says of itself, condition by condition; who comes before whom; whose silence is a loss, to the border."""

from typing import Any

import pytest

from statechannel.engine.membership import Member, Membership

WELL: dict[str, Any] = {
    "phase": "caught-up",
    "mode": "normal",
    "draining": False,
    "fit": True,
    "accepting": True,
    "leading": True,
    "deputy": True,
    "writable": True,
}
ALWAYS = {"phase": "joining", "mode": "safe"}
ENDS: dict[str, dict[str, Any]] = {
    "fit": {**ALWAYS, "draining": True, "fit": False},
    "leads": {**ALWAYS, "leading": False},
    "deputizes": {**ALWAYS, "deputy": False},
    "accepting": {**ALWAYS, "accepting": False},
    "caught_up": {"phase": "joining"},
    "writable": {"writable": False},
}


def member(**info: Any) -> Member:
    return Member("b", "b-1", 0.0, 0, 0, {**WELL, **info})


@pytest.mark.parametrize("what", ENDS)
def test_each_condition_counts_alone_and_no_other(what: str) -> None:
    assert getattr(member(), what) is True
    for name in WELL:
        changed = ENDS[what].get(name, "nonsense" if name not in ENDS[what] else None)
        assert getattr(member(**{name: changed}), what) is (name not in ENDS[what]), name


def test_older_versions_do_not_tell_and_are_taken_for_well() -> None:
    old = Member("b", "b-1", 0.0, 0, 0, {"phase": "caught-up", "mode": "normal"})
    assert (old.fit, old.writable, old.leads, old.deputizes, old.accepting) == (True, True, False, False, False)


def heard(*members: tuple[str, dict[str, Any]]) -> Membership:
    membership = Membership(6.0)
    for offset, (broker, info) in enumerate(members):
        beat = {"broker": broker, "incarnation": f"{broker}-1", "since": offset, **WELL, **info}
        assert membership.heard(0.0, offset, 0, beat) is not None
    return membership


def test_ranks_count_those_before_that_could() -> None:
    members = heard(("a", {"fit": False}), ("b", {}), ("c", {"phase": "joining"}), ("d", {}), ("e", {}))
    assert [members.rank(name) for name in "abcde"] == [0, 1, 2, 2, 3]
    assert [members.fit_rank(name) for name in "abcde"] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("mine", "others", "fit"), [("b", {}, True), ("b", {"fit": False}, False), ("a", {"fit": False}, True)]
)
def test_somebody_else_could_lead(mine: str, others: dict[str, Any], fit: bool) -> None:
    assert heard(("a", others), ("b", {})).others_fit(mine) is fit


@pytest.mark.parametrize(
    ("mine", "other", "led"),
    [
        ("b", {"leading": True, "deputy": False}, True),
        ("b", {"leading": False, "deputy": True}, True),
        ("0", {"leading": False, "deputy": True}, False),  # a deputy that comes behind
        ("0", {"leading": True, "deputy": False}, True),
        ("a", {"leading": True, "deputy": True}, False),  # itself
        ("b", {"leading": False, "deputy": False}, False),
    ],
)
def test_who_is_led(mine: str, other: dict[str, Any], led: bool) -> None:
    assert heard(("a", other)).led(mine) is led


@pytest.mark.parametrize(
    ("held", "first", "since", "replaced"),
    [(-1, 0, 0, False), (-1, 0, 1, True), (0, 0, 0, False), (0, 5, 1, True), (3, 0, 3, False), (3, 0, 4, True)],
)
def test_the_later_one_that_was_read_back_counts(held: int, first: int, since: int, replaced: bool) -> None:
    membership = Membership(6.0)
    for offset, incarnation, item in ((first, "old", held), (9, "new", since)):
        membership.heard(1.0, offset, 1_000, {"broker": "b", "incarnation": incarnation, "since": item})
    assert (membership.alive["b"].incarnation == "new") is replaced


def test_one_that_was_read_back_at_the_first_offset_does_not_wait() -> None:
    """Offset 0 is one like every other: who was read back there has the proof."""
    membership = Membership(6.0)
    membership.heard(1.0, 0, 1_000, {"broker": "b", "incarnation": "old", "since": -1})
    membership.alive["b"].first_offset = -1
    membership.heard(1.0, 1, 1_000, {"broker": "b", "incarnation": "new", "since": 0})
    assert membership.alive["b"].incarnation == "new"


@pytest.mark.parametrize(("after_s", "lost"), [(5.999, False), (6.0, False), (6.001, True)])
def test_silence_longer_than_the_expiry_is_a_loss(after_s: float, lost: bool) -> None:
    members = heard(("a", {}), ("b", {}))
    result = members.expire(after_s, keep="b-1")
    assert [item.broker for item in result] == (["a"] if lost else [])
    assert ("a" in members.lost, "a" in members.alive, "b" in members.alive) == (lost, not lost, True)


@pytest.mark.parametrize(("after_ms", "replaced"), [(5_999, False), (6_000, True)])
def test_one_that_was_not_read_back_gives_way_after_the_expiry(after_ms: int, replaced: bool) -> None:
    membership = Membership(6.0)
    membership.heard(1.0, 0, 1_000, {"broker": "b", "incarnation": "old", "since": 0})
    membership.heard(1.0, 1, 1_000 + after_ms, {"broker": "b", "incarnation": "new", "since": -1})
    assert (membership.alive["b"].incarnation == "new") is replaced


def test_ages_of_what_lay_there_come_from_the_logs_times() -> None:
    members = heard(("a", {}), ("b", {}))
    members.alive["a"].heard_at_ms = 4_000
    members.alive["b"].heard_at_ms = 9_000  # behind the newest time that the log told
    members.settle_backlog(100.0, 7_000)
    assert (members.alive["a"].heard_at_s, members.alive["b"].heard_at_s) == (97.0, 100.0)
    members.hear_all(200.0)
    assert {broker.heard_at_s for broker in members.alive.values()} == {200.0}


def test_takers_are_those_that_accept_and_this_broker_by_its_own_word() -> None:
    members = heard(("c", {}), ("b", {"accepting": False}), ("a", {}))
    assert members.takers("a", itself=True) == ("a", "c")
    assert members.takers("a", itself=False) == ("c",)
    assert members.takers("b", itself=True) == ("a", "b", "c")
    changed = {"broker": "c", "incarnation": "c-1", "since": 0, **WELL, "accepting": False}
    assert members.heard(1.0, 3, 1_000, changed) is not None
    assert members.takers("a", itself=True) == ("a",)
    assert members.takers("x", itself=True) == ("a",), "a broker that is not heard takes nothing"
