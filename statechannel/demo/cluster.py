"""Processes of the demo: Kafka and brokers on loopback, in a temporary folder, all ended by pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from statechannel.demo.plane import PROTOCOL
from statechannel.embedded import BrokerState, EmbeddedKafkaError, KafkaServer, status
from statechannel.errors import StateChannelError
from statechannel.settings.names import ENV_PREFIX, OTHER_VARIABLES


class DemoError(StateChannelError):
    """The demo cannot continue, or a promise did not hold.

    Attributes:
        log: A log file with details.
    """

    def __init__(self, message: str, *, hint: str = "", log: Path | None = None) -> None:
        super().__init__(message, hint=hint or ("" if log is None else f"Read {log}"))
        self.log = log


_BALANCER = """\
[extensions.balancer]
source = "simulated"
splitting = false
interval_s = 2
trigger_gap_s = 0.5
settle_s = 3

"""
_LOAD = """\
[extensions.balancer.load]
measure_interval_s = 0.5
sample_interval_s = 0.5
tick_s = 0.2
settle_s = 0.5
top_interval_s = 0.5
history = 0.5
report_threshold_percent = 2

"""
"""Settings shared by both demos; without braces, as one file is a format string."""

SETTINGS = (
    """\
# Settings of the demo's brokers. Load is simulated: a few topics are heavy, most are light, all follow a wave.
# The balancer runs every two seconds instead of every minute, with shorter waits than in production.

"""
    + _BALANCER
    + """\
[extensions.balancer.budget]
load_percent = 100

"""
    + _LOAD
    + """\
[extensions.balancer.strategies.shedding.transfer]
hit_threshold = 1
cool_down_s = 2
grace_s = 5
target_std = 0.1

[extensions.balancer.strategies.shedding.weighted-move]
hits = 1
grace_s = 5
"""
)

LAUNCH_SETTINGS = (
    """\
# Settings of the brokers of `demo --balance`. Load is simulated: three namespaces are equally busy, until one becomes
# much busier. The balancer runs every two seconds instead of every minute, with shorter waits than in production.

"""
    + _BALANCER
    + """\
[extensions.balancer.simulated]
topics = 100
msg_rate = 40
heavy = 20
wave = 0.05
noise = 0.05
hot_namespace = "{namespace}"
hot_factor = {factor}
hot_from_s = {from_s}

"""
    + _LOAD
    + """\
[extensions.balancer.strategies.shedding.transfer]
hit_threshold = 1
cool_down_s = 2
grace_s = 600
target_std = 0.05

