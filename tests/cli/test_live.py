"""The commands against a real Kafka and real broker processes: a namespace's life, told by the command line alone."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import Result

from statechannel import clocks
from statechannel.embedded import KafkaServer
from statechannel.queries import registry
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, wait_until

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "design" / "reference" / "json.md"
QUICK = ["membership.interval_s=0.3", "membership.expiry_s=8", "safe_mode.after_s=4", "leader.heartbeat_interval_s=0.3"]
QUICK += [f"kafka.command_timeout_s={WAIT_S}"]
NAMESPACE = "tenant/ns"
COMMAND = [sys.executable, "-c", "from statechannel.cli.main import main; main()"]
BROKER_RUN = [*COMMAND, "broker", "run"]


class Cluster:
    """A channel of its own, with broker processes."""

    def __init__(self, kafka: Kafka, channel: str, folder: Path, run: Callable[..., Result]) -> None:
        self.common = ["--bootstrap-servers", kafka.bootstrap_servers, "--channel", channel]
        self.common += [part for flag in QUICK for part in ("--set", flag)]
        self._folder = folder
        self._run = run
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __call__(self, *args: str, code: int = 0) -> Any:
        """Run a command with `--output json` in this process; its answer."""
        result = self._run(*args, *self.common, "--output", "json")
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return json.loads(result.stdout)

    def fails(self, *args: str, code: int) -> str:
        """Run a command that must fail; its one line of error."""
        result = self._run(*args, *self.common)
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        assert "Traceback" not in result.stderr
        return lines[0]

    def hint(self, *args: str, code: int) -> str:
        """The hint of a command that must fail."""
        result = self._run(*args, *self.common)
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return next(line for line in result.stderr.splitlines() if line.startswith("hint: "))

    def start(self, broker: str, *more: str) -> subprocess.Popen[bytes]:
        command = [*BROKER_RUN, "--id", broker, "--advertised", f"http=http://{broker}:80", "--events", *more]
        command += self.common
        with (self._folder / f"{broker}.out").open("ab") as out, (self._folder / f"{broker}.err").open("ab") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | {"COLUMNS": "200"})
        self.processes[broker] = process
        return process

    def events(self, broker: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / f"{broker}.out").read_text().splitlines()]

    def wait_alive(self, *brokers: str) -> None:
        self.wait(lambda: {b["broker"] for b in self("brokers")["brokers"] if b["accepting"]} == set(brokers))

    def wait(self, done: Callable[[], bool]) -> None:
        wait_until(done, lambda: {p.name: p.read_text()[-2_000:] for p in self._folder.glob("*.err")})

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(WAIT_S)


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path, run: Callable[..., Result]) -> Iterator[Cluster]:
    cluster = Cluster(kafka, topic_prefix, tmp_path, run)
    yield cluster
    cluster.close()


def documented(command: str) -> set[str]:
    """Keys of a command's JSON as design/reference/json.md lists them."""
    for line in PAGE.read_text().splitlines():
        if line.startswith(f"| `{command}` |"):
            return {word.strip().strip("`") for word in line.split("|")[2].split(",")}
    raise AssertionError(f"design/reference/json.md does not list {command}")


def test_without_topics_and_without_brokers(cluster: Cluster, tmp_path: Path) -> None:
    assert "does not exist" in cluster.fails("bundles", code=12)
    assert "does not exist" in cluster.fails("acl", "check", "--role", "broker", code=12)
    ended = cluster.start("b1").wait(WAIT_S)
    assert ended == 12
    assert "error: Topics that do not exist" in (tmp_path / "b1.err").read_text()
    base = cluster("init", "--partitions", "2")
    assert base.keys() == documented("init")
    assert [topic["partitions"] for topic in base["topics"]] == [2, 1, 1, 1]
    assert cluster("init") == base
    assert cluster("namespace", "list") == {"namespaces": [], "tentative": False}
    assert cluster("brokers") == {"brokers": [], "leader": None, "leader_api": None, "tentative": False}
    assert "its registry has no heartbeat" in cluster.fails("namespace", "create", NAMESPACE, code=6)
    assert f"namespace {NAMESPACE} does not exist" in cluster.fails("lookup", f"{NAMESPACE}/x", "--read-only", code=5)
    assert cluster("audit")["end_offsets"] == {"0": 0, "1": 0}


def test_a_broker_whose_output_nobody_takes_serves_and_leaves(cluster: Cluster) -> None:
    cluster("init")
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*BROKER_RUN, "--id", "b1", "--events", "--shutdown-budget", "2", *cluster.common], stdout=writer, stderr=writer
    )
    cluster.processes["b1"] = process
    os.close(writer)
    os.close(reader)  # as after `broker run 2>&1 | head -1`
    cluster.wait_alive("b1")
    cluster("namespace", "create", NAMESPACE, "--bundles", "2")
    assert cluster("lookup", f"{NAMESPACE}/topic")["broker"] == "b1"
    process.terminate()
    assert process.wait(WAIT_S) == 0
    assert [broker["state"] for broker in cluster("brokers")["brokers"]] == ["left"]


