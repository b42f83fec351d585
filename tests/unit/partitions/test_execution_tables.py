"""Hand-computed tables: stages, states of partitions, parallelism, throttles, what the journal comes to."""

from typing import Any

import pytest

from loaddata.samples.partitions import KafkaPartition, KafkaTopic
from shedders.kafka_rebalance.execution.moves import (
    InFlight,
    MoveState,
    PartitionStep,
    choose,
    concerned,
    in_order,
    next_target,
    stages,
    status_of_partition,
    unsafe,
)
from shedders.kafka_rebalance.execution.throttle import Copy, needed_settings, own_entries, restoration, settings_to_add
from shedders.kafka_rebalance.execution.values import recorded
from shedders.kafka_rebalance.settings import PaceSettings
from tests.support.partition_twin import make_plan, move


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, 2), (3, 2), [(3, 2)]),
        ((1, 2), (2, 1), [(2, 1)]),
        ((1, 2, 3), (4, 5, 3), [(1, 4, 3), (4, 5, 3)]),
        ((1, 2, 3), (4, 5, 6), [(1, 4, 3), (1, 4, 5), (4, 5, 6)]),
        ((1,), (1, 2, 3), [(1, 2), (1, 2, 3)]),
        ((1, 2, 3), (1,), [(1,)]),
        ((1, 2, 3), (4,), [(4,)]),
    ],
)
def test_stages_bring_one_broker_at_a_time(before: Any, after: Any, expected: list[Any]) -> None:
    assert list(stages(before, after)) == expected
    result = move(("t", 0), before, after)
    has = before
    for target in expected:
        has = next_target(result, has, one_replica=True)
        assert has == target
    assert next_target(result, before, one_replica=False) == after


MOVE = move(("t", 0), (1, 2, 3), (4, 5, 3))
STANDS = [
    ({"replicas": (1, 2, 3), "leader": 1}, MoveState.WAITING),
    ({"replicas": (2, 1, 3), "leader": 1}, MoveState.WAITING),
    ({"replicas": (4, 5, 3, 1, 2), "leader": 1, "adding": (4, 5), "removing": (1, 2)}, MoveState.MOVING),
    ({"replicas": (1, 4, 3, 2), "leader": 1, "adding": (4,), "removing": (2,)}, MoveState.MOVING),
    ({"replicas": (1, 4, 3), "leader": 1}, MoveState.PARTLY),
    ({"replicas": (5, 4, 3), "leader": 5}, MoveState.REORDER),
    ({"replicas": (4, 5, 3), "leader": 3}, MoveState.ELECT),
    ({"replicas": (4, 5, 3), "leader": 4}, MoveState.DONE),
    ({"replicas": (1, 2, 6), "leader": 1}, MoveState.CHANGED),
    ({"replicas": (1, 6, 3, 2), "leader": 1, "adding": (6,), "removing": (2,)}, MoveState.CHANGED),
]


@pytest.mark.parametrize(("facts", "expected"), STANDS)
def test_where_a_partition_stands(facts: dict[str, Any], expected: MoveState) -> None:
    topic = KafkaTopic(name="t", partitions=(KafkaPartition(partition=0, **facts),), topic_id="id")
    status = status_of_partition(MOVE, topic, "id")
    assert status.state is expected
    assert bool(status.reason) is (expected is MoveState.CHANGED)


def test_a_topic_that_is_gone_or_made_anew() -> None:
    topic = KafkaTopic(
        name="t", partitions=(KafkaPartition(partition=0, replicas=(1, 2, 3), leader=1),), topic_id="new"
    )
    assert "deleted" in status_of_partition(MOVE, None, "id").reason
    assert "created again" in status_of_partition(MOVE, topic, "id").reason
    assert status_of_partition(MOVE, topic, "").state is MoveState.WAITING


@pytest.mark.parametrize(
    ("isr", "leader", "target", "min_isr", "safe"),
    [
        ((1, 2), 1, (3, 2), 2, True),
        ((1,), 1, (1, 3), 2, True),  # 2 is away: this repairs it
        ((1,), 1, (3, 2), 2, False),  # 2 is not in sync: only 3 would be
        ((1,), 1, (3, 2), 1, True),
        ((1, 2), None, (3, 2), 1, False),
        ((1, 2), 1, (1,), 2, False),
        ((1, 2), 1, (1,), 1, True),
        ((1, 2), 1, (2, 1), 3, True),  # fewer replicas than its minimum: not made worse
    ],
)
def test_never_fewer_in_sync_than_the_minimum(
    isr: Any, leader: int | None, target: Any, min_isr: int, safe: bool
) -> None:
    partition = KafkaPartition(partition=0, replicas=(1, 2), leader=leader, isr=isr)
    assert (unsafe(partition, target, min_isr) == "") is safe


def test_parallelism_as_in_the_document() -> None:
    """[10, 11] -> [10, 11, 15]: 10 counts one, 15 counts one; 11 counts nothing."""
    assert concerned(10, (10, 11), (10, 11, 15)) == {10, 15}
    assert concerned(10, (10, 11), (15, 11)) == {10, 15}
    assert concerned(11, (10, 11), (15, 11)) == {10, 11, 15}
    assert concerned(10, (10, 11, 15), (10, 11)) == {15}
    assert concerned(10, (10, 11), (11, 10)) == set()


def step(number: int, brokers: set[int], size: int = 10, *, urp: bool = False) -> PartitionStep:
    return PartitionStep(
        key=("t", number), target=(), brokers=frozenset(brokers), size_bytes=size, under_replicated=urp, number=number
    )


