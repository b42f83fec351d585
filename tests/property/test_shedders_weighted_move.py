"""weighted-move on random clusters, beside a dumb reckoning of what its steps do."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.broker_load import ResourceUsage
from loaddata.model.bundle_load import BundleAverages, MessageAverage
from shedders.decision.dry_run import carried, nonsense
from shedders.model.cluster import Bundle, Cluster
from shedders.weighted_move.loads import BrokerLevel, BundleDemand, Use
from shedders.weighted_move.steps import QUARTER, StepRules, Steps, evens
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, broker, bundle, cluster
from tests.support.uneven import check_moves, clusters, plain, shuffled

RETURN_MS = 1_800_000


def strategy(**changes: Any) -> WeightedMove:
    return WeightedMove(WeightedMoveSettings(**changes))


@given(clusters(), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_sound_and_the_same_in_any_order(cluster: Cluster, seed: int):
    memory: dict[str, Any] = {}
    for number in range(3):
        now = replace(cluster, now_ms=cluster.now_ms + number * 60_000)
        plan = strategy(hits=2).plan(now, memory)
        check_moves(now, plan, upstream=False)
        assert nonsense(now, plan) is None
        assert plain(strategy(hits=2).plan(shuffled(now, seed), memory)) == plain(plan)
        memory = carried("shedding", "weighted-move", plan.memory)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**40) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["broker-a", "kinds", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
_KEYS = ["asked", "at_ms", "came", "direct_memory", "doubts", "habits", "large", "touched", "watched"]


@given(clusters(), st.dictionaries(st.sampled_from(_KEYS), _JUNK))
@settings(max_examples=150, deadline=None)
def test_memory_of_anybody(cluster: Cluster, memory: dict[str, Any]):
    plan = strategy().plan(cluster, memory)
    check_moves(cluster, plan, upstream=False)
    carried("shedding", "weighted-move", plan.memory)


def sides(random: Random) -> tuple[list[BrokerLevel], dict[str, list[BundleDemand]]]:
    """Brokers with limits of their own, and bundles that are a part of what they use."""
    result, cargo = [], {}
    for name in "abcdef"[: random.randint(2, 6)]:
        limits = [random.choice([100.0, 200.0, 400.0]) for _ in range(4)]
        bundles = []
        for place in range(random.randint(0, 12)):
            use = tuple(random.choice([0.0, 1.0, random.uniform(0, 40)]) for _ in range(4))
            key = f"t/{name}/0x{place:08x}_0x{place + 1:08x}"
            size = max(item / limit for item, limit in zip(use, limits, strict=True))
            bundles.append(BundleDemand(size, Bundle(key, name), use, size * random.uniform(0.5, 2), 1.0))
        used = tuple(sum(bundle.use[part] for bundle in bundles) + random.uniform(0, 5) for part in range(4))
        side = BrokerLevel(
            name, used, tuple(1 / limit for limit in limits), random.uniform(1, 4), random.choice([0.5, 1.0, 2.0])
        )
        side.takes = random.random() > 0.1
        side.over, side.under = side.level > 1.05, side.level < 0.9
        side.aim = 1.02
        result.append(side)
        cargo[name] = sorted(
            (bundle for bundle in bundles if bundle.size > 0), key=lambda bundle: (bundle.size, bundle.bundle.name)
        )
    return result, cargo


def level(side: BrokerLevel, use: list[float]) -> float:
    return max(item * inverse for item, inverse in zip(use, side.inverse, strict=True)) * side.scale


@given(st.integers(0, 10**6))
@settings(max_examples=400, deadline=None)
def test_each_step_lowers_the_larger_of_two(seed: int):
    """Reckoned anew from the bundles that are where: no maximum is raised, no more goes than the gap can take."""
    result, cargo = sides(Random(seed))
    uses = {side.name: list(side.use) for side in result}
    rules = StepRules(0.02, 0.08, 0.01, 3.0, 20)
    steps = Steps(result, rules, lambda side: cargo[side.name], lambda _bundle, _side: None)
    taken = steps.run()
    by_name = {side.name: side for side in result}
    highest = max(level(side, uses[side.name]) for side in result)
    moved: set[str] = set()
    place = 0
    while place < len(taken):
        group = taken[place : place + (2 if place + 1 < len(taken) and taken[place + 1].back else 1)]
        place += len(group)
        source, side = group[0].source, group[0].destination
        before = level(source, uses[source.name]), level(side, uses[side.name])
        for step in group:
            assert step.cargo.bundle.name not in moved
            moved.add(step.cargo.bundle.name)
            assert step.destination is not step.source
            for part in range(4):
                uses[step.source.name][part] -= step.cargo.use[part]
                uses[step.destination.name][part] += step.cargo.use[part]
        after = level(source, uses[source.name]), level(side, uses[side.name])
        assert max(after) < before[0] + 1e-9
        assert after[1] <= after[0] + 1e-9 or before[0] - max(after) > QUARTER * (before[0] - before[1]) - 1e-9
        gain = source.capacity * (before[0] ** 2 - after[0] ** 2) - side.capacity * (after[1] ** 2 - before[1] ** 2)
        churn = sum(step.cargo.churn + rules.move_cost for step in group)
        assert gain / churn > rules.least - 1e-9
        assert side.takes
        now = max(level(item, uses[item.name]) for item in by_name.values())
        assert now <= highest + 1e-9
        highest = now
    assert len(taken) <= rules.moves + 1


def first(use: Use, count: int) -> Use:
    """A use of the first resources alone."""
    return tuple(part if place < count else 0.0 for place, part in enumerate(use))


@given(st.integers(0, 10**6))
@settings(max_examples=800, deadline=None)
def test_first_step_is_the_best_of_all_tried_one_by_one(seed: int):
    """Bounds and ranks that are computed only when needed change nothing, whatever filters refuse and going back costs."""
    random = Random(seed)
    result, cargo = sides(random)
    # With one resource, and churn in proportion to it, bounds are close to the values.
    parts, ratio, scale = random.choice([1, 4]), random.choice([0.1, 1.0]), random.uniform(1, 4)
    busy = random.random() > 0.1
    result = [replace(side, scale=scale, use=first(side.use, parts)) for side in result[:4]]
    for side in result:
        side.over, side.under, side.aim = side.level > 1.05, False, 1.02
        cargo[side.name] = [
            demand._replace(
                use=tuple(part * ratio for part in first(demand.use, parts)),
                churn=demand.use[0] * ratio / 200 * scale * busy
                if parts == 1
                else demand.churn * random.choice([0.0, 0.2, 1.0]),
                young=random.random() < 0.1,
            )
            for demand in cargo[side.name]
        ]
    pairs = {
        (demand.bundle.name, side.name): random.random()
        for some in cargo.values()
        for demand in some
        for side in result
    }
    counts = {side.name: Counter({f"t/{name}": random.randint(0, 3) for name in "abcdef"}) for side in result}
    rules = StepRules(0.02, random.choice([0.08, 0.8, 2.0, 4.0]), random.choice([0.01, 0.1]), 3.0, 1)

    def refused(bundle: Bundle, side: BrokerLevel) -> str | None:
        return "refused" if pairs[bundle.name, side.name] < 0.2 else None

    def backs(bundle: Bundle, side: BrokerLevel) -> float:
        return 3.0 if pairs[bundle.name, side.name] > 0.8 else 1.0

    def rank(source: BrokerLevel, side: BrokerLevel, demand: BundleDemand) -> float:
        source_after = level(source, [mine - part for mine, part in zip(source.use, demand.use, strict=True)])
        destination_after = level(side, [theirs + part for theirs, part in zip(side.use, demand.use, strict=True)])
        fell, top = source.level - max(source_after, destination_after), source.level - side.level
        if (
            not fell > 0
            or (destination_after > source_after and fell < QUARTER * top)
            or (demand.young and not source.urgent)
        ):
            return 0.0
        gain = source.capacity * (source.level**2 - source_after**2) - side.capacity * (
            destination_after**2 - side.level**2
        )
        value = gain / (demand.churn + rules.move_cost)
        value /= backs(demand.bundle, side) if value >= rules.least else 1.0
        space = demand.bundle.namespace
        return value * evens(counts[source.name][space] - 1, counts[side.name][space]) if value >= rules.least else 0.0

    best = None
    for source in sorted((side for side in result if side.over), key=lambda side: (-side.level, side.name)):
        ranked = [
            (-value, demand.bundle.name, side.name)
            for demand in cargo[source.name]
            for side in result
            if side is not source
            and side.takes
            and source.level - side.level > rules.least / 2
            and (value := rank(source, side, demand)) > 0
            and refused(demand.bundle, side) is None
        ]
        if ranked:
            best = min(ranked)
            break
    lists = {name: list(some) for name, some in cargo.items()}
    steps = Steps(
        result, rules, lambda side: lists[side.name], refused, backs=backs, count=lambda name: Counter(counts[name])
    )
    taken = [(step.cargo.bundle.name, step.destination.name) for step in steps.run()]
    assert taken == ([] if best is None else [best[1:]])


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_bundle_comes_back_within_half_an_hour(seed: int):
    """Loads jump as they like, and nobody but its memory tells it what was moved."""
    random = Random(seed)
    names = "abcd"[: random.randint(2, 4)]
    owners = {number: random.choice(names) for number in range(24)}
    memory: dict[str, Any] = {}
    left: dict[str, list[tuple[int, str]]] = {}
    for turn in range(45):
        now_ms = 1_000_000 + turn * 60_000
        sizes = {number: random.choice([1.0, 2.0, 8.0, 20.0]) * MIB for number in owners}
        bundles = [
            replace(
                bundle(number, owner, bytes_per_s=sizes[number]),
                averages=BundleAverages(*[MessageAverage(0.0, 0.0, sizes[number], 0.0, samples=10)] * 2),
            )
            for number, owner in owners.items()
        ]
        loads = {name: sum(sizes[item] for item, owner in owners.items() if owner == name) for name in names}
        brokers = [broker(name, min(2.0, loads[name] / (200 * MIB)), bytes_per_s=loads[name]) for name in names]
        plan = strategy(hits=1, noise_factor=0).plan(cluster(brokers, bundles, now_ms=now_ms), memory)
        memory = carried("shedding", "weighted-move", plan.memory)
        for move in plan.moves:
            # A broker that has just been found slow may return what no other one can take.
            assert move.source in plan.memory["doubts"].get("slow", {}) or all(
                now_ms - at_ms > RETURN_MS for at_ms, name in left.get(move.bundle, []) if name == move.destination
            )
            left.setdefault(move.bundle, []).append((now_ms, move.source))
            owners[int(move.bundle[-8:], 16) - 1] = str(move.destination)


def _left(cluster: Cluster, bundle: Bundle, names: list[str], booked: dict[str, list[str]]) -> tuple[float, list[str]]:
    placed = strategy().place(cluster, bundle, names, booked, {})
    share = re.search(r"([0-9.]+) % of its most used resource", placed.why)
    assert share is not None
    return float(share[1]) / 100, list(placed.best)


@given(st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_placement_is_the_best_of_all_asked_one_by_one(seed: int):
    random = Random(seed)
    names = [f"b{number}" for number in range(random.randint(1, 7))]
    brokers = []
    for name in names:
        plain = broker(name, random.choice([0.0, 0.3, random.random()]), bytes_per_s=random.uniform(0, 100) * MIB)
        assert plain.load is not None
        limit = random.choice([100.0, 200.0])
        brokers.append(replace(plain, load=replace(plain.load, cpu=ResourceUsage(plain.load.cpu.usage, limit))))
    bundles = [
        bundle(number, None, bytes_per_s=random.choice([0.0, 1.0, random.uniform(0, 80)]) * MIB) for number in range(8)
    ]
    base = cluster(brokers, bundles)
    booked = {name: [item.name for item in random.sample(bundles[1:], random.randint(0, 3))] for name in names[:3]}
    least, best = _left(base, bundles[0], names, booked)
    alone = {name: _left(base, bundles[0], [name], booked)[0] for name in names}
    assert least == min(alone.values())
    assert set(best) <= {name for name, item in alone.items() if item == least}
