"""`simulate replay-live`: over a real Kafka, from load topics that are written by hand; no broker runs."""

import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import Result

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.report.record import (
    BrokerLoadReport,
    ReportHeader,
    ReportKind,
    Tombstone,
    TopBundlesReport,
    encode_broker_load,
    encode_top_bundles,
)
from shedders.cli.contest import compare, replay_live
from shedders.cli.contest.replay_live import Recording
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.light_topic import LightBatch, LightWriter
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import create_topics
from statechannel.protocol.bundle import namespace_bounds, range_name
from statechannel.protocol.side_record import SideRecord
from tests.support.kafka_lanes import Kafka
from tests.support.load_reports import top
from tests.support.strategies import install
from tests.support.waits import WAIT_S

Run = Callable[..., Result]
BROKERS = ("b1", "b2", "b3")
RATES = (900.0, 300.0, 60.0)
BOUNDS = namespace_bounds(12)
BUNDLES = [f"shop/orders/{range_name(low, high)}" for low, high in pairwise(BOUNDS)]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Our strategies and commands."""
    install(monkeypatch)


class Cluster:
    """Load topics of a cluster whose first broker does most of the work."""

    def __init__(self, kafka: Kafka, channel: str) -> None:
        self.place = ("--bootstrap-servers", kafka.bootstrap_servers, "--channel", channel)
        self.topics = LoadTopics(channel)
        self._client = ClientSettings(kafka.bootstrap_servers)
        create_topics(self._client, self.topics, replication_factor=1)
        self._writer = LightWriter(self._client)
        self._seq = 0

    def report(self) -> None:
        """Every broker, once."""
        self._seq += 1
        for number, broker in enumerate(BROKERS):
            rate = RATES[number]
            header = ReportHeader(broker, f"{broker}-i", self._seq, time.time_ns() // 1_000_000, {0: 1})
            share = ResourceUsage(rate / 2, 800.0)
            load = BrokerLoad(
                cpu=share,
                bandwidth_in=ResourceUsage(rate * 8, 1e6),
                bandwidth_out=ResourceUsage(rate, 1e6),
                msg_rate_in=rate,
                msg_throughput_in=rate * 1_000,
                bundles=4,
                topics=16,
            )
            tops = [top(name, rate / 4) for name in BUNDLES[number * 4 : number * 4 + 4]]
            key = broker.encode()
            self._writer.write(self.topics.broker_load, key, encode_broker_load(BrokerLoadReport(header, load)))
            self._writer.write(self.topics.top_bundles, key, encode_top_bundles(TopBundlesReport(header, tops)))
        assert self._writer.flush(WAIT_S)

    def close(self) -> None:
        assert self._writer.close(WAIT_S)


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str):
    cluster = Cluster(kafka, topic_prefix)
    yield cluster
    cluster.close()


def lines(path: str) -> list[dict]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.kafka
def test_reports_are_recorded_from_the_beginning_and_as_they_come(cluster: Cluster, run: Run) -> None:
    cluster.report()
    later = threading.Timer(0.8, cluster.report)
    later.start()
    result = run(
        "simulate", "replay-live", *cluster.place, "--for", "1500ms", "--history", "h.jsonl", "--output", "json"
    )
    later.join()
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["records"], document["brokers"], document["file"]) == (12, 3, "h.jsonl")
    outcome = lines("h.jsonl")
    assert [item["at_ms"] for item in outcome] == sorted(item["at_ms"] for item in outcome)
    assert {(item["key"], item["kind"]) for item in outcome} == {
        (name, kind) for name in BROKERS for kind in ReportKind
    }
    assert all(item["value"]["broker"] == item["key"] for item in outcome)
    assert document["span_ms"] == outcome[-1]["at_ms"] - outcome[0]["at_ms"] >= 500
    assert "12 reports of 3 brokers over" in result.stderr


@pytest.mark.kafka
def test_the_contest_runs_on_what_was_recorded(cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.report()
    later = threading.Timer(0.8, cluster.report)
    later.start()
    recorded = run("simulate", "replay-live", *cluster.place, "--for", "1500ms")
    later.join()
    assert recorded.exit_code == 0, recorded.stderr
    words = ("simulate", "compare", "--history", "load-history.jsonl", "--contenders", "ours", "--seeds", "1")
    refused = run(*words)
    assert refused.exit_code == ExitCode.UNDETERMINED
    assert "are needed" in refused.stderr
    monkeypatch.setattr(compare, "LEAST_S", 0.0)
    result = run(*words, "--out", "out")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("load-history: ")
    assert Path("out/comparison.json").is_file()


@pytest.mark.kafka
def test_without_load_topics_or_reports_it_says_so(kafka: Kafka, topic_prefix: str, run: Run) -> None:
    place = ("--bootstrap-servers", kafka.bootstrap_servers, "--channel", topic_prefix)
    result = run("simulate", "replay-live", *place, "--for", "1s")
    assert result.exit_code == ExitCode.TOPIC_REFUSED
    assert f"topic {topic_prefix}-broker-load and topic {topic_prefix}-top-bundles not found" in result.stderr
    Cluster(kafka, topic_prefix).close()
    result = run("simulate", "replay-live", *place, "--for", "0s")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "have no report" in result.stderr
    assert not Path("load-history.jsonl").exists()


def test_a_kafka_that_is_away(run: Run, closed_port: int) -> None:
    Path("quick.toml").write_text("[kafka]\ncommand_timeout_s = 1\n")
    place = ("--bootstrap-servers", f"127.0.0.1:{closed_port}", "--config", "quick.toml")
    result = run("simulate", "replay-live", *place)
    assert result.exit_code == ExitCode.KAFKA_AWAY
    assert "Traceback" not in result.stderr


def test_bad_words_are_told_before_anything_is_recorded(run: Run) -> None:
    for words in (("--for", "ten"), ("--for", "-1s"), ("--for", "999d")):
        result = run("simulate", "replay-live", *words)
        assert result.exit_code == ExitCode.USAGE
        assert "Traceback" not in result.stderr
    Path("folder").mkdir()
    assert run("simulate", "replay-live", "--history", "folder").exit_code == ExitCode.BAD_EXPORT
    Path("mine.jsonl").write_text("kept")
    there = run("simulate", "replay-live", "--history", "mine.jsonl")
    assert there.exit_code == ExitCode.USAGE
    assert "mine.jsonl exists already" in there.stderr
    assert Path("mine.jsonl").read_text() == "kept"


# --- what is taken in -----------------------------------------------------------------------------------------------------


def batch(*records: SideRecord, opened: bool = False) -> LightBatch:
    return LightBatch(records, opened, len(records), caught_up=True)


def record(key: str, offset: int, value: bytes | None = b"{}", names: int | None = None) -> SideRecord:
    headers = () if names is None else Tombstone("leaving", names, 1).headers()
    return SideRecord(key.encode(), value, headers, offset, 1_000 + offset)


def test_records_that_come_again_count_once_and_junk_does_not() -> None:
    recording = Recording()
    first = (record("b1", 1), record("b2", 2, b"no json"), record("b2", 3, b"[]"), record("b3", 4))
    recording.take(ReportKind.BROKER_LOAD, batch(*first))
    recording.take(ReportKind.BROKER_LOAD, batch(*first, record("b1", 9), opened=True))
    recording.take(ReportKind.TOP_BUNDLES, batch(record("b1", 1)))
    assert len(recording) == 4
    assert recording.summary() == {"records": 4, "brokers": 2, "first_ms": 1_001, "last_ms": 1_009, "span_ms": 8}


def test_a_null_counts_only_if_it_takes_the_newest_report_away() -> None:
    recording = Recording()
    recording.take(
        ReportKind.BROKER_LOAD,
        batch(
            record("b1", 1),
            record("b1", 2),
            record("b1", 3, None, names=1),  # it did not know of the second
            record("b1", 4, None),  # it says nothing
            record("b9", 5, None, names=3),  # of nobody
            record("b1", 6, None, names=2),
        ),
    )
    results = [json.loads(line) for line in recording.content().splitlines()]
    assert [(item["at_ms"], item["value"]) for item in results] == [(1_001, {}), (1_002, {}), (1_006, None)]


def test_a_recording_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_live, "RECORDS_MAX", 3)
    recording = Recording()
    recording.take(ReportKind.BROKER_LOAD, batch(*(record("b1", number) for number in range(9))))
    assert (len(recording), recording.full) == (3, True)
    monkeypatch.setattr(replay_live, "HELD_MAX_BYTES", 10)
    recording = Recording()
    recording.take(ReportKind.BROKER_LOAD, batch(record("b1", 1, b'{"a":"' + b"x" * 20 + b'"}'), record("b1", 2)))
    assert (len(recording), recording.full) == (1, True)
