"""Random clusters for the shedders of the modular manager, and what every plan of theirs has to keep to."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Broker, Bundle, Cluster, Policies, RecentMoves
from shedders.model.plan import Label, Plan
from shedders.shedding.draft import bytes_of, messages_of
from tests.support.loads import NOW_MS, broker

NAMES = [f"broker-{letter}" for letter in "abcdef"]
SIZES = (100.0, 1_000.0, 40_000.0)
ROUND = (0.0, 1.0, 50.0, 1_000.0)


def clusters() -> st.SearchStrategy[Cluster]:
    """Clusters by number: drawn figure by figure they take most of a test's time."""
    return st.integers(0, 1_000_000).map(uneven)


def uneven(seed: int) -> Cluster:
    """Two to six brokers whose usage follows their traffic, more or less; a few special bundles and brokers."""
    random = Random(seed)
    names = NAMES[: random.randint(2, len(NAMES))]
    bundles: dict[str, Bundle] = {}
    brokers: dict[str, Broker] = {}
    size = random.choice(SIZES)
    for name in names:
        rates = [
            random.choice(ROUND) if _seldom(random, 3) else random.uniform(0, 5_000)
            for _ in range(random.randint(0, 8))
        ]
        for rate in rates:
            key = f"t/n{len(bundles) % 3}/0x{len(bundles):08x}_0x{len(bundles) + 1:08x}"
            short = MessageAverage(rate, 0.0, rate * size, 0.0, samples=10)
            bundles[key] = Bundle(
                key,
                name,
                in_flight=_seldom(random, 10),
                stats=BundleStats(rate, 0.0, rate * size, 0.0, topics=1),
                averages=BundleAverages(short, short),
            )
        total = sum(rates)
        brokers[name] = broker(
            name,
            min(0.05 + total / 12_000 * random.choice([0.5, 1.0, 1.0, 2.0]), 3.0),
            msg_per_s=total,
            bytes_per_s=total * size,
            at_ms=random.choice([0, NOW_MS]),
            accepting=not _seldom(random, 10),
        )
        if _seldom(random, 10):
            brokers[name] = replace(brokers[name], load_age_s=9_999.0)
    return Cluster(
        brokers,
        bundles,
        Policies(
            pins=dict.fromkeys(_some(random, bundles), names[0]),
            cordons=dict.fromkeys(random.sample(names, random.randint(0, 1)), "disk"),
            excluded=random.choice([frozenset(), frozenset({"t/n1"})]),
        ),
        RecentMoves(bundles=dict.fromkeys(_some(random, bundles), 60.0)),
        now_ms=NOW_MS,
    )


def _seldom(random: Random, one_in: int) -> bool:
    return random.randrange(one_in) == 0


def _some(random: Random, bundles: Mapping[str, Bundle]) -> list[str]:
    return random.sample(sorted(bundles), min(len(bundles), random.randint(0, 3)))


def shuffled(cluster: Cluster, seed: int) -> Cluster:
    """The same cluster with all its dictionaries in another order."""
    random = Random(seed)

    def mixed(table: Mapping[str, Any]) -> dict[str, Any]:
        items = list(table.items())
        random.shuffle(items)
        return dict(items)

    policies = replace(cluster.policies, pins=mixed(cluster.policies.pins), cordons=mixed(cluster.policies.cordons))
    recent = replace(cluster.recent, bundles=mixed(cluster.recent.bundles))
    return replace(
        cluster, brokers=mixed(cluster.brokers), bundles=mixed(cluster.bundles), policies=policies, recent=recent
    )


def check_moves(cluster: Cluster, plan: Plan, *, upstream: bool) -> None:
    """Every bundle once, from its owner to somebody else who takes bundles; none that has to stay."""
    seen: set[str] = set()
    for move in plan.moves:
        bundle = cluster.bundles[move.bundle]
        assert bundle.owner == move.source
        assert not bundle.in_flight
        assert move.destination != move.source
        assert move.bundle not in seen
        assert move.bundle not in cluster.policies.pins
        assert bundle.namespace not in cluster.policies.excluded
        assert move.source in plan.scores
        seen.add(move.bundle)
        if not upstream:
            assert move.bundle not in cluster.recent.bundles
            assert move.load > 0
            assert cluster.brokers[move.destination].accepting
            assert move.destination not in cluster.policies.cordons
            assert cluster.brokers[move.destination].load_age_s < 1_800
            assert move.load in (bytes_of(bundle.averages.short), messages_of(bundle.averages.short))
    assert plan.label == (Label.SUCCESS if plan.moves else Label.SKIP)
    assert not {left.name for left in plan.left} & seen


def check_loads(
    cluster: Cluster, plan: Plan, load_of: Callable[[str], float], weight_of: Callable[[str], float]
) -> None:
    """After the moves, in order: nothing is lost, and no destination stands above where any of its sources stood before.

    Args:
        load_of: A broker's load as the strategy sees it.
        weight_of: What a bundle adds to the load of a broker, in the same measure.
    """
    loads = {name: load_of(name) for name in plan.scores}
    before = dict(loads)
    for move in plan.moves:
        weight = weight_of(move.bundle)
        loads[move.source] -= weight
        loads[move.destination] = loads[move.destination or ""] + weight
    hair = 1e-6 * (1 + max(before.values(), default=0.0))
    assert abs(sum(loads.values()) - sum(before.values())) < hair
    for move in plan.moves:
        assert loads[move.destination or ""] <= before[move.source] + hair
        assert loads[move.source] > -hair


def plain(plan: Plan) -> tuple[Any, ...]:
    """All of a plan, comparable."""
    return (
        plan.label,
        plan.reason,
        plan.why,
        list(plan.moves),
        list(plan.left),
        dict(plan.scores),
        dict(plan.stats),
        repr(plan.memory),
    )
