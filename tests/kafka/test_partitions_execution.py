"""Plans on a real Kafka of three nodes with real data: a broker is added, one is taken out, one dies, and so does the tool.

One cluster for all of it; each test goes on from the layout that the last one has left. Whatever happens: the layout is the
planned one in the end, every record is there as it was, throttles are gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.admin import ConfigResource
from typer.testing import CliRunner

from loaddata.samples.admin import open_admin
from loaddata.samples.kafka_cluster import read_layout, read_sizes
from loaddata.samples.partitions import ClusterLayout
from shedders.kafka_rebalance.execution.cluster_port import ClusterPort
from shedders.kafka_rebalance.execution.journal import read_journal
from shedders.kafka_rebalance.execution.throttle import RATES, resources_of
from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
from shedders.kafka_rebalance.planning.plan_files import read_plan, write_plan
from statechannel.cli.main import app
from statechannel.kafka.client_settings import ClientSettings
from tests.faults.kafka_nodes import KafkaNodes
from tests.support.broker_cluster import COMMAND
from tests.support.waits import WAIT_S, wait_until

ROOT = Path(__file__).parents[2]
TOPIC = "data"
PARTITIONS = 6
RECORDS = 3_000
FETCHES_RECORDS = 1_500
"""So many records of one partition need several fetches."""
QUICK = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "1000"}
"""A dead node is found out after so long."""
_MOVE = ("topic", "partition", "before", "after", "leader_before", "leader_after", "size_bytes", "goals")
PACE = {
    "poll_s": 0.1,
    "full_look_s": 0.5,
    "settle_s": 1,
    "executor_away_s": 60,
    "broker_grace_s": 200,
    "urp_grace_s": 200,
}


@dataclass
class Lab:
    """The cluster, its data, and the tool."""

    nodes: KafkaNodes
    folder: Path
    settings: ClientSettings
    admin: Any
    hashes: dict[int, tuple[int, str]] = field(default_factory=dict)
    _plans: int = 0

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def where(self) -> list[str]:
        flags = (("--set", f"extensions.partitions.pace.{name}={value}") for name, value in PACE.items())
        return ["-b", self.nodes.address, *(part for flag in flags for part in flag)]

    def options(self) -> list[str]:
        return [*self.where(), "--state", str(self.state), "--output", "json"]

    def run(self, *args: str, code: int = 0) -> Any:
        """A command in this process."""
        result = CliRunner().invoke(app, ["partitions", *args, *self.options()])
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return json.loads(result.stdout) if result.stdout else None

    def refused(self, *args: str) -> str:
        """Why a command is refused."""
        return str(self.run(*args, code=3)["error"])

    def begin(self, *args: str) -> subprocess.Popen[str]:
        """A command in a process of its own."""
        command = [*COMMAND, "partitions", *args, *self.options()]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def layout(self) -> ClusterLayout:
        return read_layout(self.admin, now_ms=time.time_ns() // 1_000_000)

    def plan(
        self, target: Callable[[int, tuple[int, ...]], tuple[int, ...]], *names: str
    ) -> tuple[Path, ReassignmentPlan]:
        """A plan that brings each partition of the topics where `target` says, from where it is; of the own topic: no name."""
        layout = self.layout()
        sizes = read_sizes(self.admin, layout)
        topics = [layout.topics[name] for name in names or (TOPIC,)]
        moves = []
        for name, part in ((topic.name, part) for topic in topics for part in topic.partitions):
            after = target(part.partition, part.replicas)
            if after != part.replicas or part.leader != after[0]:
                size, leaders = sizes.of[name, part.partition].disk_bytes, (part.leader, after[0])
                facts = name, part.partition, part.replicas, after, *leaders, size, ("disk",)
                moves.append(PartitionMove(**dict(zip(_MOVE, facts, strict=True))))  # type: ignore[arg-type]
        self._plans += 1
        plan = ReassignmentPlan(
            id=hashlib.sha256(f"{self._plans}{moves}".encode()).hexdigest()[:16],
            cluster_id=layout.cluster_id,
            layout=layout.fingerprint(),
            topic_ids={topic.name: topic.topic_id for topic in topics},
            made_at_ms=layout.read_at_ms,
            moves=tuple(moves),
        )
        path = self.folder / f"plan-{self._plans}.json"
        write_plan(path, plan)
        return path, plan

    def planned(self, *args: str, code: int = 0) -> tuple[Path, ReassignmentPlan]:
        """A plan of the planner's, of this topic alone."""
        self._plans += 1
        path = self.folder / f"plan-{self._plans}.json"
        command = ["partitions", "plan", "--topics", TOPIC, *args, "-b", self.nodes.address, "-o", str(path)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
        return path, read_plan(path)

    def reached(self, plan: ReassignmentPlan) -> None:
        """The layout is the plan's, nothing moves, no throttle is left, and each record is where it was."""
        layout = self.layout()
        for move in plan.moves:
            partition = layout.topics[move.topic].partitions[move.partition]
            assert (partition.replicas, partition.leader, partition.in_motion) == (move.after, move.leader_after, False)
            assert set(partition.isr) == set(move.after)
        assert self.throttles(plan) == {}
        assert self.read() == self.hashes

    def throttles(self, plan: ReassignmentPlan) -> dict[Any, Any]:
        """What is set, of the brokers and topics of the plan."""
        wanted, result = resources_of(plan), {}

        def all_told() -> bool:
            result.update(ClusterPort(self.admin, plan, {}).observe(full=False, configs=wanted).configs or {})
            return set(result) == set(wanted)

        self.until(all_told)
        return {resource: settings for resource, settings in result.items() if settings}

    def read(self) -> dict[int, tuple[int, str]]:
        """Number and digest of the records of each partition, in order."""
        consumer = Consumer(
            {"bootstrap.servers": self.nodes.address, "group.id": "reader", "enable.partition.eof": False}
        )
        try:
            results = {}
            for partition in range(PARTITIONS):
                place = TopicPartition(TOPIC, partition, 0)
                _, end = consumer.get_watermark_offsets(place, timeout=WAIT_S)
                consumer.assign([place])
                digest, count, ends_s = hashlib.sha256(), 0, time.monotonic() + WAIT_S
                while count < end:
                    assert time.monotonic() < ends_s, f"{count} of {end} records of {partition}"
                    for message in consumer.consume(end - count, 1.0):
                        assert message.error() is None
                        assert message.offset() == count
                        digest.update(message.value() or b"")
                        count += 1
                results[partition] = (count, digest.hexdigest())
            return results
        finally:
            consumer.close()

    def until(self, done: Callable[[], bool]) -> None:
        wait_until(done)

    def events(self, plan: ReassignmentPlan) -> list[str]:
        """Names of the journal's events so far; the last line may be torn."""
        return [entry["event"] for entry in read_journal(self.state / plan.id)]

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Collects each look at which a partition of the topic had fewer replicas in sync than its minimum, two."""
        results: list[str] = []
        over = threading.Event()

        def watch() -> None:
            with open_admin(self.settings, timeout_s=WAIT_S) as admin:
                while not over.wait(0.1):
                    (topic,) = admin.describe_topics([TOPIC])
                    results.extend(
                        f"{partition}" for partition in topic["partitions"] if len(partition["isr_nodes"]) < 2
                    )

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield results
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("partitions")
    nodes = KafkaNodes(folder, 3, properties=QUICK)
    try:
        asyncio.run(nodes.start())
        settings = ClientSettings(nodes.address)
        with open_admin(settings, timeout_s=WAIT_S) as admin:
            lab = Lab(nodes, folder, settings, admin)
            fill(lab)
            yield lab
    finally:
        asyncio.run(nodes.close())


def fill(lab: Lab) -> None:
    """Two replicas of each partition, all of them on brokers 1 and 2: broker 3 is empty."""
    replicas = {n: [1, 2] if n % 2 else [2, 1] for n in range(PARTITIONS)}
    lab.admin.create_topics({TOPIC: {"assignments": replicas, "configs": {"min.insync.replicas": "2"}}})
    produce(lab, RECORDS)
    assert sum(count for count, _ in lab.hashes.values()) == RECORDS


def produce(lab: Lab, records: int) -> None:
    """Write to all partitions, and note what they hold then."""
    producer = Producer({"bootstrap.servers": lab.nodes.address, "acks": "all", "linger.ms": 20})
    for number in range(records):
        producer.produce(TOPIC, value=os.urandom(1_000) + str(number).encode(), partition=number % PARTITIONS)
        if number % 1_000 == 0:
            producer.flush(WAIT_S)
    assert producer.flush(WAIT_S) == 0
    lab.hashes = lab.read()


def test_a_broker_is_added_and_one_is_taken_out_and_back(lab: Lab) -> None:
    """Bounds, batches, rollback files, dry run; never fewer in sync than the minimum."""
    path, plan = lab.planned("--add-brokers", "3", "--goals", "rack-awareness,disk,replicas,leaders")
    assert plan.moves
    assert all(move.added in {(3,), ()} for move in plan.moves)
    shown = lab.run("apply", str(path))
    assert (shown["open_count"], shown["copied_bytes"]) == (len(plan.moves), plan.copied_bytes)
    assert lab.layout().fingerprint() == plan.layout, "a dry run does nothing"
    with lab.watched() as below:
        ended = lab.run("apply", str(path), "--execute", "--throttle", "3MB/s", "--moves-per-broker", "2")
        lab.reached(plan)
        assert ended["ended"] == "done"
        status = lab.run("status", plan.id)
        assert (status["state"], status["throttles_left"]) == ("done", [])
        assert status["progress"]["bytes_done"] == plan.copied_bytes
        files = sorted((lab.state / plan.id).glob("rollback-*.json"))
        undone = [partition for file in files for partition in json.loads(file.read_bytes())["partitions"]]
        assert {(item["partition"], tuple(item["replicas"])) for item in undone} == {
            (move.partition, move.before) for move in plan.moves
        }
        # Kafka's own topics and the state topic have a replica on each of three brokers: those cannot leave, and it says so.
        path, leaving = lab.planned("--remove-brokers", "1", code=3)
        assert all(1 not in move.after for move in leaving.moves)
        assert "hard goal" in lab.refused("apply", str(path), "--execute")
        assert lab.run("apply", str(path), "--execute", "--one-replica", "--accept-unmet")["ended"] == "done"
        lab.reached(leaving)
        back = lab.run("rollback", leaving.id, "--execute")
        assert (back["undoes"], back["ended"]) == (leaving.id, "done")
    assert below == []
    layout = lab.layout()
    for move in leaving.moves:
        assert layout.topics[TOPIC].partitions[move.partition].replicas == move.before
    assert lab.read() == lab.hashes
    shown = lab.run("apply", str(path), "--accept-unmet")
    assert shown["open_count"] == len(leaving.moves), "the way back makes the old plan fit again"


def test_a_node_killed_during_an_execution_is_waited_for(lab: Lab) -> None:
    path, plan = lab.plan(lambda n, now: (1, 3) if n % 2 else (3, 1))
    tool = lab.begin("apply", str(path), "--execute", "--throttle", "300000", "--moves-per-broker", "2")
    lab.until(lambda: "batch" in lab.events(plan))
    node = lab.nodes.nodes[2]
    asyncio.run(node.kill())
    lab.until(lambda: 3 not in {broker.id for broker in lab.layout().brokers if broker.alive})
    assert lab.run("pause", plan.id)["state"] == "paused"
    asyncio.run(node.start())
    assert lab.run("resume", plan.id, "--throttle", "20000000")["state"] == "running"
    out, err = tool.communicate(timeout=WAIT_S)
    assert tool.returncode == 0, err
    assert json.loads(out)["ended"] == "done"
    assert "Traceback" not in err
    lab.reached(plan)


def test_the_tool_is_killed_at_each_step_and_goes_on(lab: Lab) -> None:
    # Wherever the tests before have left it, each partition gets a new replica.
    path, plan = lab.plan(lambda n, now: (({1, 2, 3} - set(now)).pop(), now[0]))
    command = [sys.executable, "-m", "tests.support.dying_executor", lab.nodes.address, str(lab.state), str(path), "60"]
    stdout = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S, check=True).stdout
    lives = [line for line in stdout.splitlines() if line.startswith(("killed", "done", "failed"))]
    assert lives[-1].startswith("done done"), stdout
    assert set(lives[:-1]) == {"killed 9"}
    assert len(lives) > 8, "fewer steps than the flow has"
    lab.reached(plan)
    events = read_journal(lab.state / plan.id)
    moved: set[int] = set()
    for event in events:
        asked = {part[1] for part in event["partitions"]} if event["event"] == "batch" else set()
        assert not asked & moved, "a move that was done is not asked for again"
        moved |= {part[1] for part in event["partitions"]} if event["event"] == "moved" else set()
    assert moved == {move.partition for move in plan.moves}


def test_the_command_killed_and_gone_on_with_from_the_topic_alone_or_cancelled(lab: Lab, tmp_path: Path) -> None:
    path, plan = lab.plan(lambda n, now: (3, 2) if n % 2 else (2, 3))
    tool = lab.begin("apply", str(path), "--execute", "--throttle", "50000")
    lab.until(lambda: "batch" in lab.events(plan))
    tool.kill()
    tool.communicate()
    status = lab.run("status")
    assert (status["plan_id"], status["state"]) == (plan.id, "dead")
    assert status["throttles_left"]
    progress = status["progress"]
    waiting = progress["partitions"].get("waiting", 0)
    assert (status["unsent"], status["undriven_since_ms"] is not None) == (waiting, True)
    assert f"resume {plan.id}" in status["next_step"]
    assert progress["left_s"] is None or not waiting, "no executor starts them"
    assert (progress["rate_bytes_per_s"] or 0) <= 3 * 50_000, "what the throttle allows three brokers"
    time.sleep(1.0)
    assert lab.run("status")["progress"]["elapsed_s"] >= progress["elapsed_s"] + 1.0, "Kafka goes on"
    here, lab.folder = lab.folder, tmp_path
    ended = lab.run("resume", plan.id, "--throttle", "none")
    assert ended["ended"] == "done"
    lab.folder = here
    lab.reached(plan)
    # A throttle holds nothing of what fits into one fetch, 1 MiB of a partition.
    produce(lab, FETCHES_RECORDS * PARTITIONS)
    path, plan = lab.plan(lambda n, now: (1, 3) if n % 2 else (1, 2))
    tool = lab.begin("apply", str(path), "--execute", "--throttle", "20000", "--moves-max", "4")
    lab.until(lambda: "batch" in lab.events(plan))
    tool.terminate()
    _, err = tool.communicate(timeout=WAIT_S)
    assert tool.returncode == 130, err
    assert "ended by SIGTERM" in err
    going = {partition.partition for partition in lab.layout().topics[TOPIC].partitions if partition.in_motion}
    assert bool(lab.throttles(plan)) == bool(going), "what is in flight keeps its throttle"
    tool = lab.begin("resume", plan.id, "--throttle", "20000")
    lab.until(lambda: lab.events(plan).count("batch") + lab.events(plan).count("throttle") > 2)
    assert lab.run("cancel")["plan"] == plan.id
    out, err = tool.communicate(timeout=WAIT_S)
    assert (tool.returncode, json.loads(out)["ended"]) == (0, "cancelled"), err
    layout = lab.layout()
    for move in plan.moves:
        partition = layout.topics[TOPIC].partitions[move.partition]
        assert not partition.in_motion
        assert partition.replicas in {move.before, move.after}
    assert lab.run("status", plan.id)["throttles_left"] == []
    assert lab.read() == lab.hashes


def test_another_tool_removes_the_throttle_deletes_a_topic_and_makes_another(lab: Lab) -> None:
    """What is missing is put back with a remark; the topic's moves are dropped; the end names what came to the broker."""
    lab.admin.create_topics({"gone": {"assignments": {0: [1, 2], 1: [2, 1]}}})
    lab.until(lambda: "gone" in lab.layout().topics)
    path, plan = lab.plan(lambda n, now: (now[0], ({1, 2, 3} - set(now)).pop()), TOPIC, "gone")
    plan = replace(plan, request={"mode": "demote", "subjects": [9]})
    write_plan(path, plan)
    kept = replace(plan, moves=tuple(move for move in plan.moves if move.topic == TOPIC))
    bounds = ("--throttle", "100000", "--moves-per-broker", "1", "--order", "large-first")
    tool = lab.begin("apply", str(path), "--execute", *bounds)
    lab.until(lambda: "batch" in lab.events(plan))
    rates = lab.throttles(plan)
    brokers = [name for (kind, name), _ in rates.items() if kind == "broker"]
    time.sleep(2 * PACE["settle_s"])
    for name in brokers:
        removed = dict.fromkeys(RATES, (1, None))
        lab.admin.alter_configs([ConfigResource("BROKER", name, removed)], incremental=True)
    lab.admin.delete_topics(["gone"])
    lab.until(lambda: sum("removed" in text for text in lab.run("status", plan.id)["remarks"]) >= 1)
    lab.until(lambda: lab.run("status", plan.id)["throttle_bytes_per_s"] == 100_000)  # a look comes between removals
    assert lab.run("resume", plan.id, "--throttle", "20000000")["state"] == "running"
    out, err = tool.communicate(timeout=WAIT_S)
    assert tool.returncode == 0, err
    assert json.loads(out)["ended"] == "done"
    assert "topic gone was deleted" in json.loads(out)["reason"]
    lab.reached(kept)
    lab.admin.create_topics({"a-late": {"assignments": {0: [3, 1]}}})
    lab.until(lambda: "a-late" in lab.layout().topics)
    asked = replace(plan, id="e" * 16, request={"mode": "demote", "subjects": [3]}, topic_ids={}, moves=kept.moves)
    write_plan(lab.folder / "demoted.json", asked)
    assert "a-late-0" in lab.run("apply", str(lab.folder / "demoted.json"), "--execute", code=3)["reason"]
    assert lab.run("status", asked.id)["stop"]["kind"] == "unmet"
    lab.admin.delete_topics(["a-late"])
