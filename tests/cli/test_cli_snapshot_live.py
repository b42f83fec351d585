"""`snapshot take` and `--snapshot live`: over a real Kafka, from topics that are written by hand; no broker runs."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from click.testing import Result

from loaddata.model.bundle_load import TopBundle
from loaddata.report.record import (
    BrokerLoadReport,
    ReportHeader,
    Tombstone,
    TopBundlesReport,
    encode_broker_load,
    encode_top_bundles,
)
from shedders.decisions.builder import shed_record
from shedders.decisions.topic import DecisionWriter
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyRecord, made_key
from shedders.policies.topic import write_policy
from shedders.snapshots.file import read_snapshot
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.light_topic import LightWriter
from statechannel.kafka.tail import append_and_wait
from statechannel.kafka.topic_policy import LoadTopics, decisions_topic, policies_topic
from statechannel.kafka.topics import create_topics
from statechannel.protocol.bundle import even_bounds, range_name
from tests.docs.tiny_log import TinyLog
from tests.support.decision_records import ChannelLog, decision, occasion
from tests.support.kafka_lanes import Kafka
from tests.support.load_reports import report as load_report
from tests.support.load_reports import top
from tests.support.strategies import install
from tests.support.waits import WAIT_S

Run = Callable[..., Result]
BOUNDS = even_bounds(4, 0, 0xFFFFFFFF)
RANGES = [range_name(lower, upper) for lower, upper in pairwise(BOUNDS)]
BUNDLES = [f"acme/orders/{item}" for item in RANGES]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Our commands and strategies; a file of settings in the current folder."""
    install(monkeypatch)
    Path("long.toml").write_text("[membership]\nexpiry_s = 300\n")


class Topics:
    """The topics of one channel."""

    def __init__(self, kafka: Kafka, channel: str, run: Run) -> None:
        self.client = ClientSettings(kafka.bootstrap_servers)
        self.channel = channel
        self.place = ("--bootstrap-servers", kafka.bootstrap_servers, "--channel", channel, "--config", "long.toml")
        assert run("init", *self.place).exit_code == 0

    def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        append_and_wait(self.client, topic, 0, key=key, value=value)

    def write_channel(self) -> None:
        """Two brokers; one bundle has come from the one to the other."""
        log = ChannelLog()
        log.created(*RANGES, namespace="acme/orders")
        for name in BUNDLES[:3]:
            log.assigned(name, "b1")
        log.moved(BUNDLES[2], "b1", "b2")
        for record in log.records:
            self.append(self.channel, record.key or b"", record.value)
        tiny = TinyLog()
        tiny.open()
        for broker in ("b1", "b2"):
            member = {**tiny.registry[0], "broker": broker, "incarnation": f"{broker}-i", "phase": "caught-up"}
            member |= {"mode": "normal", "leading": broker == "b1", "since": 0}
            self.append(f"{self.channel}-registry", broker.encode(), orjson.dumps(member))
        self.end = len(log.records)

    def write_loads(self) -> None:
        """`b1` reports, `b2` has left, `b3` is alive nowhere; `b2`'s heaviest bundles are of before its bundle came."""
        topics = LoadTopics(self.channel)
        create_topics(self.client, topics, replication_factor=1)
        writer = LightWriter(self.client)
        at_ms = now_ms()
        for broker, applied in (("b1", self.end), ("b2", self.end), ("b3", self.end)):
            header = ReportHeader(broker, f"{broker}-i", 1, at_ms, {0: applied})
            writer.write(
                topics.broker_load, broker.encode(), encode_broker_load(BrokerLoadReport(header, load_report().load))
            )
        assert writer.flush(WAIT_S)
        writer.write(topics.broker_load, b"b2", None, Tombstone("leaving", 1, at_ms).headers())
        writer.write(
            topics.broker_load, b"b1", None, Tombstone("expired", 99, at_ms).headers()
        )  # of the future: nothing
        writer.write(topics.broker_load, b"b1", None, ())
        for broker, applied in (("b1", self.end), ("b2", 3)):
            tops: list[TopBundle] = [top(BUNDLES[0] if broker == "b1" else BUNDLES[2], 500.0)]
            header = ReportHeader(broker, f"{broker}-i", 1, at_ms, {0: applied})
            writer.write(topics.top_bundles, broker.encode(), encode_top_bundles(TopBundlesReport(header, tops)))
        assert writer.close(WAIT_S)

    def write_policies(self) -> int:
        topics = policies_topic(self.channel)
        create_topics(self.client, topics, replication_factor=1)
        record = PolicyRecord(made_key(PolicyKind.CORDON, "b2"), {}, "ann", "disk", None, now_ms())
        return write_policy(self.client, topics, record.key, record).offset or 0

    def write_decisions(self) -> None:
        """The first tells its settings, the newest what is remembered."""
        topics = decisions_topic(self.channel)
        create_topics(self.client, topics, replication_factor=1)
        writer = DecisionWriter(self.client, topics)
        settings = {
            "shedding": {"target_std": 0.125},
            "filters": {"max_topics": 77},
            "strategies": {"shedding": "transfer", "placement": "round-robin", "split": "topic-count-equally-divide"},
        }
        for number in (1, 2):
            result = occasion(number, settings=settings, write_settings=number == 1, placement="round-robin")
            entry = decision()
            record = shed_record(result, entry).model_copy(update={"memory": {"hits": number}})
            assert writer.write(record)
        # A drain afterwards is no decision that anybody goes on from.
        assert writer.write(shed_record(occasion(3, strategy="drain", settings={"drain": {}}), decision()))
        assert writer.close(WAIT_S)


