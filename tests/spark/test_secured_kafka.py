"""A job against a Kafka that asks for a password: the connector's token provider and the translated settings carry it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark.core.streaming import Streaming
from spark.errors import SparkJobError
from spark.jobs.table_view import TableViewOptions, run
from statechannel.embedded import BrokerOptions, KafkaServer
from statechannel.embedded.process import find_free
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from tests.spark.cluster_logs import pointer_of, write_log
from tests.support.kafka_lanes import CLEANER_PROPERTIES

pytestmark = pytest.mark.kafka

PASSWORD = 'p"a\\ss word;='


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Addresses of one broker: open, and where SASL/PLAIN is asked for."""
    port, controller_port = find_free(), find_free()
    sasl_port = find_free(other_than=port)
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    listeners = f"PLAINTEXT://127.0.0.1:{port},SECURED://127.0.0.1:{sasl_port}"
    properties = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_PLAINTEXT",
        "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secured.plain.sasl.jaas.config": f'{module} required user_jobs="{quoted}";',
    }
    options = BrokerOptions(properties=CLEANER_PROPERTIES | properties)
    server = KafkaServer(tmp_path / "secured-kafka", port=port, options=options)
    server.start()
    try:
        yield f"127.0.0.1:{port}", f"127.0.0.1:{sasl_port}"
    finally:
        server.kill()


def test_a_job_reads_through_sasl_and_a_wrong_password_is_said(session, secured, topic_prefix, tmp_path, capfd):
    plain, sasl = secured
    log = write_log(plain, topic_prefix)
    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "jobs",
        "sasl.password": PASSWORD,
    }
    streaming = Streaming(
        client=ClientSettings(sasl, security),
        channel=log.channel,
        checkpoint=str(tmp_path / "checkpoint"),
        available_now=True,
        retries=0,
    )
    run(session, streaming, TableViewOptions(str(tmp_path / "table")), threading.Event())
    pointer = pointer_of(tmp_path / "table")
    assert (pointer["digest"], pointer["partitions"]["0"]["position"]) == (log.digest, log.records)
    assert PASSWORD not in written(tmp_path / "checkpoint") + written(tmp_path / "table")
    # Spark's client alone is told a wrong one: the job's own client finds the topic, the source then may not read.
    wrong = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="jobs" password="wr0ng-one";'
    denied = replace(
        streaming, kafka_properties={"sasl.jaas.config": wrong}, checkpoint=str(tmp_path / "other"), available_now=True
    )
    with pytest.raises(SparkJobError, match="refuses this client") as error:
        run(session, denied, TableViewOptions(str(tmp_path / "other-table")), threading.Event())
    assert error.value.exit_code == ExitCode.KAFKA_DENIED
    shown = capfd.readouterr()
    assert "wr0ng-one" not in shown.out + shown.err + str(error.value) + error.value.hint


def written(folder: Path) -> str:
    return "".join(path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file())
