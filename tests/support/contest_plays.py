"""Runs that go well, fail, die or last, for tests of what runs them in several processes."""

import os
import sys
import time
from pathlib import Path

from shedders.contest.outcome import ContestRun, RunResult
from shedders.contest.runner import ResultStore, run_all
from tests.support.contest_runs import contender, outcome, source


def play(run: ContestRun) -> RunResult:
    """As the contender's name says; otherwise an outcome of the seed."""
    name = run.contender.name
    if name == "raises":
        return RunResult(run, None, "KeyError: 'no such broker'")
    if name == "dies":
        os._exit(3)
    if name.startswith("late"):
        time.sleep(0.3)
    if name == "endless":
        Path(f"begun-{os.getpid()}").touch()
        time.sleep(600)
    result = outcome(run, moves=run.seed)
    return RunResult(run, result, digest=result.digest())


def runs(*names: str, seeds: tuple[int, ...] = (1, 2), scenario: str = "calm") -> list[ContestRun]:
    return [ContestRun(source(scenario), seed, contender(name)) for seed in seeds for name in names]


if __name__ == "__main__":
    # To be interrupted.
    folder = ResultStore(Path("out"), "program")
    try:
        run_all(runs("ours", "endless"), jobs=2, store=folder, play=play)
    except KeyboardInterrupt:
        sys.exit(130)
