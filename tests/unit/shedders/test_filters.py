"""Filters: who is removed by what, in which order, on tables worked out by hand."""

from typing import Any

import pytest

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleStats
from shedders.filters.chain import Filters
from shedders.filters.rules import FilterSettings, needs
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies, TopicLoad

A = "t/n/0x00000000_0x40000000"
B = "t/n/0x40000000_0x80000000"
C = "t/n/0x80000000_0xc0000000"
D = "t/n/0xc0000000_0xffffffff"


def cluster(brokers: list[Broker], bundles: list[Bundle], **policies: Any) -> Cluster:
    return Cluster(
        brokers={broker.name: broker for broker in brokers},
        bundles={bundle.name: bundle for bundle in bundles},
        policies=Policies(**policies),
    )


def words(filters: Filters, bundle: Bundle, **options: Any) -> dict[str, str]:
    return {name: word for name, (word, _) in filters.passed(bundle, **options).removed.items()}


def brokers(count: int) -> list[Broker]:
    return [Broker(f"b{number}:8080") for number in range(1, count + 1)]


GOLD = IsolationPolicy("gold", ("t/n",), ("b1", "b2", "b3"), ("b4",), min_available=2)


def test_worked_example_of_the_docstring() -> None:
    result, two, *rest = brokers(5)
    base = cluster(
        [Broker(result.name, accepting=False), two, *rest], [Bundle(A)], isolation=(GOLD,), cordons={two.name: "disk"}
    )
    filters = Filters(base)
    assert filters.passed(Bundle(A)).names == ["b3:8080", "b4:8080"]
    assert words(filters, Bundle(A)) == {"b1:8080": "accepting", "b2:8080": "cordon", "b5:8080": "isolation"}
    assert filters.passed(Bundle(A)).removed["b2:8080"] == ("cordon", "it is cordoned: disk")


def test_each_broker_is_named_once_removed_or_left() -> None:
    filters = Filters(cluster(brokers(5), [Bundle(A)], isolation=(GOLD,)))
    passed = filters.passed(Bundle(A))
    assert sorted([*passed.names, *passed.removed]) == [f"b{number}:8080" for number in range(1, 6)]
    assert passed.removed["b4:8080"] == ("isolation", "policy `gold` has 3 of 2 primaries, secondaries are not needed")


@pytest.mark.parametrize(
    ("broker", "bundle", "word"),
    [
        (Broker("b", accepting=False), Bundle(A), "accepting"),
        (Broker("b", manager="modular"), Bundle(A), "manager"),
        (Broker("b", load=BrokerLoad(topics=50_000)), Bundle(A), "topics"),
        (Broker("b", load=BrokerLoad(topics=49_999)), Bundle(A), None),
        (Broker("b", load=BrokerLoad(topics=49_999)), Bundle(A, stats=BundleStats(topics=2)), "topics"),
        (Broker("b", load=BrokerLoad(topics=50_000)), Bundle(A, owner="b", stats=BundleStats(topics=2)), None),
        (Broker("b", persistent=False), Bundle(A), "persistence"),
        (Broker("b", non_persistent=False), Bundle(A, non_persistent=True), "persistence"),
        (Broker("b", persistent=False), Bundle(A, non_persistent=True), None),
    ],
)
def test_one_broker_at_a_time(broker: Broker, bundle: Bundle, word: str | None) -> None:
    filters = Filters(cluster([broker], [bundle]))
    assert words(filters, bundle).get("b") == word
    reason = filters.can_take(bundle, "b")
    assert (None if reason is None else reason.partition(":")[0]) == word


@pytest.mark.parametrize(
    ("marked", "topics", "expected"),
    [
        (False, [], (True, False)),
        (True, [], (False, True)),
        (True, ["non-persistent://t/n/a"], (False, True)),
        (True, ["non-persistent://t/n/a", "persistent://t/n/b"], (True, True)),
        (False, ["non-persistent://t/n/a"], (False, True)),
        (False, ["persistent://t/n/a"], (True, False)),
    ],
)
def test_kinds_of_topics(marked: bool, topics: list[str], expected: tuple[bool, bool]) -> None:
    bundle = Bundle(A, topics=tuple(TopicLoad(name, 1) for name in topics), non_persistent=marked)
    assert needs(bundle) == expected


