"""Broker processes of a measurement, spoken to line by line."""

import json
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from tests.bench.measure import ROOT

MODULE = "tests.bench.broker_process"


class BrokerProcess:
    """One process of `tests.bench.broker_process`, or of a module that takes more commands."""

    def __init__(self, broker: str, bootstrap: str, channel: str, module: str = MODULE) -> None:
        self.broker = broker
        command = [sys.executable, "-m", module, broker, bootstrap, channel]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._process.pid
        self.url = ""

    def wait_ready(self) -> None:
        """Return once it has caught up."""
        self.url = self.answer()["url"]

    def tell(self, *command: object) -> None:
        """Send a command without waiting for its answer."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no standard input")
        self._process.stdin.write(json.dumps(command) + "\n")

    def answer(self) -> Any:
        """The next answer."""
        if self._process.stdout is None:
            raise RuntimeError("the process has no standard output")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"broker {self.broker} ended with code {self._process.wait()}")
        return json.loads(line)

    def has_answer(self) -> bool:
        """Whether an answer is there; no line may be read ahead, so one command at a time."""
        stdout = self._process.stdout
        return stdout is not None and bool(select.select([stdout], [], [], 0)[0])

    def ask(self, *command: object) -> Any:
        """Send a command and wait for its answer."""
        self.tell(*command)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


def processor_s(processes: Iterable[BrokerProcess]) -> float:
    """Processor time of all brokers since their start."""
    times = [psutil.Process(process.pid).cpu_times() for process in processes]
    return sum(used.user + used.system for used in times)


@contextmanager
def brokers(
    bootstrap: str, channel: str, names: Sequence[str] = ("b1", "b2", "b3"), module: str = MODULE
) -> Iterator[dict[str, BrokerProcess]]:
    """Brokers that have caught up, one after the other; killed at the end of the block."""
    running: dict[str, BrokerProcess] = {}
    try:
        for name in names:
            running[name] = BrokerProcess(name, bootstrap, channel, module)
            running[name].wait_ready()
        yield running
    finally:
        for process in running.values():
            process.kill()
