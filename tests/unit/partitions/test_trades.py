"""Trades of moved replicas for smaller ones; pairs of brokers without a trade are searched again once something changed."""

from __future__ import annotations

import numpy as np
import pytest

from shedders.kafka_rebalance.planning import byte_savings
from shedders.kafka_rebalance.planning.limits import GoalLimits
from shedders.kafka_rebalance.planning.request import PlanRequest
from shedders.kafka_rebalance.planning.scope import Scope
from shedders.kafka_rebalance.planning.search import Search
from shedders.kafka_rebalance.planning.virtual_cluster import Measure, MoveReplica, VirtualCluster
from tests.support.clusters import layout, loads

LARGE, SMALL, OTHER = range(3)
FIRST, SECOND, THIRD, FOURTH = range(4)


class NextTo:
    """A rule: no replica goes to the second broker while the third has one of the same partition (as in one rack)."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster

    def moves_to(self, partitions: np.ndarray, sources: np.ndarray, to: np.ndarray | int) -> np.ndarray:
        neighbour = (self._cluster.replicas[partitions] == THIRD).any(axis=1)
        return ~(neighbour & (np.broadcast_to(to, len(partitions)) == SECOND))


class Bench:
    """The first broker has given its large partition to the second, and could have given the small one."""

    def __init__(self, small: list[int], *, other: int = 4, other_bytes: int = 10, bytes_in: int = 0) -> None:
        cluster = layout(4, {"t": [[1], small, [other]]})
        request = PlanRequest()
        self.cluster = VirtualCluster(cluster, loads({"t": [100, 50, other_bytes]}, {"t": [0, bytes_in, bytes_in]}))
        scope = Scope(self.cluster, cluster, request, np.zeros(self.cluster.size, dtype=bool))
        self.search = Search(self.cluster, scope, request)
        self.limits = GoalLimits(self.cluster)
        self.move(LARGE, FIRST, SECOND)
        self.searched = 0

    def move(self, partition: int, source: int, to: int) -> None:
        self.search.make(MoveReplica(partition, self.cluster.holders(partition).index(source), to))

    def trade(self, patch: pytest.MonkeyPatch) -> tuple[int, int]:
        """Trades, and how often a pair of brokers was searched for them."""
        search_pair, searched = byte_savings._between, []
        with patch.context() as context:
            context.setattr(
                byte_savings,
                "_between",
                lambda *args: searched.append(args) or search_pair(*args),  # type: ignore[func-returns-value]
            )
            return byte_savings.trade(self.search, self.limits), len(searched)


def test_a_moved_replica_is_traded_for_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([1])
    assert bench.trade(monkeypatch)[0] == 1
    assert (bench.cluster.holders(LARGE), bench.cluster.holders(SMALL)) == ([FIRST], [SECOND])


def test_a_pair_without_a_trade_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([1, 2])
    assert bench.trade(monkeypatch) == (0, 1)
    assert bench.trade(monkeypatch) == (0, 0)
    bench.move(OTHER, FOURTH, THIRD)
    assert bench.trade(monkeypatch) == (0, 1)  # the new pair


def test_it_is_searched_again_once_one_of_the_two_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([1, 2])
    assert bench.trade(monkeypatch) == (0, 1)
    bench.move(SMALL, SECOND, THIRD)
    assert bench.trade(monkeypatch)[0] == 1


def test_it_is_searched_again_once_something_has_left_where_the_moved_replica_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench([1], other=2, bytes_in=100)
    bench.limits.bound.append(Measure.LEADER_IN)
    bench.limits.high[Measure.LEADER_IN, SECOND] = 150  # it has 100: no room for the traffic of the small one
    assert bench.trade(monkeypatch) == (0, 1)
    bench.move(OTHER, SECOND, FOURTH)
    assert bench.trade(monkeypatch)[0] == 1


def test_it_is_searched_again_once_something_has_left_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([1], other=1, other_bytes=49)
    bench.limits.bound.append(Measure.DISK)
    bench.limits.high[Measure.DISK, FIRST] = 100  # it has 99: no room for the large one in place of a smaller one
    assert bench.trade(monkeypatch) == (0, 1)
    bench.move(OTHER, FIRST, FOURTH)
    assert bench.trade(monkeypatch)[0] == 1


def test_it_is_searched_again_once_a_partition_of_theirs_has_changed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([1, 3])
    bench.limits.rules.append(NextTo(bench.cluster))
    assert bench.trade(monkeypatch) == (0, 1)
    changes = list(bench.cluster.changes)
    bench.move(SMALL, THIRD, FOURTH)
    assert bench.cluster.changes[:2] == changes[:2]
    assert bench.trade(monkeypatch)[0] == 1


def test_it_is_searched_again_with_other_limits_and_in_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([1, 3])
    bench.limits.rules.append(NextTo(bench.cluster))
    assert bench.trade(monkeypatch) == (0, 1)
    bench.search.trail = []
    assert bench.trade(monkeypatch) == (0, 1)
    bench.search.trail = None
    bench.limits = GoalLimits(bench.cluster)
    assert bench.trade(monkeypatch)[0] == 1
