"""Commands and brokers of a secured Kafka, each as a user of its own."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from statechannel.cli.main import app
from tests.support.broker_cluster import COMMAND, QUICK, WAIT_S
from tests.support.secured_kafka import SUPERUSER, SecuredKafka
from tests.support.waits import wait_until


class SecuredCluster:
    """See the module."""

    def __init__(self, kafka: SecuredKafka, channel: str) -> None:
        self.kafka, self.channel = kafka, channel
        self.brokers: dict[str, subprocess.Popen[bytes]] = {}

    def place(self, user: str, file: Path | None = None) -> list[str]:
        config = file or self.kafka.file(user)
        options = ["--bootstrap-servers", self.kafka.bootstrap_servers, "--kafka-config", str(config)]
        return [*options, "--channel", self.channel, *(part for flag in QUICK for part in ("--set", flag))]

    def as_(
        self, user: str, *args: str, file: Path | None = None, for_programs: tuple[str, ...] = ("--output", "json")
    ) -> Result:
        """A command, in this process."""
        if args[:2] == ("broker", "run"):
            for_programs = ()
        result = CliRunner().invoke(app, [*args, *self.place(user, file), *for_programs])
        assert "Traceback" not in result.output, result.output
        return result

    def done(self, user: str, *args: str) -> Any:
        result = self.as_(user, *args)
        assert result.exit_code == 0, f"{user} {args}: {result.exit_code}\n{result.output}\n{self.logs()}"
        return json.loads(result.stdout) if result.stdout else None

    def refused(self, user: str, *args: str, code: int = 11) -> str:
        result = self.as_(user, *args)
        assert result.exit_code == code, f"{user} {args}: {result.exit_code}\n{result.output}"
        return result.stderr

    def grant(self, role: str, user: str) -> Any:
        return self.done(SUPERUSER, "acl", "apply", "--role", role, "--principal", f"User:{user}")

    def spawn(self, name: str, user: str, *more: str) -> subprocess.Popen[bytes]:
        command = [*COMMAND, "broker", "run", "--id", name, *self.place(user), *more]
        with (self.kafka.folder / f"{name}.log").open("ab") as log:
            self.brokers[name] = subprocess.Popen(command, stdout=log, stderr=log)
        return self.brokers[name]

    def log(self, name: str) -> str:
        return (self.kafka.folder / f"{name}.log").read_text()

    def logs(self) -> dict[str, str]:
        return {name: self.log(name)[-3_000:] for name in self.brokers}

    def denied(self) -> list[str]:
        """What Kafka's authorizer has refused, as it logs it."""
        lines = self.kafka.server.log_path.read_text().splitlines()
        return [line.partition("Principal = ")[2] for line in lines if " is Denied " in line]

    def wait(self, done: Callable[[], bool]) -> None:
        wait_until(done, self.logs, wait_s=WAIT_S)

    def end(self) -> None:
        for process in self.brokers.values():
            if process.poll() is None:
                process.kill()
                process.wait(WAIT_S)
