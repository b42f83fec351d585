"""weighted-move on random clusters, beside a dumb reckoning of what its moves do to the levels and the cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from math import isfinite
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.broker_load import ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.decision.dry_run import carried, nonsense
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Plan
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, NOW_MS, broker, bundle, cluster
from tests.support.uneven import check_moves, clusters, plain, shuffled

SEEDS = st.integers(0, 10**6)
MINUTE_MS = 60_000
WEIGHTS = "cpu_weight", "bandwidth_in_weight", "bandwidth_out_weight"


def shed(now: Cluster, memory: Mapping[str, Any] | None = None, can_take=None, **changes: Any) -> Plan:
    return WeightedMove(WeightedMoveSettings(**changes), can_take).plan(now, memory or {})


def served(number: int, owner: str | None, inwards: float, outwards: float) -> Bundle:
    """A bundle whose messages have 1,000 bytes each."""
    average = MessageAverage((inwards + outwards) / 1_000, 0.0, inwards, outwards, samples=10)
    stats = BundleStats(average.msg_rate_in, 0.0, inwards, outwards, topics=1)
    named = bundle(number, owner, namespace=f"t/n{number % 3}")
    return replace(named, stats=stats, averages=BundleAverages(average, average))


def use_of(traffic: Any) -> list[float]:
    """CPU in percent of a core, and kbit/s in and out, of so much traffic."""
    return [traffic.msg_throughput * 1e-6, traffic.msg_throughput_in * 0.008, traffic.msg_throughput_out * 0.008]


def exact(random: Random) -> Cluster:
    """Brokers with limits of their own that use exactly what their bundles need, and nothing for idling."""
    sizes, bundles, brokers = [0.0, 1.0, *(random.uniform(0, most) * MIB for most in (8, 40))], [], []
    for name in "abcdef"[: random.randint(2, 6)]:
        mine = random.choice([0, 3, 10, 30])
        bundles += [served(len(bundles) + n, name, random.choice(sizes), random.choice(sizes)) for n in range(mine)]
        traffic = [each.averages.short for each in bundles if each.owner == name]
        inwards, outwards = (sum(getattr(each, f"msg_throughput_{way}") for each in traffic) for way in ("in", "out"))
        load = broker(name, 0.0, bytes_per_s=inwards, msg_per_s=(inwards + outwards) / 1_000).load
        load = replace(load, msg_throughput_out=outwards)
        limits = random.choice([200.0, 400.0, 2e3]), random.choice([1e6, 4e6]), random.choice([1e6, 4e6])
        cpu, *bandwidth = (ResourceUsage(use, limit) for use, limit in zip(use_of(load), limits, strict=True))
        load = replace(load, cpu=cpu, bandwidth_in=bandwidth[0], bandwidth_out=bandwidth[1])
        brokers.append(replace(broker(name, 0.0), load=load))
    return cluster(brokers, bundles)


class Reckoning:
    """Levels and costs by their definition, from the bundles that are where; half the weight is like twice the limit."""

    def __init__(self, now: Cluster, weights: list[float]) -> None:
        self.use = {name: use_of(each.load) for name, each in now.brokers.items()}
        self.limits = {}
        for name, each in now.brokers.items():
            resources = zip((each.load.cpu, each.load.bandwidth_in, each.load.bandwidth_out), weights, strict=True)
            self.limits[name] = [resource.limit * max(weights) / weight for resource, weight in resources]
        whole = [[sum(row[part] for row in table.values()) for part in range(3)] for table in (self.use, self.limits)]
        levels = [use / limit for use, limit in zip(*whole, strict=True)]
        self.perfect = sum(level**8 for level in levels) ** (1 / 8)
        scarcest = levels.index(max(levels))
        mean = whole[1][scarcest] / len(self.limits)
        self.capacity = {name: limits[scarcest] / mean for name, limits in self.limits.items()}

    def level(self, name: str) -> float:
        parts = [use / limit / self.perfect for use, limit in zip(self.use[name], self.limits[name], strict=True)]
        return sum(part**8 for part in parts) ** (1 / 8)

    def cost(self) -> float:
        return sum(capacity * self.level(name) ** 4 / 12 for name, capacity in self.capacity.items())

    def move(self, each: Bundle, source: str, destination: str) -> None:
        for name, sign in ((source, -1), (destination, 1)):
            more = use_of(each.averages.short)
            self.use[name] = [use + sign * part for use, part in zip(self.use[name], more, strict=True)]


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_every_step_lowers_the_cost_and_the_larger_level_of_two_within_the_budget(seed: int):
    random = Random(seed)
    now, weights = exact(random), [random.choice([1.0, 1.0, 0.3]) for _ in range(3)]
    most, percent, least = random.choice([2, 5, 500]), random.choice([5.0, 65.0]), random.choice([1.0, 4.0, 30.0])
    rules = {"max_moves": most, "max_moved_percent": percent, "least_gain_percent": least, "payback_min": 0.5}
    plan = shed(now, **rules, **dict(zip(WEIGHTS, weights, strict=True)))
    if not plan.moves:
        return
    reckoning = Reckoning(now, weights)
    assert plan.stats["cost"] == pytest.approx(reckoning.cost())
    whole, traffic, moves = sum(each.load.msg_throughput for each in now.brokers.values()), 0.0, list(plan.moves)
    while moves:
        assert traffic < percent / 100 * whole  # the step that reaches it is the last
        step = [moves.pop(0) for _ in range(1 + (len(moves) > 1 and moves[1].swap))]
        ends, cost = [step[0].source, str(step[0].destination)], reckoning.cost()
        before = reckoning.level(ends[0])
        for move in step:
            assert sorted([move.source, str(move.destination)]) == sorted(ends)
            reckoning.move(now.bundles[move.bundle], move.source, str(move.destination))
        size = sum(now.bundles[move.bundle].averages.short.msg_throughput for move in step)
        traffic += size
        assert max(map(reckoning.level, ends)) < before + 1e-6
        assert cost - reckoning.cost() > least / 100 * size / whole * len(now.brokers) - 1e-6
    assert plan.stats["cost_after"] == pytest.approx(reckoning.cost())
    assert len(plan.moves) <= most


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_no_bundle_comes_back_within_the_grace(seed: int):
    """Loads jump as they like, and nobody but its memory says what was moved."""
    random = Random(seed)
    names, grace_s = "abcd"[: random.randint(2, 4)], random.choice([600, 1_800])
    owners, memory = [random.choice(names) for _ in range(24)], {}
    gone: dict[tuple[str, str], int] = {}
    for minute in range(45):
        sizes = [random.choice([0.1, 2, 8, 20]) * MIB for _ in owners]
        bundles = [served(number, owner, sizes[number], 0.0) for number, owner in enumerate(owners)]
        uses = {name: sum(size for size, owner in zip(sizes, owners, strict=True) if owner == name) for name in names}
        brokers = [broker(name, min(2.0, use / (200 * MIB)), bytes_per_s=use) for name, use in uses.items()]
        now = cluster(brokers, bundles, now_ms=NOW_MS + minute * MINUTE_MS)
        plan = shed(now, memory, payback_min=0, grace_s=grace_s)
        memory = carried("shedding", "weighted-move", plan.memory)
        for move in plan.moves:
            assert now.now_ms - gone.get((move.bundle, str(move.destination)), -now.now_ms * 9) > grace_s * 1_000
            gone[move.bundle, move.source] = now.now_ms
            owners[list(now.bundles).index(move.bundle)] = str(move.destination)


def decisions(now: Cluster, count: int = 3) -> Iterator[tuple[Cluster, Mapping[str, Any], Plan]]:
    """Decisions in a row; memory goes through JSON."""
    memory: Mapping[str, Any] = {}
    for minute in range(count):
        seen = replace(now, now_ms=now.now_ms + minute * MINUTE_MS)
        plan = shed(seen, memory, payback_min=0.5)
        yield seen, memory, plan
        memory = json.loads(json.dumps(carried("shedding", "weighted-move", plan.memory), allow_nan=False))


@given(clusters(), SEEDS)
@settings(max_examples=150, deadline=None)
def test_sound_and_the_same_in_any_order_and_through_json(now: Cluster, seed: int):
    for seen, memory, plan in decisions(now):
        check_moves(seen, plan, upstream=False)
        assert nonsense(seen, plan) is None
        again = shed(shuffled(seen, seed), json.loads(json.dumps(memory)), payback_min=0.5)
        assert plain(again) == plain(plan)


JUNK = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, -1, 1e-300, 1e30, 10**40]) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["broker-a", "x"]), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value, with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@given(clusters(), st.data())
@settings(max_examples=200, deadline=None)
def test_memory_of_anybody_is_no_danger(now: Cluster, data: st.DataObject):
    *_, (_, _, last) = decisions(now)
    memory = json.loads(json.dumps(dict(last.memory)))
    for _ in range(3):
        container, key = data.draw(st.sampled_from(list(places(memory))))
        container[key] = data.draw(JUNK)
    pins = {name: "broker-a" for number, name in enumerate(sorted(now.bundles)) if number % 4 == 0}
    later = replace(now, policies=replace(now.policies, pins=pins), now_ms=now.now_ms + 3 * MINUTE_MS)

    def can_take(each: Bundle, name: str) -> str | None:
        return "no" if (ord(each.name[-1]) + ord(name[-1])) % 3 == 0 else None

    for known in (memory, {data.draw(st.sampled_from(sorted(memory))): data.draw(JUNK)}):
        plan = shed(later, known, can_take, payback_min=0, max_moves=3)
        check_moves(later, plan, upstream=False)
        assert len(plan.moves) <= 3
        assert not [move for move in plan.moves if can_take(now.bundles[move.bundle], str(move.destination))]
        check_words(plan)
        carried("shedding", "weighted-move", plan.memory)


def check_words(plan: Plan) -> None:
    """No figure that is shown is endless, or none; what a broker reported is shown as it is."""
    assert all(map(isfinite, [*plan.scores.values(), *plan.stats.values()]))
    words = [plan.why, *(each.why for each in (*plan.moves, *plan.left, *plan.splits))]
    assert not [why for why in words if re.search(r"\b(nan|inf)\b", why) and not why.startswith("its usage is")]


@given(SEEDS)
@settings(max_examples=200, deadline=None)
def test_extreme_figures_are_figures(seed: int):
    random = Random(seed)

    def figure() -> float:
        return random.choice([0.0, 1e-320, 1e-30, 1.0, 1e30, *[random.uniform(0, 1e6)] * 5])

    brokers, placer = [], WeightedMove(WeightedMoveSettings())
    for name in "abc"[: random.randint(2, 3)]:
        cpu, inwards, outwards, memory = (ResourceUsage(figure(), figure()) for _ in range(4))
        load = replace(broker(name, 0.5, bytes_per_s=figure(), msg_per_s=figure()).load, cpu=cpu, direct_memory=memory)
        brokers.append(replace(broker(name, 0.5), load=replace(load, bandwidth_in=inwards, bandwidth_out=outwards)))
    bundles = [served(number, random.choice("ab"), figure(), figure()) for number in range(random.randint(0, 20))]
    for seen, _, plan in decisions(cluster(brokers, bundles)):
        check_words(plan)
        assert nonsense(seen, plan) is None
        placed = placer.place(seen, served(99, None, figure(), 0), seen.broker_names, {}, {})
        assert all(map(isfinite, placed.scores.values()))


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_a_placement_is_the_best_of_all_in_pairs(seed: int):
    random = Random(seed)
    now, placer = exact(random), WeightedMove(WeightedMoveSettings())
    new = [
        served(number, None, random.choice([0.0, 1.0, random.uniform(0, 80)]) * MIB, 0.0) for number in range(900, 908)
    ]
    base = replace(now, bundles={**now.bundles, **{each.name: each for each in new}})
    booked = {name: [each.name for each in random.sample(new[1:], random.randint(0, 3))] for name in now.brokers}
    best = set(placer.place(base, new[0], base.broker_names, booked, {}).best)
    assert best
    for pair in combinations(base.broker_names, 2):
        assert best & set(pair) in (set(), set(placer.place(base, new[0], pair, booked, {}).best))
