"""Processes of the demo: Kafka, brokers and commands, on loopback, in a temporary folder, all ended by pid."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from statechannel.embedded import BrokerState, EmbeddedKafkaError, KafkaServer, status
from statechannel.errors import StateChannelError
from statechannel.settings.names import ENV_PREFIX

SETTINGS = """\
# Settings of the demo's brokers. Load is simulated: a few topics are heavy, most are light, all follow a wave.
# The balancer runs every two seconds instead of every minute, with shorter waits than in production.

[observe]
metrics_port = 0

[extensions.balancer]
source = "simulated"
splitting = false
interval_s = 2
trigger_gap_s = 0.5
settle_s = 3

[extensions.balancer.budget]
load_percent = 100

[extensions.balancer.load]
measure_interval_s = 0.5
sample_interval_s = 0.5
tick_s = 0.2
settle_s = 0.5
top_interval_s = 0.5
history = 0.5
report_threshold_percent = 2

[extensions.balancer.strategies.shedding.weighted-move]
payback_min = 0.05
grace_s = 5
"""

ADDRESS_VARIABLE = f"{ENV_PREFIX}KAFKA__BOOTSTRAP_SERVERS"
_CONTEXTS_VARIABLE = f"{ENV_PREFIX}CONTEXTS"
_KEPT_VARIABLES = tuple(f"{ENV_PREFIX}{name}" for name in ("ACCELERATOR", "KAFKA_JARS", "CACHE_DIR"))
COMMAND_S = 60.0
END_S = 20.0
FOLDER_PREFIX = "statechannel-demo-"
FOLDERS_KEPT = 5
"""Folders kept from earlier runs that failed or used --keep: each takes some 40 MB."""
_OWN_MS, _RELEASE_MS = "300", "50"
"""Simulated times of a broker to prepare a bundle, and to release one."""


class DemoError(StateChannelError):
    """The demo cannot go on."""


def command_path() -> Path:
    """The `statechannel` command of this interpreter.

    Raises:
        DemoError: It is not installed.
    """
    beside = Path(sys.executable).parent / "statechannel"
    path = beside if beside.exists() else shutil.which("statechannel")
    if path is None:
        raise DemoError(
            "the command `statechannel` is not installed for this Python",
            hint="Run `make setup`, or install the package.",
        )
    return Path(path)


def command_name() -> str:
    path, on_path = command_path(), shutil.which("statechannel")
    if on_path is not None and Path(on_path).resolve() == path.resolve():
        return "statechannel"
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@dataclass(slots=True)
class DemoCluster:
    """Kafka and brokers in one folder.

    Attributes:
        brokers: The last process of each broker.
    """

    folder: Path
    kafka_folder: Path
    settings: Path
    brokers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def make(cls) -> DemoCluster:
        """A cluster in a new temporary folder, not started yet. The newest folders of earlier runs are kept."""
        forget_old_folders()
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        cluster = cls(folder, folder / "kafka", folder / "brokers.toml")
        cluster.settings.write_text(SETTINGS)
        return cluster

    @property
    def address(self) -> str:
        return str(status(self.kafka_folder).bootstrap_servers)

    @contextmanager
    def environment(self, width: int) -> Iterator[None]:
        """Take settings and contexts of the user out of the environment, and have commands print in this width."""
        before = dict(os.environ)
        for name in before:
            if name.upper().startswith(ENV_PREFIX) and name not in _KEPT_VARIABLES:
                del os.environ[name]
        os.environ |= {_CONTEXTS_VARIABLE: str(self.folder / "contexts.toml"), "COLUMNS": str(width)}
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def run(self, *args: str, timeout_s: float = COMMAND_S, codes: Collection[int] = (0,)) -> tuple[int, str]:
        """Run a command to its end; returns its exit code and what it printed.

        Raises:
            DemoError: It takes too long, or has another exit code than these.
        """
        shown = shlex.join(["statechannel", *args])
        try:
            # A session of its own: Ctrl-C reaches the demo alone, which then ends everything in order.
            ran = subprocess.run(
                [command_path(), *args],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"`{shown}` did not end within {timeout_s:.0f} s") from error
        if ran.returncode in codes:
            return ran.returncode, ran.stdout
        # Without the hint, which does not apply to the demo.
        lines = [line.strip() for line in ran.stderr.splitlines()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines[-3:]
        raise DemoError(f"`{shown}` failed (exit code {ran.returncode}): {'; '.join(errors) or 'no output'}")

    def ask(self, *args: str, timeout_s: float = COMMAND_S) -> dict[str, Any]:
        """Run a command and return its JSON.

        Raises:
            DemoError: It failed.
        """
        document: dict[str, Any] = orjson.loads(self.run(*args, "--output", "json", timeout_s=timeout_s)[1])
        return document

    def broker_command(self, broker: str) -> list[str]:
        simulated = ["--own-ms", _OWN_MS, "--release-ms", _RELEASE_MS]
        return ["broker", "run", "--id", broker, *simulated, "--config", str(self.settings)]

    def start_broker(self, broker: str) -> None:
        with (self.folder / f"{broker}.log").open("ab") as log:
            self.brokers[broker] = subprocess.Popen(
                [str(command_path()), *self.broker_command(broker)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def living(self) -> dict[str, int]:
        return {broker: process.pid for broker, process in self.brokers.items() if process.poll() is None}

    def stop_broker(self, broker: str, number: signal.Signals, timeout_s: float = END_S) -> int:
        """Send a signal and wait for the end of the process; returns its exit code.

        Raises:
            DemoError: It did not end in time.
        """
        process = self.brokers[broker]
        process.send_signal(number)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"broker {broker} did not end within {timeout_s:.0f} s") from error

    def end(self, *, keep_files: bool) -> None:
        """End every process that this demo has started, by pid, and remove the folder."""
        for broker in self.living():
            self.brokers[broker].kill()
        for process in self.brokers.values():
            process.wait(END_S)
        with contextlib.suppress(EmbeddedKafkaError):
            # Its data go too, so there is nothing that an orderly stop would save.
            KafkaServer(self.kafka_folder).kill()
        if not keep_files:
            shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self) -> str:
        """The log files that may show why something failed: Kafka's and the brokers'."""
        logs = [KafkaServer(self.kafka_folder).log_path, *sorted(self.folder.glob("*.log"))]
        return ", ".join(str(path.relative_to(self.folder)) for path in logs if path.exists()) or "no log"


def forget_old_folders(keep: int = FOLDERS_KEPT) -> None:
    """Remove folders of failed or kept runs, except the newest and those with a running Kafka."""
    mine = [
        (facts.st_mtime, folder)
        for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*")
        if not folder.is_symlink() and (facts := folder.stat()).st_uid == os.getuid() and folder.is_dir()
    ]
    for _, folder in sorted(mine, reverse=True)[keep:]:
        if status(folder / "kafka").state in (BrokerState.STOPPED, BrokerState.CRASHED):
            shutil.rmtree(folder, ignore_errors=True)