[extensions.balancer.strategies.shedding.weighted-move]
hits = 1
"""
)


ADDRESS_VARIABLE = f"{ENV_PREFIX}KAFKA__BOOTSTRAP_SERVERS"
READY_S = 60.0
COMMAND_S = 60.0
FIRST_START_S = 600.0
"""Time-out of Kafka's first start, including the download of its jars."""
END_S = 20.0
FOLDER_PREFIX = "statechannel-demo-"
FOLDERS_KEPT = 5
"""Folders kept from earlier runs that failed or used --keep: each takes some 40 MB."""
_POLL_S = 0.05


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
    """The command as typed by the user in this folder."""
    path = command_path()
    on_path = shutil.which("statechannel")
    if on_path is not None and Path(on_path).resolve() == path.resolve():
        return "statechannel"
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """Its error message, without the hint, which does not apply to the demo."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip() and not line.startswith("hint: ")]
        messages = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return "; ".join(messages or lines[-3:]) or "no output"

    def json(self) -> dict[str, Any]:
        """Its JSON output.

        Raises:
            DemoError: That is not JSON.
        """
        try:
            document: dict[str, Any] = orjson.loads(self.stdout)
        except orjson.JSONDecodeError as error:
            raise DemoError(f"a command did not print JSON: {self.stdout[:200]!r} {self.stderr[:500]}") from error
        return document


@dataclass(slots=True)
class DemoBroker:
    """A broker process that this demo has started."""

    id: str
    process: subprocess.Popen[bytes]
    events: Path
    log: Path
    url: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(slots=True)
class DemoCluster:
    """Kafka and brokers in one folder.

    Attributes:
        own_ms: Simulated preparation time of a bundle.
        release_ms: Simulated release latency.
    """

    folder: Path
    own_ms: int
    release_ms: int
    brokers: dict[str, DemoBroker] = field(default_factory=dict)
    address: str = ""
    _starts: int = 0

    @classmethod
    def make(cls, *, own_ms: int, release_ms: int) -> DemoCluster:
        """A cluster in a new temporary folder, not started yet. The newest folders of earlier runs are kept."""
        forget_old_folders()
        cluster = cls(Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX)), own_ms, release_ms)
        cluster.settings.write_text(SETTINGS)
        return cluster

    @property
    def settings(self) -> Path:
        return self.folder / "brokers.toml"

    @property
    def kafka_folder(self) -> Path:
        return self.folder / "kafka"

    @property
    def kafka_log(self) -> Path:
        return KafkaServer(self.kafka_folder).log_path

    def environment(self) -> dict[str, str]:
        """Environment of every command: the user's, without settings that would change the demo."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(ENV_PREFIX) or name in OTHER_VARIABLES[1:]
        }
        return kept | ({ADDRESS_VARIABLE: self.address} if self.address else {})

    # --- commands ---------------------------------------------------------------------------------------------------

    def run(self, *args: str, timeout_s: float = COMMAND_S) -> EndedCommand:
        """Run a command of the command line to its end.

        Raises:
            DemoError: It takes too long.
        """
        # A session of its own: Ctrl-C reaches the demo alone, which then ends everything in order.
        child = subprocess.Popen(
            [str(command_path()), *args],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"`statechannel {' '.join(args)}` did not end within {timeout_s:.0f} s") from error
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        return EndedCommand(child.returncode, out, err)

    def ask(self, *args: str, timeout_s: float = COMMAND_S) -> dict[str, Any]:
        """Run a command and return its JSON.

        Raises:
            DemoError: It failed.
        """
        ran = self.run(*args, "--output", "json", timeout_s=timeout_s)
        if ran.code != 0:
            raise DemoError(f"`statechannel {' '.join(args)}` failed (exit code {ran.code}): {ran.error}")
        return ran.json()

    # --- brokers ----------------------------------------------------------------------------------------------------

    def broker_command(self, broker: str) -> list[str]:
        simulated = ["--own-ms", str(self.own_ms), "--release-ms", str(self.release_ms)]
        return ["broker", "run", "--id", broker, "--data-port", "0", *simulated, "--config", str(self.settings)]

    def start_broker(self, broker: str) -> DemoBroker:
        """Start a broker process; `wait_ready` waits until it has caught up."""
        self._starts += 1
        events = self.folder / f"{broker}-{self._starts}.events"
        log = self.folder / f"{broker}-{self._starts}.log"
        with events.open("wb") as out, log.open("wb") as err:
            process = subprocess.Popen(
                [str(command_path()), *self.broker_command(broker), "--events"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.brokers[broker] = DemoBroker(broker, process, events, log)
        return self.brokers[broker]

    def wait_ready(self, broker: DemoBroker, timeout_s: float = READY_S) -> None:
        """Return when the broker has caught up.

        Raises:
            DemoError: It ended, or takes too long.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            ready = next((event for event in events_of(broker) if event["event"] == "ready"), None)
            if ready is not None:
                broker.url = ready["urls"][PROTOCOL]
                return
            if broker.process.poll() is not None:
                raise DemoError(
                    f"broker {broker.id} ended while starting (exit code {broker.process.returncode})", log=broker.log
                )
            if time.monotonic() > until_s:
                raise DemoError(f"broker {broker.id} was not ready within {timeout_s:.0f} s", log=broker.log)
            time.sleep(_POLL_S)

    def living(self) -> list[DemoBroker]:
        return [broker for broker in self.brokers.values() if broker.process.poll() is None]

    def kill_broker(self, broker: DemoBroker) -> None:
        broker.process.kill()
        broker.process.wait(END_S)

    def drain_broker(self, broker: DemoBroker, timeout_s: float) -> int:
        """Signal 15, and wait until it has handed over its bundles and ended.

        Returns:
            Its exit code.

        Raises:
            DemoError: It did not end in time.
        """
        broker.process.send_signal(signal.SIGTERM)
        try:
            return broker.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"broker {broker.id} did not drain within {timeout_s:.0f} s", log=broker.log) from error

    # --- the end ----------------------------------------------------------------------------------------------------

    def end(self, *, keep_files: bool) -> None:
        """End every process that this demo has started, by pid, and remove the folder."""
        for broker in self.living():
            broker.process.kill()
        for broker in self.brokers.values():
            broker.process.wait(END_S)
        with contextlib.suppress(EmbeddedKafkaError):
            # Its data go too, so there is nothing that an orderly stop would save.
            KafkaServer(self.kafka_folder).kill()
        if not keep_files:
            shutil.rmtree(self.folder, ignore_errors=True)


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


def events_of(broker: DemoBroker) -> list[dict[str, Any]]:
    """Events of the broker so far, without an incomplete last line."""
    whole = broker.events.read_bytes().rpartition(b"\n")[0]
    return [orjson.loads(line) for line in whole.splitlines() if line]
