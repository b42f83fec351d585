"""Kafka's own tool on a live cluster takes the reassignment JSON, carries it out and verifies it; and what it generates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from loaddata.samples.partitions import ClusterLayout, KafkaBroker
from shedders.kafka_rebalance.planning.plan import LogDirMove, PartitionMove
from shedders.kafka_rebalance.planning.plan_files import to_json
from tests.support.kafka_tools import from_json, generator, reassign
from tests.support.three_nodes import three_nodes
from tests.support.waits import WAIT_S, wait_until

TOPIC = "orders"
BEFORE = {(TOPIC, 0): (1, 2), (TOPIC, 1): (2, 1), (TOPIC, 2): (1, 2), (TOPIC, 3): (2, 1)}
AFTER = {(TOPIC, 0): (3, 2), (TOPIC, 2): (1, 3)}
MOVES = tuple(
    PartitionMove(
        topic=topic,
        partition=number,
        before=BEFORE[topic, number],
        after=after,
        leader_before=BEFORE[topic, number][0],
        leader_after=after[0],
        size_bytes=None,
        goals=("disk",),
    )
    for (topic, number), after in AFTER.items()
)
RECORDS = 400


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory):
    with three_nodes(tmp_path_factory.mktemp("three"), racks={1: "a", 2: "b", 3: "c"}) as nodes:
        address = ",".join(node.bootstrap_servers for node in nodes.values())
        admin = AdminClient({"bootstrap.servers": address})
        wait_until(lambda: len(admin.list_topics(timeout=WAIT_S).brokers) == 3)
        placed = [list(replicas) for _, replicas in sorted(BEFORE.items())]
        admin.create_topics([NewTopic(TOPIC, num_partitions=4, replica_assignment=placed)])[TOPIC].result()
        wait_until(lambda: replicas_of(admin) == BEFORE)
        producer = Producer({"bootstrap.servers": address, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"x" * 200, partition=number % 4)
        assert producer.flush(WAIT_S) == 0
        yield address


def replicas_of(admin: AdminClient) -> dict[tuple[str, int], tuple[int, ...]]:
    topic = admin.list_topics(timeout=WAIT_S).topics.get(TOPIC)
    return {(TOPIC, n): tuple(partition.replicas) for n, partition in topic.partitions.items()} if topic else {}


def test_the_tool_takes_carries_out_and_verifies_the_json(bootstrap: str, tmp_path: Path):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    file = tmp_path / "plan.json"
    file.write_bytes(to_json(MOVES))
    place = ("--bootstrap-server", bootstrap, "--reassignment-json-file", str(file))
    before = reassign(*place, "--verify")
    assert (
        "There is no active reassignment of partition orders-0, but replica set is 1,2 rather than 3,2" in before.stdout
    )
    executed = reassign(*place, "--execute")
    assert executed.returncode == 0, executed.stdout + executed.stderr
    assert "Successfully started partition reassignments for orders-0,orders-2" in executed.stdout
    # What it prints for a rollback is what our own file for it says.
    current = re.search(r"Current partition replica assignment\s+(\{.*\})", executed.stdout)
    assert current is not None
    assert from_json(current[1]) == from_json(to_json(MOVES, "before").decode())
    wait_until(lambda: replicas_of(admin) == BEFORE | AFTER)
    verified = reassign(*place, "--verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    for key in AFTER:
        assert f"Reassignment of partition {key[0]}-{key[1]} is completed." in verified.stdout


def test_what_the_tool_generates_on_a_live_cluster_is_what_its_code_generates_here(bootstrap: str, tmp_path: Path):
    """It ignores where replicas are: whole topics are placed anew, striped over the brokers."""
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    answer = reassign(
        *("--bootstrap-server", bootstrap, "--topics-to-move-json-file", str(file)),
        *("--broker-list", "1,2,3", "--generate"),
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    proposed = re.search(r"Proposed partition reassignment configuration\s+(\{.*\})", answer.stdout)
    assert proposed is not None
    outcome = from_json(proposed[1])
    assert outcome.keys() == BEFORE.keys()
    assert all(len(set(replicas)) == 2 and set(replicas) <= {1, 2, 3} for replicas in outcome.values())
    first = [replicas[0] for _, replicas in sorted(outcome.items())]
    assert len(set(first[:3])) == 3  # a striped placement: no broker leads twice before each has led once


def test_the_tools_code_reads_our_json_and_places_topics_by_rack():
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    layout = ClusterLayout(
        cluster_id="c", brokers=tuple(KafkaBroker(id=item, rack=rack) for item, rack in racks.items())
    )
    with generator() as tool:
        assert tool.read(to_json(MOVES).decode()) == len(MOVES)
        disk = LogDirMove(
            topic=TOPIC, partition=1, broker=2, replicas=BEFORE[TOPIC, 1], before="/a", after="/b", size_bytes=1
        )
        assert tool.read(to_json(MOVES, "after", (disk,)).decode()) == len(MOVES) + 1
        with pytest.raises(Exception, match="Partition reassignment contains duplicate topic partitions"):
            tool.read(to_json((MOVES[0], MOVES[0])).decode())
        placed = tool.generate(BEFORE, layout, list(racks), seed=7)
        assert tool.generate(BEFORE, layout, list(racks), seed=7) == placed
        assert tool.generate(BEFORE, layout, list(racks), seed=8) != placed
    assert placed.keys() == BEFORE.keys()
    assert all(racks[first] != racks[second] for first, second in placed.values())
