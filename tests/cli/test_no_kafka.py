"""No address is given, and the embedded Kafka does not run: what became of it."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statechannel.cli.kit.connection import connection_of
from statechannel.embedded.layout import BrokerRecord, Layout, write_record
from statechannel.embedded.process import take_lock
from statechannel.errors import ExitCode
from statechannel.queries import live_log
from statechannel.settings import load


@pytest.fixture
def ran_before(run: Callable[..., Result]) -> Layout:
    """The data folder of a Kafka that was killed; `run` goes into its folder first."""
    layout = Layout(Path("no-kafka-here").resolve())
    layout.log_dir.mkdir(parents=True)
    layout.meta_properties.touch()
    write_record(layout, BrokerRecord(pid=1, started_at_s=1.0, port=15_001, controller_port=15_002))
    return layout


def test_stopped(run: Callable[..., Result], ran_before: Layout) -> None:
    ran_before.clean_mark.touch()
    for command in ("bundles", "status", "watch"):
        result = run(command)
        assert result.exit_code == ExitCode.KAFKA_AWAY
        error, hint = result.stderr.splitlines()
        assert error == "error: the embedded Kafka of 127.0.0.1:15001 is stopped"
        assert hint.startswith("hint: Start it with `statechannel kafka up`")
    assert json.loads(run("kafka", "status", "--output", "json").stdout)["state"] == "stopped"


def test_ended_unexpectedly(run: Callable[..., Result], ran_before: Layout) -> None:
    result = run("bundles")
    assert result.exit_code == ExitCode.KAFKA_AWAY
    (error, _) = result.stderr.splitlines()
    log = ran_before.broker_log
    assert error == f"error: the embedded Kafka of 127.0.0.1:15001 ended unexpectedly; its log is {log}"
    outcome = run("kafka", "status")
    assert outcome.exit_code == ExitCode.KAFKA_AWAY
    assert "crashed" in outcome.stdout
    assert f"ended unexpectedly; see {log}" in outcome.stderr


def test_starting(run: Callable[..., Result], ran_before: Layout) -> None:
    with take_lock(ran_before):
        result = run("bundles")
    assert result.exit_code == ExitCode.KAFKA_AWAY
    assert result.stderr.startswith("error: the embedded Kafka is starting")


def test_kafka_at_a_given_address_that_listens_and_does_not_answer_is_suspended(run: Callable[..., Result]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as suspended:
        place = ["-b", f"127.0.0.1:{suspended.getsockname()[1]}"]
        result = run("status", *place, "--set", "kafka.command_timeout_s=1")
        assert result.exit_code == ExitCode.KAFKA_AWAY
        assert "hint: The process of Kafka there is suspended or hangs; or the network" in result.stderr
        assert f"`ss -ltnp sport = :{suspended.getsockname()[1]}`" in result.stderr
        assert "kill -CONT" in result.stderr
        assert f"error: UNKNOWN: Kafka at 127.0.0.1:{suspended.getsockname()[1]}" in result.stderr
        assert ", when this command began, for " in result.stderr
        assert "Brokers that run go on serving what they serve, in safe mode" in result.stderr
        result = run("doctor", "--timeout", "1", *place)
        assert result.exit_code == ExitCode.DOCTOR_CRITICAL
        assert "is suspended or hangs" in " ".join(result.stdout.split())
    result = run("status", *place, "--set", "kafka.refused_wait_s=0.5")
    assert result.exit_code == ExitCode.KAFKA_AWAY
    assert "kafka up" not in result.stderr, "it would start another, empty Kafka"


def test_what_the_first_look_took_is_part_of_the_time_of_status(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connection_of(load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}}))
    clock = iter([100.0, 100.5, 200.0, 202.5])
    monkeypatch.setattr(live_log, "_look_first", lambda _: None)
    monkeypatch.setattr(live_log.time, "monotonic", lambda: next(clock))
    assert live_log.in_time(connection) is connection
    assert live_log.in_time(connection).timeout_s == connection.timeout_s - 4.5


def test_a_command_that_ends_soon_does_not_wait_long_for_kafka() -> None:
    connection = connection_of(load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}}))
    assert connection.within(8.0).timeout_s == 8.0
    assert connection.within(0.5).timeout_s == 5.0  # Kafka may need that for its first answer
    assert connection.within(None) == connection.within(600.0) == connection


def test_status_of_the_embedded_kafka_says_if_commands_use_another(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    flags = ["--folder", str(tmp_path / "kafka"), "--set", "kafka.bootstrap_servers=kafka.example:9092"]
    result = run("kafka", "status", *flags)
    assert "commands use kafka.example:9092" in result.stderr
    assert json.loads(run("kafka", "status", "-o", "json", *flags).stdout)["used_address"] == "kafka.example:9092"
    assert "commands use" not in run("kafka", "status", *flags[:2]).stderr


def test_a_display_that_is_opened_in_an_outage_waits_for_its_end(run: Callable[..., Result]) -> None:
    result = run("status", "--watch", "--for", "4", "-b", "127.0.0.1:1", "--set", "kafka.refused_wait_s=0")
    assert result.stderr.startswith("UNKNOWN: Kafka at 127.0.0.1:1 refuses the connection")
    assert "the display begins when it answers" in result.stderr
    assert result.exit_code == ExitCode.KAFKA_AWAY
