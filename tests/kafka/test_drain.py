"""Drains and rolling restarts on a real Kafka, with broker processes that have load made up for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statechannel.cli.main import app
from tests.support.kafka_lanes import Kafka

pytestmark = pytest.mark.slow

NAMESPACE = "tenant/ns"
COMMAND = [sys.executable, "-c", "from statechannel.cli.main import main; main()"]
WAIT_S = 240.0
FLAGS = (
    "membership.interval_s=0.5",
    "membership.expiry_s=8",
    "safe_mode.after_s=4",
    "leader.heartbeat_interval_s=0.3",
    "kafka.session_timeout_ms=6000",
    "kafka.command_timeout_s=60",
    "extensions.balancer.source=simulated",
    "extensions.balancer.load.measure_interval_s=0.3",
    "extensions.balancer.load.tick_s=0.1",
    "extensions.balancer.load.settle_s=0.3",
    "extensions.balancer.balancing=false",
    "extensions.balancer.splitting=false",
    "extensions.balancer.drain.ahead_max=4",
)


class Cluster:
    """A channel of its own, with broker processes."""

    def __init__(self, kafka: Kafka, channel: str, folder: Path) -> None:
        self.place = ["--bootstrap-servers", kafka.bootstrap_servers, "--channel", channel]
        self.place += [part for flag in FLAGS for part in ("--set", flag)]
        self.folder = folder
        self.brokers: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: list[subprocess.Popen[str]] = []

    def begin(self, *args: str) -> subprocess.Popen[str]:
        command = [*COMMAND, *args, *self.place, "--output", "json"]
        begun = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "300"}
        )
        self.commands.append(begun)
        return begun

    def end(self, begun: subprocess.Popen[str], code: int = 0, timeout_s: float = WAIT_S) -> tuple[Any, str]:
        out, err = begun.communicate(timeout=timeout_s)
        assert begun.returncode == code, f"{begun.returncode}\n{out}\n{err}\n{self.logs()}"
        assert "Traceback" not in err
        return (json.loads(out) if out else None), err

    def run(self, *args: str, code: int) -> tuple[str, str]:
        """In this process, which is quicker; only one at a time."""
        result = CliRunner().invoke(app, [*args, *self.place, "--output", "json"])
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}\n{self.logs()}"
        assert "Traceback" not in result.stderr
        return result.stdout, result.stderr

    def __call__(self, *args: str, code: int = 0) -> Any:
        out, _ = self.run(*args, code=code)
        return json.loads(out) if out else None

    def error(self, *args: str, code: int) -> str:
        return self.run(*args, code=code)[1]

    def start(self, *names: str) -> None:
        for name in names:
            self.spawn(name)
        self.wait(lambda: {one["broker"] for one in self.alive()} >= set(names))

    def spawn(self, name: str) -> None:
        command = [*COMMAND, "broker", "run", "--id", name, *self.place]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.brokers[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.brokers[name].kill()
        self.brokers[name].wait(10)

    def alive(self) -> list[dict[str, Any]]:
        """Nobody, where a busy Kafka does not say; callers wait for those that they want."""
        result = CliRunner().invoke(app, ["brokers", *self.place, "--output", "json"])
        found = json.loads(result.stdout)["brokers"] if result.exit_code == 0 else []
        return [one for one in found if one["accepting"]]

    def leader(self) -> str:
        found: list[str] = []

        def known() -> bool:
            found[:] = [one["broker"] for one in self.alive() if one["leading"]]
            return len(found) == 1

        self.wait(known)
        return found[0]

    def create(self, bundles: int, broker: str) -> list[str]:
        """A namespace whose bundles all come to one broker; nothing keeps them there."""
        self("policy", "set", "pin", NAMESPACE, broker)
        self("namespace", "create", NAMESPACE, "--bundles", str(bundles), "--timeout", "60")
        names = [one["bundle"] for one in self("bundles")["bundles"]]
        time.sleep(1.0)  # every broker has read of the pin by then
        for name in names:
            self("lookup", name, "--timeout", "60")
        assert set(self.owners().values()) == {broker}
        self("policy", "delete", "pin", NAMESPACE)
        return names

    def owners(self) -> dict[str, str | None]:
        return {one["bundle"]: one["owner"] for one in self("bundles")["bundles"]}

    def wait(self, done: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        ends_s = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < ends_s, self.logs()
            time.sleep(0.3)

    def logs(self) -> dict[str, str]:
        return {path.name: path.read_text()[-3_000:] for path in self.folder.glob("*.log")}


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(kafka, topic_prefix, tmp_path)
    made("init")
    try:
        yield made
    finally:
        for process in [*made.brokers.values(), *made.commands]:
            if process.poll() is None:
                process.kill()
                process.wait(10)


def test_drain_under_load_leaves_nothing_behind_and_why_answers(cluster: Cluster) -> None:
    cluster.start("b1", "b2", "b3")
    bundles = cluster.create(12, "b1")

    drained = cluster("drain", "b1", "--rate", "20/s", "--why", "new disks")
    assert (drained["result"], drained["left_count"], drained["began_with"]) == ("drained", 0, 12)
    assert drained["moved"] == 12
    remarks = {one["broker"]: one["remarks"] for one in cluster("brokers")["brokers"]}
    assert "cordoned" in remarks["b1"], "an operator looks there first"
    assert remarks["b2"] is None
    owners = cluster.owners()
    assert set(owners) == set(bundles)
    assert set(owners.values()) == {"b2", "b3"}, "both receive, as each is given few ahead of its report"

    told = cluster("why", bundles[0])
    step = told["steps"][-1]
    assert step["decision"] is not None
    assert f"drain {drained['operation']}" in step["because"]
    assert ", drain), Admin: " in step["because"]
    entry = cluster("policy", "get", "cordon", "b1")["entries"][0]
    assert entry["why"] == f"drain {drained['operation']}: new disks"

    refused = cluster("transfer", bundles[0], "--dest", "b1", code=3)
    assert (refused["reason"], refused["answer"]) == ("filtered", "rejected")
    assert "cordon: it is cordoned" in refused["detail"]
    forced = cluster("transfer", bundles[0], "--dest", "b1", "--force", "--reason", "I must")
    records = cluster("operation", "show", forced["operation"])["records"]
    assert records[0]["reason"] == "forced past the filters: I must"

    assert "not by a drain" not in cluster.error("uncordon", "b1", code=0)
    assert "there is no policy cordon b1" in cluster.error("uncordon", "b1", code=5)
    cluster("policy", "set", "cordon", "b1", "--why", "mine")
    assert "not by a drain: mine" in cluster.error("uncordon", "b1", code=3)
    cluster("uncordon", "b1", "--force")


def test_leader_is_killed_in_the_middle_and_the_command_too(cluster: Cluster) -> None:
    cluster.start("b1", "b2", "b3")
    leader = cluster.leader()
    drained = min({"b1", "b2", "b3"} - {leader})
    (third,) = {"b1", "b2", "b3"} - {leader, drained}
    cluster.create(16, drained)

    first = cluster.begin("drain", drained, "--rate", "0.2/s")
    cluster.wait(lambda: list(cluster.owners().values()).count(drained) < 16)
    first.kill()
    second = cluster.begin("drain", drained, "--rate", "0.5/s")
    before = list(cluster.owners().values()).count(drained)
    cluster.wait(lambda: list(cluster.owners().values()).count(drained) < before)
    assert drained in cluster.owners().values(), "it was to be in the middle"
    cluster.kill(leader)
    found, err = cluster.end(second)
    assert "is being drained already (operation " in err
    assert found["operation"] in err
    assert found["began_with"] == found["moved"] >= 15, (
        "what the first leader moved counts; at most one record died with it"
    )
    assert (found["result"], found["left_count"], found["executed_by"]) in [
        ("drained", 0, third),
        ("drained", 0, drained),
    ]
    cluster.wait(lambda: set(cluster.owners().values()) == {third})
    asked = [one for one in cluster("operation", "list")["operations"] if one["operation"] == found["operation"]]
    assert [one["status"] for one in asked] == ["ended"], "the first command's request was given to the new leader"


def test_what_cannot_be_drained_is_told(cluster: Cluster) -> None:
    cluster.start("b1")
    cluster.create(4, "b1")
    assert "is the only broker that takes bundles" in cluster.error("drain", "b1", code=3)
    assert "no broker b9 is heard" in cluster.error("drain", "b9", code=5)
    assert cluster("policy", "list")["policies"] == [], "nothing was written"

    cluster.start("b2")
    cluster("policy", "set", "pin", NAMESPACE, "b1")
    error = cluster.error("drain", "b1", code=3)
    assert "rejected (no-destination)" in error
    assert "`pin` removed b2 (it is pinned to b1)" in error
    assert "the cordon was taken back" in error
    assert [one["kind"] for one in cluster("policy", "list")["policies"]] == ["pin"]
    assert set(cluster.owners().values()) == {"b1"}

    drained = cluster("drain", "b1", "--force")
    assert (drained["moved"], drained["left_count"]) == (4, 0)
    assert set(cluster.owners().values()) == {"b2"}

    cluster.kill("b1")
    cluster.wait(lambda: [one["broker"] for one in cluster.alive()] == ["b2"])
    assert "is not heard any more" in cluster.error("drain", "b1", code=3)


def test_rolling_restart_goes_on_where_it_stopped(cluster: Cluster) -> None:
    cluster.start("b1", "b2")
    cluster.create(6, "b1")
    leader = cluster.leader()
    script = cluster.folder / "restart"
    script.write_text(f"#!/bin/sh\ntest -e {cluster.folder}/refuse-$1 && exit 7\ntouch {cluster.folder}/$1.again\n")
    script.chmod(0o755)
    (cluster.folder / f"refuse-{leader}").touch()
    ended = threading.Event()

    def restart_on_request() -> None:
        while not ended.wait(0.2):
            for path in cluster.folder.glob("*.again"):
                path.unlink()
                cluster.brokers[path.stem].terminate()
                cluster.brokers[path.stem].wait(WAIT_S)
                cluster.spawn(path.stem)

    restarter = threading.Thread(target=restart_on_request)
    restarter.start()
    try:
        roll(cluster, f"{script} {{broker}}", leader)
    finally:
        ended.set()
        restarter.join()


def roll(cluster: Cluster, command: str, leader: str) -> None:
    (other,) = {"b1", "b2"} - {leader}
    before = processes(cluster)
    _, err = cluster.end(cluster.begin("rolling-restart", "--command", command), code=1)
    restart = err.split("rolling restart ")[1].split()[0]
    assert f"the command for {leader} ended with 7" in err
    assert f"--operation {restart}" in err
    after = processes(cluster)
    assert after[leader] == before[leader]
    assert after[other] != before[other], "the leader is last"
    assert [one["name"] for one in cluster("policy", "list", "--kind", "cordon")["policies"]] == [leader]
    assert set(cluster.owners().values()) == {other}, "the leader was emptied"
    (cluster.folder / f"refuse-{leader}").unlink()

    done, err = cluster.end(cluster.begin("rolling-restart", "--command", command, "--operation", restart))
    assert f"{other} was restarted already" in err
    assert [one["broker"] for one in done["restarted"]] == [leader]
    again = processes(cluster)
    assert again[other] == after[other]
    assert again[leader] != before[leader]
    assert cluster("policy", "list", "--kind", "cordon")["policies"] == []
    assert set(cluster.owners().values()) == {other}


def processes(cluster: Cluster) -> dict[str, str]:
    return {one["broker"]: one["incarnation"] for one in cluster.alive()}
