"""A channel of its own with broker processes of the command line, and the commands to talk to it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Producer
from typer.testing import CliRunner
from ulid import ULID

from statechannel.cli.main import app
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.operations import request_record
from statechannel.operations.request_record import Request
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import Topic
from tests.support.kafka_lanes import Kafka
from tests.support.waits import KNOWN_S, wait_until
from tests.support.waits import WAIT_S as ONE_CONDITION_S

COMMAND = [sys.executable, "-c", "from statechannel.cli.main import main; main()"]
WAIT_S = 2 * ONE_CONDITION_S
"""Some of what these wait for is a course of many moves."""
QUICK = (
    "membership.interval_s=0.5",
    "membership.expiry_s=8",
    "safe_mode.after_s=4",
    "leader.heartbeat_interval_s=0.3",
    "kafka.session_timeout_ms=6000",
    f"kafka.command_timeout_s={ONE_CONDITION_S}",
    f"kafka.topic_grace_s={KNOWN_S}",
)
"""Times short enough for tests, long enough for a busy machine."""


class BrokerCluster:
    """See the module.

    Args:
        flags: Settings of brokers and commands, as `--set` takes them.
    """

    def __init__(self, kafka: Kafka, channel: str, folder: Path, flags: Sequence[str] = ()) -> None:
        self.bootstrap, self.channel, self.flags = kafka.bootstrap_servers, channel, (*QUICK, *flags)
        self.place = ["--bootstrap-servers", kafka.bootstrap_servers, "--channel", channel]
        self.place += [part for flag in self.flags for part in ("--set", flag)]
        self.folder = folder
        self.brokers: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: list[subprocess.Popen[str]] = []

    def run(self, *args: str, code: int) -> tuple[str, str]:
        """A command, in this process, which is quicker; only one at a time. Its standard output and error."""
        result = CliRunner().invoke(app, [*args, *self.place, "--output", "json"])
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.stdout}\n{result.stderr}\n{self.logs()}"
        assert "Traceback" not in result.stderr
        return result.stdout, result.stderr

    def __call__(self, *args: str, code: int = 0) -> Any:
        out, _ = self.run(*args, code=code)
        return json.loads(out) if out else None

    def error(self, *args: str, code: int) -> str:
        return self.run(*args, code=code)[1]

    def begin(self, *args: str) -> subprocess.Popen[str]:
        """A command in a process of its own, to be ended by `end`."""
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

    def outside(self, *args: str) -> Any:
        """The same in a process of its own: for tests in whose process something else writes to standard output."""
        command = [*COMMAND, *args, *self.place, "--output", "json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert result.returncode == 0, f"{args}: {result.returncode}\n{result.stdout}\n{result.stderr}\n{self.logs()}"
        return json.loads(result.stdout) if result.stdout else None

    def start(self, *names: str, extra: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        """Start broker processes, with settings and options of their own, and wait until they take bundles."""
        for name in names:
            self.spawn(name, extra, options)
        self.wait(lambda: {broker["broker"] for broker in self.alive()} >= set(names))

    def spawn(self, name: str, extra: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        more = [part for flag in extra for part in ("--set", flag)]
        command = [*COMMAND, "broker", "run", "--id", name, *options, *self.place, *more]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.brokers[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.brokers[name].kill()
        self.brokers[name].wait(WAIT_S)

    def alive(self) -> list[dict[str, Any]]:
        return [row for row in self("brokers")["brokers"] if row["accepting"]]

    def leader(self) -> str:
        leaders: list[str] = []

        def known() -> bool:
            leaders[:] = [broker["broker"] for broker in self.alive() if broker["leading"]]
            return len(leaders) == 1

        self.wait(known)
        return leaders[0]

    def create(self, namespace: str, bundles: int, broker: str) -> list[str]:
        """A namespace whose bundles all come to one broker; nothing keeps them there."""
        self("policy", "set", "pin", namespace, broker)
        self("namespace", "create", namespace, "--bundles", str(bundles), "--timeout", str(WAIT_S))
        names = [name for name in self.owners() if name.startswith(f"{namespace}/")]
        time.sleep(1.0)  # every broker has read of the pin by then
        self.look_up(names)
        self.wait(lambda: {owner for name, owner in self.owners().items() if name in names} == {broker})
        self("policy", "delete", "pin", namespace)
        return names

    def look_up(self, names: Sequence[str]) -> None:
        """What `lookup` asks, of all at once and without its answers: a command for each would take a second or more."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        topic = ChannelTopics(self.channel).names[Topic.REQUESTS]
        for name in names:
            asked = Request(str(ULID()), RequestCommand.LOOKUP, 0, {"name": name, "read_only": False}, "tests")
            producer.produce(topic, request_record.encode(asked, timeout_s=60), asked.id.encode(), 0)
        assert producer.flush(WAIT_S) == 0

    def owners(self) -> dict[str, str | None]:
        return {row["bundle"]: row["owner"] for row in self("bundles")["bundles"]}

    def decisions(self, subject: str = "shed") -> list[dict[str, Any]]:
        """The decisions of the last hour, the oldest first."""
        return [decision for decision in self("decisions")["decisions"] if decision["subject"] == subject]

    def wait(self, done: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        wait_until(done, self.logs, wait_s=timeout_s, pause_s=0.5)

    def logs(self) -> dict[str, str]:
        return {path.name: path.read_text()[-3_000:] for path in self.folder.glob("*.log")}


C = TypeVar("C", bound=BrokerCluster)


@contextmanager
def broker_cluster(cluster: C) -> Iterator[C]:
    """A cluster without brokers; those that are started are ended with it, and so are its commands."""
    cluster("init")
    try:
        yield cluster
    finally:
        for process in [*cluster.brokers.values(), *cluster.commands]:
            if process.poll() is None:
                process.kill()
                process.wait(WAIT_S)