def test_topics_on_their_way_count() -> None:
    base = cluster(
        [Broker("b", load=BrokerLoad(topics=3)), Broker("c")],
        [Bundle(A, stats=BundleStats(topics=2)), Bundle(B, stats=BundleStats(topics=2))],
    )
    filters = Filters(base, FilterSettings(max_topics=6))
    assert filters.can_take(base.bundles[A], "b") is None
    filters.book("b", A)
    assert filters.topics("b") == 5
    assert filters.can_take(base.bundles[B], "b") == "topics: it would serve 7 topics, at most 6 are allowed"
    assert filters.passed(base.bundles[B]).names == ["c"]
    assert filters.can_take(base.bundles[A], "b") is None, "its own booking does not stand in its way"
    # Without a report, what is known of its bundles counts.
    silent = cluster([Broker("b")], [Bundle(A, owner="b", stats=BundleStats(topics=6)), Bundle(B)])
    assert Filters(silent, FilterSettings(max_topics=6)).can_take(silent.bundles[B], "b") is not None


def test_primaries_without_room_let_secondaries_in() -> None:
    policy = IsolationPolicy("gold", ("t/.*",), ("b1",), ("b2",))
    base = cluster([Broker("b1:1", load=BrokerLoad(topics=9)), Broker("b2:1")], [Bundle(A)], isolation=(policy,))
    assert Filters(base).passed(Bundle(A)).names == ["b1:1"]
    assert Filters(base, FilterSettings(max_topics=9)).passed(Bundle(A)).names == ["b2:1"]


def test_versions_are_compared_among_those_that_could_take_it() -> None:
    """The newest software is on b2, which isolation rules out: in upstream's order nobody would be left."""
    policy = IsolationPolicy("gold", ("t/n",), ("b1",))
    base = cluster([Broker("b1:1", version="1.0.0"), Broker("b2:1", version="2.0.0")], [Bundle(A)], isolation=(policy,))
    settings = FilterSettings(prefer_later_versions=True)
    assert Filters(base, settings).passed(Bundle(A)).names == ["b1:1"]
    upstream = Filters(base, settings.model_copy(update={"upstream": True}))
    assert words(upstream, Bundle(A)) == {"b1:1": "version", "b2:1": "isolation"}


VERSIONS = [
    Broker("a", version="4.1.0"),
    Broker("b", version="4.1.0-rc.1"),
    Broker("c", version="4.0.9"),
    Broker("d", version="nightly"),
    Broker("e"),
    Broker("f", version="4.1.0+build.7"),
]


def test_version_removes_what_is_older_or_unknown() -> None:
    passed = Filters(cluster(VERSIONS, [Bundle(A)]), FilterSettings(prefer_later_versions=True)).passed(Bundle(A))
    assert passed.names == ["a", "f"]
    assert passed.removed["b"][1] == "its version 4.1.0-rc.1 is older than 4.1.0"
    assert passed.removed["d"][1] == "its version `nightly` is not valid"
    assert passed.removed["e"][1] == "it reports no version"


def test_unknown_versions_upstream_opens_placement_and_closes_shedding() -> None:
    settings = FilterSettings(prefer_later_versions=True, upstream=True)
    filters = Filters(cluster(VERSIONS, [Bundle(A)]), settings)
    assert filters.passed(Bundle(A)).names == ["a", "b", "c", "d", "e", "f"]
    assert all(filters.can_take(Bundle(A), name) is not None for name in "abcdef")


def test_fewest_bundles_is_a_switch_and_leaves_the_bundle_itself_out() -> None:
    base = cluster(
        [Broker("a"), Broker("b"), Broker("c")], [Bundle(A, "a"), Bundle(B, "b"), Bundle(C, "c"), Bundle(D, "c")]
    )
    assert Filters(base).passed(base.bundles[A]).names == ["a", "b", "c"]
    filters = Filters(base, FilterSettings(fewest_bundles=True))
    # Without bundle A: a has 0, b 1, c 2; without D: 1 each.
    assert filters.passed(base.bundles[A]).names == ["a"]
    assert filters.passed(base.bundles[A]).removed["c"][0] == "fewest"
    assert filters.passed(base.bundles[D]).names == ["a", "b", "c"]
    answers = [(filters.can_take(base.bundles[A], name) or "").partition(" other")[0] for name in "abc"]
    assert answers == ["", "fewest: it has 1", "fewest: it has 2"]
    filters.book("a", D)
    assert filters.passed(base.bundles[C]).names == ["b", "c"], "a has one more on its way"


def test_pins_leave_one_broker_and_win_over_what_compares() -> None:
    base = cluster(
        [Broker("a", version="1.0.0"), Broker("b", version="2.0.0")],
        [Bundle(A, "a"), Bundle(B, "a"), Bundle(C)],
        pins={"t/n": "a", C: "b"},
    )
    filters = Filters(base, FilterSettings(fewest_bundles=True, prefer_later_versions=False))
    assert filters.passed(base.bundles[B]).names == ["a"]
    assert words(filters, base.bundles[B]) == {"b": "pin"}
    assert filters.can_take(base.bundles[B], "b") == "pin: it is pinned to a"
    assert filters.passed(base.bundles[C]).names == ["b"], "a bundle's pin stands above its namespace's"


