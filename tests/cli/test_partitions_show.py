"""`partitions show`: the document for programs, the files that it writes, and plans of many thousand moves."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import Result

from shedders.kafka_rebalance.cli import arguments
from shedders.kafka_rebalance.planning.plan_files import to_json, write_plan
from tests.docs.generate import ROOT
from tests.unit.partitions.plans import MIB, MOVES, PLAN, move

Run = Callable[..., Result]
EXAMPLE = ROOT / "design/examples/partitions/cluster.json"


@pytest.fixture(autouse=True)
def plan(run: Run) -> None:
    write_plan(Path("plan.json"), PLAN)


def test_the_document_has_all_but_the_single_moves(run: Run) -> None:
    document = json.loads(run("partitions", "show", "plan.json", "--output", "json").stdout)
    assert "moves" not in document
    assert (document["id"], document["partitions"], document["replicas_to_copy"]) == (PLAN.id, 3, 2)
    assert (document["copied_bytes"], document["new_leaders"], document["complete"]) == (40 * MIB, 3, False)
    assert document["hard_goals_unmet"] == ["rack-awareness"]
    assert document["estimate"]["unknown_sizes"] == 1
    assert [goal["name"] for goal in document["goals"]] == ["rack-awareness", "disk", "cpu"]
    assert document["brokers"][0]["before"]["disk_bytes"] == 90 * MIB
    assert document["remarks"] == list(PLAN.remarks)


def test_moves_are_chosen_by_topic_and_broker(run: Run) -> None:
    def moves(*options: str) -> list[str]:
        document = json.loads(run("partitions", "show", "plan.json", "--output", "json", *options).stdout)
        return [f"{move['topic']}-{move['partition']}" for move in document["moves"]]

    assert moves("--details") == ["logs-0", "logs-1", "orders-0"]
    assert moves("--topic", "ord.*") == ["orders-0"]
    assert moves("--topic", "log") == []
    assert moves("--broker", "3") == ["logs-0", "orders-0"]
    assert moves("--broker", "3", "--topic", "logs", "--topic", "x") == ["logs-0"]
    assert moves("--details", "--limit", "2") == ["logs-0", "logs-1"]
    assert moves("--details", "--limit", "0") == ["logs-0", "logs-1", "orders-0"]


def test_files_for_kafkas_tool(run: Run) -> None:
    files = ("--reassignment", "after.json", "--rollback", "before.json")
    result = run("partitions", "show", "plan.json", *files)
    assert result.exit_code == 0, result.output
    assert Path("after.json").read_bytes() == to_json(MOVES)
    assert Path("before.json").read_bytes() == to_json(MOVES, "before")
    Path("after.json").write_text("mine")
    assert run("partitions", "show", "plan.json", *files).exit_code == 2
    assert Path("after.json").read_text() == "mine"
    assert run("partitions", "show", "plan.json", *files, "--replace").exit_code == 0
    assert Path("after.json").read_text() != "mine"


def test_planning_needs_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda _: None)
    result = run("partitions", "plan", "--layout", "none.json")
    assert result.exit_code == 25
    assert "this needs numpy" in result.stderr


def test_a_large_plan_does_not_flood_the_terminal(run: Run) -> None:
    moves = tuple(move(f"t{number // 100}", number % 100, (1, 2), (3, 2)) for number in range(30_000))
    topics = MappingProxyType({move.topic: "" for move in moves})
    brokers = (*PLAN.brokers, *(replace(PLAN.brokers[0], id=number) for number in range(4, 500)))
    write_plan(Path("large.json"), replace(PLAN, moves=moves, topic_ids=topics, brokers=brokers))
    result = run("partitions", "show", "large.json", "--details")
    assert result.exit_code == 0, result.output
    assert "and 29950 more" in result.stdout
    assert "and 469 more" in result.stdout
    assert len(result.stdout.splitlines()) < 150


def test_a_plan_is_not_replaced_by_what_is_made_from_it(run: Run) -> None:
    planned = run("partitions", "plan", "--layout", EXAMPLE, "--add-brokers", "4", "--out", "mine.json")
    assert planned.exit_code == 0, planned.output
    Path("link.json").symlink_to("mine.json")
    before = Path("mine.json").read_bytes()
    for name in ("mine.json", "./mine.json", "link.json"):
        result = run("partitions", "show", "mine.json", "--reassignment", name, "--replace")
        assert result.exit_code == 2, result.output
        assert "is an input of this command" in result.stderr
    Path("layout.json").write_bytes(EXAMPLE.read_bytes())
    result = run("partitions", "plan", "--layout", "layout.json", "--out", "layout.json", "--replace")
    assert result.exit_code == 2, result.output
    assert Path("mine.json").read_bytes() == before


def test_a_file_of_kafkas_tool_that_moves_between_disks(run: Run) -> None:
    document = json.loads(EXAMPLE.read_text())
    name, replicas = document["topics"][0]["name"], document["topics"][0]["partitions"][0]["replicas"]
    dirs = [{"path": "/d1", "replicas": [[name, 0, 5_000_000]]}, {"path": "/d2"}]
    broker = next(each for each in document["brokers"] if each["id"] == replicas[0])
    named = {"topic": name, "partition": 0, "replicas": replicas, "log_dirs": ["/d2"] + ["any"] * len(replicas[1:])}
    Path("file.json").write_text(json.dumps({"partitions": [named]}))
    for known in (False, True):
        broker["log_dirs"] = dirs if known else []
        Path("layout.json").write_text(json.dumps(document))
        result = run("partitions", "show", "file.json", "--layout", "layout.json", "--output", "json")
        assert result.exit_code == 0, result.output
        shown = json.loads(result.stdout)
        assert (shown["dir_moves"], shown["dir_bytes"], len(shown["remarks"])) == (
            (1, 5_000_000, 0) if known else (0, 0, 1)
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"topics":[{"topic":"a"}],"version":1}', "topics to move"),
        ('{"version":1,"brokers":[{"broker":1,"logDirs":[]}]}', "kafka-log-dirs"),
        (
            "Querying brokers for log directories information\nReceived log directory information from 1\n{}",
            "kafka-log-dirs",
        ),
        ("Topic: a\tTopicId: x\tPartitionCount: 1\n\tTopic: a\tPartition: 0\n", "kafka-topics"),
        ("apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaRebalance\n", "KafkaRebalance"),
        ("# mine\napiVersion: kafka.strimzi.io/v1beta2\n", "KafkaRebalance"),
        ('{"brokerCapacities":[]}', "Cruise Control"),
        ("Current partition replica assignment\n{}\n\nSave this to use as the file\n", "kafka-reassign-partitions"),
    ],
)
def test_files_of_other_tools_are_named_for_what_they_are(run: Run, content: str, words: str) -> None:
    Path("file").write_text(content)
    for command in (
        ("show", "file"),
        ("apply", "file", "--bootstrap-servers", "127.0.0.1:1"),
        ("plan", "--layout", "file", "--out", "x.json"),
    ):
        result = run("partitions", *command)
        assert result.exit_code == 7, result.output
        assert words in " ".join(result.stderr.split())
