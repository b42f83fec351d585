"""Anti-affinity: counts by broker and domain, by hand; both sides of the switch (decision record 40)."""

import pytest

from loaddata.model.broker_load import BrokerLoad
from shedders.filters.anti_affinity import AntiAffinity, group_of, worth_leaving
from shedders.filters.chain import Filters
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster, Policies

DOMAINS = {"b1": "d1", "b2": "d1", "b3": "d2", "b4": "d2", "b5": "d3", "b6": "d3"}
SERVED = {"b1": 2, "b2": 1, "b3": 2, "b4": 1, "b5": 2, "b6": 2}


def bundle(namespace: str, owner: str | None = None, half: int = 0) -> Bundle:
    return Bundle(f"{namespace}/{'0x00000000_0x80000000' if not half else '0x80000000_0xffffffff'}", owner)


def cluster(domains: dict[str, str | None], bundles: list[Bundle], group: dict[str, str]) -> Cluster:
    return Cluster(
        brokers={name: Broker(name, domain=domain) for name, domain in domains.items()},
        bundles={bundle.name: bundle for bundle in bundles},
        policies=Policies(anti_affinity=group),
    )


def upstream_example() -> Cluster:
    spread = [(broker, number) for broker, count in SERVED.items() for number in range(count)]
    bundles = [bundle(f"t/{broker}-{number}", broker) for broker, number in spread]
    bundles.append(bundle("t/new"))
    return cluster(dict(DOMAINS), bundles, {bundle.namespace: "G" for bundle in bundles})


@pytest.mark.parametrize("upstream", [False, True])
def test_upstream_s_worked_example(upstream: bool) -> None:
    groups = AntiAffinity(upstream_example(), domains=True, upstream=upstream)
    away = groups.away("t/new", list(DOMAINS))
    assert sorted(away) == ["b1", "b3", "b5", "b6"]
    assert away["b5"] == "domain `d3` has 4 namespaces of group `g`, another 3"
    assert away["b1"] == "serves 2 other namespaces of group `g`, another broker 1"


def test_without_domains_brokers_alone_count() -> None:
    groups = AntiAffinity(upstream_example(), domains=False, upstream=False)
    assert sorted(groups.away("t/new", list(DOMAINS))) == ["b1", "b3", "b5", "b6"]
    assert sorted(groups.away("t/new", ["b1", "b3", "b5"])) == []


def test_its_own_namespace_does_not_count_but_upstream_s_does() -> None:
    """Upstream issue 16563: a namespace of two bundles, and nobody else in the group, is driven apart from itself."""
    bundles = [bundle("t/n", "b1"), bundle("t/n", "b2", 1)]
    base = cluster({"b1": None, "b2": None, "b3": None}, bundles, {"t/n": "g"})
    assert AntiAffinity(base, domains=True, upstream=False).away("t/n", ["b1", "b2", "b3"]) == {}
    assert sorted(AntiAffinity(base, domains=True, upstream=True).away("t/n", ["b1", "b2", "b3"])) == ["b1", "b2"]


def test_a_domain_is_all_its_brokers_but_upstream_sees_candidates_only() -> None:
    """b1 serves one of the group and is no candidate; b2 of the same domain would fail with it."""
    base = cluster({"b1": "d1", "b2": "d1", "b3": "d2"}, [bundle("t/a", "b1"), bundle("t/n")], {"t/a": "g", "t/n": "g"})
    assert AntiAffinity(base, domains=True, upstream=False).away("t/n", ["b2", "b3"]).keys() == {"b2"}
    assert AntiAffinity(base, domains=True, upstream=True).away("t/n", ["b2", "b3"]) == {}


def test_a_namespace_counts_once_a_domain() -> None:
    """d1 serves t/a on both brokers: one namespace that would fail, as in d2. Upstream adds the brokers up: 2 against 1."""
    bundles = [bundle("t/a", "b1"), bundle("t/a", "b2", 1), bundle("t/b", "b3"), bundle("t/n")]
    group = dict.fromkeys(("t/a", "t/b", "t/n"), "g")
    base = cluster({"b1": "d1", "b2": "d1", "b3": "d2", "b4": "d1"}, bundles, group)
    names = ["b1", "b2", "b3", "b4"]
    assert sorted(AntiAffinity(base, domains=True, upstream=False).away("t/n", names)) == ["b1", "b2", "b3"]
    assert sorted(AntiAffinity(base, domains=True, upstream=True).away("t/n", names)) == ["b1", "b2", "b4"]


