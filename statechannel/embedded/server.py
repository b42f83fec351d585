"""Embedded Kafka broker: start, stop, kill, restart on the same port and data; the cause of a failed start, from its log."""

import base64
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from statechannel.embedded import process
from statechannel.embedded.errors import BrokerStartError, EmbeddedKafkaError, PortInUseError
from statechannel.embedded.jars import Say, prepare_jars
from statechannel.embedded.java import Java, arguments_file, broker_command, find_java, format_command
from statechannel.embedded.layout import (
    LOOPBACK,
    SESSION_TIMEOUT_MS,
    BrokerOptions,
    BrokerRecord,
    Layout,
    read_record,
    write_configuration,
    write_private,
    write_record,
)
from statechannel.printable import redact

_LONGEST_READ_BYTES = 4 * 1024 * 1024
_LONGEST_CAUSE = 400


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a broker did not start: `what` for the message, `hint` for the user."""

    what: str
    hint: str
    port_in_use: bool = False


_KNOWN = (
    (
        "No space left on device",
        StartFailure("the disk of the data folder is full", "free some space, then start again"),
    ),
    (
        "Address already in use",
        StartFailure(
            "a port is in use",
            "stop the program that listens there, or choose another port with --port",
            port_in_use=True,
        ),
    ),
    ("OutOfMemoryError", StartFailure("Java ran out of heap", "give the broker a larger heap")),
    (
        "Could not reserve enough space",
        StartFailure("this machine has not enough free memory for the heap", "free some memory"),
    ),
    (
        "Permission denied",
        StartFailure("a file of the data folder is not accessible", "check the folder's owner and mode"),
    ),
)


def read_since(path: Path, offset: int) -> str:
    """Return what was appended to a log since `offset`; a log that has rolled is read whole."""
    try:
        size = path.stat().st_size
        start = offset if offset <= size else 0
        with path.open("rb") as file:
            file.seek(max(start, size - _LONGEST_READ_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def diagnose(log: str, console: str, *, log_path: Path) -> StartFailure:
    """Find the cause in the broker's log, then in what Java printed.

    Args:
        log: The part of the broker's log that this start wrote.
        console: Standard output and error of the process.
        log_path: Where the user finds the whole log.
    """
    for text in (log, console):
        for phrase, cause in _KNOWN:
            if phrase in text:
                return StartFailure(_with_line(cause.what, text, phrase), cause.hint, cause.port_in_use)
    line = _error_line(log) or _error_line(console) or _last_line(console)
    what = line or "it ended without output"
    return StartFailure(what, f"read {log_path}")


def _with_line(what: str, text: str, phrase: str) -> str:
    line = next(line for line in text.splitlines() if phrase in line)
    return f"{what} ({_shorten(line)})"


def _error_line(text: str) -> str | None:
    lines = text.splitlines()
    causes = [line for line in lines if line.lstrip().startswith("Caused by:")]
    if causes:
        return _shorten(causes[-1])
    pattern = re.compile(r"\b(ERROR|FATAL)\b|^Exception in thread|^Error:|Exception: ")
    return next((_shorten(line) for line in lines if pattern.search(line)), None)


def _last_line(text: str) -> str | None:
    lines = [line for line in text.splitlines() if line.strip()]
    return _shorten(lines[-1]) if lines else None


def _shorten(line: str) -> str:
    stripped = line.strip()
    return stripped if len(stripped) <= _LONGEST_CAUSE else stripped[:_LONGEST_CAUSE] + "…"


_STARTED = "Kafka Server started"
_AFTER_A_KILL = (
    "the previous Kafka was killed: its logs are checked, and its session has to end "
    f"(at most {SESSION_TIMEOUT_MS // 1_000} s) before the new one may register"
)
_POLL_S = 0.02
_FORMAT_TIMEOUT_S = 60.0
_STARTS_ON_FREE_PORTS = 3


class KafkaServer:
    """A real Apache Kafka broker (KRaft, one node) on 127.0.0.1 with its data in a folder.

    The broker is a process of its own and outlives this object; `with KafkaServer(folder)` stops it
    at the end of the block. Another object, also in another process, made for the same folder finds
    the running broker.

    Args:
        folder: Data folder; created if missing.
        port: Port for clients. None keeps the folder's last port if it is free, else finds one.
        options: Heap, time-outs, jars and properties.
    """

    def __init__(self, folder: Path, *, port: int | None = None, options: BrokerOptions | None = None) -> None:
        self._layout = Layout(folder.resolve())
        self._wanted_port = port
        self._options = options or BrokerOptions()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def folder(self) -> Path:
        return self._layout.folder

    @property
    def log_path(self) -> Path:
        return self._layout.broker_log

    @property
    def pid(self) -> int | None:
        process_ = process.find(self._layout)
        return None if process_ is None else process_.pid

    @property
    def port(self) -> int:
        """The port for clients: the running broker's, else that of the last start.

        Raises:
            EmbeddedKafkaError: There was no start yet.
        """
        record = read_record(self._layout)
        if record is None:
            raise EmbeddedKafkaError(f"no broker was ever started on {self.folder}", hint="start one first")
        return record.port

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def is_ready(self) -> bool:
        return self.pid is not None and process.answers(self.port)

    def start(self, *, say: Say = lambda _: None, archive_to: Path | None = None) -> None:
        """Start the broker and return when it serves.

        Args:
            say: Receives a line for people before a long step (fetching the jars, the start after a kill).
            archive_to: Write a class archive there when the broker stops (see `warmup`).

        Raises:
            JavaUnavailableError: No Java 17 or newer.
            JarsUnavailableError: The jars cannot be fetched, or are not the listed ones.
            AlreadyRunningError: A broker runs on this folder.
            PortInUseError: Another program listens on the port.
            BrokerStartError: The broker ended or was not ready in time; the message has the cause.
        """
        java = find_java()
        jars = prepare_jars(self._options.jars, say=say)
        self._prepare_folder()
        try:
            self._start_locked(java, jars, say=say, archive_to=archive_to)
        except OSError as error:
            cause = diagnose("", str(error), log_path=self._layout.folder)
            raise self._start_error("the files for the Kafka broker cannot be written", cause) from error

    def _start_locked(self, java: Java, jars: tuple[Path, ...], *, say: Say, archive_to: Path | None) -> None:
        with process.take_lock(self._layout) as lock:
            if self._layout.killed:
                say(_AFTER_A_KILL)
            for attempt in range(1, _STARTS_ON_FREE_PORTS + 1):
                try:
                    self._start_once(java, jars, lock=lock, archive_to=archive_to)
                except PortInUseError:
                    # A port that was free a moment ago may be taken by now; a chosen one is final.
                    if self._wanted_port is not None or attempt == _STARTS_ON_FREE_PORTS:
                        raise
                else:
                    return

    def stop(self) -> bool:
        """Stop the broker gracefully; do nothing if it does not run.

        Returns:
            True if it did not run or stopped cleanly; False if it had to be killed after
            `stop_timeout_s`. Nothing acknowledged is lost either way.
        """
        running = process.find(self._layout)
        if running is None:
            return True
        _send(running.terminate)
        # Java ends with status 143 after SIGTERM; the mark in the log folder tells a clean stop.
        if process.wait_gone(running, self._options.stop_timeout_s):
            process.wait_unlocked(self._layout)
            return self._layout.clean_mark.exists()
        self.kill()
        return False

    def kill(self) -> None:
        """Kill the broker at once (signal 9), as a crash would; do nothing if it does not run."""
        running = process.find(self._layout)
        if running is None:
            return
        _send(running.kill)
        if not process.wait_gone(running, self._options.stop_timeout_s):
            raise EmbeddedKafkaError(
                f"the broker (pid {running.pid}) survived signal 9",
                hint="it probably hangs in a disk operation; look at the disk of the data folder",
            )
        process.wait_unlocked(self._layout)

    def restart(self, *, say: Say = lambda _: None) -> None:
        """Stop the broker if it runs and start it on the same port and data."""
        self._wanted_port = self.port
        self.stop()
        self.start(say=say)

    def _prepare_folder(self) -> None:
        if "," in str(self.folder):
            raise BrokerStartError(
                f"{self.folder} cannot be the data folder: Kafka splits its setting at commas",
                hint="choose a folder without a comma in its path",
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            free_bytes = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise BrokerStartError(
                f"the data folder {self.folder} cannot be created: {error.strerror}", hint="choose another folder"
            ) from error
        if free_bytes < self._options.min_free_bytes:
            mib = 1024 * 1024
            raise BrokerStartError(
                f"the disk of {self.folder} has only {free_bytes // mib} MiB left, and "
                f"{self._options.min_free_bytes // mib} MiB are needed",
                hint="free some space, or choose a folder on another disk",
            )

    def _start_once(self, java: Java, jars: tuple[Path, ...], *, lock: process.Lock, archive_to: Path | None) -> None:
        port, controller_port = self._choose_ports()
        write_configuration(self._layout, port=port, controller_port=controller_port, options=self._options)
        if not self._layout.meta_properties.exists():
            self._format(java, jars)
        command = broker_command(
            java,
            jars,
            heap_mib=self._options.heap_mib,
            server_properties=self._layout.server_properties,
            log4j_properties=self._layout.log4j_properties,
            archive_to=archive_to,
        )
        log_offset, after_a_kill = _size_bytes(self._layout.broker_log), self._layout.killed
        broker = process.spawn(command, folder=self.folder, console=self._layout.console, lock=lock)
        try:
            record = BrokerRecord(broker.pid, broker.create_time(), port, controller_port)
            write_record(self._layout, record)
            self._wait_ready(broker, port, log_offset, after_a_kill=after_a_kill)
        except BaseException:
            # Also on Ctrl-C: do not leave an unreported broker behind.
            _send(broker.kill)
            process.wait_gone(broker, self._options.stop_timeout_s)
            raise

    def _choose_ports(self) -> tuple[int, int]:
        last = read_record(self._layout)
        if self._wanted_port is not None:
            process.require_free(self._wanted_port)
            port = self._wanted_port
        elif last is not None and process.is_free(last.port):
            port = last.port
        else:
            port = process.find_free()
        return port, process.find_free(other_than=port)

    def _format(self, java: Java, jars: tuple[Path, ...]) -> None:
        security = self._options.security
        command = format_command(
            java,
            jars,
            server_properties=self._layout.server_properties,
            cluster_id=self._options.cluster_id or new_cluster_id(),
            more=() if security is None else security.format_arguments(),
        )
        arguments = self._layout.format_arguments
        write_private(arguments, arguments_file(command[1:]))
        command = [command[0], f"@{arguments}"]
        try:
            answer = subprocess.run(
                command, cwd=self.folder, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise BrokerStartError(
                f"preparing {self.folder} took longer than {_FORMAT_TIMEOUT_S:.0f} s",
                hint="the machine is very busy, or its disk hangs; try again",
            ) from None
        finally:
            arguments.unlink(missing_ok=True)
        if answer.returncode != 0:
            cause = self._diagnose(answer.stderr, answer.stdout, log_path=self._layout.server_properties)
            raise self._start_error("Kafka could not prepare its data folder", cause)

    def _wait_ready(self, broker: psutil.Process, port: int, log_offset: int, *, after_a_kill: bool) -> None:
        """Return when the broker serves: Kafka says that it has started only once it is registered and unfenced."""
        deadline = time.monotonic() + self._options.start_timeout_s
        while True:
            # Asked before the log is read: what a dying broker wrote last is then seen.
            alive = process.is_alive(broker)
            log = read_since(self._layout.broker_log, log_offset)
            if alive and _STARTED in log and process.answers(port):
                return
            timed_out = time.monotonic() > deadline
            if timed_out or not alive:
                break
            time.sleep(_POLL_S)
        console = read_since(self._layout.console, 0)
        cause = self._diagnose(log, console, log_path=self._layout.broker_log)
        if not alive:
            raise self._start_error("the Kafka broker ended while starting", cause)
        waited = f"was not ready after {self._options.start_timeout_s:.0f} s"
        if after_a_kill:
            waited += f" ({_AFTER_A_KILL})"
        raise self._start_error(f"the Kafka broker {waited} and was ended", cause)

    def _diagnose(self, log: str, console: str, *, log_path: Path) -> StartFailure:
        security = self._options.security
        if security is not None:
            log, console = (redact(text, [security.password]) for text in (log, console))
        return diagnose(log, console, log_path=log_path)

    def _start_error(self, what: str, cause: StartFailure) -> BrokerStartError:
        kind = PortInUseError if cause.port_in_use else BrokerStartError
        return kind(f"{what} (data folder {self.folder}): {cause.what}", hint=cause.hint)


def new_cluster_id() -> str:
    """An id as Kafka makes them: 16 random bytes in the URL-safe alphabet."""
    while True:
        identifier = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        # Kafka avoids ids that look like an option on a command line.
        if not identifier.startswith("-"):
            return identifier


def _send(signal: Callable[[], None]) -> None:
    try:
        signal()
    except psutil.NoSuchProcess:
        return


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
