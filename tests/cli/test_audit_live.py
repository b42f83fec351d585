"""The audit of a live topic says what the audit of its export says; and what it says of a replica of it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from statechannel.audit.transfer.export_file import read_export
from statechannel.protocol.view import View
from tests.cli.test_live import NAMESPACE, Cluster
from tests.support.kafka_lanes import Kafka
from tests.support.replica_server import serving
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path, run: Callable[..., Result]) -> Iterator[Cluster]:
    cluster = Cluster(kafka, topic_prefix, tmp_path, run)
    yield cluster
    cluster.close()


def test_a_life_of_bundles_is_told_alike_from_topic_and_export(cluster: Cluster, tmp_path: Path) -> None:
    cluster("init")
    process = cluster.start("b1")
    cluster.wait_alive("b1")
    cluster("namespace", "create", NAMESPACE, "--bundles", "2")
    bundle = cluster("lookup", f"{NAMESPACE}/x")["bundle"]
    cluster("split", bundle, "--parts", "2")
    child = cluster("lookup", f"{NAMESPACE}/x")["bundle"]
    cluster("unload", child, "--reason", "for the audit")
    cluster("lookup", f"{NAMESPACE}/x")
    assert "no live broker has an HTTP endpoint" in cluster.fails("audit", "verify", code=5)
    process.kill()
    process.wait(WAIT_S)

    export = tmp_path / "log.jsonl"
    assert cluster._run("export", str(export), *cluster.common, "--with-topics").exit_code == 0
    end = read_export(export).header.end_offsets[0]
    for asked in (("history", child), ("gaps",), ("rejected",), ("diff", "0", str(end)), ("diff", "0")):
        live = cluster("audit", *asked)
        result = cluster._run("audit", *asked, "--file", str(export), "--output", "json")
        assert result.exit_code == 0, result.stderr
        answers = [
            {name: part for name, part in answer.items() if name != "unheard"}
            for answer in (json.loads(result.stdout), live)
        ]
        assert answers[0] == answers[1], asked
    history = cluster("audit", "history", child)["history"]
    partition = [(row["relation"], row["state"]) for row in history if row["verdict"] == "accepted"]
    assert partition[0] == ("namespace", "Active")
    assert ("ancestor", "Deleted") in partition
    unloaded = next(row for row in history if row["relation"] == "own" and row["state"] == "Unassigned")
    assert unloaded["began"]["reason"] == "for the audit"
    assert (unloaded["before"]["owner"], unloaded["after"]["owner"]) == ("b1", None)
    (gap,) = cluster("audit", "gaps")["gaps"]
    assert (gap["bundle"], gap["cause"], gap["from"], gap["to"]) == (child, "unload", "b1", "b1")
    assert gap["on_request_ms"] > 0

    before = cluster("lookup", f"{NAMESPACE}/x", "--as-of", str(unloaded["offset"] - 1))
    assert (before["bundle"], before["owner"], before["state"]) == (child, "b1", "Releasing")
    assert before["generation"] == unloaded["before"]["generation"]
    then = cluster("lookup", f"{NAMESPACE}/x", "--as-of", str(unloaded["offset"]))
    assert (then["owner"], then["state"], then["changed_ms"]) == (None, "Unassigned", unloaded["timestamp_ms"])
    by_b1 = cluster("audit", "history", "--by", "b1", "--since", "1h")["history"]
    assert {row["by"] for row in by_b1} == {"b1"}
    assert unloaded["offset"] in [row["offset"] for row in by_b1]
    window = ("--since", str(unloaded["offset"]), "--until", "0s", "--by", "b1")
    watched = cluster._run("watch", *window, *cluster.common, "--output", "json")
    assert watched.exit_code == 0, watched.stderr
    changes = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [row["offset"] for row in changes] == [
        row["offset"] for row in by_b1 if row["verdict"] == "accepted" and row["offset"] >= unloaded["offset"]
    ]
    operations = cluster("operation", "list")["operations"]
    assert cluster("operation", "list", "--since", "1h", "--by", "b1")["operations"] == operations
    assert cluster("operation", "list", "--until", "1h")["operations"] == []
    assert cluster("operation", "list", "--by", "b9")["operations"] == []
    assert "is an offset" in cluster.fails("operation", "list", "--since", "7", code=2)
    assert cluster("audit", "gaps", "--until", "1h")["gaps"] == []
    assert cluster("audit", "gaps", "--since", "1h", "--broker", "b1", "--cause", "unload")["gaps"] == [gap]
    assert "is in the future" in cluster.fails("audit", "--as-of", "2999-01-01", code=2)

    view, wrong = View(0, 1), View(0, 1)
    for record in read_export(export).partitions[0]:
        view.read(record.offset, record.key, record.value)
        if record.offset != unloaded["offset"]:
            wrong.read(record.offset, record.key, record.value)
    wrong.applied = view.applied
    with serving({0: view}) as good, serving({0: wrong}) as bad:
        assert cluster("audit", "verify", "--replica", good)["replicas"][0]["status"] == "equal"
        partition = cluster("audit", "verify", "--replica", bad, code=1)["replicas"][0]["partitions"][0]
        assert (partition["first"]["offset"], partition["first"]["key"]) == (unloaded["offset"], child)