def test_brokers_without_a_domain_count_as_one() -> None:
    base = cluster({"b1": None, "b2": " ", "b3": "d2"}, [bundle("t/a", "b1"), bundle("t/n")], {"t/a": "g", "t/n": "g"})
    away = AntiAffinity(base, domains=True, upstream=False).away("t/n", ["b1", "b2", "b3"])
    assert sorted(away) == ["b1", "b2"]
    assert away["b2"].startswith("domain `default` has 1")


def test_groups_are_compared_in_small_letters_and_blank_is_none() -> None:
    policies = Policies(anti_affinity={"t/a": "Group", "t/b": " gROUP ", "t/c": "  ", "t/d": ""})
    assert [group_of(policies, f"t/{name}") for name in "abcde"] == ["group", "group", None, None, None]


def test_what_is_on_its_way_counts_in_the_filters() -> None:
    base = cluster({"b1": None, "b2": None}, [bundle("t/a"), bundle("t/b")], {"t/a": "g", "t/b": "g"})
    filters = Filters(base)
    assert filters.passed(bundle("t/b")).names == ["b1", "b2"]
    filters.book("b1", bundle("t/a").name)
    assert filters.passed(bundle("t/b")).names == ["b2"]
    assert filters.passed(bundle("t/a")).names == ["b1", "b2"]
    assert (filters.can_take(bundle("t/b"), "b1") or "").startswith("anti-affinity: ")


def test_the_fewest_are_counted_among_those_that_may_take_it() -> None:
    """b3 has none, but drains; in upstream's order of filters that would be found out too late only for isolation."""
    base = cluster(
        {"b1": None, "b2": None, "b3": None},
        [bundle("t/a", "b1"), bundle("t/b", "b1"), bundle("t/c", "b2"), bundle("t/n")],
        dict.fromkeys(("t/a", "t/b", "t/c", "t/n"), "g"),
    )
    brokers = {**base.brokers, "b3": Broker("b3", accepting=False)}
    drained = Cluster(brokers, base.bundles, base.policies)
    assert Filters(drained).passed(bundle("t/n")).names == ["b2"]
    assert Filters(drained, FilterSettings(failure_domains=False)).passed(bundle("t/n")).names == ["b2"]


@pytest.mark.parametrize(
    ("counts", "candidates", "expected"),
    [
        ({}, ["a", "b"], True),
        ({"a": 1}, ["a", "b"], True),
        ({"a": 1, "b": 1}, ["a", "b"], False),
        ({"a": 2, "b": 1}, ["a", "b"], True),
        # No better home for a, but upstream says yes.
        ({"a": 1, "b": 2}, ["a", "b"], True),
        ({"a": 1, "b": 1}, ["b"], False),
        ({"a": 1, "b": 1}, [], True),
    ],
)
def test_worth_leaving(counts: dict[str, int], candidates: list[str], expected: bool) -> None:
    assert worth_leaving("a", candidates, counts) is expected


def test_the_modular_manager_does_not_unload_what_would_come_back() -> None:
    bundles = [bundle("t/a", "b1"), bundle("t/b", "b2")]
    base = cluster({"b1": None, "b2": None}, bundles, {"t/a": "g", "t/b": "g"})
    base = Cluster({name: Broker(name, load=BrokerLoad()) for name in base.brokers}, base.bundles, base.policies)
    settings = FilterSettings(upstream=True, generation="modular")
    assert Filters(base, settings).cannot_leave(bundles[0]) == "all brokers serve equally many namespaces of group `g`"
    wider = cluster({"b1": None, "b2": None, "b3": None}, bundles, {"t/a": "g", "t/b": "g"})
    loaded = {name: Broker(name, load=BrokerLoad()) for name in wider.brokers}
    assert Filters(Cluster(loaded, wider.bundles, wider.policies), settings).cannot_leave(bundles[0]) is None
