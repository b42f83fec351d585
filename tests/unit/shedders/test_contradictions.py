"""Policies that cannot be kept together are named, with a witness."""

from __future__ import annotations

from typing import Any

from shedders.filters.chain import Filters
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies
from shedders.policies.contradictions import contradictions

A = "t/n/0x00000000_0x80000000"
B = "t/n/0x80000000_0xffffffff"
M = "t/m/0x00000000_0xffffffff"
GOLD = IsolationPolicy("gold", ("t/n",), ("b1", "b2"))


def cluster(
    *brokers: Broker, bundles: tuple[Bundle, ...] = (Bundle(A), Bundle(B), Bundle(M)), **policies: Any
) -> Cluster:
    some = brokers or tuple(Broker(name) for name in ("b1", "b2", "b3"))
    return Cluster({one.name: one for one in some}, {one.name: one for one in bundles}, Policies(**policies))


def kinds(found: Cluster) -> list[tuple[str, tuple[str, ...], str, bool]]:
    return [(one.kind, one.policies, one.witness, one.blocks) for one in contradictions(found)]


def test_nothing_is_wrong() -> None:
    assert kinds(cluster()) == []
    assert kinds(cluster(isolation=(GOLD,), pins={A: "b1", "t/m": "b3"}, cordons={"b2": ""})) == []


def test_worked_example_of_the_docstring() -> None:
    found = cluster(isolation=(GOLD,), pins={A: "b3"})
    assert kinds(found) == [("nobody", (f"pin {A} -> b3", "isolation gold"), A, True)]
    assert contradictions(found)[0].why == (
        f"no broker may take `{A}`: pin {A} -> b3 allows b3; isolation gold allows b1, b2"
    )


def test_the_smallest_set_is_named() -> None:
    """Pin, isolation and cordon all speak of A; pin and cordon alone leave nobody."""
    found = cluster(isolation=(GOLD,), pins={A: "b1"}, cordons={"b1": "disk"})
    assert kinds(found) == [("nobody", (f"pin {A} -> b1", "cordon b1"), A, True)]


def test_three_policies_that_only_together_leave_nobody() -> None:
    brokers = [Broker("b1", non_persistent=False), Broker("b2"), Broker("b3")]
    bundles = (Bundle(A, non_persistent=True),)
    found = cluster(*brokers, bundles=bundles, isolation=(GOLD,), cordons={"b2": "disk"})
    policies = ("isolation gold", "cordon b2", "brokers for non-persistent topics")
    assert kinds(found) == [("nobody", policies, A, True)]


def test_a_policy_that_matches_no_broker_and_one_that_leaves_no_shared_broker() -> None:
    nobody = IsolationPolicy("ghost", ("t/n",), ("b9",))
    assert kinds(cluster(isolation=(nobody,))) == [("nobody", ("isolation ghost",), A, True)]
    everybody = IsolationPolicy("all", ("t/n",), ("b.*",))
    assert kinds(cluster(isolation=(everybody,))) == [("nobody", ("isolation all (the namespace has none)",), M, True)]


def test_more_primaries_wanted_than_there_are() -> None:
    policy = IsolationPolicy("gold", ("t/n",), ("b1",), (), 2)
    assert kinds(cluster(isolation=(policy,))) == [("min-available", ("isolation gold",), "t/n", False)]


def test_unreadable_patterns() -> None:
    policy = IsolationPolicy("bad", ("t/n",), ("(",))
    found = contradictions(cluster(isolation=(policy,)))
    assert [(one.kind, one.witness, one.blocks) for one in found] == [("unreadable", "primary of `bad`", True)]
    assert "is not a valid regular expression" in found[0].why


def test_what_is_not_there() -> None:
    found = cluster(pins={"t/x": "b1", "t/m": "b9"}, cordons={"b8": ""})
    assert kinds(found) == [
        ("nobody", ("pin t/m -> b9",), M, True),
        ("unknown-broker", ("cordon b8",), "b8", False),
        ("unknown-broker", ("pin t/m -> b9",), "b9", True),
        ("unknown-bundle", ("pin t/x -> b1",), "t/x", False),
    ]


def test_a_group_that_is_held_together() -> None:
    found = cluster(pins={"t/n": "b1", "t/m": "b1"}, anti_affinity={"t/n": "G", "t/m": "g"})
    assert kinds(found) == [("together", ("anti-affinity g", "pin t/m -> b1", "pin t/n -> b1"), "t/m", False)]
    apart = cluster(pins={"t/n": "b1", "t/m": "b2"}, anti_affinity={"t/n": "G", "t/m": "g"})
    assert kinds(apart) == []


def test_domains_that_nobody_told() -> None:
    brokers = [Broker("b1", domain="d1"), Broker("b2"), Broker("b3", domain=" ")]
    assert kinds(cluster(*brokers)) == []
    found = cluster(*brokers, anti_affinity={"t/n": "g"})
    assert kinds(found) == [("unknown-domain", ("anti-affinity g",), "b2", False)]


def test_no_broker_is_no_contradiction() -> None:
    assert kinds(Cluster({}, {A: Bundle(A)}, Policies(isolation=(GOLD,)))) == []


def test_what_blocks_is_what_the_filters_refuse() -> None:
    found = cluster(isolation=(GOLD,), pins={A: "b3"})
    filters = Filters(found)
    assert not filters.passed(found.bundles[A]).names
    assert filters.passed(found.bundles[B]).names == ["b1", "b2"]


def test_secondaries_that_never_help_out_are_nobody() -> None:
    """With `min_available` 0 there are never too few primaries."""
    policy = IsolationPolicy("gold", ("t/n",), (), ("b1", "b2"), 0)
    found = cluster(isolation=(policy,))
    assert kinds(found) == [("nobody", ("isolation gold",), A, True)]
    assert not Filters(found).passed(Bundle(A)).names
