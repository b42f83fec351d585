"""Direct memory in `weighted-move`: what bundles have of it, when it counts, and what happens where it does not follow moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.broker_load import ResourceUsage
from shedders.model.cluster import Cluster
from shedders.weighted_move.direct_memory import (
    HOLD_S,
    STRIKES,
    WAIT_S,
    MemoryEvidence,
    non_negative,
    traffic_of_tenants,
)
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.loads import MIB, NOW_MS, broker, bundle, cluster, left

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


def costs_of(now: Cluster, evidence: MemoryEvidence | None = None, passed_s: float = 0.0):
    loads = {name: each.load for name, each in now.brokers.items() if each.load is not None}
    known = evidence or MemoryEvidence()
    return known.learn(loads, now.bundles_of.unsorted, passed_s, loads)


# --- what bundles have of it ------------------------------------------------------------------------------------------------


def test_costs_are_learnt_from_the_differences_of_brokers():
    costs = costs_of(APART)
    assert costs.tenants["late/n"] * MIB == pytest.approx(20.0, rel=0.1)
    assert costs.tenants["quick/n"] * MIB < 3.0
    assert costs.idle < 0.02
    assert costs.whole("a") == pytest.approx(805.0, rel=0.1)


def test_what_no_traffic_explains_is_idle_use():
    costs = costs_of(caches({"a": LATE * 6, "b": LATE * 3, "c": LATE}, idle=0.3))
    assert costs.idle == pytest.approx(0.3, rel=0.1)
    assert costs.of("late/n", 4.0 * MIB) == pytest.approx(80.0, rel=0.1)


def test_where_brokers_are_alike_memory_is_in_proportion_to_traffic():
    """Nothing tells the tenants apart."""
    same = LATE * 3 + QUICK * 2
    costs = costs_of(caches({"a": same, "b": same, "c": same}))
    assert costs.of("late/n", 4.0 * MIB) / costs.whole("a") == pytest.approx(4 / 32, rel=0.01)
    assert costs.of("quick/n", 10.0 * MIB) / costs.whole("a") == pytest.approx(10 / 32, rel=0.01)


def test_what_was_seen_before_still_counts():
    """Once all brokers are alike, the costs that their differences showed are kept."""
    evidence, same = MemoryEvidence(), LATE * 4 + QUICK * 3
    costs_of(APART, evidence)
    for _ in range(5):
        costs = costs_of(caches(dict.fromkeys("abcd", same)), evidence, 60.0)
    assert costs.tenants["late/n"] > 8 * costs.tenants["quick/n"]
    again = MemoryEvidence.recall(evidence.dumped(), 0.0, APART.brokers)
    assert costs_of(APART, again).tenants == pytest.approx(costs_of(APART, evidence).tenants, rel=1e-3)


def test_bundles_that_are_not_reported_share_the_rest():
    served = [bundle(0, "a", bytes_per_s=6.0, namespace="x/n")]
    served += [replace(bundle(number, "a", namespace="y/n"), stats=None) for number in (1, 2, 3)]
    unknown = [
        replace(each, averages=replace(each.averages, short=replace(each.averages.short, samples=0)))
        for each in served[1:]
    ]
    load = broker("a", 0.1, bytes_per_s=30.0).load
    assert load is not None
    assert traffic_of_tenants(load, [served[0], *unknown]) == {"x/n": 6.0, "y/n": pytest.approx(24.0)}


@given(
    st.lists(st.lists(st.floats(0.0, 3.0), min_size=3, max_size=3), min_size=2, max_size=12),
    st.lists(st.floats(0.0, 2.0), min_size=3, max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_no_other_parts_fit_better(rows: list[list[float]], truth: list[float]):
    """Of the sum of squares and ridge, no step away from the solution is an improvement, and no part is negative."""
    used = [sum(value * part for value, part in zip(row, truth, strict=True)) for row in rows]
    matrix = [[sum(row[i] * row[j] for row in rows) / len(rows) for j in range(3)] for i in range(3)]
    right = [sum(row[i] * use for row, use in zip(rows, used, strict=True)) / len(rows) for i in range(3)]
    prior = [0.0, 0.5, 0.5]

    def cost(parts: Sequence[float]) -> float:
        fit = sum(
            (sum(v * p for v, p in zip(row, parts, strict=True)) - use) ** 2
            for row, use in zip(rows, used, strict=True)
        )
        return fit / len(rows) + 0.003 * sum((part - each) ** 2 for part, each in zip(parts, prior, strict=True))

    parts = non_negative(matrix, right, prior)
    assert all(part >= 0 for part in parts)
    for place in range(3):
        for step in (-0.05, 0.05):
            other = [part + step * (place == at) for at, part in enumerate(parts)]
            if other[place] >= 0:
                assert cost(other) >= cost(parts) - 1e-6


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
    assert second.memory["direct_memory"]["state"][:3] == [1, 1, 0]
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


def test_strikes_hold_it_for_longer_and_longer_and_survive_a_leader():
    evidence = MemoryEvidence(counts=True)
    for held_s in (HOLD_S, 2 * HOLD_S, 4 * HOLD_S):
        for _ in range(STRIKES):
            assert evidence.is_trusted
            evidence.took("a", 0.9, 0.2)
            evidence.responses({"a": 0.88})
            evidence = MemoryEvidence.recall(evidence.dumped(), WAIT_S, {"a": None})
            evidence.responses({"a": 0.85})
        assert (evidence.is_trusted, evidence.held_s) == (False, held_s)
        evidence = MemoryEvidence.recall(evidence.dumped(), held_s, {"a": None})
    evidence.took("a", 0.9, 0.2)
    evidence.responses({"a": 0.8})
    assert (evidence.proven, evidence.hold_s) == (True, HOLD_S)


@pytest.mark.parametrize(
    "memory", [[], {"state": [1, 1]}, {"tenants": ["x"], "products": [[1.0]]}, {"tenants": [1], "products": []}]
)
def test_what_is_no_evidence_is_dropped(memory: Any):
    assert MemoryEvidence.recall(memory, 60.0, {}).dumped() == {}


def test_the_memory_of_a_release_without_it_is_read():
    plan = shed(replace(APART, now_ms=NOW_MS))
    row = plan.memory["watched"]["a"]
    former = {**plan.memory, "watched": {"a": [*row[:4], *row[5:]]}}
    again = shed(replace(APART, now_ms=NOW_MS + 60_000), former)
    assert again.memory["watched"]["a"][-5] == row[-5]
