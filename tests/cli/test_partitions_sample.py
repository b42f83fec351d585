"""`statechannel partitions sample`: what it takes, shows and refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_lanes import Kafka
from tests.support.metric_servers import serving
from tests.support.waits import WAIT_S


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--show", "--dry-run"], "--show takes no samples"),
        (["--dry-run", "--to-file", "x"], "--dry-run and --to-file are mutually exclusive"),
        (["--count", "2"], "--count requires --repeat"),
        (["--source", "prometheus", "--from-file", "x"], "--from-file requires the source file"),
        (["--interval-s", "0"], "--interval-s"),
        (["--show", "--window", "soon", "-b", "127.0.0.1:9"], "--window soon"),
    ],
)
def test_options_that_exclude_each_other(run: Callable[..., Result], options: list[str], words: str) -> None:
    result = run("partitions", "sample", *options)
    assert result.exit_code == 2, result.stderr
    assert words in result.stderr


def fill(kafka: Kafka, topic: str, size_bytes: int) -> None:
    """A topic with one partition and one record."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"x" * size_bytes, partition=0)
    assert producer.flush(WAIT_S) == 0


@pytest.mark.kafka
def test_a_kafka_that_is_away(run: Callable[..., Result], closed_port: int) -> None:
    where = ["-b", f"127.0.0.1:{closed_port}", "--set", "kafka.command_timeout_s=1"]
    where += ["--set", "extensions.partitions.sample.timeout_s=1"]
    result = run("partitions", "sample", *where)
    assert result.exit_code == 10, result.stderr
    assert "Traceback" not in result.stderr
    assert run("partitions", "sample", "--show", *where).exit_code == 10


@pytest.mark.kafka
def test_samples_are_taken_written_and_shown(
    run: Callable[..., Result], lone_kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    data = f"{topic_prefix}-data"
    fill(lone_kafka, data, 1_000)
    common = ["-b", lone_kafka.bootstrap_servers, "--set", f"extensions.partitions.sample.topic={topic_prefix}-samples"]
    json_too = [*common, "--output", "json"]

    missing = run("partitions", "sample", "--show", *common)
    assert missing.exit_code == 12, missing.stderr
    dry = run("partitions", "sample", "--dry-run", "--gap-s", "0", *json_too)
    assert dry.exit_code == 0, dry.stderr
    document = json.loads(dry.stdout)
    (outcome,) = [row for row in document["taken"] if row["topic"] == data]
    assert 1_000 < outcome["disk_bytes"] < 1_200
    assert document["written"] == 0
    assert {"figure": "bytes-in", "why": "first look", "count": document["samples"]} in document["holes"]

    result = run("partitions", "sample", "--gap-s", "0.1", *json_too)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["written"] == document["samples"] > 0
    assert document["holes"] == []
    shown = json.loads(run("partitions", "sample", "--show", *json_too).stdout)
    assert (shown["intervals"], shown["intervals_with_samples"], shown["junk"]) == (360, 1, {})
    (load,) = [row for row in shown["loads"] if row["topic"] == data]
    assert 0 < load.pop("completeness") <= 1  # another minute may have begun
    assert load == {
        "topic": data,
        "partition": 0,
        "disk_bytes": outcome["disk_bytes"],
        "bytes_in_per_s": 0,
        "bytes_out_per_s": None,
        "cpu": None,
    }
    table = run("partitions", "sample", "--show", "--limit", "1", *common)
    assert "samples of 1 of 360 intervals" in table.stdout
    assert "more (--limit)" in table.stderr

    file = tmp_path / "samples.jsonl"
    rounds = ["--repeat", "--count", "2", "--interval-s", "1", "--gap-s", "0", "--to-file", str(file)]
    result = run("partitions", "sample", *rounds, *json_too)
    assert result.exit_code == 0, result.stderr
    first, second = [json.loads(line) for line in result.stdout.splitlines()]
    assert first["written"] + second["written"] == len(file.read_bytes().splitlines())
    assert second["holes"] == []
    back = run("partitions", "sample", "--from-file", str(file), *json_too)
    assert json.loads(back.stdout)["written"] == first["written"] + second["written"]


@pytest.mark.kafka
def test_metrics_of_brokers_and_what_is_missing_in_them(
    run: Callable[..., Result], lone_kafka: Kafka, topic_prefix: str
) -> None:
    data = f"{topic_prefix}-data"
    fill(lone_kafka, data, 1)
    body = f'kafka_server_brokertopicmetrics_bytesinpersec_oneminuterate{{topic="{data}"}} 100\n'.encode()
    common = ["partitions", "sample", "-b", lone_kafka.bootstrap_servers, "--dry-run"]
    with serving(lambda path, _: (200, body) if path == "/metrics" else (404, b"")) as url:
        result = run(*common, "--endpoint", f"{url}/metrics", "--output", "json")
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        assert [(row["topic"], row["bytes_in_per_s"], row["source"]) for row in document["taken"]] == [
            (data, 100 / len(document["taken"]), "prometheus")
        ] * len(document["taken"])
        silent = run(*common, "--endpoint", f"{url}/gone")
    assert silent.exit_code == 1
    assert "nothing was measured" in silent.stderr
    assert "HTTP 404" in silent.stderr
    assert run(*common, "--endpoint", "file:///etc/passwd").exit_code == 2
    unknown = run(*common, "--source", "nobody")
    assert unknown.exit_code == 2
    assert "log-dirs" in unknown.stderr
