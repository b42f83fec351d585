"""Policies that cannot be kept together are named, with a witness."""

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
    return Cluster(
        {item.name: item for item in some}, {bundle.name: bundle for bundle in bundles}, Policies(**policies)
    )


def kinds(cluster: Cluster) -> list[tuple[str, tuple[str, ...], str, bool]]:
    return [
        (contradiction.kind, contradiction.policies, contradiction.witness, contradiction.blocks)
        for contradiction in contradictions(cluster)
    ]


def test_nothing_is_wrong() -> None:
    assert kinds(cluster()) == []
    assert kinds(cluster(isolation=(GOLD,), pins={A: "b1", "t/m": "b3"}, cordons={"b2": ""})) == []


def test_worked_example_of_the_docstring() -> None:
    base = cluster(isolation=(GOLD,), pins={A: "b3"})
    assert kinds(base) == [("nobody", (f"pin {A} -> b3", "isolation gold"), A, True)]
    assert f"pin {A} -> b3 allows b3; isolation gold allows b1, b2" in contradictions(base)[0].why


def test_the_smallest_set_is_named() -> None:
    """Pin, isolation and cordon all speak of A; pin and cordon alone leave nobody."""
    base = cluster(isolation=(GOLD,), pins={A: "b1"}, cordons={"b1": "disk"})
    assert kinds(base) == [("nobody", (f"pin {A} -> b1", "cordon b1"), A, True)]


def test_three_policies_that_only_together_leave_nobody() -> None:
    brokers = [Broker("b1", non_persistent=False), Broker("b2"), Broker("b3")]
    bundles = (Bundle(A, non_persistent=True),)
    base = cluster(*brokers, bundles=bundles, isolation=(GOLD,), cordons={"b2": "disk"})
    policies = ("isolation gold", "cordon b2", "brokers for non-persistent topics")
    assert kinds(base) == [("nobody", policies, A, True)]


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
    result = contradictions(cluster(isolation=(policy,)))
    assert [(item.kind, item.witness, item.blocks) for item in result] == [("unreadable", "primary of `bad`", True)]
    assert "is not a valid regular expression" in result[0].why


def test_what_is_not_there() -> None:
    base = cluster(pins={"t/x": "b1", "t/m": "b9"}, cordons={"b8": ""})
    assert kinds(base) == [
        ("nobody", ("pin t/m -> b9",), M, True),
        ("unknown-broker", ("cordon b8",), "b8", False),
        ("unknown-broker", ("pin t/m -> b9",), "b9", True),
        ("unknown-bundle", ("pin t/x -> b1",), "t/x", False),
    ]


def test_a_group_that_is_held_together() -> None:
    base = cluster(pins={"t/n": "b1", "t/m": "b1"}, anti_affinity={"t/n": "G", "t/m": "g"})
    assert kinds(base) == [("together", ("anti-affinity g", "pin t/m -> b1", "pin t/n -> b1"), "t/m", False)]
    apart = cluster(pins={"t/n": "b1", "t/m": "b2"}, anti_affinity={"t/n": "G", "t/m": "g"})
    assert kinds(apart) == []


def test_domains_that_nobody_told() -> None:
    brokers = [Broker("b1", domain="d1"), Broker("b2"), Broker("b3", domain=" ")]
    assert kinds(cluster(*brokers)) == []
    base = cluster(*brokers, anti_affinity={"t/n": "g"})
    assert kinds(base) == [("unknown-domain", ("anti-affinity g",), "b2", False)]


def test_no_broker_is_no_contradiction() -> None:
    assert kinds(Cluster({}, {A: Bundle(A)}, Policies(isolation=(GOLD,)))) == []


def test_what_blocks_is_what_the_filters_refuse() -> None:
    base = cluster(isolation=(GOLD,), pins={A: "b3"})
    filters = Filters(base)
    assert not filters.passed(base.bundles[A]).names
    assert filters.passed(base.bundles[B]).names == ["b1", "b2"]


def test_secondaries_that_never_help_out_are_nobody() -> None:
    """With `min_available` 0 there are never too few primaries."""
    policy = IsolationPolicy("gold", ("t/n",), (), ("b1", "b2"), 0)
    base = cluster(isolation=(policy,))
    assert kinds(base) == [("nobody", ("isolation gold",), A, True)]
    assert not Filters(base).passed(Bundle(A)).names
