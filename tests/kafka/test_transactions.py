"""Transactions in a channel's topics on a real Kafka: committed, aborted and open ones stop no reader and no command."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from statechannel.cli.main import app
from statechannel.errors import ExitCode
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

FLAGS = ("extensions.balancer.source=simulated", "extensions.balancer.balancing=false")
NAMESPACES = ("t/a", "t/b")
WATCHED_S = 8.0
"""Longer than anything that a reader puts off; whoever started over would be without answers for `leader.cold_start_after_s`."""

HOSTILE = {
    "format": 1, "kind": "proposal", "id": "h1", "covers": -1, "by": {"broker": "x", "incarnation": "x1"},
    "version": 9, "base": "zz", "state": "Deleted",
}  # fmt: skip
"""Every reader rejects it: no record of this id is its base. A reader that took the last record of each key would not."""


class Transaction:
    """Records in every topic of a channel: one that is no record of ours, and one that deletes a namespace."""

    def __init__(self, cluster: BrokerCluster, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self.topics = [topic for topic in admin.list_topics(timeout=WAIT_S).topics if topic.startswith(cluster.channel)]
        self.producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{cluster.channel}-{name}", "log_level": 0}
        )
        self.producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self.producer.begin_transaction()
        for topic in self.topics:
            self.producer.produce(topic, key=b"t/a", value=json.dumps(HOSTILE).encode(), partition=0)
            self.producer.produce(topic, key=b"hello", value=b"world", partition=0)
        assert self.producer.flush(WAIT_S) == 0

    def commit(self) -> None:
        self.begin()
        self.producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self.begin()
        self.producer.abort_transaction(WAIT_S)


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[BrokerCluster]:
    with broker_cluster(BrokerCluster(kafka, topic_prefix, tmp_path, FLAGS)) as found:
        found.start("b1", "b2")
        found("policy", "set", "pin", "t/pinned", "b1")
        for namespace in NAMESPACES:
            found("namespace", "create", namespace, "--bundles", "2", "--timeout", str(WAIT_S))
            found("lookup", f"{namespace}/x", "--timeout", str(WAIT_S))
        yield found


def namespaces(cluster: BrokerCluster) -> list[tuple[str, int]]:
    return [(row["namespace"], row["bundles"]) for row in cluster("namespace", "list")["namespaces"]]


def check(cluster: BrokerCluster, tmp_path: Path) -> None:
    """Brokers answer all the time, commands come to the end, and the rejected record did not become the truth."""
    owners = cluster.owners()
    ends_s = time.monotonic() + WATCHED_S
    while time.monotonic() < ends_s:
        cluster("lookup", "t/a/x", "--timeout", str(WAIT_S))
        time.sleep(0.2)
    assert namespaces(cluster) == [(namespace, 2) for namespace in NAMESPACES]
    assert cluster.owners() == owners
    cluster("status")
    cluster("audit")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "export.jsonl"), *cluster.place])
    assert result.exit_code == ExitCode.OK, result.stderr
    answer = json.loads(CliRunner().invoke(app, ["doctor", *cluster.place, "--output", "json"]).stdout)
    found = {finding["check"] for finding in answer["findings"] if finding["severity"] not in ("ok", "info")}
    assert found <= {"forged", "policies"}, answer
    assert [policy["name"] for policy in cluster("policy", "list")["policies"]] == ["t/pinned"]
    cluster("decisions")
    assert cluster("namespace", "create", "t/later", "--bundles", "1", "--timeout", str(WAIT_S))
    for name, text in cluster.logs().items():
        assert "start-over" not in text, name
        assert "cold-start" not in text, name


def test_transactions_stop_nobody(cluster: BrokerCluster, tmp_path: Path):
    for done in (Transaction.commit, Transaction.abort, Transaction.begin):
        transaction = Transaction(cluster, done.__name__)
        assert len(transaction.topics) >= 8, transaction.topics
        done(transaction)
    check(cluster, tmp_path)
    cluster.start("b3")  # a broker that joins behind it
    cluster("lookup", "t/a/x", "--timeout", str(WAIT_S))
