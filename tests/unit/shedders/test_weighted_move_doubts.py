"""Brokers that weighted-move does not believe: slow ones, liars, and those on which what was sent does not show."""

from dataclasses import replace

import pytest

from loaddata.model.broker_load import ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.model.cluster import Cluster
from shedders.model.plan import Plan
from shedders.weighted_move.doubt import UNMOVED
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, broker, bundle, cluster, left

NAMES = "abcdefgh"
EACH = 10


def world(factor: float = 1.0, *, lying: float = 1.0, number: int = 0) -> Cluster:
    """Eight brokers with 50 % CPU; a does (or says) only so much of what it is asked."""
    brokers, bundles = [], []
    for name in NAMES:
        part = factor if name == "a" else 1.0
        said = lying if name == "a" else 1.0
        for place in range(EACH):
            size = (4.0 + place % 3) * MIB
            long = MessageAverage(0.0, 0.0, size * said, 0.0, samples=1_000)
            now = MessageAverage(0.0, 0.0, size * part * said, 0.0, samples=10)
            key = len(bundles)
            bundles.append(
                replace(
                    bundle(key, name),
                    stats=BundleStats(0.0, 0.0, size * part * said, 0.0, topics=1),
                    averages=BundleAverages(now, long),
                )
            )
        mine = sum(bundle.stats.msg_throughput_in for bundle in bundles[-EACH:])
        brokers.append(broker(name, 0.5 * part * said, bytes_per_s=mine))
    return cluster(brokers, bundles, now_ms=1_000_000 + number * 60_000)


def decided(*worlds: Cluster) -> list[Plan]:
    plans: list[Plan] = []
    for number, world in enumerate(worlds):
        memory = plans[-1].memory if plans else {}
        now = replace(world, now_ms=1_000_000 + number * 60_000)
        plans.append(WeightedMove(WeightedMoveSettings()).plan(now, memory))
    return plans


def test_a_slow_broker_that_looks_idle_gets_nothing_and_gives_a_part_to_find_out():
    plans = decided(*[world()] * 3, *[world(0.8)] * 3)
    assert not any(plan.moves for plan in plans[:5])
    assert {move.source for move in plans[5].moves} == {"a"}
    share = sum(move.load for move in plans[5].moves) / sum(
        bundle.stats.msg_throughput for bundle in world(0.8).bundles.values() if bundle.owner == "a"
    )
    assert 0.15 < share < 0.35
    assert left(plans[5])["a"] == "doubted"
    assert "0.80 of the usual" in next(bundle.why for bundle in plans[5].left if bundle.name == "a")


def test_a_slow_broker_that_stays_as_busy_is_at_its_end():
    plans = decided(*[world()] * 3, *[world(0.8)] * 3)
    gone = {move.bundle: move.destination for move in plans[-1].moves}
    strained = world(0.8)
    strained = replace(
        strained,
        bundles={
            name: replace(bundle, owner=gone.get(name, bundle.owner)) for name, bundle in strained.bundles.items()
        },
        now_ms=1_000_000 + 6 * 60_000,
    )
    plan = WeightedMove(WeightedMoveSettings()).plan(strained, plans[-1].memory)
    assert next(each.reason for each in plan.left if each.name == "a") == "slow"
    assert plan.scores["a"] > 1.0
    assert {move.source for move in plan.moves} <= {"a"}


def test_liars_are_neither_filled_nor_emptied():
    for factor in (0.33, 1.5):
        plans = decided(*[world()] * 3, *[world(lying=factor)] * 12)
        assert not any(plan.moves for plan in plans)
        assert left(plans[-1])["a"] == "doubted"


def test_a_liar_is_no_part_of_the_average():
    plan = decided(*[world()] * 3, *[world(lying=0.33)] * 2)[-1]
    assert plan.stats["level"] == pytest.approx(0.5)
    assert plan.stats["doubted"] == 1.0


def strained(level: float) -> Cluster:
    """A world in which a reports this level."""
    crowded = world()
    busy = broker("a", level, bytes_per_s=crowded.brokers["a"].load.msg_throughput_in)
    return replace(crowded, brokers={**crowded.brokers, "a": busy})


def test_an_overloaded_broker_is_relieved_in_spite_of_a_doubt():
    """What was moved there did not show, and neither did a probe: it is full."""
    doubts = {"kinds": {"a": UNMOVED}, "hits": {"a": 4}, "age_s": {"a": 60.0}, "calm": dict.fromkeys(NAMES, 1.0)}
    calm, *_ = decided(strained(0.93))
    later = replace(strained(0.93), now_ms=1_060_000)
    plan = WeightedMove(WeightedMoveSettings()).plan(later, {**calm.memory, "doubts": doubts})
    assert "a" in {move.source for move in plan.moves}


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_broker_whose_network_is_full_is_overloaded_whatever_its_weight(weight: float):
    """It is at its limit by what it receives, and its pulse has fallen with it."""
    busy = strained(0.5)
    load = replace(busy.brokers["a"].load, bandwidth_in=ResourceUsage(100.0, 100.0))
    brokers = {**busy.brokers, "a": replace(busy.brokers["a"], load=load)}
    settings, plan = WeightedMoveSettings(bandwidth_in_weight=weight), None
    for number in range(6):
        bundles = world(1.0 if number < 2 else 0.7).bundles
        now = replace(busy, brokers=brokers, bundles=bundles, now_ms=1_000_000 + number * 60_000)
        plan = WeightedMove(settings).plan(now, plan.memory if plan else {})
    assert "kinds" not in plan.memory["doubts"]


# --- CPU ---------------------------------------------------------------------------------------------------------------


def load(idle: float, rate: float, size: float, limit: float = 100.0):
    load = broker("a", 0.0, bytes_per_s=size, msg_per_s=rate).load
    return replace(load, cpu=ResourceUsage(idle * limit + 0.002 * rate + 1e-6 * size, limit))
