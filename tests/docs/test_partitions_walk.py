"""The first walk through Kafka's own partitions runs as it stands there: on a layout file, and on three real brokers."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from loaddata.samples.cluster_files import read_layout_file
from shedders.kafka_rebalance.planning.plan_files import parse_reassignment, read_plan
from statechannel.cli.main import app
from tests.docs.generate import ROOT
from tests.docs.typed_lines import parts_of, words_of
from tests.support.three_nodes import three_nodes
from tests.support.waits import WAIT_S, wait_until

_SECTION = re.compile(r"^## First walk\n(.*?)^## ", re.DOTALL | re.MULTILINE)
LAYOUT = ROOT / "design/examples/partitions/cluster.json"
TOPICS = {"logs": 6, "orders": 6}


def _parts() -> dict[str, list[str]]:
    found = _SECTION.search((ROOT / "design/partitions.md").read_text(encoding="utf-8"))
    assert found is not None
    return parts_of(found.group(1))


def _typed(line: str, **names: str) -> str:
    for name, value in names.items():
        line = re.sub(rf"\b{name}\b", value, line)
    result = CliRunner().invoke(app, words_of(line))
    assert result.exit_code == 0, f"{line}: {result.exit_code}\n{result.output}"
    return result.output


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder from where the pages' own files are found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in [name for name in os.environ if name.startswith(("STATECHANNEL_KAFKA_", "STATECHANNEL_EXTENSIONS"))]:
        monkeypatch.delenv(name)
    (tmp_path / "design").symlink_to(ROOT / "design")
    return tmp_path


def test_the_section_has_its_four_parts() -> None:
    assert list(_parts()) == ["Plan without a cluster.", "Plan, and read.", "Apply.", "Undo."]
    assert all(_parts().values())


def test_a_plan_of_a_layout_file(folder: Path) -> None:
    said = [_typed(line) for line in _parts()["Plan without a cluster."]]
    plan = read_plan(folder / "new-broker.json")
    layout, _ = read_layout_file(LAYOUT)
    assert plan.moves
    assert {broker for one in plan.moves for broker in one.added} == {4}, "only the new broker gets replicas"
    assert plan.layout == layout.fingerprint()
    assert "add-brokers; brokers 4" in said[0]
    assert f"{plan.moves[0].topic}-{plan.moves[0].partition}" in said[1]
    after, before = (parse_reassignment((folder / name).read_bytes()) for name in ("after.json", "before.json"))
    there = {(topic.name, one.partition): (one.replicas, ()) for topic, one in layout.partitions()}
    assert before == {key: there[key] for key in after}
    assert all(goal.name in said[3] for goal in plan.goals)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminClient]:
    """Three brokers on three racks, of which the third has nothing."""
    with three_nodes(tmp_path, racks={1: "a", 2: "b", 3: "c"}) as nodes:
        address = ",".join(node.bootstrap_servers for node in nodes.values())
        monkeypatch.setenv("STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS", address)
        admin = AdminClient({"bootstrap.servers": address})
        wait_until(lambda: len(admin.list_topics(timeout=WAIT_S).brokers) == 3)
        for name, count in TOPICS.items():
            placed = [[1, 2] if number % 2 else [2, 1] for number in range(count)]
            admin.create_topics([NewTopic(name, num_partitions=count, replica_assignment=placed)])[name].result()
        producer = Producer({"bootstrap.servers": address, "acks": "all"})
        for number in range(600):
            producer.produce(list(TOPICS)[number % 2], b"x" * 500, partition=number % 6)
        assert producer.flush(WAIT_S) == 0
        del producer  # else it looks for its brokers when they are gone
        yield admin


def _replicas(admin: AdminClient) -> dict[tuple[str, int], tuple[int, ...]]:
    found = admin.list_topics(timeout=WAIT_S).topics
    return {(name, n): tuple(one.replicas) for name in TOPICS for n, one in found[name].partitions.items()}


@pytest.mark.kafka
def test_plan_apply_and_undo_on_three_brokers(cluster: AdminClient, folder: Path) -> None:
    before, parts = _replicas(cluster), _parts()
    for line in parts["Plan, and read."]:
        _typed(line)
    plan = read_plan(folder / "plan.json")
    assert any(3 in one.after for one in plan.moves)
    assert set(read_layout_file(folder / "layout.json")[0].topics) >= set(TOPICS)
    for line in parts["Apply."]:
        said = _typed(line)
    assert plan.id in said
    target = before | {(one.topic, one.partition): one.after for one in plan.moves if one.topic in TOPICS}
    assert _replicas(cluster) == target
    for line in parts["Undo."]:
        _typed(line, ID=plan.id)
    assert _replicas(cluster) == before
    again = json.loads(_typed("statechannel partitions status --output json"))
    assert again
