"""The JSON of Kafka's own tool: what is written, what is read, and what somebody else's file would change."""

import json

import pytest

from loaddata.samples.partitions import PartitionLoads
from shedders.kafka_rebalance.errors import PlanUnusableError
from shedders.kafka_rebalance.planning.plan_files import looks_like_reassignment, moves_of, parse_reassignment, to_json
from tests.unit.partitions.plans import MOVES, PLAN
from tests.unit.partitions.test_layout_file import LAYOUT, LOADS


def test_after_and_before() -> None:
    assert to_json(MOVES).decode() == (
        '{"version":1,"partitions":[\n'
        '{"topic":"logs","partition":0,"replicas":[3,2]},\n'
        '{"topic":"logs","partition":1,"replicas":[1,2]},\n'
        '{"topic":"orders","partition":0,"replicas":[2,3]}\n'
        "]}\n"
    )
    assert [partition["replicas"] for partition in json.loads(to_json(MOVES, "before"))["partitions"]] == [
        [1, 2],
        [2, 1],
        [1, 3],
    ]
    assert json.loads(to_json(())) == {"version": 1, "partitions": []}


def test_what_is_written_is_read_back() -> None:
    assert parse_reassignment(to_json(PLAN.moves)) == {(move.topic, move.partition): move.after for move in PLAN.moves}
    assert looks_like_reassignment(to_json(PLAN.moves))


def test_log_dirs_of_kafkas_tool_are_accepted() -> None:
    raw = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,1],"log_dirs":["any","any"]}]}'
    assert parse_reassignment(raw) == {("t", 0): (2, 1)}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{}", "version is missing"),
        (b'{"version":2,"partitions":[]}', "version: expected 1, got 2"),
        (b'{"version":1,"partitions":[{"topic":"t","partition":0}]}', "partitions[0].replicas is missing"),
        (b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[]}]}', "expected broker ids"),
        (b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}', "broker 1 is duplicated"),
        (b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":["1"]}]}', "expected a valid integer"),
        (
            b'{"version":1,"partitions":[{"topic":"t","partition":-1,"replicas":[1]}]}',
            "-1 is not a valid partition number",
        ),
        (
            b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]},{"topic":"t","partition":0,"replicas":[2]}]}',
            "partitions: t-0 is duplicated",
        ),
        (
            b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":[]}]}',
            "log_dirs: expected one per replica",
        ),
        (b'{"version":1,"partitions":[{"topic":"t","partition":NaN,"replicas":[1]}]}', "NaN is not a number"),
    ],
)
def test_what_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(PlanUnusableError) as result:
        parse_reassignment(raw)
    assert words in str(result.value)


def test_what_somebody_elses_file_changes_of_a_cluster() -> None:
    moves = moves_of({("orders", 0): (1, 2), ("logs", 1): (2, 9), ("logs", 0): (2, 1)}, LAYOUT, LOADS)
    assert [(move.topic, move.partition, move.before, move.after) for move in moves] == [
        ("logs", 0, (1, 2), (2, 1)),
        ("orders", 0, (2,), (1, 2)),
    ]
    assert [(move.leader_before, move.leader_after, move.size_bytes) for move in moves] == [(2, 2, 5), (2, 1, 0)]
    assert moves[1].added == (1,)


def test_a_file_for_another_cluster() -> None:
    wanted = {("orders", 0): (1, 4), ("orders", 1): (1,), ("gone", 0): (1,)}
    with pytest.raises(PlanUnusableError) as result:
        moves_of(wanted, LAYOUT, PartitionLoads(), where="r.json")
    assert str(result.value) == (
        "r.json has faults:\n"
        "  gone-0: the cluster has no such partition\n"
        "  orders-0: the cluster has no broker 4\n"
        "  orders-1: the cluster has no such partition"
    )
