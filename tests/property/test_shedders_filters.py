"""Filters: whatever the cluster, a broker that is left keeps every policy, and one that is removed is removed for a reason.

The rules are said here once more, broker by broker and without any of the product's tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import BundleStats
from shedders.decision.placing import Pipeline
from shedders.filters.chain import Filters
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies
from shedders.model.plan import BundleMove, Placed, Reason
from shedders.model.strategy import StrategySettings
from shedders.policies.contradictions import contradictions

UNHURRIED = run(deadline=None)

NAMES = ("b1", "b2", "b3", "b4", "b5")
NAMESPACES = ("t/a", "t/b", "t/c")
RANGES = ("0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xffffffff")
PATTERNS = st.lists(st.sampled_from(["b1", "b2", "b[34]", "b.", "nobody", "("]), max_size=2)

brokers = st.lists(
    st.builds(
        Broker,
        name=st.sampled_from(NAMES),
        load=st.none() | st.builds(BrokerLoad, topics=st.integers(-1, 12)),
        accepting=st.booleans() | st.just(True),
        version=st.sampled_from([None, "1.0.0", "1.1.0", "?"]),
        manager=st.sampled_from(["extensible", "extensible", "modular"]),
        persistent=st.booleans() | st.just(True),
        non_persistent=st.booleans() | st.just(True),
        domain=st.sampled_from([None, "d1", "d2"]),
    ),
    unique_by=lambda item: item.name,
    max_size=5,
)
bundles = st.lists(
    st.builds(
        Bundle,
        name=st.builds("{}/{}".format, st.sampled_from(NAMESPACES), st.sampled_from(RANGES)),
        owner=st.none() | st.sampled_from(NAMES),
        stats=st.none() | st.builds(BundleStats, topics=st.integers(0, 3)),
        non_persistent=st.booleans(),
    ),
    unique_by=lambda item: item.name,
    min_size=1,
    max_size=9,
)
policies = st.builds(
    Policies,
    isolation=st.lists(
        st.builds(
            IsolationPolicy,
            name=st.sampled_from(["p", "q"]),
            namespaces=st.lists(st.sampled_from(["t/a", "t/.*", "t/b|t/c", "["]), max_size=2),
            primary=PATTERNS,
            secondary=PATTERNS,
            min_available=st.integers(0, 3),
        ),
        max_size=2,
    ),
    anti_affinity=st.dictionaries(st.sampled_from(NAMESPACES), st.sampled_from(["g", "G", "h", " "])),
    pins=st.dictionaries(st.sampled_from([*NAMESPACES, f"t/a/{RANGES[0]}"]), st.sampled_from(NAMES), max_size=1),
    cordons=st.dictionaries(st.sampled_from(NAMES), st.just("disk"), max_size=2),
)
settings = st.builds(
    FilterSettings,
    max_topics=st.integers(3, 12),
    prefer_later_versions=st.booleans(),
    failure_domains=st.booleans(),
    fewest_bundles=st.booleans(),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    paths, held = draw(brokers), draw(bundles)
    return Cluster({path.name: path for path in paths}, {item.name: item for item in held}, draw(policies))


def readable(patterns: Sequence[str]) -> bool:
    return "(" not in patterns and "[" not in patterns


def isolation_of(cluster: Cluster, namespace: str) -> tuple[IsolationPolicy | None, bool]:
    """The policy that counts, and whether everything that is needed to know it can be read."""
    for policy in cluster.policies.isolation:
        if not readable(policy.namespaces):
            return policy, False
        if any(re.fullmatch(pattern, namespace) for pattern in policy.namespaces):
            named = readable(policy.primary) and readable(policy.secondary)
            return policy, named and bool(policy.primary or policy.secondary)
    return None, all(readable(policy.primary) for policy in cluster.policies.isolation)


def matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def keeps_hard_rules(cluster: Cluster, settings: FilterSettings, bundle: Bundle, name: str) -> bool:
    """All rules that look at one broker, isolation's failover left out."""
    broker = cluster.brokers[name]
    pin = cluster.policies.pins.get(bundle.name, cluster.policies.pins.get(bundle.namespace))
    policy, known = isolation_of(cluster, bundle.namespace)
    if policy is not None:
        zone = known and (matches(policy.primary, name) or matches(policy.secondary, name))
    else:
        zone = known and not any(matches(item.primary, name) for item in cluster.policies.isolation)
    return (
        broker.accepting
        and broker.manager == settings.manager
        and name not in cluster.policies.cordons
        and pin in (None, name)
        and (broker.non_persistent if bundle.non_persistent else broker.persistent)
        and (zone or not cluster.policies.isolation)
    )


@UNHURRIED
@given(clusters(), settings)
def test_who_is_left_keeps_every_policy(cluster: Cluster, settings: FilterSettings) -> None:
    filters = Filters(cluster, settings)
    for bundle in cluster.bundles.values():
        passed = filters.passed(bundle)
        assert all(keeps_hard_rules(cluster, settings, bundle, name) for name in passed.names)
        assert not set(passed.names) & passed.removed.keys()
        assert {*passed.names, *passed.removed} >= cluster.brokers.keys()
        assert list(passed.names) == sorted(passed.names)
        for name in cluster.brokers:
            reason = filters.can_take(bundle, name)
            assert (reason is None) == (name in passed.names)
            if reason is not None:
                assert reason.split(": ", 1) == list(passed.removed[name])


