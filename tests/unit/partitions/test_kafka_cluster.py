"""What a cluster tells becomes a layout: awkward facts as they are, what is not told as a remark, few calls."""

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import errors as kafka_python

from loaddata.samples import kafka_cluster
from loaddata.samples.cluster_files import lines_of
from loaddata.samples.formulas import Hole
from loaddata.samples.kafka_cluster import loads_now, read_layout, read_sizes
from loaddata.samples.log_dirs_source import LogDirsSource
from loaddata.samples.partitions import KafkaBroker, KafkaPartition, LogDir, PartitionLoad, PartitionLoads
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import GoalChoice, PlanRequest
from statechannel.kafka.errors import KafkaAccessDeniedError, KafkaUnavailableError

Place = namedtuple("Place", ["topic", "partition"])
Offset = namedtuple("Offset", ["offset"])


def part(number: int, replicas: list[int], leader: int = -1, **more: Any) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": 0,
        "replica_nodes": replicas,
        "isr_nodes": replicas,
        "leader_id": leader,
        "offline_replicas": [],
        **more,
    }


class FakeAdmin:
    """Answers as kafka-python does, and counts the calls."""

    _controller_id = None

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.brokers = [
            {"broker_id": 2, "host": "h2", "port": 9092, "rack": "r1", "is_fenced": False},
            {"broker_id": 1, "host": "h1", "port": 9092, "rack": None, "is_fenced": False},
            {"broker_id": 3, "host": "h3", "port": 9092, "rack": "", "is_fenced": True},
        ]
        self.topics = {
            "b": [part(1, [2, 1], 2, offline_replicas=[1]), part(0, [1, 2, 9], 1)],
            "a": [part(0, [3], -1, isr_nodes=[])],
        }
        self.errors: dict[str, int] = {}
        self.moving = {Place("b", 1): {"replicas": [2, 1], "adding_replicas": [1], "removing_replicas": [2]}}
        self.dirs: dict[int, Any] = {
            1: [
                self.directory("/x", {("b", 0): 70, ("b", 1): 5}, total_bytes=100, usable_bytes=40),
                self.directory("/bad", {}, error_code=56, total_bytes=-1, usable_bytes=-1),
            ],
            2: [self.directory("/y", {("b", 0): 60, ("b", 1): 90})],
        }
        self.min_isr = {"a": "2"}
        self.ends: dict[int, dict[tuple[str, int], int]] = {-2: {}, -1: {}}

    @staticmethod
    def directory(path: str, sizes: dict[tuple[str, int], int], **more: Any) -> dict[str, Any]:
        topics = [
            {"name": topic, "partitions": [{"partition_index": number, "partition_size": size, "is_future_key": False}]}
            for (topic, number), size in sizes.items()
        ]
        return {"error_code": 0, "log_dir": path, "topics": topics, **more}

    def describe_cluster(self) -> dict[str, Any]:
        self.calls.append(("cluster",))
        return {"cluster_id": "c", "brokers": self.brokers}

    def describe_topics(self) -> list[dict[str, Any]]:
        self.calls.append(("topics",))
        return [
            {
                "name": name,
                "error_code": self.errors.get(name, 0),
                "topic_id": "00000000-0000-0000-0000-000000000000" if name == "a" else "id-b",
                "is_internal": name == "a",
                "partitions": parts,
            }
            for name, parts in self.topics.items()
        ]

    def list_partition_reassignments(self) -> dict[Place, dict[str, list[int]]]:
        self.calls.append(("moving",))
        if isinstance(self.moving, Exception):
            raise self.moving
        return self.moving

    def describe_configs(self, resources: list[Any], config_filter: str) -> dict[str, Any]:
        self.calls.append(("configs", len(resources)))
        assert config_filter == "all"
        return {
            "topic": {
                resource.name: {"min.insync.replicas": {"value": self.min_isr[resource.name]}}
                if resource.name in self.min_isr
                else {}
                for resource in resources
            }
        }

    def describe_log_dirs(
        self, topic_partitions: dict[str, list[int]] | None, brokers: list[int]
    ) -> list[dict[str, Any]]:
        (broker,) = brokers
        self.calls.append(("dirs", broker))
        result = self.dirs[broker]
        if isinstance(result, Exception):
            raise result
        if topic_partitions is None:
            return [{"broker": broker, "log_dirs": result}]
        asked = {(topic, number) for topic, numbers in topic_partitions.items() for number in numbers}
        return [
            {
                "broker": broker,
                "log_dirs": [
                    item
                    | {
                        "topics": [
                            topic
                            for topic in item["topics"]
                            if (topic["name"], topic["partitions"][0]["partition_index"]) in asked
                        ]
                    }
                    for item in result
                ],
            }
        ]

    def list_partition_offsets(self, specs: dict[Any, int], timeout_ms: float) -> dict[Any, Offset]:
        return {place: Offset(self.ends[which][place.topic, place.partition]) for place, which in specs.items()}