@pytest.mark.kafka
def test_a_snapshot_is_taken_from_the_topics(kafka: Kafka, topic_prefix: str, run: Run) -> None:
    topics = Topics(kafka, topic_prefix, run)
    topics.write_channel()

    bare = run("snapshot", "take", *topics.place)
    assert bare.exit_code == 0, bare.stderr
    for line in (
        "no topic of load reports",
        "the topic of decisions does not exist",
        "no broker has ever published any",
    ):
        assert line in bare.stderr
    assert json.loads(bare.stdout)["bundles"][BUNDLES[0]]["owner"] == "b1"
    assert json.loads(bare.stdout)["brokers"]["b1"]["load"] is None

    topics.write_loads()
    topics.write_policies()
    topics.write_decisions()
    taken = run("snapshot", "take", *topics.place, "-o", "s.json")
    assert taken.exit_code == 0, taken.stderr
    assert "a snapshot of 2 brokers, 4 bundles, 1 namespace, 0 topics is in s.json" in taken.stderr
    checked = run("snapshot", "check", "s.json")
    assert checked.exit_code == 0, checked.stderr
    snapshot = read_snapshot(Path("s.json"))
    assert {name: bundle.owner for name, bundle in snapshot.bundles.items()} == dict(
        zip(BUNDLES, ("b1", "b1", "b2", None), strict=True)
    )
    assert snapshot.brokers["b1"].load is not None
    assert snapshot.brokers["b2"].load is None  # taken away by its tombstone, whose headers Kafka has kept
    assert 0 <= snapshot.brokers["b1"].load_age_s < 200
    assert snapshot.bundles[BUNDLES[0]].rank == 0
    assert snapshot.bundles[BUNDLES[0]].stats is not None
    assert list(snapshot.recent.bundles) == [BUNDLES[2]]
    assert snapshot.policies.cordons == {"b2": "ann: disk"}
    assert snapshot.memory.shedding == {"transfer": {"hits": 2}}
    assert snapshot.settings.shedding == {"transfer": {"target_std": 0.125}}
    assert snapshot.settings.parts == {"filters": {"max_topics": 77}}
    assert (snapshot.strategies.placement, snapshot.strategies.split) == ("round-robin", "topic-count-equally-divide")

    plans = [run("shed", "plan", "--snapshot", item, *given, "--output", "json")
             for item, given in (("s.json", ()), ("live", topics.place))]  # fmt: skip
    assert [plan.exit_code for plan in plans] == [0, 0], [plan.stderr for plan in plans]
    of_file, of_live = (json.loads(plan.stdout) for plan in plans)
    assert of_file["settings"] == of_live["settings"]
    assert of_file["settings"]["target_std"] == 0.125
    assert of_file["cycles"][0]["label"] == of_live["cycles"][0]["label"] == "Skip"
    for what in ("place", "split"):
        assert run(what, "plan", "--snapshot", "live", *topics.place).exit_code == 0

    words = ("--contenders", "ours", "--hours", "0.2", "--seeds", "1", "--out", "contest", "--output", "json")
    contest = run("simulate", "compare", "--snapshot", "live", *topics.place, *words)
    assert contest.exit_code == 0, contest.stderr
    row = json.loads(contest.stdout)["scenarios"][0]["rows"][1]
    assert (row["contender"], row["about"].rpartition(": ")[2]) == ("as-it-is", "transfer, round-robin")
    assert "note: b2" in contest.stderr  # it reports nothing
    assert read_snapshot(Path("contest/live-snapshot.json")).bundles == snapshot.bundles


@pytest.mark.kafka
def test_a_channel_that_does_not_exist(kafka: Kafka, topic_prefix: str, run: Run) -> None:
    result = run("snapshot", "take", "--bootstrap-servers", kafka.bootstrap_servers, "--channel", topic_prefix)
    assert result.exit_code not in (0, ExitCode.USAGE)
    assert "does not exist" in result.stderr
    assert "hint: " in result.stderr
    assert result.stdout == ""
