"""Suspect, grace, tombstone: what the leader does about reports that nobody renews."""

from dataclasses import dataclass

from loaddata.report.record import Tombstone
from loaddata.view.table_view import Expiry, ExpiryRules

RULES = ExpiryRules(ttl_s=100.0, grace_s=10.0, repeat_s=20.0, batch_max=2)
NOW_MS = 1_750_000_000_000


@dataclass
class Held:
    offset: int
    age_s: float


def test_in_two_steps() -> None:
    expiry = Expiry(RULES)
    assert expiry.step({"a": Held(7, 100.0)}, 0.0, NOW_MS) == {}
    assert expiry.suspects == []
    assert expiry.step({"a": Held(7, 100.1)}, 0.1, NOW_MS) == {}
    assert expiry.suspects == ["a"]
    assert expiry.step({"a": Held(7, 110.0)}, 10.0, NOW_MS) == {}, "the grace is not over"
    assert expiry.step({"a": Held(7, 110.5)}, 10.5, NOW_MS) == {"a": Tombstone("expired", 7, NOW_MS - 10_500)}


def test_a_report_that_comes_in_the_grace_ends_the_suspicion() -> None:
    expiry = Expiry(RULES)
    expiry.step({"a": Held(7, 101.0)}, 0.0, NOW_MS)
    expiry.step({"a": Held(8, 0.0)}, 5.0, NOW_MS)
    assert expiry.suspects == []
    assert expiry.step({"a": Held(8, 101.0)}, 106.0, NOW_MS) == {}, "a grace of its own"
    assert expiry.step({"a": Held(8, 111.0)}, 116.0, NOW_MS)["a"].last_offset == 8


def test_another_report_that_is_old_on_arrival_begins_anew() -> None:
    expiry = Expiry(RULES)
    expiry.step({"a": Held(7, 101.0)}, 0.0, NOW_MS)
    assert expiry.step({"a": Held(8, 150.0)}, 11.0, NOW_MS) == {}
    assert expiry.step({"a": Held(8, 161.0)}, 21.0, NOW_MS)["a"].last_offset == 8


def test_a_tombstone_without_effect_is_repeated_but_not_at_once() -> None:
    expiry = Expiry(RULES)
    expiry.step({"a": Held(7, 101.0)}, 0.0, NOW_MS)
    written = [now_s for now_s in range(10, 71) if expiry.step({"a": Held(7, 200.0)}, float(now_s), NOW_MS)]
    assert written == [10, 30, 50, 70]


def test_one_that_is_gone_is_forgotten_and_a_new_leader_begins_anew() -> None:
    expiry = Expiry(RULES)
    expiry.step({"a": Held(7, 101.0), "b": Held(8, 101.0)}, 0.0, NOW_MS)
    expiry.step({"b": Held(8, 106.0)}, 5.0, NOW_MS)
    assert expiry.suspects == ["b"]
    expiry.reset()
    assert expiry.step({"b": Held(8, 120.0)}, 20.0, NOW_MS) == {}
    assert expiry.step({"b": Held(8, 130.0)}, 30.0, NOW_MS) != {}


def test_many_at_once_are_buried_in_portions() -> None:
    expiry = Expiry(RULES)
    held = {name: Held(number, 200.0) for number, name in enumerate("dcba")}
    expiry.step(held, 0.0, NOW_MS)
    assert list(expiry.step(held, 10.0, NOW_MS)) == ["a", "b"]
    assert list(expiry.step(held, 11.0, NOW_MS)) == ["c", "d"]
    assert expiry.step(held, 12.0, NOW_MS) == {}


def test_absurd_ages_and_clocks_still_make_a_tombstone() -> None:
    expiry = Expiry(RULES)
    held = {"a": Held(7, float("inf"))}
    expiry.step(held, 0.0, -5)
    assert expiry.step(held, 10.0, -5) == {"a": Tombstone("expired", 7, 1)}
    assert expiry.step({"a": Held(7, float("nan"))}, 50.0, NOW_MS) == {}