def test_a_layout_has_all_the_awkward_facts() -> None:
    layout = read_layout(FakeAdmin(), now_ms=5)
    assert layout.brokers == (
        KafkaBroker(
            id=1,
            host="h1",
            port=9092,
            log_dirs=(
                LogDir(path="/bad", offline=True),
                LogDir(path="/x", total_bytes=100, usable_bytes=40, replicas=(("b", 0, 70), ("b", 1, 5))),
            ),
        ),
        KafkaBroker(id=2, host="h2", port=9092, rack="r1", log_dirs=(LogDir(path="/y"),)),
        KafkaBroker(id=3, host="h3", port=9092, alive=False),  # fenced
        KafkaBroker(id=9, alive=False),  # only a list of replicas names it
    )
    assert list(layout.topics) == ["a", "b"]
    a, b = layout.topics.values()
    assert (a.topic_id, a.min_isr, a.internal) == ("", 2, True)
    assert (b.topic_id, b.min_isr, b.internal) == ("id-b", 1, False)
    assert a.partitions == (KafkaPartition(partition=0, replicas=(3,), leader=None),)
    assert b.partitions == (
        KafkaPartition(partition=0, replicas=(1, 2, 9), leader=1, isr=(1, 2, 9)),
        KafkaPartition(partition=1, replicas=(2, 1), leader=2, isr=(2, 1), offline=(1,), adding=(1,), removing=(2,)),
    )
    assert layout.remarks == (
        "min.insync.replicas of 1 topics is not known (no DescribeConfigs on them?): 1 is assumed",
        "this Kafka is older than 4.3 and has no cordoned log directories: none is treated as cordoned",
    )
    assert layout.cluster_id == "c"


def test_topics_that_are_being_made_or_deleted_are_left_out_and_said() -> None:
    admin = FakeAdmin()
    admin.errors["a"] = 3
    admin.topics["c"] = [part(1, [1], 1)]  # without partition 0
    layout = read_layout(admin, now_ms=0)
    assert list(layout.topics) == ["b"]
    said = " ".join(layout.remarks)
    assert "topic a is left out" in said
    assert "topic c is left out: it is being made or deleted" in said


def test_cordoned_directories_of_a_kafka_that_reports_them() -> None:
    admin = FakeAdmin()
    admin._manager = SimpleNamespace(broker_version=(4, 3))  # type: ignore[attr-defined]
    admin.dirs = {
        1: [admin.directory("/a", {}, is_cordoned=True), admin.directory("/b", {("b", 0): 70}, is_cordoned=False)],
        2: [admin.directory("/c", {}, is_cordoned=True)],
    }
    layout = read_layout(admin, now_ms=0)
    assert [[each.cordoned for each in broker.log_dirs] for broker in layout.brokers[:2]] == [[True, False], [True]]
    assert [broker.cordoned for broker in layout.brokers] == [False, True, False, False]
    assert not any("cordoned" in remark for remark in layout.remarks)
    admin._manager.broker_version = (4, 2)  # type: ignore[attr-defined]
    older = read_layout(admin, now_ms=0)
    assert not any(broker.cordoned for broker in older.brokers)
    assert any("cordoned" in remark for remark in older.remarks)


def test_the_calls_are_few_however_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "TOPICS_AT_ONCE", 4)
    admin = FakeAdmin()
    admin.topics = {f"t{number}": [part(0, [1], 1)] for number in range(10)}
    read_layout(admin, now_ms=0)
    assert sorted(admin.calls) == [
        ("cluster",),
        *(("configs", count) for count in (2, 4, 4)),
        ("dirs", 1),
        ("dirs", 1),  # with its replicas, as it has two directories
        ("dirs", 2),
        ("moving",),
        ("topics",),
    ]


