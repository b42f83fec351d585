"""An idle broker among many members: every heartbeat is read by every broker.

Two processes of `statechannel broker run` on an embedded Kafka, a leader and a follower, and one process that writes what all
other members would write: a heartbeat of each at every default interval, at moments of its own, each in a batch of its own. With
the balancer also its load reports, as often as the defaults allow at most: the load at each reading, the heaviest bundles at
each `top_interval_s`.

`python -m tests.bench.members BOOTSTRAP CHANNEL COUNT REPORTS` is the writing process; it ends with its standard input.
"""

import heapq
import json
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson
import psutil
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from loaddata.live.topics import LoadTopics
from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage, TopBundle
from loaddata.report.record import (
    BrokerLoadReport,
    ReportHeader,
    TopBundlesReport,
    encode_broker_load,
    encode_top_bundles,
)
from loaddata.settings import LoadSettings
from statechannel.demo.cluster import command_path
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from statechannel.protocol.log import Topic
from statechannel.settings.groups_engine import MembershipSettings
from tests.bench.lane import kafka
from tests.bench.measure import ROOT, Figure, Load, median, resident_bytes

SIZES = (3, 100, 1_000)
LIMIT_PERCENT = 2.0
AIMED = 1_000
LEADER, FOLLOWER = "b1", "b2"
WINDOW_S = 10.0
READY_S = 120.0
SETTLE_S = 12.0
"""Until readers have seen how many records come: they look every five seconds."""
_ENDS_EVERY_S = 1.0
_LATE_S = 3.0


def run(rounds: int = 5, sizes: Sequence[int] = SIZES) -> Sequence[Figure]:
    """Processor time and memory of both brokers, for each number of members, without and with the balancer."""
    figures: list[Figure] = []
    for balancer in (False, True):
        for members in sizes:
            figures += _measure(members, balancer=balancer, rounds=rounds)
    return figures


def _measure(members: int, *, balancer: bool, rounds: int) -> Iterator[Figure]:
    lane = f"members.{members}" + (".balancer" if balancer else "")
    channel = lane.replace(".", "-")
    with (
        kafka() as bootstrap,
        _brokers(bootstrap, channel, balancer=balancer) as brokers,
        _stand_ins(bootstrap, channel, members - len(brokers), reports=balancer),
    ):
        for broker in brokers.values():
            broker.wait_members(members)
        time.sleep(SETTLE_S)
        load = Load()
        for broker in brokers.values():
            broker.percent.clear()
        registry = ChannelTopics(channel).names[Topic.REGISTRY]
        began_s, began = time.monotonic(), _end(bootstrap, registry)
        for _ in range(rounds):
            used_s = {name: broker.used_s() for name, broker in brokers.items()}
            window_s = time.monotonic()
            time.sleep(WINDOW_S)
            took_s = time.monotonic() - window_s
            for name, broker in brokers.items():
                broker.percent.append(100 * (broker.used_s() - used_s[name]) / took_s)
        rate = (_end(bootstrap, registry) - began) / (time.monotonic() - began_s)
        for broker in brokers.values():
            broker.wait_members(members)  # else something else was measured
        yield Figure(f"{lane}.heartbeats", rate, "records/s", load=str(load))
        aim = f"<= {LIMIT_PERCENT:g} %" if members == AIMED and not balancer else ""
        for role, broker in zip(("leader", "follower"), brokers.values(), strict=True):
            percent, resident = broker.percent, resident_bytes(broker.pid)
            yield Figure(f"{lane}.{role}", median(percent), "% of a core", aim=aim, rounds=percent, load=str(load))
            yield Figure(f"{lane}.{role}.memory", resident / 2**20, "MiB", load=str(load))


def _end(bootstrap: str, topic: str) -> int:
    consumer = Consumer(ClientSettings(bootstrap).consumer_config("bench-members-end"))
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
    finally:
        consumer.close()


