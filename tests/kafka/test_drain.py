"""Drains and rolling restarts on a real Kafka, with broker processes that have load made up for them."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statechannel.cli.main import app
from tests.support.broker_cluster import WAIT_S, BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka

NAMESPACE = "tenant/ns"
FLAGS = (
    "extensions.balancer.source=simulated",
    "extensions.balancer.load.measure_interval_s=0.3",
    "extensions.balancer.load.tick_s=0.1",
    "extensions.balancer.load.settle_s=0.3",
    "extensions.balancer.balancing=false",
    "extensions.balancer.splitting=false",
    "extensions.balancer.drain.ahead_max=4",
)


class Cluster(BrokerCluster):
    """Its commands may find a Kafka that is busy with other tests."""

    def alive(self) -> list[dict[str, Any]]:
        """Nobody, where a busy Kafka does not say; callers wait for those that they want."""
        result = CliRunner().invoke(app, ["brokers", *self.place, "--output", "json"])
        found = json.loads(result.stdout)["brokers"] if result.exit_code == 0 else []
        return [one for one in found if one["accepting"]]

    def moved_by_drains(self) -> dict[str, set[str]]:
        """By leader, the bundles that decision records of drains say were moved."""
        moved: dict[str, set[str]] = {}
        for decision in self.decisions():
            if decision["drain"] is not None:
                bundles = {move["bundle"] for move in decision["moves"] if move["refused"] is None}
                moved.setdefault(decision["leader"], set()).update(bundles)
        return moved


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Cluster]:
    with broker_cluster(Cluster(kafka, topic_prefix, tmp_path, FLAGS)) as found:
        yield found


def dry_runs(cluster: Cluster, bundles: list[str]) -> None:
    """They say what would happen and change nothing."""
    topic = f"{NAMESPACE}/orders"
    moved = cluster("transfer", topic, "--dest", "b2", "--dry-run")
    assert (moved["dry_run"], moved["owner"], moved["destination"]) == (True, "b1", "b2")
    assert moved["bundle"] in bundles
    assert "is served by b1 already" in cluster.error("transfer", topic, "--dest", "b1", "--dry-run", code=3)
    assert cluster("unload", topic, "--dry-run")["destination"] is None
    assert len(cluster("split", topic, "--parts", "3", "--dry-run")["children"]) == 3
    drained = cluster("drain", "b1", "--dry-run")
    assert (drained["bundles"], drained["others"]) == (bundles, ["b2", "b3"])
    order = cluster("rolling-restart", "--manual", "--dry-run")["order"]
    assert (sorted(order), order[-1]) == (["b1", "b2", "b3"], cluster.leader())
    doomed = cluster("namespace", "delete", NAMESPACE, "--dry-run")
    assert (doomed["bundles"], doomed["served"], doomed["owners"]) == (12, 12, {"b1": 12})
    assert cluster("repair", "resume", "--dry-run")["paused"] is None
    pinned = cluster("policy", "set", "pin", topic, "b1", "--dry-run")
    assert (pinned["dry_run"], pinned["name"], pinned["outcome"]) == (True, moved["bundle"], None)
    assert cluster("override", "pin", topic, "b1", "--for", "1h", "--reason", "x", "--dry-run")["dry_run"]
    assert cluster("policy", "list")["policies"] == []
    assert cluster.owners() == dict.fromkeys(bundles, "b1")

    unmet = ("policy", "set", "isolation", "x", "namespaces=tenant/.*", "primary=b1", "min_available=9")
    assert "the policy cannot be met" in cluster.error(*unmet, code=3)
    cluster(*unmet, "--force")
    assert cluster("policy", "delete", "isolation", "x", "--dry-run")["deleted"]
    cluster("policy", "delete", "isolation", "x", "--yes")


def test_drain_under_load_leaves_nothing_behind_and_why_answers(cluster: Cluster) -> None:
    cluster.start("b1", "b2", "b3")
    bundles = cluster.create(NAMESPACE, 12, "b1")
    dry_runs(cluster, bundles)

    drained = cluster("drain", "b1", "--rate", "20/s", "--reason", "new disks")
    assert (drained["result"], drained["left_count"], drained["began_with"]) == ("drained", 0, 12)
    assert drained["moved"] == 12
    remarks = {one["broker"]: one["remarks"] for one in cluster("brokers")["brokers"]}
    assert "cordoned" in remarks["b1"], "an operator looks there first"
    assert remarks["b2"] is None
    assert [one["extensions"] for one in cluster("brokers")["brokers"]] == [["balancer"]] * 3
    owners = cluster.owners()
    assert set(owners) == set(bundles)
    assert set(owners.values()) == {"b2", "b3"}, "both receive, as each is given few ahead of its report"

    told = cluster("why", bundles[0])
    step = told["steps"][-1]
    assert f"drain {drained['operation']}" in step["because"]
    assert ", drain), Admin: " in step["because"]
    entry = cluster("policy", "get", "cordon", "b1")["entries"][0]
    assert (entry["why"], entry["drain"]) == ("new disks", drained["operation"])

    refused = cluster("transfer", bundles[0], "--dest", "b1", code=3)
    assert (refused["reason"], refused["answer"]) == ("filtered", "rejected")
    assert "cordon: it is cordoned" in refused["message"]
    forced = cluster("transfer", bundles[0], "--dest", "b1", "--force", "--reason", "I must")
    records = cluster("operation", "show", forced["operation"])["records"]
    assert records[0]["reason"] == "forced past the filters: I must"

    assert "not by a drain" not in cluster.error("uncordon", "b1", code=0)
    assert "b1 is not cordoned" in cluster.error("uncordon", "b1", code=5)
    cluster("policy", "set", "cordon", "b1", "--reason", "mine")
    assert "not by a drain: mine" in cluster.error("uncordon", "b1", code=3)
    cluster("uncordon", "b1", "--force")


def test_leader_is_killed_in_the_middle_and_the_command_too(cluster: Cluster) -> None:
    cluster.start("b1", "b2", "b3")
    leader = cluster.leader()
    drained = min({"b1", "b2", "b3"} - {leader})
    (third,) = {"b1", "b2", "b3"} - {leader, drained}
    cluster.create(NAMESPACE, 10, drained)

    first = cluster.begin("drain", drained, "--rate", "0.2/s")
    cluster.wait(lambda: list(cluster.owners().values()).count(drained) < 10)
    cluster.wait(lambda: leader in cluster.moved_by_drains())
    first.kill()
    second = cluster.begin("drain", drained, "--rate", "1/s")
    before = list(cluster.owners().values()).count(drained)
    cluster.wait(lambda: list(cluster.owners().values()).count(drained) < before)
    assert drained in cluster.owners().values(), "it was to be in the middle"
    cluster.kill(leader)
    found, err = cluster.end(second)
    assert "is being drained already (operation " in err
    assert found["operation"] in err
    # Records of the last moves may have died with the leader, and these moves may have been under way when the next one looked.
    recorded = cluster.moved_by_drains()
    last = recorded[found["executed_by"]] - recorded[leader]
    assert len(last) < found["moved"] <= len(set().union(*recorded.values())), "what the first leader moved counts"
    assert found["moved"] <= found["began_with"] <= 10
    assert (found["result"], found["left_count"], found["executed_by"]) in [
        ("drained", 0, third),
        ("drained", 0, drained),
    ]
    cluster.wait(lambda: set(cluster.owners().values()) == {third})
    asked = [one for one in cluster("operation", "list")["operations"] if one["operation"] == found["operation"]]
    assert [one["status"] for one in asked] == ["ended"], "the first command's request was given to the new leader"


def test_what_cannot_be_drained_is_told(cluster: Cluster) -> None:
    cluster.start("b1")
    cluster.create(NAMESPACE, 4, "b1")
    assert "is the only broker that takes bundles" in cluster.error("drain", "b1", code=3)
    assert "broker b9 not found" in cluster.error("drain", "b9", code=5)
    assert cluster("policy", "list")["policies"] == [], "nothing was written"

    cluster.start("b2")
    cluster("policy", "set", "pin", NAMESPACE, "b1")
    error = cluster.error("drain", "b1", code=3)
    assert "rejected (no-destination)" in error
    assert "`pin` removed b2 (it is pinned to b1)" in error
    assert "the cordon was removed" in error
    assert [one["kind"] for one in cluster("policy", "list")["policies"]] == ["pin"]
    assert set(cluster.owners().values()) == {"b1"}

    drained = cluster("drain", "b1", "--force")
    assert (drained["moved"], drained["left_count"]) == (4, 0)
    assert set(cluster.owners().values()) == {"b2"}

    cluster.kill("b1")
    cluster.wait(lambda: [one["broker"] for one in cluster.alive()] == ["b2"])
    assert "broker b1 is not alive" in cluster.error("drain", "b1", code=3)


def processes(cluster: Cluster) -> dict[str, str]:
    return {one["broker"]: one["incarnation"] for one in cluster.alive()}


def ready(address: str) -> int:
    """Status of `/readyz`."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=WAIT_S) as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_pre_stop_is_not_ready_first_then_hands_over_and_says_how_far_it_came(cluster: Cluster) -> None:
    cluster.start("b1", extra=("observe.metrics_port=0",))
    cluster.start("b2", options=("--release-ms", "10000"))
    bundles = cluster.create(NAMESPACE, 6, "b1")
    address = next(one["http"] for one in cluster("brokers")["brokers"] if one["broker"] == "b1")
    assert ready(address) == HTTPStatus.OK
    stopping = cluster.begin("broker", "pre-stop", "--id", "b1", "--within", "60s", "--notice", "4s")
    cluster.wait(lambda: ready(address) == HTTPStatus.SERVICE_UNAVAILABLE)
    assert cluster.owners() == dict.fromkeys(bundles, "b1"), "nothing was handed over before"
    done, _ = cluster.end(stopping)
    assert (done["result"], done["began_with"], done["handed_over"], done["left"]) == ("handed-over", 6, 6, 0)
    assert cluster.owners() == dict.fromkeys(bundles, "b2")
    assert cluster.brokers["b1"].poll() is None, "it is the supervisor that stops it"
    assert "b1 is joining, draining" in cluster.error("transfer", bundles[0], "--dest", "b1", "--force", code=3)
    cluster.brokers["b1"].terminate()
    assert cluster.brokers["b1"].wait(WAIT_S) == 0

    cluster.start("b1")
    late, error = cluster.end(cluster.begin("broker", "pre-stop", "--id", "b2", "--within", "5s"), code=4)
    assert (late["result"], late["began_with"], late["left"]) == ("handed-over-in-part", 6, 6)
    assert "b2: 0 of 6 bundles handed over in " in error
    assert "6 left; it goes on until it is stopped" in error
    cluster.wait(lambda: cluster.owners() == dict.fromkeys(bundles, "b1"))
    assert "broker b9 is not alive" in cluster.error("broker", "pre-stop", "--id", "b9", code=5)