def test_an_older_kafka_and_a_client_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "BROKER_S", 0.1)
    admin = FakeAdmin()
    admin.moving = kafka_python.IncompatibleBrokerVersion("old")
    admin.dirs = {1: [], 2: kafka_python.NodeNotReadyError(2)}
    layout = read_layout(admin, now_ms=0)
    said = " ".join(layout.remarks)
    assert "older than 2.4" in said
    assert "broker 1 listed no log directory: this client may not Describe the cluster" in said
    assert "broker 2 did not list its log directories" in said
    admin.moving = kafka_python.ClusterAuthorizationFailedError("no")
    with pytest.raises(KafkaAccessDeniedError):
        read_layout(admin, now_ms=0)


def test_sizes_are_the_leaders_else_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "BROKER_S", 0.1)
    admin = FakeAdmin()
    layout = read_layout(admin, now_ms=7)
    assert dict(read_sizes(admin, layout).of) == {
        ("b", 0): PartitionLoad(disk_bytes=70),
        ("b", 1): PartitionLoad(disk_bytes=90),
    }
    admin.dirs[1] = kafka_python.NodeNotReadyError(1)
    assert dict(read_sizes(admin, layout).of) == {
        ("b", 0): PartitionLoad(disk_bytes=60),
        ("b", 1): PartitionLoad(disk_bytes=90),
    }
    admin.dirs[2] = kafka_python.NodeNotReadyError(2)
    with pytest.raises(KafkaUnavailableError, match="log directories"):
        read_sizes(admin, layout)


@pytest.mark.parametrize(
    ("sampled", "stored", "far"),
    [(50 << 20, 5 << 30, True), (5 << 30, 50 << 20, True), (3 << 20, 5 << 20, False), (0, 1, False)],
)
def test_a_sampled_size_that_is_far_off_does_not_count(sampled: int, stored: int, far: bool, tmp_path: Path) -> None:
    admin = FakeAdmin()
    admin.dirs[1] = [FakeAdmin.directory("/x", {("b", 0): stored})]
    layout = read_layout(admin, now_ms=0)
    file = tmp_path / "loads.jsonl"
    averages = [
        (("b", 0), PartitionLoad(disk_bytes=sampled, bytes_in_per_s=7)),
        (("b", 1), PartitionLoad(disk_bytes=91)),
    ]
    file.write_bytes(b"".join(lines_of(averages, partitions=2, cluster="c", from_ms=0, to_ms=9, source="s")))

    def loads() -> PartitionLoads:
        return loads_now(admin, layout, cast("Any", None), now_ms=9, window_s=60, interval_s=60, file=file)

    known = loads()
    assert known.of["b", 0] == PartitionLoad(disk_bytes=stored if far else sampled, bytes_in_per_s=7)
    assert known.of["b", 1].disk_bytes == 91
    assert ["b-0" in remark for remark in known.remarks] == [True] * far
    plan = plan_partitions(layout, known, PlanRequest(goals=(GoalChoice(name="replicas"),)))
    assert set(known.remarks) <= set(plan.remarks)


def test_one_broker_that_is_silent_leaves_holes_and_the_others_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "BROKER_S", 0.1)
    admin = FakeAdmin()
    admin.ends = {-2: {("b", 0): 0, ("b", 1): 0}, -1: {("b", 0): 10, ("b", 1): 10}}
    layout = read_layout(admin, now_ms=7)
    source = LogDirsSource(admin, timeout_s=0.1)
    source.take(layout, taken_at_ms=0, mono_s=0.0)
    admin.dirs[2] = kafka_python.NodeNotReadyError(2)
    admin.dirs[1] = [FakeAdmin.directory("/x", {("b", 0): 170})]
    admin.ends[-1]["b", 0] = 20
    taken = source.take(layout, taken_at_ms=0, mono_s=10.0)
    assert [(sample.partition, sample.disk_bytes, sample.bytes_in_per_s) for sample in taken.samples] == [
        (0, 170, 10.0)
    ]
    assert taken.silent == {2: "it reported no sizes"}
    assert taken.holes == {("sample", Hole.NO_LEADER): 1, ("sample", Hole.BROKER_SILENT): 1}
    assert any("broker 2 did not list its log directories" in remark for remark in taken.remarks)