class RunBroker:
    """One process of `statechannel broker run`, as operators start it.

    Attributes:
        percent: Of a core, in each window.
    """

    def __init__(self, name: str, bootstrap: str, channel: str, folder: Path, settings: Sequence[str]) -> None:
        self.name = name
        self.percent: list[float] = []
        self._log = folder / f"{name}.log"
        command = [str(command_path()), "broker", "run", "--id", name, "--create-topics", "--events"]
        command += ["-b", bootstrap, "--channel", channel, "--advertised", f"pulsar://{name}.example:6650"]
        command += [argument for setting in settings for argument in ("--set", setting)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        self.pid = self._process.pid
        self._http = ""

    def wait_ready(self) -> None:
        """Return once it has caught up."""
        for line in self._process.stdout or ():
            event = json.loads(line)
            if event["event"] == "ready":
                self._http = event["http"]
                return
        raise RuntimeError(f"broker {self.name} ended: {self._log.read_text()}")

    def used_s(self) -> float:
        """Processor time of the whole process so far, that of all threads."""
        used = psutil.Process(self.pid).cpu_times()
        return used.user + used.system

    def wait_members(self, count: int) -> None:
        """Return once it hears that many members, in normal mode."""
        until_s, seen = time.monotonic() + READY_S, 0.0
        while time.monotonic() < until_s:
            metrics = self._metrics()
            seen = metrics.get(("statechannel_members", "caught-up"), 0)
            if seen == count and metrics.get(("statechannel_mode", "normal")) == 1:
                return
            time.sleep(0.5)
        raise RuntimeError(f"broker {self.name} hears {seen:g} members, not {count}: {self._log.read_text()}")

    def _metrics(self) -> Mapping[tuple[str, str], float]:
        """Gauges of one label besides the broker's own, by name and that label's value."""
        with urllib.request.urlopen(f"{self._http}/metrics", timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families if family.type == "gauge" for sample in family.samples]
        return {
            (sample.name, value): sample.value
            for sample in samples
            for label, value in sample.labels.items()
            if label not in ("channel", "broker")
        }

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _brokers(bootstrap: str, channel: str, *, balancer: bool) -> Iterator[dict[str, RunBroker]]:
    settings = [f"extensions.balancer.enabled={str(balancer).lower()}", "observe.metrics_port=0"]
    running: dict[str, RunBroker] = {}
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        try:
            for name in (LEADER, FOLLOWER):
                running[name] = RunBroker(name, bootstrap, channel, Path(folder), settings)
                running[name].wait_ready()
            yield running
        finally:
            for broker in running.values():
                broker.kill()


@contextmanager
def _stand_ins(bootstrap: str, channel: str, count: int, *, reports: bool) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.members", bootstrap, channel, str(count), str(int(reports))]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the stand-ins ended with code {process.returncode}")
    finally:
        process.kill()
        process.wait()


# --- the writing process ----------------------------------------------------------------------------------------------


class _Due(NamedTuple):
    """The next record of one member and one kind; `number` orders those of one moment."""

    at_s: float
    number: int
    interval_s: float
    name: str
    write: Callable[[str], None]


