"""Several log directories on each of three real nodes: what is planned is carried out, also when the tool is killed; nothing goes
to a cordoned directory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import ConfigResource

from loaddata.samples.admin import open_admin
from statechannel.kafka.client_settings import ClientSettings
from tests.faults.kafka_nodes import KafkaNodes
from tests.kafka.test_partitions_execution import PARTITIONS, QUICK, TOPIC, Lab, fill, produce
from tests.support.waits import WAIT_S

DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
RECORDS = 6_000
DISKS = 3


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("disks")
    nodes = KafkaNodes(folder, 3, properties={**QUICK, "log.segment.bytes": "1048576"}, disks=("d1", "d2", "d3"))
    try:
        asyncio.run(nodes.start())
        settings = ClientSettings(nodes.address)
        with open_admin(settings, timeout_s=WAIT_S) as admin:
            lab = Lab(nodes, folder, settings, admin)
            fill(lab)
            produce(lab, RECORDS)
            yield lab
    finally:
        asyncio.run(nodes.close())


def directories(lab: Lab) -> dict[tuple[int, int], str]:
    """Directory of each replica of the topic, by partition and broker; ends with a mark while it is on its way."""
    found: dict[tuple[int, int], str] = {}
    for answer in lab.admin.describe_log_dirs(topic_partitions=[TOPIC]):
        for directory in answer["log_dirs"]:
            for topic in directory["topics"]:
                for part in topic["partitions"]:
                    key = part["partition_index"], answer["broker"]
                    name = directory["log_dir"].rpartition("/")[2]
                    found[key] = f"{found.get(key, '')}{name}{'>' if part['is_future_key'] else ''}"
    return found


def set_broker(lab: Lab, broker: int, name: str, value: str | None) -> None:
    change = {name: (0 if value is not None else 1, value)}
    resource = ConfigResource("BROKER", str(broker), change)
    answer = lab.admin.alter_configs([resource], raise_on_unknown=False, incremental=True)
    assert answer == {"broker": {str(broker): "OK"}}


def disks(lab: Lab) -> dict[int, list[str]]:
    """Directories of all brokers; on a busy machine one may not answer in time."""
    paths: dict[int, list[str]] = {}

    def all_answer() -> bool:
        paths.update({broker.id: [each.path for each in broker.log_dirs] for broker in lab.layout().brokers})
        return all(len(of) == DISKS for of in paths.values())

    lab.until(all_answer)
    return paths


def all_in_one(lab: Lab) -> None:
    """All replicas of the topic in the first directory of their brokers."""
    paths = disks(lab)
    lab.admin.alter_replica_log_dirs(
        {(TOPIC, n, broker): paths[broker][0] for n in range(PARTITIONS) for broker in (1, 2)}
    )
    lab.until(lambda: set(directories(lab).values()) == {"d1"})


def cordoned(lab: Lab, broker: int) -> list[str]:
    (found,) = [each for each in lab.layout().brokers if each.id == broker]
    return [directory.path for directory in found.log_dirs if directory.cordoned]


def test_disks_are_leveled_after_a_kill_and_a_cordoned_one_gets_nothing(lab: Lab) -> None:
    all_in_one(lab)
    paths = disks(lab)
    set_broker(lab, 2, "cordoned.log.dirs", paths[2][1])
    lab.until(lambda: cordoned(lab, 2) == [paths[2][1]])
    path, plan = lab.planned("--goals", "log-dirs")
    assert plan.moves == ()
    assert {move.broker for move in plan.dir_moves} == {1, 2}
    assert all(move.after != paths[2][1] for move in plan.dir_moves)
    shown = lab.run("apply", str(path))
    assert (shown["dirs_open"], shown["dir_bytes"]) == (len(plan.dir_moves), plan.dir_bytes)
    tool = lab.begin("apply", str(path), "--execute", "--throttle", "100KB/s")
    lab.until(lambda: any(">" in place for place in directories(lab).values()))
    lab.until(lambda: "progress" in lab.events(plan))
    tool.kill()
    tool.communicate()
    status: dict[str, Any] = lab.run("status")
    assert (status["plan_id"], status["state"]) == (plan.id, "dead")
    assert status["log_dirs"]["in_flight"] > 0
    assert status["unsent"] == status["log_dirs"]["waiting"]
    assert status["throttles_left"]
    assert f"resume {plan.id}" in status["next_step"]
    assert "still in flight" in lab.refused("rollback", plan.id)
    assert lab.run("resume", plan.id, "--throttle", "none")["ended"] == "done"
    there = directories(lab)
    for move in plan.dir_moves:
        assert there[move.partition, move.broker] == move.after.rpartition("/")[2]
    status = lab.run("status", plan.id)
    assert (status["state"], status["log_dirs"]["done"]) == ("done", len(plan.dir_moves))
    assert status["throttles_left"] == []
    answer = lab.admin.describe_configs([ConfigResource("BROKER", "1", [DIR_RATE])], config_filter="all")
    assert answer["broker"]["1"].get(DIR_RATE, {}).get("config_source") != "DYNAMIC_BROKER_CONFIG"
    assert lab.read() == lab.hashes
    back = lab.run("rollback", plan.id, "--execute")
    assert (back["undoes"], back["ended"]) == (plan.id, "done")
    assert set(directories(lab).values()) == {"d1"}


def test_arriving_replicas_are_created_where_the_plan_wants_them(lab: Lab) -> None:
    """Their broker, with three directories, would choose by numbers of partitions."""
    path, plan = lab.planned("--goals", "disk,log-dirs")
    arriving = [move for move in plan.dir_moves if move.before is None]
    assert arriving
    assert {move.broker for move in arriving} == {3}
    assert lab.run("apply", str(path), "--execute")["ended"] == "done"
    there = directories(lab)
    for move in plan.dir_moves:
        assert there[move.partition, move.broker] == move.after.rpartition("/")[2]
    lab.reached(plan)


def test_a_directory_is_emptied(lab: Lab) -> None:
    all_paths = disks(lab)
    held = {n for (n, broker) in directories(lab) if broker == 1}
    assert held
    lab.admin.alter_replica_log_dirs({(TOPIC, n, 1): all_paths[1][0] for n in held})
    lab.until(lambda: {place for (_, broker), place in directories(lab).items() if broker == 1} == {"d1"})
    all_topics = ("--topics", ".*")  # also those of Kafka itself
    path, plan = lab.planned("--remove-log-dirs", f"1:{all_paths[1][0]}", *all_topics)
    assert plan.moves == ()
    assert {(move.broker, move.before) for move in plan.dir_moves if move.topic == TOPIC} == {(1, all_paths[1][0])}
    assert {move.partition for move in plan.dir_moves if move.topic == TOPIC} == held
    assert lab.run("apply", str(path), "--execute")["ended"] == "done"
    assert {place for (_, broker), place in directories(lab).items() if broker == 1} == {"d2", "d3"}
    (emptied,) = [each for each in lab.layout().brokers[0].log_dirs if each.path == all_paths[1][0]]
    assert emptied.replicas == ()
    _, again = lab.planned("--remove-log-dirs", f"1:{all_paths[1][0]}", *all_topics)
    assert again.empty


def test_a_target_that_is_cordoned_after_the_plan_was_made_refuses_it(lab: Lab) -> None:
    all_paths = disks(lab)
    set_broker(lab, 2, "cordoned.log.dirs", None)
    lab.until(lambda: cordoned(lab, 2) == [])
    held = {n: broker for (n, broker), place in directories(lab).items() if broker == 2 and place == "d1"}
    lab.admin.alter_replica_log_dirs({(TOPIC, n, 2): all_paths[2][2] for n in held})
    lab.until(lambda: not any(place in {"d1", "d1d3>"} for (_, b), place in directories(lab).items() if b == 2))
    path, plan = lab.planned("--goals", "log-dirs")
    target = next(move.after for move in plan.dir_moves if move.broker == 2)
    set_broker(lab, 2, "cordoned.log.dirs", target)
    lab.until(lambda: cordoned(lab, 2) == [target])
    assert f"log directory {target} of broker 2 is cordoned" in lab.refused("apply", str(path), "--execute")
    set_broker(lab, 2, "cordoned.log.dirs", "*")
    lab.until(lambda: len(cordoned(lab, 2)) == len(all_paths[2]))
    _, plan = lab.planned("--goals", "disk,log-dirs")
    assert any("broker 2 gets no replicas" in remark for remark in plan.remarks)
    assert not any(2 in move.added for move in plan.moves)
    assert not any(move.broker == 2 for move in plan.dir_moves)
