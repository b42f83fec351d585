"""Detached broker of a data folder, for the command line: up, down, status."""

import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from statechannel.embedded import process
from statechannel.embedded.errors import AlreadyRunningError, BrokerStartError
from statechannel.embedded.jars import Say
from statechannel.embedded.layout import LOOPBACK, BrokerOptions, Layout, read_record
from statechannel.embedded.server import KafkaServer

_POLL_S = 0.1


class BrokerState(StrEnum):
    """State of a data folder's broker."""

    STOPPED = "stopped"
    CRASHED = "crashed"  # it ended without an orderly stop: killed, or by a failure that its log tells
    STARTING = "starting"
    SUSPENDED = "suspended"  # its process was suspended (SIGSTOP): it does not answer, and resumes at SIGCONT
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """Status of the broker of a data folder.

    Attributes:
        state: Stopped, crashed, starting (lives, but accepts no connection), suspended or running.
        pid: Its process id; None when it does not run.
        bootstrap_servers: Its address, or the last one; None if there never was a start.
        uptime_s: Age of the process in seconds; None when it does not run.
    """

    state: BrokerState
    folder: Path
    log_path: Path
    pid: int | None
    bootstrap_servers: str | None
    uptime_s: float | None


def up(
    folder: Path, *, port: int | None = None, options: BrokerOptions | None = None, say: Say = lambda _: None
) -> tuple[BrokerStatus, bool]:
    """Start a broker on a data folder unless one runs.

    Args:
        folder: Data folder; created if missing.
        port: Port for clients; None keeps the last one or finds a free one.
        options: Heap, time-outs, jars and properties.
        say: Receives a line for people before a long step.

    Returns:
        The status, and whether this call has started the broker (False: it ran before).

    Raises:
        AlreadyRunningError: It runs on another port than the wanted one.
        EmbeddedKafkaError: Whatever `KafkaServer.start` raises.
    """
    chosen = options or BrokerOptions()
    try:
        KafkaServer(folder, port=port, options=chosen).start(say=say)
    except AlreadyRunningError:
        return _wait_running(folder, port=port, timeout_s=chosen.start_timeout_s), False
    return status(folder), True


def down(folder: Path, *, options: BrokerOptions | None = None) -> bool:
    """Stop the broker of a data folder.

    Returns:
        Whether one ran.
    """
    server = KafkaServer(folder, options=options)
    ran = server.pid is not None
    server.stop()
    return ran


def status(folder: Path) -> BrokerStatus:
    """Look at the broker of a data folder; never waits and never changes anything."""
    layout = Layout(folder.resolve())
    record = read_record(layout)
    running = process.find(layout)
    state = BrokerState.STOPPED
    if running is not None:
        if process.is_suspended(running):  # the system still accepts connections for it, so this is asked first
            state = BrokerState.SUSPENDED
        else:
            serves = record is not None and process.answers(record.port)
            state = BrokerState.RUNNING if serves else BrokerState.STARTING
    elif process.is_locked(layout):
        state = BrokerState.STARTING
    elif layout.killed:
        state = BrokerState.CRASHED
    return BrokerStatus(
        state=state,
        folder=layout.folder,
        log_path=layout.broker_log,
        pid=None if running is None else running.pid,
        bootstrap_servers=None if record is None else f"{LOOPBACK}:{record.port}",
        uptime_s=None if running is None else _age_s(running),
    )


def resume_hint(broker: BrokerStatus) -> str:
    return f"`kill -CONT {broker.pid}` resumes it; nothing is lost."


def _wait_running(folder: Path, *, port: int | None, timeout_s: float) -> BrokerStatus:
    deadline = time.monotonic() + timeout_s
    while (broker := status(folder)).state is not BrokerState.RUNNING:
        if broker.state is BrokerState.SUSPENDED:
            raise BrokerStartError(
                f"the Kafka broker of {folder} is suspended (process {broker.pid})", hint=resume_hint(broker)
            )
        if time.monotonic() > deadline:
            raise BrokerStartError(
                f"a broker holds {folder}, but has not served for {timeout_s:.0f} s",
                hint=f"read {broker.log_path}, or stop it (`statechannel kafka down`)",
            )
        time.sleep(_POLL_S)
    if port is not None and broker.bootstrap_servers != f"{LOOPBACK}:{port}":
        raise AlreadyRunningError(
            f"a broker already runs on {folder}, at {broker.bootstrap_servers}, not on port {port}",
            hint="use that address, or stop it first (`statechannel kafka down`)",
        )
    return broker


def _age_s(running: psutil.Process) -> float | None:
    try:
        # Both are wall-clock times for people; nothing is decided by them.
        return max(0.0, time.time() - running.create_time())
    except psutil.NoSuchProcess:
        return None
