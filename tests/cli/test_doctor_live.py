"""`doctor` on a cluster that falls ill in several ways, one after the other and at once."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from statechannel import clocks
from statechannel.embedded import KafkaServer
from statechannel.queries import registry
from tests.cli.test_live import documented
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka

NAMESPACE = "tenant/ns"
QUICKER = ("membership.expiry_s=6", "safe_mode.after_s=3")
FINDING = {"check", "severity", "checked", "reason", "what", "why", "todo"}


@pytest.fixture
def cluster(own_kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> Iterator[BrokerCluster]:
    kafka = Kafka(own_kafka.bootstrap_servers, "its own")
    with broker_cluster(BrokerCluster(kafka, topic_prefix, tmp_path, QUICKER)) as result:
        yield result


def doctor(cluster: BrokerCluster, *args: str, code: int) -> dict[str, list[dict[str, Any]]]:
    """Findings by check."""
    base = cluster("doctor", *args, code=code)
    assert base.keys() == documented("doctor")
    assert all(finding.keys() == FINDING for finding in base["findings"])
    assert base["exit_code"] == code
    results: dict[str, list[dict[str, Any]]] = {}
    for finding in base["findings"]:
        results.setdefault(finding["check"], []).append(finding)
    return results


def alter(cluster: BrokerCluster, topic: str, **settings: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for name, value in settings.items():
        entry = ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


def bad(findings: dict[str, list[dict[str, Any]]], severity: str) -> set[str]:
    return {check for check, finding in findings.items() if any(item["severity"] == severity for item in finding)}


def test_a_cluster_that_falls_ill(cluster: BrokerCluster, own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch):
    lonely = doctor(cluster, "--timeout", str(WAIT_S), code=31)
    assert bad(lonely, "error") == {"brokers"}
    place = list(cluster.place)
    cluster.place[cluster.place.index("--channel") + 1] = "nobody-made-this"
    none = doctor(cluster, "--timeout", str(WAIT_S), code=32)
    assert (bad(none, "critical"), bad(none, "error")) == ({"topics"}, set()), "a topic that is missing is told once"
    assert [topic["severity"] for topic in none["topics"]] == ["critical", "info"]
    assert {item["checked"] for check in ("brokers", "policies", "log") for item in none[check]} == {False}
    cluster.place = place

    cluster.start("b1", "b2")
    cluster("namespace", "create", NAMESPACE, "--bundles", "4", "--timeout", str(WAIT_S))
    for bundle in cluster.owners():
        cluster("lookup", bundle, "--timeout", str(WAIT_S))
    leader = cluster.leader()
    other = {"b1": "b2", "b2": "b1"}[leader]

    well = doctor(cluster, "--timeout", str(WAIT_S), code=0)
    assert (bad(well, "critical"), bad(well, "error"), bad(well, "warning")) == (set(), set(), set())
    assert well["leader"][0]["what"].startswith(f"{leader} leads, for ")
    assert "4 bundles, 4 assigned" in well["log"][0]["what"]

    with monkeypatch.context() as skewed:
        skewed.setattr(registry, "now_ms", lambda: clocks.now_ms() + 600_000)
        (clock,) = doctor(cluster, "--timeout", str(WAIT_S), code=31)["clock"]
        assert "10.0 min ahead of Kafka's" in clock["what"]

    status = cluster("status")
    assert status.keys() == documented("status")
    assert (status["leader"], sum(broker["bundles"] for broker in status["brokers"])) == (leader, 4)
    cluster.kill(leader)

    alter(cluster, cluster.channel, message_timestamp_type="CreateTime", min_compaction_lag_ms="60000")
    alter(cluster, f"{cluster.channel}-requests", retention_ms="60000")
    cluster.kill(other)
    cluster.wait(lambda: cluster.alive() == [])
    ill = doctor(cluster, "--timeout", str(WAIT_S), code=32)
    assert bad(ill, "critical") == {"topics", "brokers", "orphans"}
    assert bad(ill, "error") == {"topics", "patience"}
    wrong = {topic["what"].split(" is ")[0] for topic in ill["topics"] if topic["severity"] in ("critical", "error")}
    assert wrong == {
        f"{cluster.channel}: message.timestamp.type",
        f"{cluster.channel}: min.compaction.lag.ms",
        f"{cluster.channel}-requests: retention.ms",
    }
    assert "4 bundles are without service" in ill["orphans"][0]["what"]
    assert ill["topics"][0]["todo"].startswith("kafka-configs.sh --bootstrap-server")

    own_kafka.kill()
    begun_s = time.monotonic()
    away = doctor(cluster, "--timeout", "2", code=32)
    assert time.monotonic() - begun_s < WAIT_S, "bounded, on a busy machine too"
    assert bad(away, "critical") == {"kafka"}
    assert [setting["severity"] for setting in away["java"] + away["settings"]] == ["ok", "ok"]
    assert {topic["checked"] for topic in away["topics"] + away["brokers"] + away["debts"]} == {False}
