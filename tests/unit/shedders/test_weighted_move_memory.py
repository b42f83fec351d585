"""Direct memory in `weighted-move`: what bundles have of it, when it counts, and what happens where it does not follow moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from loaddata.model.broker_load import ResourceUsage
from shedders.model.cluster import Cluster
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, broker, bundle, cluster, left

CACHED_S = {"late/n": 20.0, "quick/n": 0.5}
LIMIT_MIB = 1_000.0


def caches(rows: Mapping[str, Sequence[tuple[str, float]]], *, idle: float = 0.0, limit: float = LIMIT_MIB) -> Cluster:
    """Brokers with bundles of these tenants and MiB a second, each cached as long as its tenant's consumers are late."""
    served, brokers = [], []
    for name, bundles in rows.items():
        for tenant, size in bundles:
            served.append(bundle(len(served), name, bytes_per_s=size * MIB, msg_per_s=size, namespace=tenant))
        cached = idle * limit + sum(size * CACHED_S[tenant] for tenant, size in bundles)
        whole = sum(size for _, size in bundles)
        plain = broker(name, whole / 100, bytes_per_s=whole * MIB, msg_per_s=whole)
        memory = ResourceUsage(min(limit, cached), limit)
        brokers.append(replace(plain, load=replace(plain.load, direct_memory=memory)))
    return cluster(brokers, served)


LATE, QUICK = [("late/n", 4.0)], [("quick/n", 10.0)]
APART = caches(
    {"a": LATE * 10 + QUICK * 1, "b": LATE * 2 + QUICK * 4, "c": LATE * 1 + QUICK * 4, "d": LATE * 3 + QUICK * 3}
)
"""Traffic is 50, 48, 44 and 42 MiB a second; of direct memory they use 81, 18, 10 and 26 %."""


def shed(now: Cluster, memory: Mapping[str, Any] | None = None, **changes: Any):
    return WeightedMove(WeightedMoveSettings(**changes)).plan(now, memory or {})


# --- when it counts ---------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_full_of_caches_gives_late_bundles():
    plan = shed(APART)
    assert plan.moves
    assert {(move.source, move.bundle.partition("/")[0]) for move in plan.moves} == {("a", "late")}
    assert "mainly direct memory" in plan.moves[0].why
    # Until it has been seen to follow, no more than a quarter goes.
    assert 0.15 < sum(20 * move.load / MIB for move in plan.moves) / 805 <= 0.35


def test_once_it_has_followed_the_rest_goes():
    first = shed(APART)
    after = moved_to(APART, first.moves, first.memory)
    second = shed(after, first.memory)
    third = shed(moved_to(after, second.moves, second.memory), second.memory)
    assert any(move.source == "a" for move in (*second.moves, *third.moves))


@pytest.mark.parametrize(
    ("now", "weight"),
    [
        (caches({"a": LATE * 4 + QUICK, "b": LATE * 2 + QUICK, "c": LATE * 2 + QUICK}), 1.0),  # at most 33 % of a limit
        (APART, 0.0),
    ],
)
def test_where_it_is_not_scarce_or_has_no_weight_it_does_not_count(now: Cluster, weight: float):
    plan = shed(now, direct_memory_weight=weight)
    assert "direct_memory" not in plan.memory
    assert not any("direct memory" in move.why for move in plan.moves)


def test_a_figure_that_is_the_same_however_much_is_sent_does_not_count():
    """A high-water mark: full everywhere, although one broker has four times the traffic."""
    now = caches({"a": QUICK * 8, "b": QUICK * 2, "c": QUICK * 2}, idle=0.9)
    plan = shed(now)
    assert left(plan)["b"] == "memory-does-not-follow"
    assert {move.source for move in plan.moves} == {"a"}
    assert "bandwidth in" in plan.moves[0].why or "CPU" in plan.moves[0].why


# --- where it does not follow -----------------------------------------------------------------------------------------------


def moved_to(now: Cluster, moves: Sequence[Any], memory: Mapping[str, Any], *, follows: bool = True) -> Cluster:
    """The cluster a minute later; if memory does not follow, no broker's becomes less."""
    bundles = dict(now.bundles)
    for move in moves:
        bundles[move.bundle] = replace(bundles[move.bundle], owner=move.destination)
    rows: dict[str, list[tuple[str, float]]] = {name: [] for name in now.brokers}
    for each in bundles.values():
        rows[each.owner or ""].append((each.namespace, each.stats.msg_throughput_in / MIB if each.stats else 0.0))
    fresh = caches(rows)
    brokers = dict(fresh.brokers)
    if not follows:
        for name, before in now.brokers.items():
            load, old = fresh.brokers[name].load, before.load
            assert load is not None
            assert old is not None
            used = max(load.direct_memory.usage, old.direct_memory.usage)
            brokers[name] = replace(brokers[name], load=replace(load, direct_memory=ResourceUsage(used, LIMIT_MIB)))
    return replace(fresh, bundles=bundles, brokers=brokers, now_ms=now.now_ms + 60_000)


def test_moves_stop_where_memory_does_not_follow():
    now, memory, moves = APART, {}, []
    for _ in range(60):
        plan = shed(now, memory)
        moves += plan.moves
        memory = plan.memory
        now = moved_to(now, plan.moves, memory, follows=False)
    assert left(plan)["a"] == "memory-does-not-follow"
    assert "it did not fall when load was moved away" in next(each.why for each in plan.left if each.name == "a")
    assert len({move.bundle for move in moves}) == len(moves), "nothing went back and forth"
    assert sum(move.source == "a" for move in moves) < 9