class StandIns:
    """What many members write, made after the heartbeat of a real one.

    Args:
        pattern: A heartbeat of a caught-up follower.
    """

    def __init__(self, pattern: Mapping[str, Any], bootstrap: str, channel: str, count: int, *, reports: bool) -> None:
        self._pattern = pattern
        self._names = [f"m{number:04}" for number in range(count)]
        self._since = dict.fromkeys(self._names, -1)
        self._seq: dict[tuple[str, str], int] = {}
        self._topics, self._load_topics = ChannelTopics(channel), LoadTopics(channel)
        self._producer = Producer(ClientSettings(bootstrap).producer_config())
        self._ends = Consumer(ClientSettings(bootstrap).consumer_config("bench-members-stand-ins"))
        self._applied = {0: -1}
        self._looked_s = 0.0
        self._started_ms = time.time_ns() // 1_000_000
        self._due: list[_Due] = []
        load = LoadSettings()
        self._plan(MembershipSettings().interval_s, self._heartbeat)
        if reports:
            self._bundles = _heaviest(load.top_bundles_max + 2 * load.top_by_resource_max)
            self._plan(load.measure_interval_s, self._broker_load)
            self._plan(load.top_interval_s, self._top_bundles)

    def _plan(self, interval_s: float, write: Callable[[str], None]) -> None:
        began_s, count = time.monotonic(), len(self._names)
        for number, name in enumerate(self._names):
            heapq.heappush(
                self._due, _Due(began_s + interval_s * number / count, len(self._due), interval_s, name, write)
            )

    def write_until(self, ended: Callable[[float], bool]) -> None:
        """Write what is due when it is due; `ended` sleeps for the seconds until then."""
        while not ended(max(0.0, self._due[0].at_s - time.monotonic())):
            self._look_at_the_channel()
            while (late_s := time.monotonic() - self._due[0].at_s) >= 0:
                if late_s > _LATE_S:
                    raise RuntimeError(f"the stand-ins write {late_s:.1f} s late: this machine is too busy")
                due = self._due[0]
                due.write(due.name)
                self._producer.poll(0)
                heapq.heapreplace(self._due, due._replace(at_s=due.at_s + due.interval_s))

    def _look_at_the_channel(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= _ENDS_EVERY_S:
            self._looked_s = now_s
            place = TopicPartition(self._topics.channel, 0)
            self._applied = {0: int(self._ends.get_watermark_offsets(place, timeout=10)[1]) - 1}

    def _next(self, kind: str, name: str) -> int:
        self._seq[kind, name] = self._seq.get((kind, name), 0) + 1
        return self._seq[kind, name]

    def _heartbeat(self, name: str) -> None:
        seq = self._next("member", name)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None and self._since[name] < 0:
                self._since[name] = message.offset() or 0

        own = {
            "broker": name,
            "incarnation": _incarnation(name),
            "seq": seq,
            "sent_at_ms": time.time_ns() // 1_000_000,
            "started_at_ms": self._started_ms,
            "listeners": {"pulsar": f"pulsar://{name}.example:6650"},
            "since": self._since[name],
            "applied": {str(partition): offset for partition, offset in self._applied.items()},
        }
        value = orjson.dumps({**self._pattern, **own})
        self._producer.produce(self._topics.names[Topic.REGISTRY], value, name.encode(), 0, on_delivery=delivered)

    def _header(self, kind: str, name: str) -> ReportHeader:
        now_ms = time.time_ns() // 1_000_000
        return ReportHeader(name, _incarnation(name), self._next(kind, name), now_ms, self._applied)

    def _broker_load(self, name: str) -> None:
        header = self._header("load", name)
        usage = 30.0 + 13 * header.seq % 40
        load = BrokerLoad(
            cpu=ResourceUsage(usage, 400.0),
            memory=ResourceUsage(2_048.0, 8_192.0),
            bandwidth_in=ResourceUsage(81_920.0 + usage, 1_000_000.0),
            bandwidth_out=ResourceUsage(122_880.0 + usage, 1_000_000.0),
            msg_rate_in=1_000.0 + usage,
            msg_rate_out=1_500.0 + usage,
            msg_throughput_in=1_024_000.0 + usage,
            msg_throughput_out=1_536_000.0 + usage,
            bundles=len(self._bundles),
            topics=120,
            max_resource_usage=usage / 400,
            weighted_max_ema=0.1,
            msg_throughput_ema=2_489_000.0,
            updated_at_ms=header.written_at_ms,
            reported_at_ms=header.written_at_ms,
        )
        value = encode_broker_load(BrokerLoadReport(header, load))
        self._producer.produce(self._load_topics.broker_load, value, name.encode(), 0)

    def _top_bundles(self, name: str) -> None:
        value = encode_top_bundles(TopBundlesReport(self._header("top", name), self._bundles))
        self._producer.produce(self._load_topics.top_bundles, value, name.encode(), 0)


def _incarnation(name: str) -> str:
    return f"{name}-01K8ZQ4T6V0000000000000000"


def _heaviest(count: int) -> list[TopBundle]:
    bounds = namespace_bounds(count)
    names = [bundle_key("bench/members", *pair) for pair in pairwise(bounds)]
    average = MessageAverage(655.0, 982.5, 670_720.0, 1_006_080.0, samples=10)
    stats = BundleStats(700.0, 1_050.0, 716_800.0, 1_075_200.0, topics=12, consumers=24, producers=12)
    return [TopBundle(name, stats, BundleAverages(average, average)) for name in names]


def _follower_heartbeat(bootstrap: str, channel: str) -> dict[str, Any]:
    """The newest heartbeat of the real follower."""
    consumer = Consumer(ClientSettings(bootstrap).consumer_config("bench-members-pattern"))
    place = TopicPartition(ChannelTopics(channel).names[Topic.REGISTRY], 0, 0)
    consumer.assign([place])
    try:
        until_s = time.monotonic() + READY_S
        while time.monotonic() < until_s:
            for message in consumer.consume(100, 1.0):
                info = {} if message.error() is not None else orjson.loads(message.value() or b"{}")
                if info.get("broker") == FOLLOWER and info.get("phase") == "caught-up" and info.get("mode") == "normal":
                    return dict(info)
        raise RuntimeError("the follower wrote no heartbeat")
    finally:
        consumer.close()


def _ended(stream: IO[str], wait_s: float) -> bool:
    return bool(select.select([stream], [], [], wait_s)[0])


def main(bootstrap: str, channel: str, count: str, reports: str) -> None:
    pattern = _follower_heartbeat(bootstrap, channel)
    members = StandIns(pattern, bootstrap, channel, int(count), reports=reports == "1")
    with suppress(KeyboardInterrupt):
        members.write_until(lambda wait_s: _ended(sys.stdin, wait_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
