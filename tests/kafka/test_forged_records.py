"""A record in the name of a broker that runs: its event, and what `status` and `doctor` say, on a real Kafka."""

import json
from pathlib import Path

from typer.testing import CliRunner

from statechannel.cli.main import app
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import append_and_wait
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka

FLAGS = ("extensions.balancer.source=simulated", "extensions.balancer.balancing=false")


def test_a_record_in_the_name_of_a_broker_is_a_problem(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    with broker_cluster(BrokerCluster(kafka, topic_prefix, tmp_path, FLAGS)) as cluster:
        cluster.start("b1")
        (row,) = cluster.alive()
        record = {
            "format": 1, "kind": "proposal", "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "covers": -1, "version": 9, "base": "zz",
            "by": {"broker": "b1", "incarnation": row["incarnation"]}, "state": "Deleted", "from": None, "to": None,
        }  # fmt: skip
        client = ClientSettings(kafka.bootstrap_servers)
        append_and_wait(client, topic_prefix, 0, key=b"t/a", value=json.dumps(record).encode())
        cluster.wait(lambda: bool(cluster("status")["disowned"]))
        (sentence,) = cluster("status")["disowned"]
        assert sentence.startswith("b1 has read 1 record in its own name that it did not write")
        assert ("forged", sentence) in [
            (problem["reason"], problem["message"]) for problem in cluster("status")["problems"]
        ]
        examined = CliRunner().invoke(app, ["doctor", *cluster.place, "--output", "json"])
        assert examined.exit_code == ExitCode.DOCTOR_CRITICAL, examined.output
        findings = json.loads(examined.stdout)["findings"]
        assert [(item["severity"], item["what"]) for item in findings if item["check"] == "forged"] == [
            ("critical", sentence)
        ]
        assert "record.forged" in (tmp_path / "b1.log").read_text()
