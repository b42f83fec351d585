"""The JSON of Kafka's own tool: what is written, what is read, and what somebody else's file would change."""

import json
from dataclasses import replace
from typing import Any

import pytest

from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    LogDir,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.errors import PlanUnusableError
from shedders.kafka_rebalance.planning.plan_files import (
    WantedReplicas,
    looks_like_reassignment,
    moves_of,
    parse_reassignment,
    to_json,
)
from tests.unit.partitions.plans import MOVES
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


def test_files_of_kafkas_tool_as_people_have_them() -> None:
    bare = b'{"partitions":[{"topic":"t","partition":0,"replicas":[2,1],"log_dirs":["any","/d"]}]}'
    other = bare.replace(b"[2,1]", b"[1,2]")
    generated = b"Current partition replica assignment\n%b\n\nProposed partition reassignment configuration\n%b\n"
    for raw in (bare, bare.replace(b"{", b'{"version":1,', 1), generated % (other, bare)):
        assert looks_like_reassignment(raw)
        assert parse_reassignment(raw) == {("t", 0): ((2, 1), ("any", "/d"))}


DISKS = ClusterLayout(
    cluster_id="c",
    brokers=(
        KafkaBroker(id=1, log_dirs=(LogDir(path="/d1", replicas=(("t", 0, 70),)), LogDir(path="/d2"))),
        KafkaBroker(id=2, log_dirs=(LogDir(path="/d1"),)),
        KafkaBroker(id=3),
    ),
    topics={"t": KafkaTopic(name="t", partitions=(KafkaPartition(partition=0, replicas=(1, 2, 3), leader=1),))},
)


@pytest.mark.parametrize(
    ("replicas", "log_dirs", "dirs", "unlooked"),
    [
        ((1, 2, 3), ("any", "any", "any"), [], []),
        ((1, 2, 3), ("/d1", "/d1", "any"), [], []),
        ((1, 2, 3), ("/d2", "any", "/d9"), [(1, "/d1", "/d2", 70)], [("t", 0, 3)]),
        ((2, 3), ("any", "/d9"), [], [("t", 0, 3)]),
    ],
)
def test_directories_of_kafkas_file_are_moves(replicas: Any, log_dirs: Any, dirs: list, unlooked: list) -> None:
    found = moves_of({("t", 0): WantedReplicas(replicas, log_dirs)}, DISKS, PartitionLoads())
    assert [(each.broker, each.before, each.after, each.size_bytes) for each in found.dir_moves] == dirs
    assert list(found.unlooked) == unlooked
    assert len(found.moves) == (replicas != (1, 2, 3))


def test_a_replica_comes_into_the_directory_that_the_file_names_and_unknown_ones_are_refused() -> None:
    t = replace(DISKS.topics["t"], partitions=(KafkaPartition(partition=0, replicas=(2,), leader=2),))
    layout, loads = replace(DISKS, topics={"t": t}), PartitionLoads(of={("t", 0): PartitionLoad(disk_bytes=5)})
    (move,) = moves_of({("t", 0): WantedReplicas((2, 1), ("any", "/d2"))}, layout, loads).dir_moves
    assert (move.broker, move.before, move.after, move.size_bytes, move.copied_bytes) == (1, None, "/d2", 5, 0)
    with pytest.raises(PlanUnusableError, match="broker 1 has no log directory /d9"):
        moves_of({("t", 0): WantedReplicas((2, 1), ("any", "/d9"))}, layout, loads)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{}", "partitions is missing"),
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
    wanted = {("orders", 0): (1, 2), ("logs", 1): (2, 9), ("logs", 0): (2, 1)}
    moves, dir_moves, _ = moves_of({key: WantedReplicas(each) for key, each in wanted.items()}, LAYOUT, LOADS)
    assert dir_moves == ()
    assert [(move.topic, move.partition, move.before, move.after) for move in moves] == [
        ("logs", 0, (1, 2), (2, 1)),
        ("orders", 0, (2,), (1, 2)),
    ]
    assert [(move.leader_before, move.leader_after, move.size_bytes) for move in moves] == [(2, 2, 5), (2, 1, 0)]
    assert moves[1].added == (1,)


def test_a_file_for_another_cluster() -> None:
    replicas = {("orders", 0): (1, 4), ("orders", 1): (1,), ("gone", 0): (1,)}
    wanted = {key: WantedReplicas(each) for key, each in replicas.items()}
    with pytest.raises(PlanUnusableError) as result:
        moves_of(wanted, LAYOUT, PartitionLoads(), where="r.json")
    assert str(result.value) == (
        "r.json has faults:\n"
        "  gone-0: the cluster has no such partition\n"
        "  orders-0: the cluster has no broker 4\n"
        "  orders-1: the cluster has no such partition"
    )