def test_pre_stop_is_taken_back(cluster: Cluster) -> None:
    cluster.start("b1", extra=("observe.metrics_port=0",))
    cluster.start("b2")
    bundles = cluster.create(NAMESPACE, 3, "b1")
    address = next(row["http"] for row in cluster("brokers")["brokers"] if row["broker"] == "b1")
    command = ("broker", "pre-stop", "--id", "b1", "--within", "10m")
    stopping = cluster.begin(*command, "--notice", "9m")
    cluster.wait(lambda: ready(address) == HTTPStatus.SERVICE_UNAVAILABLE)
    undone = cluster(*command, "--undo")
    assert (undone["answer"], undone["result"], undone["left"]) == ("accepted", "undone", 3)
    first, error = cluster.end(stopping, code=4)
    assert (first["result"], first["began_with"], first["left"]) == ("undone", 3, 3)
    assert "took that back meanwhile" in error
    cluster.wait(lambda: ready(address) == HTTPStatus.OK)
    assert cluster.owners() == dict.fromkeys(bundles, "b1"), "nothing was handed over in the notice"
    assert cluster(*command)["result"] == cluster(*command)["result"] == "handed-over", "a second one joins the first"
    assert cluster.owners() == dict.fromkeys(bundles, "b2")
    assert [cluster(*command, "--undo")["result"] for _ in range(2)] == ["undone", "not-stopping"]
    cluster.wait(lambda: ready(address) == HTTPStatus.OK)
    cluster("transfer", bundles[0], "--dest", "b1", "--force")
    assert cluster.owners()[bundles[0]] == "b1"


def test_a_namespace_can_be_created_right_after_the_first_broker_was_started(cluster: Cluster) -> None:
    cluster.spawn("b1")
    assert (
        cluster("namespace", "create", NAMESPACE, "--bundles", "2", "--wait-for-broker", "300")["answer"] == "accepted"
    )
