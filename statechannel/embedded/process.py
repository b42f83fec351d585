"""Process of the embedded broker: identity, liveness and end, always by pid; and ports on the loopback address."""

import errno
import fcntl
import random
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

from statechannel.embedded.errors import AlreadyRunningError, PortInUseError
from statechannel.embedded.layout import LOOPBACK, BrokerRecord, Layout, read_record

# Below the range from which Linux and macOS take the ports of outgoing connections: a client that
# keeps trying to reach a stopped broker could otherwise be given the broker's own port.
_FIRST, _LAST = 15_000, 30_000
_TRIES = 200
_CONNECT_TIMEOUT_S = 1.0


def require_free(port: int) -> None:
    """Make sure that a port is free.

    Raises:
        PortInUseError: The port is in use, or this user may not use it.
    """
    try:
        _bind(port)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"is unusable: {error.strerror}"
        raise PortInUseError(
            f"port {port} on {LOOPBACK} {reason}",
            hint="stop the program that listens there, or choose another port with --port",
        ) from error


def find_free(*, other_than: int | None = None) -> int:
    """Return a port that was free a moment ago.

    Raises:
        PortInUseError: Many tries found none.
    """
    for _ in range(_TRIES):
        port = random.randint(_FIRST, _LAST)
        if port != other_than and is_free(port):
            return port
    raise PortInUseError(
        f"no free port found between {_FIRST} and {_LAST} on {LOOPBACK}", hint="name a port with --port"
    )


def is_free(port: int) -> bool:
    try:
        _bind(port)
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _bind(port: int) -> None:
    with socket.socket() as probe:
        # As the broker does; otherwise connections that just ended would count as "in use".
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))


Lock = IO[str]

# Two readings of one process's start time may differ by a clock tick or a clock adjustment.
_START_TOLERANCE_S = 2.0
_LOCK_TRIES = 10
_LOCK_PAUSE_S = 0.05
_UNLOCK_S = 5.0

# Children that outlive the object that started them; Popen would warn about each and it is these
# entries that reap them should this process live on.
_detached: list[subprocess.Popen[bytes]] = []


def take_lock(layout: Layout) -> Lock:
    """Take the lock of a data folder. The broker inherits it and holds it until it dies.

    Raises:
        AlreadyRunningError: A living broker, or a start that is under way, holds it.
    """
    lock = layout.lock.open("a")
    for _ in range(_LOCK_TRIES):
        if _try_lock(lock):
            return lock
        time.sleep(_LOCK_PAUSE_S)  # `is_locked` of another process may hold it for an instant
    lock.close()
    raise AlreadyRunningError(
        f"a Kafka broker already runs on {layout.folder}", hint="use it, or stop it first (`statechannel kafka down`)"
    )


def is_locked(layout: Layout) -> bool:
    """Return whether a broker runs on a data folder, or is being started there."""
    if not layout.lock.exists():
        return False
    with layout.lock.open("a") as lock:
        return not _try_lock(lock)


def _try_lock(lock: Lock) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def spawn(command: Sequence[str], *, folder: Path, console: Path, lock: Lock) -> psutil.Process:
    """Start the broker in its own session, so that Ctrl-C in a terminal does not reach it."""
    with console.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        )
    _detached[:] = [earlier for earlier in _detached if earlier.poll() is None]
    _detached.append(child)
    return psutil.Process(child.pid)


def find(layout: Layout) -> psutil.Process | None:
    """Return the running broker of a data folder, or None.

    A record may be stale: its process may be gone and its pid given to another program. So the
    start time has to match too; and a broker whose start was cut short before the record was
    written is recognised by its command line.
    """
    record = read_record(layout)
    if record is not None and (recorded := _recorded_process(record)) is not None:
        return recorded
    if not is_locked(layout):
        return None
    wanted = str(layout.server_properties)
    for process in psutil.process_iter():
        try:
            if wanted in process.cmdline() and "kafka.Kafka" in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def is_alive(process: psutil.Process) -> bool:
    """Return whether this process still runs; reaps it if it was our child."""
    try:
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return True
    except psutil.NoSuchProcess:
        return False
    for child in _detached:
        child.poll()
    return False


def is_suspended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
    except psutil.NoSuchProcess:
        return False


def wait_gone(process: psutil.Process, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wait_unlocked(layout: Layout) -> None:
    """Wait until the lock of an ended broker is free: its last threads may hold it for a moment longer."""
    deadline_s = time.monotonic() + _UNLOCK_S
    while is_locked(layout) and time.monotonic() < deadline_s:
        time.sleep(_LOCK_PAUSE_S)


def _recorded_process(record: BrokerRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.started_at_s) <= _START_TOLERANCE_S
    except psutil.Error:
        return None
    return process if same and is_alive(process) else None
