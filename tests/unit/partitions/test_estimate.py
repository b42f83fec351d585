"""The duration of a plan, against figures reckoned by hand."""

import pytest

from shedders.kafka_rebalance.planning.estimate import Bound, estimate
from shedders.kafka_rebalance.planning.plan import PartitionMove
from shedders.kafka_rebalance.settings import PartitionsSettings, configured
from tests.unit.partitions.plans import move

MB = 1_000_000


def settings(**pace: object) -> PartitionsSettings:
    return configured({"pace": {"poll_s": 1, "moves_per_broker": 2, **pace}, "plan": {"copy_bytes_per_s": 10 * MB}})


def test_nothing_takes_no_time() -> None:
    result = estimate((), settings())
    assert (result.duration_s, result.bound, result.broker) == (0, Bound.NOTHING, None)
    assert result.sentences() == ("nothing moves",)


def test_the_broker_that_gets_most_sets_the_time() -> None:
    # Into 4: 300 MB from leaders 1, 2 and 3 at 10 MB/s: 30 s; three partitions, two at a time: two turns of 1 s.
    moves = [move("t", n, (n + 1, 9), (n + 1, 4), 100 * MB) for n in range(3)]
    result = estimate(moves, settings())
    assert result.duration_s == pytest.approx(30 + 2)
    assert (result.bound, result.broker, result.broker_bytes) == (Bound.IN, 4, 300 * MB)
    assert result.copied_bytes == 300 * MB
    assert result.sentences() == (
        "bottleneck: 300.0 MB into broker 4",
        "each broker is assumed to copy 10.0 MB/s each way (no throttle is set: plan.copy_bytes_per_s)",
        "at most 2 partitions at a time on each broker; new data not counted",
    )


def test_the_leader_that_all_is_copied_from_sets_the_time() -> None:
    # Out of 1, which leads both: 200 MB; into 4 and 5 only half as much each. The throttle is 5 MB/s: 40 s, and one turn.
    moves = [move("t", 0, (1, 2), (1, 4), 100 * MB), move("t", 1, (1, 3), (1, 5), 100 * MB)]
    result = estimate(moves, settings(throttle_bytes_per_s=5 * MB))
    assert result.duration_s == pytest.approx(40 + 1)
    assert (result.bound, result.broker, result.throttled) == (Bound.OUT, 1, True)
    assert "each broker copies 5.0 MB/s, the throttle" in result.sentences()


def test_a_partition_that_gets_two_replicas_is_read_twice() -> None:
    result = estimate([move("t", 0, (1,), (1, 2, 3), 50 * MB)], settings())
    assert result.duration_s == pytest.approx(10 + 1)
    assert (result.bound, result.broker) == (Bound.OUT, 1)


def test_small_moves_take_turns() -> None:
    # 100 partitions of 1 kB to broker 2, two at a time: 50 turns, and hardly any copying.
    result = estimate([move("t", n, (1,), (2,), 1_000) for n in range(100)], settings())
    assert result.duration_s == pytest.approx(50 + 0.01)
    assert result.bound is Bound.TURNS


def test_the_bound_of_the_cluster_counts_too() -> None:
    # Twelve pairs of brokers, a partition each: one turn by broker, but only three partitions at once in the cluster.
    moves = [move("t", n, (2 * n,), (2 * n + 1,), 0) for n in range(12)]
    assert estimate(moves, settings()).duration_s == pytest.approx(1)
    assert estimate(moves, settings(moves_max=3)).duration_s == pytest.approx(4)


def test_leader_switches_copy_nothing() -> None:
    moves = [move("t", n, (1, 2), (2, 1), 100 * MB) for n in range(25)]
    result = estimate(moves, settings(leaders_at_once=10, poll_s=2))
    assert result.duration_s == pytest.approx(6)
    assert (result.bound, result.copied_bytes) == (Bound.SWITCHES, 0)
    assert "leader switches only" in result.sentences()[0]


def test_unknown_sizes_are_said() -> None:
    result = estimate([move("t", 0, (1,), (2,), None), move("t", 1, (1, 2), (2, 1), None)], settings())
    assert result.unknown_sizes == 1
    assert result.sentences()[-1] == "1 move of unknown size is counted as 0 bytes"


def test_nobody_leads() -> None:
    orphan = PartitionMove(
        topic="t",
        partition=0,
        before=(1, 2),
        after=(3, 2),
        leader_before=None,
        leader_after=3,
        size_bytes=20 * MB,
        goals=(),
    )
    result = estimate([orphan], settings())
    assert (result.broker, result.bound) == (3, Bound.IN)
    assert result.duration_s == pytest.approx(2 + 1)