def test_a_namespace_from_its_creation_to_its_deletion(cluster: Cluster, tmp_path: Path) -> None:
    cluster("init")
    first, second = cluster.start("b1"), cluster.start("b2")
    cluster.wait_alive("b1", "b2")

    created = cluster("namespace", "create", NAMESPACE, "--bundles", "4")
    assert (created["answer"], created["result"]) == ("accepted", "created")
    assert cluster("namespace", "show", NAMESPACE).keys() == documented("namespace show")
    assert "exists already" in cluster.fails("namespace", "create", NAMESPACE, code=3)

    topic = f"{NAMESPACE}/topic"
    assert "no broker serves" in cluster.fails("lookup", topic, "--read-only", code=5)
    base = cluster("lookup", topic)
    assert base.keys() == documented("lookup")
    assert base["urls"] == {"http": f"http://{base['broker']}:80"}
    bundle, owner = base["bundle"], base["broker"]
    other = {"b1": "b2", "b2": "b1"}[owner]
    seen = cluster("lookup", topic, "--read-only")
    assert {k: seen[k] for k in ("bundle", "broker", "generation", "urls")} == {
        k: base[k] for k in ("bundle", "broker", "generation", "urls")
    }

    moved = cluster("transfer", topic, "--dest", other, "--reason", "test")
    assert (moved["result"], moved["facts"]["bundle"]) == ("transferred", bundle)
    assert cluster("lookup", bundle, "--read-only")["broker"] == other
    assert "owned by" in cluster.fails("transfer", bundle, "--dest", other, code=3)
    assert "unknown-broker" in cluster.fails("transfer", bundle, "--dest", "nobody", code=3)
    assert "each once" in cluster.fails("split", topic, "--at", "0", "--at", "0", code=3)

    shown = cluster("operation", "show", moved["operation"])
    assert shown.keys() == documented("operation show")
    assert [record["state"] for record in shown["records"]] == ["Releasing", "Assigning", "Assigned"]
    assert (shown["status"], shown["result"]) == ("ended", "transferred")

    assert cluster("split", topic, "--parts", "3")["result"] == "split"
    assert "was split" in cluster.fails("lookup", bundle, code=5)
    assert len(cluster("bundles", "--namespace", NAMESPACE)["bundles"]) == 6
    assert len(cluster("bundles", "--broker", other)["bundles"]) == 3
    assert cluster("unload", topic)["result"] == "unloaded"
    assert cluster("unload", topic, code=3)["reason"] == "not-assigned"

    export = tmp_path / "log.jsonl"
    result = cluster._run("export", str(export), *cluster.common, "--with-verdicts")
    assert result.exit_code == 0, result.stderr
    checked = json.loads(cluster._run("replay-check", str(export), "--output", "json").stdout)
    assert checked.keys() == documented("replay-check")
    assert (checked["same"], checked["compared"]) == (True, checked["records"])
    gaps = json.loads(cluster._run("audit", "gaps", "--file", str(export), "--output", "json").stdout)["gaps"]
    assert {gap["cause"] for gap in gaps} == {"transfer", "unload"}
    document = json.loads(cluster._run("audit", "--file", str(export), "--output", "json").stdout)
    live = cluster("audit", "--as-of", str(document["end_offsets"]["0"] - 1))
    assert live["digest"] == document["digest"]
    assert (document["read"], document["rejected"], document["debts"]) == ("full", {}, [])

    status = cluster("status")
    assert status.keys() == documented("status")
    assert status["leader"] in ("b1", "b2")
    assert status["brokers"][0].keys() == documented("brokers: one") | {"lag_ms"}
    assert status["in_flight"] == []
    assert status["assigned"] + status["unassigned"] == status["bundles"] == 6
    assert status["unassigned"] >= 1

    losing = {"b1": first, "b2": second}[other]
    losing.kill()
    cluster.wait(lambda: all(b["owner"] != other for b in cluster("bundles")["bundles"]))
    assert cluster("brokers")["brokers"][-1]["state"] == "lost"
    served = next(subject["bundle"] for subject in cluster("bundles")["bundles"] if subject["owner"] == owner)
    assert "no broker of that name is registered" in cluster.fails("transfer", served, "--dest", other, code=3)
    gaps = cluster("audit", "gaps")["gaps"]
    lost = [gap for gap in gaps if gap["cause"] == "owner-lost"]
    assert {gap["from"] for gap in lost} == {other}
    assert all(gap["length_ms"] >= 3_000 for gap in lost)

    deleted = cluster("namespace", "delete", NAMESPACE, "--yes", "--timeout", str(WAIT_S))
    assert (deleted["answer"], deleted["result"]) == ("accepted", "deleted")
    assert cluster("bundles") == {"bundles": [], "tentative": False}

    operations = cluster("operation", "list")["operations"]
    assert {operation["flow"] for operation in operations} >= {
        "namespace",
        "assignment",
        "transfer",
        "split",
        "unload",
        "repair",
    }


