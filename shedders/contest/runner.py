"""Runner of many contenders on many traces, in several processes; results are in the order of the runs.

A failed run, even one whose process ends, is a result, and does not affect others. With a folder every result is kept
there, one JSON document per run, and a run is not repeated while its scenario, its contender and this program are the same.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import lru_cache
from importlib import metadata
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import ValidationError

from shedders.contest.outcome import ContestRun, RunOutcome, RunResult
from shedders.contest.sources import make_trace
from shedders.contest.world import simulate
from statechannel.files import new_file

FORMAT: Final = 1
"""Version of a stored result."""
_SAFE: Final = re.compile(r"[^A-Za-z0-9@+=._,-]+")
_NAME_MAX: Final = 120
_TRACES_KEPT: Final = 2
_ONLY_SHOWN: Final = frozenset(
    f"contest/{name}.py" for name in ("comparison", "figures", "plots", "runner", "sources", "tables")
)
"""Files that only present outcomes: a change of them makes no stored result stale."""

Play = Callable[[ContestRun], "RunResult"]
ProgressCallback = Callable[[int], object]
"""Callback with the number of finished runs."""


class ResultStore:
    """Folder of results: `runs/SCENARIO/SEED/CONTENDER.json`.

    Args:
        program: Digest of the code that makes outcomes; results of other code are ignored.
    """

    def __init__(self, folder: Path, program: str, *, overwrite: bool = False) -> None:
        self._folder = folder / "runs"
        self._program = program
        self._overwrite = overwrite

    def place(self, run: ContestRun) -> Path:
        return self._folder / file_name(run.source.name) / str(run.seed) / f"{file_name(run.contender.name)}.json"

    def find(self, run: ContestRun) -> RunResult | None:
        """Stored result of the same scenario, contender and program; None: the run is needed."""
        if self._overwrite:
            return None
        try:
            document: Any = orjson.loads(self.place(run).read_bytes())
            if not isinstance(document, Mapping) or document.get("made_of") != self._made_of(run):
                return None
            outcome = RunOutcome.model_validate(document.get("outcome"))
        except (OSError, ValueError, ValidationError):
            return None
        return RunResult(run, outcome, digest=outcome.digest(), kept=True)

    def keep(self, ran: RunResult) -> None:
        """Write a result.

        Raises:
            StateChannelError: It cannot be written.
        """
        if ran.outcome is None:
            return
        document = {
            "format": FORMAT,
            "made_of": self._made_of(ran.run),
            "digest": ran.digest,
            "outcome": ran.outcome.model_dump(mode="json"),
        }
        place = self.place(ran.run)
        with suppress(OSError):  # the file cannot be written then, which is told
            place.parent.mkdir(parents=True, exist_ok=True)
        with new_file(place) as file:
            file.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))

    def _made_of(self, run: ContestRun) -> dict[str, Any]:
        contender = orjson.dumps(asdict(run.contender), option=orjson.OPT_SORT_KEYS)
        return {
            "program": self._program,
            "scenario": run.source.digest,
            "seed": run.seed,
            "contender": hashlib.sha256(contender).hexdigest(),
        }


def file_name(name: str) -> str:
    """File name of a name; different names have different file names."""
    safe = _SAFE.sub("_", name)
    if safe == name and len(name) <= _NAME_MAX and not name.startswith("."):
        return name
    return f"{safe[:_NAME_MAX].lstrip('.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def run_all(
    runs: Sequence[ContestRun],
    *,
    jobs: int = 1,
    store: ResultStore | None = None,
    progress: ProgressCallback = lambda _: None,
    keeps_series: Callable[[ContestRun], bool] = lambda _: True,
    play: Play | None = None,
) -> list[RunResult]:
    """Execute runs.

    Args:
        jobs: Number of processes; 1: this process.
        store: Of results; finished runs are read from it, and others are added.
        keeps_series: Runs whose moves and series are returned; the store has those of all runs.
        play: Function that executes a run; a module-level function, if there are several processes.

    Raises:
        KeyboardInterrupt: Ctrl-C; finished runs are kept, and other processes are ended.
        StateChannelError: A result cannot be stored.
    """
    results: dict[int, RunResult] = {}

    def add_result(number: int, ran: RunResult) -> None:
        if store is not None and not ran.kept and ran.outcome is not None:
            store.keep(ran)
        results[number] = ran if keeps_series(ran.run) else ran.thinned()
        progress(len(results))

    missing: list[int] = []
    for number, run in enumerate(runs):
        before = None if store is None else store.find(run)
        if before is None:
            missing.append(number)
        else:
            add_result(number, before)
    execute = play or play_here
    if jobs <= 1:
        for number in missing:
            add_result(number, execute(runs[number]))
    elif missing:
        with closing(_in_processes(runs, missing, jobs, execute)) as rans:
            for number, ran in rans:
                add_result(number, ran)
    return [results[number] for number in range(len(runs))]


def play_here(run: ContestRun) -> RunResult:
    """Execute a run in this process; any failure is its result."""
    try:
        outcome = simulate(_trace_of(run.source, run.seed), run.contender)
    except Exception as error:  # a strategy may raise anything, and other runs continue
        return RunResult(run, None, f"{type(error).__name__}: {error}")
    return RunResult(run, outcome, digest=outcome.digest())


# All contenders use the same traces, one after the other.
_trace_of = lru_cache(maxsize=_TRACES_KEPT)(make_trace)


# --- several processes ------------------------------------------------------------------------------------------------


def _in_processes(
    runs: Sequence[ContestRun], numbers: Sequence[int], jobs: int, play: Play
) -> Generator[tuple[int, RunResult]]:
    """Results as runs end. Each process executes one run after the other; a run whose process ends has failed."""
    waiting = deque(numbers)
    idle: list[_Worker] = []
    busy: dict[Connection, tuple[_Worker, int]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker, number = idle.pop() if idle else _Worker(play), waiting.popleft()
                busy[worker.pipe] = worker, number
                worker.pipe.send(runs[number])
            ready = wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, number = busy.pop(pipe)
                try:
                    ran = worker.pipe.recv()
                    idle.append(worker)
                except (EOFError, OSError):
                    worker.end()
                    ran = RunResult(runs[number], None, "its process ended unexpectedly: killed, or out of memory")
                yield number, ran
    finally:
        for worker in [*idle, *(worker for worker, _ in busy.values())]:
            worker.end()


class _Worker:
    """Process that executes the runs that it gets by a pipe, and sends their results."""

    def __init__(self, play: Play) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_work, args=(theirs, play), daemon=True)
        # Ctrl-C goes to every process of a terminal; a worker never sees it, this process ends it. The tracker is begun with
        # the first process, and lets SIGINT through again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()  # before that, the process would complain of it


def _work(pipe: Connection, play: Play) -> None:
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while True:
        pipe.send(play(pipe.recv()))


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


# --- what makes a result stale ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def program_digest() -> str:
    """SHA-256 of the code that makes outcomes, as results of other code are stale."""
    import loaddata  # noqa: PLC0415 - only their paths are needed
    import shedders  # noqa: PLC0415
    import statechannel.engine  # noqa: PLC0415
    import statechannel.protocol  # noqa: PLC0415

    made_of = hashlib.sha256(metadata.version("numpy").encode())
    for package in (shedders, loaddata, statechannel.engine, statechannel.protocol):
        folder = Path(next(iter(package.__path__)))
        for file in sorted(folder.rglob("*.py")):
            name = "/".join(file.relative_to(folder).parts)
            if "cli" not in file.parts and name not in _ONLY_SHOWN:
                made_of.update(f"{package.__name__}/{name}".encode() + b"\0" + file.read_bytes() + b"\0")
    return made_of.hexdigest()