@pytest.mark.parametrize(
    ("steps", "flight", "pace", "expected"),
    [
        ([step(0, {1, 2}), step(1, {1, 3}), step(2, {3, 4})], [], {"moves_per_broker": 1}, [0, 2]),
        ([step(0, {1, 2}), step(1, {3, 4})], [({3}, 1)], {"moves_per_broker": 1}, [0]),
        ([step(n, {n}) for n in range(5)], [({9}, 1)], {"moves_max": 3}, [0, 1]),
        ([step(0, {1}, 60), step(1, {2}, 60), step(2, {3}, 40)], [], {"bytes_in_flight": 100}, [0, 2]),
        ([step(0, {1}, 500), step(1, {2}, 1)], [], {"bytes_in_flight": 100}, [0]),
        ([step(0, {1}, 500), step(1, {2}, 1)], [({3}, 1)], {"bytes_in_flight": 100}, [1]),
        ([step(0, {1}, 0), step(1, {2}, 500)], [({3}, 0)], {"bytes_in_flight": 100}, [0, 1]),
    ],
)
def test_what_sets_out(
    steps: list[PartitionStep], flight: list[Any], pace: dict[str, int], expected: list[int]
) -> None:
    under_way = InFlight()
    for brokers, size in flight:
        under_way.take(brokers, size)
    assert [item.number for item in choose(steps, under_way, PaceSettings(**pace))] == expected


def test_under_replicated_ones_go_first() -> None:
    steps = [step(0, {1}, 30), step(1, {2}, 10), step(2, {3}, 20, urp=True)]
    assert [item.number for item in in_order(steps, "plan")] == [2, 0, 1]
    assert [item.number for item in in_order(steps, "small-first")] == [2, 1, 0]
    assert [item.number for item in in_order(steps, "large-first")] == [2, 0, 1]


LISTS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
RATES = "leader.replication.throttled.rate", "follower.replication.throttled.rate"


def test_what_a_throttle_takes() -> None:
    needed = needed_settings(5, [Copy(("t", 3), frozenset({1, 2}), frozenset({4}))], frozenset({1, 4}))
    assert needed == {
        ("broker", "1"): dict.fromkeys(RATES, "5"),
        ("broker", "4"): dict.fromkeys(RATES, "5"),
        ("topic", "t"): {LISTS[0]: "3:1,3:2", LISTS[1]: "3:4"},
    }
    current = {("broker", "1"): dict.fromkeys(RATES, "5"), ("topic", "t"): {LISTS[0]: "*", LISTS[1]: "0:9"}}
    assert settings_to_add(needed, current) == {
        ("broker", "4"): dict.fromkeys(RATES, "5"),
        ("topic", "t"): {LISTS[1]: "0:9,3:4"},
    }


@pytest.mark.parametrize(
    ("resource", "before", "current", "expected"),
    [
        (("broker", "1"), {}, dict.fromkeys(RATES, "5"), dict.fromkeys(RATES)),
        (("broker", "1"), {RATES[0]: "7"}, dict.fromkeys(RATES, "5"), {RATES[0]: "7", RATES[1]: None}),
        (("broker", "1"), {}, {RATES[0]: "8"}, {}),  # somebody else's by now
        (("broker", "1"), {}, {}, {}),
        (("topic", "t"), {}, {LISTS[0]: "0:1,0:2", LISTS[1]: "0:3"}, {LISTS[0]: None, LISTS[1]: None}),
        (("topic", "t"), {LISTS[0]: "0:1,9:9"}, {LISTS[0]: "0:1,0:2,9:9"}, {LISTS[0]: "0:1,9:9"}),
        (("topic", "t"), {}, {LISTS[0]: "0:1,8:8"}, {LISTS[0]: "8:8"}),
        (("topic", "t"), {LISTS[0]: "*"}, {LISTS[0]: "*"}, {}),
    ],
)
def test_what_is_put_back(resource: Any, before: Any, current: Any, expected: dict[str, str | None]) -> None:
    own = own_entries(make_plan([move(("t", 0), (1, 2), (3, 2))]))["t"]
    assert own == {"0:1", "0:2", "0:3"}
    assert restoration(resource, before, current, frozenset({"5"}), own) == expected


def test_what_the_journal_comes_to() -> None:
    history = recorded(
        [
            {"event": "begun", "at_ms": 10, "executor": "a"},
            {"event": "throttle", "at_ms": 11, "rate": 5, "before": {"broker/1": {RATES[0]: "7"}, "topic/t": {}}},
            {"event": "batch", "at_ms": 12, "batch": 1, "partitions": [["t", 0, [1]]], "size_bytes": 3},
            {"event": "begun", "at_ms": 20, "executor": "b"},
            {"event": "throttle", "at_ms": 21, "rate": 6, "before": {"broker/1": {RATES[0]: "5"}}},
            {"event": "moved", "at_ms": 22, "partitions": [["t", 0]]},
            {"event": "unthrottled", "at_ms": 23, "resources": ["topic/t"]},
            {"event": "something newer", "at_ms": 24},
        ]
    )
    assert (history.begun, history.executor, history.began_at_ms, history.batches) == (2, "b", 10, 1)
    assert history.throttle_before == {("broker", "1"): {RATES[0]: "7"}}  # not what the dead executor had set
    assert (history.rates, history.rate, history.moved) == ({"5", "6"}, 6, {("t", 0)})
