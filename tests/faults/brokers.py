"""Broker processes of a run: each incarnation with its events, its log, and what was done to it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.faults.broker_process import CLOCK, RECORD, STORAGE, set_offset
from tests.support.data_plane import PROTOCOL

COMMAND = [sys.executable, "-c", "from statechannel.cli.main import main; main()"]
ROOT = Path(__file__).resolve().parents[2]
BROKER_COMMAND = [sys.executable, "-m", "tests.faults.broker_process"]
OWN_MS, RELEASE_MS = "20", "20"


@dataclass(eq=False)
class Incarnation:
    """One process of a broker.

    Attributes:
        done: What the run did to it: `kill`, `stop` (SIGTERM), `pause`, `beside` (a second process under its id).
        held: It is meant to be down, or to stay as it is: nobody starts another in its place.
        record_path: Its own record of what it served.
        wall_offset_s: By how much its wall clock was set apart.
    """

    broker: str
    number: int
    process: subprocess.Popen[bytes]
    events_path: Path
    log_path: Path
    record_path: Path
    started_ns: int
    wall_offset_s: float = 0.0
    url: str | None = None
    incarnation: str | None = None
    paused: bool = False
    done: set[str] = field(default_factory=set)
    ended_ns: int | None = None
    ready_ns: int | None = None
    _read_bytes: int = 0
    _events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.broker}#{self.number}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        running = self.process.poll() is None
        if not running and self.ended_ns is None:
            self.ended_ns = time.monotonic_ns()
        return running

    def events(self) -> list[dict[str, Any]]:
        """All that it has told so far."""
        with self.events_path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._read_bytes += len(whole) + 1
            for line in whole.splitlines():
                self._events.append(orjson.loads(line))
                if self._events[-1]["event"] == "ready":
                    self.url = self._events[-1]["urls"][PROTOCOL]
                    self.incarnation = self._events[-1]["incarnation"]
                    self.ready_ns = self._events[-1]["mono_ns"]
        return self._events

    @property
    def ready(self) -> bool:
        self.events()
        return self.url is not None

    def tells(self, event: str) -> bool:
        """Whether this event is in its log."""
        return event in self.log_path.read_text(errors="replace")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """Signal 9, also to one that is paused."""
        self.done.add("kill")
        self.process.kill()
        self.process.wait(20)
        self.ended_ns = time.monotonic_ns()

    def stop(self) -> None:
        """Signal 15: it hands over, says goodbye and ends."""
        self.done.add("stop")
        self.signal(signal.SIGTERM)

    def pause(self) -> None:
        self.done.add("pause")
        self.paused = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self.signal(signal.SIGCONT)


class Brokers:
    """All brokers of a run, by id; also starts again what has ended by itself, as a supervisor would.

    Args:
        address_for: Where a broker finds Kafka.
        flags: Settings of all, `group.name=value`.
        racks: By broker, where it is (`client.rack`); those without one read from leaders.

    Attributes:
        storage: Where brokers find the storage of their clients' writes.
    """

    def __init__(
        self,
        folder: Path,
        ids: Sequence[str],
        address_for: Callable[[str], str],
        flags: Sequence[str],
        channel: str,
        racks: Mapping[str, str],
    ) -> None:
        self.folder, self.ids, self._address_for = folder, list(ids), address_for
        self._flags, self._channel, self._racks = list(flags), channel, racks
        self.all: list[Incarnation] = []
        self.current: dict[str, Incarnation] = {}
        self.held_down: set[str] = set()
        self.wall_offset_s: dict[str, float] = {}
        self.restarts = 0
        self.storage = ""

    def pids(self) -> list[int]:
        """Of the current processes."""
        return [incarnation.process.pid for incarnation in self.current.values()]

    def start(self, broker: str, *flags: str) -> Incarnation:
        """A new process of this broker, with more settings than all have; the one before is no longer the current one."""
        number = 1 + sum(earlier.broker == broker for earlier in self.all)
        events, log, record = (self.folder / f"{broker}-{number}.{kind}" for kind in ("events", "log", "served"))
        settings = [part for flag in [*self._flags, *flags] for part in ("--set", flag)]
        place = ["--bootstrap-servers", self._address_for(broker), "--channel", self._channel]
        if broker in self._racks:
            place += ["-X", f"client.rack={self._racks[broker]}"]
        simulated = ["--own-ms", OWN_MS, "--release-ms", RELEASE_MS, "--events"]
        offset_s = self.wall_offset_s.get(broker, 0.0)
        clock = self.clock_of(broker)
        set_offset(clock, offset_s)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        environment |= {STORAGE: self.storage, RECORD: str(record), CLOCK: str(clock)}
        with events.open("wb") as out, log.open("wb") as err:
            process = subprocess.Popen(
                [*BROKER_COMMAND, "broker", "run", "--id", broker, *simulated, *place, *settings],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        incarnation = Incarnation(
            broker, number, process, events, log, record, time.monotonic_ns(), wall_offset_s=offset_s
        )
        self.all.append(incarnation)
        self.current[broker] = incarnation
        self.held_down.discard(broker)
        return incarnation

    def clock_of(self, broker: str) -> Path:
        """The file by which the wall clock of a broker is set."""
        return self.folder / f"{broker}.clock"

    def up(self) -> list[Incarnation]:
        """The current processes that run, are not paused, and have caught up once."""
        return [
            incarnation
            for incarnation in self.current.values()
            if incarnation.running and not incarnation.paused and incarnation.ready
        ]

    def running(self) -> Iterator[Incarnation]:
        for incarnation in self.all:
            if incarnation.running:
                yield incarnation

    async def supervise(self) -> None:
        """Start again what ended, unless it is meant to be down."""
        while True:
            for broker in self.ids:
                incarnation = self.current.get(broker)
                if broker not in self.held_down and (incarnation is None or not incarnation.running):
                    self.restarts += 1
                    self.start(broker)
            await asyncio.sleep(0.2)

    def close(self) -> None:
        for incarnation in list(self.running()):
            incarnation.process.kill()
        for incarnation in self.all:
            incarnation.process.wait(20)