def test_a_pin_does_not_win_over_the_other_filters() -> None:
    base = cluster([Broker("a", accepting=False), Broker("b")], [Bundle(A)], pins={A: "a"})
    assert words(Filters(base), Bundle(A)) == {"a": "accepting", "b": "pin"}
    gone = cluster([Broker("b")], [Bundle(A)], pins={A: "a"})
    passed = Filters(gone).passed(Bundle(A))
    assert passed.removed["a"] == ("accepting", "the bundle is pinned to it, and it is not registered")
    assert Filters(gone).can_take(Bundle(A), "a") == "accepting: it is not registered"


def test_only_what_was_offered() -> None:
    filters = Filters(cluster(brokers(3), [Bundle(A)]))
    assert words(filters, Bundle(A), among=["b2:8080"]) == {"b1:8080": "offered", "b3:8080": "offered"}
    assert filters.passed(Bundle(A)).names == ["b1:8080", "b2:8080", "b3:8080"]


def test_leaving_needs_another_broker() -> None:
    base = cluster([Broker("a"), Broker("b", accepting=False)], [Bundle(A, "a")])
    assert "`accepting` removed b" in (Filters(base).cannot_leave(base.bundles[A]) or "")
    well = cluster([Broker("a"), Broker("b")], [Bundle(A, "a")])
    assert Filters(well).cannot_leave(well.bundles[A]) is None


def test_no_broker_and_unknown_broker() -> None:
    nothing = Filters(cluster([], [Bundle(A)]))
    assert list(nothing.passed(Bundle(A)).names) == []
    assert nothing.can_take(Bundle(A), "a") == "accepting: it is not registered"


# --- upstream's two generations ---------------------------------------------------------------


def test_extensible_keeps_who_has_no_report_and_drops_at_the_limit() -> None:
    base = cluster([Broker("a", load=BrokerLoad(topics=10)), Broker("b"), Broker("c", manager="modular")], [Bundle(A)])
    filters = Filters(base, FilterSettings(upstream=True, max_topics=10))
    assert words(filters, Bundle(A)) == {"a": "topics", "c": "manager"}


def test_modular_allows_the_limit_and_puts_back_if_nobody_is_left() -> None:
    settings = FilterSettings(upstream=True, generation="modular", max_topics=10)
    full = cluster([Broker("a", load=BrokerLoad(topics=11)), Broker("b", load=BrokerLoad(topics=10))], [Bundle(A)])
    assert words(Filters(full, settings), Bundle(A)) == {"a": "topics"}
    booked = Filters(full, settings, {"b": [B]})
    assert booked.passed(Bundle(A)).names == ["a", "b"]
    ours = Filters(full, FilterSettings(max_topics=10), {"b": [B]})
    assert list(ours.passed(Bundle(A)).names) == []


def test_modular_counts_the_bundle_itself_and_undoes_the_filters_for_an_unreadable_version() -> None:
    base = cluster(
        [Broker("a", load=BrokerLoad(), version="1.0.0"), Broker("b", load=BrokerLoad(), version="2.0.0")],
        [Bundle(A, "a"), Bundle(B, "b")],
    )
    settings = FilterSettings(upstream=True, generation="modular", fewest_bundles=True)
    assert Filters(base, settings).passed(base.bundles[A]).names == ["a", "b"]
    assert Filters(base, FilterSettings(fewest_bundles=True)).passed(base.bundles[A]).names == ["a"]
    newest = settings.model_copy(update={"prefer_later_versions": True})
    assert Filters(base, newest).passed(base.bundles[A]).names == ["b"]
    unknown = cluster(
        [Broker("a", load=BrokerLoad()), Broker("b", load=BrokerLoad(), version="2.0.0")], [Bundle(A, "b")]
    )
    assert Filters(unknown, newest).passed(unknown.bundles[A]).names == ["a", "b"]


def test_upstream_looks_at_the_kind_of_topics_only_without_a_policy() -> None:
    policy = IsolationPolicy("gold", ("t/n",), ("a",))
    base = cluster([Broker("a", persistent=False), Broker("b", persistent=False)], [Bundle(A)], isolation=(policy,))
    upstream = Filters(base, FilterSettings(upstream=True))
    assert upstream.passed(Bundle(A)).names == ["a"]
    assert words(upstream, Bundle("t/other/0x00000000_0xffffffff")) == {"a": "isolation", "b": "isolation"}
    assert words(Filters(base), Bundle(A)) == {"a": "persistence", "b": "persistence"}