@UNHURRIED
@given(clusters(), settings)
def test_order_of_dictionaries_means_nothing(cluster: Cluster, settings: FilterSettings) -> None:
    turned = Cluster(
        dict(reversed(cluster.brokers.items())),
        dict(reversed(cluster.bundles.items())),
        Policies(
            cluster.policies.isolation,
            dict(reversed(cluster.policies.anti_affinity.items())),
            dict(reversed(cluster.policies.pins.items())),
            dict(reversed(cluster.policies.cordons.items())),
        ),
    )
    filters, other = Filters(cluster, settings), Filters(turned, settings)
    for bundle in cluster.bundles.values():
        assert filters.passed(bundle) == other.passed(bundle)
    assert contradictions(cluster) == contradictions(turned)


def apart(cluster: Cluster, namespace: str, owners: Mapping[str, str | None]) -> dict[str, int]:
    """How many other namespaces of the group each broker serves."""
    group = (cluster.policies.anti_affinity.get(namespace) or "").strip().lower()
    served: dict[str, set[str]] = {name: set() for name in cluster.brokers}
    for name, owner in owners.items():
        other = name.rpartition("/")[0]
        same = (cluster.policies.anti_affinity.get(other) or "").strip().lower() == group
        if owner in served and other != namespace and same and group:
            served[owner].add(other)
    return {name: len(item) for name, item in served.items()}


@UNHURRIED
@given(clusters(), settings, st.data())
def test_no_plan_breaks_a_policy(cluster: Cluster, settings: FilterSettings, data: st.DataObject) -> None:
    """Any moves at all: those that are permitted, done one after the other, keep hard rules and never crowd a group."""
    owned = [subject for subject in cluster.bundles.values() if subject.owner is not None]
    moves = [
        BundleMove(
            subject.name,
            subject.owner or "",
            data.draw(st.sampled_from(NAMES)),
            Reason.OVERLOADED,
            1.0,
            "",
            data.draw(st.booleans()),
        )
        for subject in owned
    ]
    kept, left = Pipeline(First(), settings).permitted(cluster, moves)
    assert sorted([*(line.bundle for line in kept), *(subject.name for subject in left)]) == sorted(
        subject.name for subject in owned
    )
    # Who comes is there, who leaves is not gone yet: the worst of both.
    arrived: dict[str, str | None] = {}
    for move in kept:
        bundle, to = cluster.bundles[move.bundle], move.destination or ""
        assert to != move.source
        assert keeps_hard_rules(cluster, settings, bundle, to)
        pinned = {bundle.name, bundle.namespace} & cluster.policies.pins.keys()
        if not settings.failure_domains and not pinned:
            before = apart(
                cluster, bundle.namespace, {name: subject.owner for name, subject in cluster.bundles.items()}
            )
            coming = apart(cluster, bundle.namespace, arrived)
            source = before.get(move.source, 0) + coming.get(move.source, 0)
            candidates = Filters(cluster, settings).passed(bundle)
            if move.source in candidates.names:
                assert max(before[to], coming[to]) <= source
        arrived[bundle.name] = to


class First:
    """The first candidate."""

    name: ClassVar[str] = "first"
    Settings: ClassVar[type[StrategySettings]] = StrategySettings

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        return Placed(bundle.name, candidates[0], "first", memory=memory)


@UNHURRIED
@given(clusters(), settings)
def test_one_placement_after_the_other_is_what_fresh_filters_say(cluster: Cluster, settings: FilterSettings) -> None:
    """What is kept from one placement to the next changes no answer."""
    pipeline = Pipeline(First(), settings)
    booked: dict[str, list[str]] = {}
    for name in sorted(cluster.bundles):
        bundle = cluster.bundles[name]
        fresh = Filters(cluster, settings, booked).passed(bundle)
        placed = pipeline.place(cluster, bundle, booked)
        assert placed.removed == fresh.removed
        assert placed.broker == (fresh.names[0] if fresh.names else None)
        if placed.broker is not None:
            load = cluster.brokers[placed.broker].load
            coming = sum(_topics(cluster.bundles[item]) for item in booked.get(placed.broker, ()))
            if load is not None and load.topics >= 0:
                own = 0 if placed.broker == bundle.owner else _topics(bundle)
                assert load.topics + coming + own <= settings.max_topics
            booked.setdefault(placed.broker, []).append(name)


def _topics(bundle: Bundle) -> int:
    return max(1, 0 if bundle.stats is None else bundle.stats.topics)


@UNHURRIED
@given(clusters())
def test_what_blocks_has_nobody(cluster: Cluster) -> None:
    """Where policies alone leave a bundle nobody, and only then, that is said."""
    well = {name: Broker(**_policy_part(broker)) for name, broker in cluster.brokers.items()}
    calm = Cluster(well, cluster.bundles, cluster.policies)
    filters = Filters(calm, FilterSettings(max_topics=10**6))
    stuck = {name for name, bundle in calm.bundles.items() if not filters.passed(bundle).names}
    result = contradictions(calm)
    if not any(item.kind == "unreadable" for item in result) and calm.brokers:
        witnesses = {item.witness for item in result if item.kind == "nobody"}
        assert witnesses <= stuck
        assert bool(stuck) == bool(witnesses)


def _policy_part(broker: Broker) -> dict[str, Any]:
    return {"name": broker.name, "persistent": broker.persistent, "non_persistent": broker.non_persistent}