def test_nobody_is_there_to_ask(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster("init")
    process = cluster.start("b1")
    cluster.wait_alive("b1")
    cluster("namespace", "create", NAMESPACE)
    with monkeypatch.context() as skewed:
        skewed.setattr(registry, "now_ms", lambda: clocks.now_ms() + 30_000)
        assert cluster("lookup", f"{NAMESPACE}/x")["broker"] == "b1", "a clock that is ahead makes nobody dead"
    assert "`statechannel namespace show tenant/ns`" in cluster.hint("namespace", "create", NAMESPACE, code=3)
    assert "`statechannel namespace create tenant/no`" in cluster.hint("lookup", "tenant/no/x", code=5)

    process.kill()
    process.wait(WAIT_S)
    cluster.wait(lambda: cluster("brokers")["brokers"][0]["state"] == "lost")
    outcome = cluster.fails("unload", f"{NAMESPACE}/x", code=6)
    assert re.search(r"no broker is alive: b1 was last heard [0-9.]+ s ago", outcome)
    assert "`statechannel broker run --id ID`" in cluster.hint("lookup", f"{NAMESPACE}/x", code=6)
    result = cluster._run("unload", f"{NAMESPACE}/x", "--no-wait", *cluster.common)
    assert result.exit_code == 0
    assert "note: no broker is alive: b1" in result.stderr


def test_ending_a_broker(cluster: Cluster, tmp_path: Path) -> None:
    cluster("init")
    process = cluster.start("b1", "--set", "observe.metrics_port=0")
    cluster.wait_alive("b1")
    cluster.wait(lambda: bool(cluster.events("b1")))  # others see it before it says that it is ready
    cluster("namespace", "create", NAMESPACE, "--bundles", "2")
    cluster("lookup", f"{NAMESPACE}/x")

    address = cluster("brokers")["brokers"][0]["http"]
    assert cluster.events("b1")[0]["http"] == address
    assert f"HTTP endpoint: {address}" in (tmp_path / "b1.err").read_text()
    with urlopen(f"{address}/healthz", timeout=WAIT_S) as answer:
        assert answer.status == 200

    command = [*BROKER_RUN, "--id", "b1", *cluster.common]
    second = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert second.returncode == 15, second.stderr
    assert second.stderr.count("is in use by a live process") == 1, second.stderr
    assert second.stderr.count("take-over") == 1
    assert "--take-over" in second.stderr.splitlines()[-1]
    assert "Traceback" not in second.stderr

    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert [event["event"] for event in cluster.events("b1")] == ["ready", "own", "serve", "release", "stopped"]
    assert cluster("bundles")["bundles"][0]["owner"] is None
    assert [b["state"] for b in cluster("brokers")["brokers"] if b["broker"] == "b1"] == ["left"]


def test_watching(cluster: Cluster) -> None:
    cluster("init")
    cluster.start("b1")
    cluster.wait_alive("b1")
    command = [*COMMAND, "watch", "--limit", "3"]
    command += ["--for", "60", "--output", "json", *cluster.common]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert "caught-up" in watching.stderr.readline()
        cluster("namespace", "create", NAMESPACE)
        cluster("lookup", f"{NAMESPACE}/x")
        lines = [json.loads(line) for line in watching.stdout]
        rest = watching.stderr.read()
    assert [line["state"] for line in lines] == ["Active", "Assigning", "Assigned"]
    assert lines[0].keys() == documented("watch")
    assert (watching.returncode, rest) == (0, "")
    result = cluster._run("watch", "--namespace", "nosuch/ns", "--for", "2", *cluster.common)
    assert (result.exit_code, result.stderr.count("namespace nosuch/ns does not exist")) == (0, 1)
    result = cluster._run("watch", "--namespace", NAMESPACE, "--for", "2", *cluster.common)
    assert (result.exit_code, "does not exist" in result.stderr) == (0, False)


def test_watching_outlives_kafka_and_says_so(own_kafka: KafkaServer, topic_prefix: str) -> None:
    common = ["--bootstrap-servers", own_kafka.bootstrap_servers, "--channel", topic_prefix]
    subprocess.run([*COMMAND, "init", *common], check=True, timeout=WAIT_S, stdout=subprocess.DEVNULL)
    with subprocess.Popen([*COMMAND, "watch", *common], stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert "caught-up" in watching.stderr.readline()
            own_kafka.kill()
            assert "does not answer" in watching.stderr.readline()
            own_kafka.start()
            assert "answers again" in watching.stderr.readline()
        finally:
            watching.terminate()
