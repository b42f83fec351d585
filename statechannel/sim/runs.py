"""Runs of either level: one, from a seed to its result; a failing one, made smaller; many, over worker processes, resumable."""

from __future__ import annotations

import json
import math
import multiprocessing
import shlex
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from statechannel.sim.options import draw_engine, draw_protocol
from statechannel.sim.protocol import ProtocolWorld
from statechannel.sim.trace import SimTrace, Violation
from statechannel.sim.world import SimWorld

PROTOCOL, ENGINE = "protocol", "engine"
LEVELS = (PROTOCOL, ENGINE)


@dataclass(frozen=True, slots=True)
class SimCase:
    """What to run; a case says everything, so the same case gives the same trace.

    Attributes:
        overrides: Options that differ from those that the seed draws.
        skip: Numbers of steps (protocol) or of planned faults and commands (engine) that are left out.
    """

    level: str
    seed: int
    overrides: tuple[tuple[str, Any], ...] = ()
    skip: frozenset[int] = frozenset()

    def options(self) -> Any:
        drawn: Any = draw_protocol(self.seed) if self.level == PROTOCOL else draw_engine(self.seed)
        return replace(drawn, **dict(self.overrides))

    def command(self, program: Sequence[str] = ("statechannel.sim",)) -> str:
        words = ["python", "-m", *program, "--level", self.level, "--seed", str(self.seed)]
        for name, value in self.overrides:
            words += ["--set", f"{name}={value}"]
        if self.skip:
            words += ["--skip", ranges(self.skip)]
        return shlex.join(words)


@dataclass(slots=True)
class SimResult:
    case: SimCase
    kind: str | None = None
    detail: str = ""
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    planned: int = 0


def run(case: SimCase, *, keep: bool = False) -> SimResult:
    """Run a case; a violation, or a crash of the code under test, is part of the result."""
    trace = SimTrace(keep=keep)
    result = SimResult(case, counts=trace.counts, lines=trace.lines)
    try:
        if case.level == PROTOCOL:
            protocol = ProtocolWorld(case.seed, case.options(), trace, case.skip)
            result.planned = protocol.options.steps
            protocol.run()
        else:
            world = SimWorld(case.seed, case.options(), trace, case.skip)
            try:
                world.run()
            finally:
                result.planned = world.faults.planned
    except Violation as violation:
        result.kind, result.detail = violation.kind, violation.detail
    except Exception as error:
        result.kind = f"crash {type(error).__name__}"
        result.detail = f"{error} at {traceback.format_exc(limit=-2).splitlines()[-3].strip()}"
    trace.add(f"ended: {result.kind} {result.detail}")
    result.digest = trace.digest
    return result


def parse_overrides(case: SimCase, words: list[str]) -> SimCase:
    """A case with `name=value` options applied.

    Raises:
        ValueError: No such option, or a value of the wrong type.
    """
    known = {option.name: type(getattr(case.options(), option.name)) for option in fields(case.options())}
    pairs = []
    for word in words:
        name, _, text = word.partition("=")
        if name not in known:
            raise ValueError(f"there is no option {name}; known are {', '.join(known)}")
        kind = known[name]
        pairs.append((name, text in ("1", "True", "true", "on") if kind is bool else kind(text)))
    return replace(case, overrides=(*case.overrides, *pairs))


def ranges(numbers: frozenset[int]) -> str:
    """`1-4,7`: numbers as ranges."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def parse_ranges(text: str) -> frozenset[int]:
    """Numbers from `1-4,7`.

    Raises:
        ValueError: Not of that form.
    """
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        numbers.update(range(int(low), int(high or low) + 1))
    return frozenset(numbers)


_SMALLER = {
    "steps": 40,
    "duration_s": 10,
    "brokers": 2,
    "members": 2,
    "partitions": 1,
    "namespaces": 1,
    "bundles": 1,
    "copies": 1,
}


class Run(Protocol):
    """Runs a case; `statechannel.sim.runs.run` does."""

    def __call__(self, case: SimCase, *, keep: bool = False) -> SimResult: ...


class Shrinker:
    """Tries smaller cases for as long as they fail in the same way."""

    def __init__(self, result: SimResult, limit_s: float, tries_max: float, run: Run) -> None:
        self.best = result
        self._run = run
        self.tries = 0
        self._tries_max = tries_max
        self._until_s = time.monotonic() + limit_s

    @property
    def _is_over(self) -> bool:
        return self.tries >= self._tries_max or time.monotonic() > self._until_s

    def _fails(self, case: SimCase) -> bool:
        if self._is_over:
            return False
        self.tries += 1
        result = self._run(case)
        if result.kind != self.best.kind:
            return False
        self.best = result
        return True

    def shrink(self) -> SimResult:
        """The smallest failing case found, run once more with its trace kept."""
        before = None
        while before != self.best.case and not self._is_over:
            before = self.best.case
            for case in self._with_options():
                self._fails(case)
            self._drop_steps()
        return self._run(self.best.case, keep=True)

    def _with_options(self) -> Iterator[SimCase]:
        for option in fields(self.best.case.options()):
            value = getattr(self.best.case.options(), option.name)
            if value is True:
                yield self._set(option.name, value=False)
            elif option.name in _SMALLER and value > _SMALLER[option.name]:
                yield self._set(option.name, value=_SMALLER[option.name])
                yield self._set(option.name, value=max(_SMALLER[option.name], value // 2))
                yield self._set(option.name, value=max(_SMALLER[option.name], value * 3 // 4))

    def _set(self, name: str, *, value: object) -> SimCase:
        case = self.best.case
        kept = tuple(pair for pair in case.overrides if pair[0] != name)
        return replace(case, overrides=(*kept, (name, value)))

    def _drop_steps(self) -> None:
        size = max(1, self.best.planned // 2)
        while size >= 1 and not self._is_over:
            start = 0
            while start < self.best.planned:
                block = frozenset(range(start, min(start + size, self.best.planned)))
                if not block <= self.best.case.skip:
                    self._fails(replace(self.best.case, skip=self.best.case.skip | block))
                start += size
            size //= 2


def shrink(result: SimResult, limit_s: float, tries_max: float = math.inf, *, run: Run = run) -> SimResult:
    """Make a failing case small, within a time limit and a number of runs."""
    return Shrinker(result, limit_s, tries_max, run).shrink()


def replay(
    case: SimCase,
    console: Console,
    *,
    run: Run = run,
    program: Sequence[str] = ("statechannel.sim",),
    shrink_limit_s: float | None = None,
    quiet: bool = False,
) -> int:
    """Run one case and print its trace; the exit code is 1 if an invariant was broken.

    Args:
        program: Module, and arguments that belong to it, in the command that is printed for a failure.
        shrink_limit_s: Make a failing case smaller for this time; None: do not.
    """
    console.print(f"options: {case.options()}", highlight=False, markup=False)
    result = run(case, keep=True)
    if result.kind is not None and shrink_limit_s is not None and not case.overrides and not case.skip:
        console.print(f"fails with {result.kind}; making it smaller ...")
        result = shrink(result, shrink_limit_s, run=run)
        console.print(f"options: {result.case.options()}", highlight=False, markup=False)
    if not quiet:
        for line in result.lines:
            sys.stdout.write(line + "\n")
    sys.stdout.write(f"trace digest {result.digest}\n")
    if result.kind is None:
        console.print("no violation")
        return 0
    console.print(f"VIOLATION {result.kind}: {result.detail}", highlight=False, markup=False)
    console.print(f"replay: {result.case.command(program)}", highlight=False, markup=False)
    return 1


SAVE_EVERY_S = 5.0
FAILURES_SHOWN = 20
MUST_HAPPEN = {
    PROTOCOL: (
        "joins completed", "strict from the start", "gaps met", "started over", "records cleaned", "purges", "asserts",
        "late records", "pauses", "quiet times", "outages", "fail-overs", "clean heartbeats", "heartbeats in debt",
        "verdict duplicate", "verdict wrong-base", "verdict bad-children", "verdict unsupported-format",
    ),
    ENGINE: (
        "joins completed", "started over", "records cleaned", "cold starts", "crashes", "crash before Append",
        "crash before CallHook", "crash before Complete", "outages", "pauses", "cuts", "twins", "take-overs", "elections",
        "rebalances", "leaders timed out", "unknown outcomes", "landed after the report", "reports lost",
        "appends refused", "hooks that raised", "hooks that hung", "junk records", "proposal split accepted",
        "proposal transfer accepted", "proposal resume accepted", "proposal repair accepted", "proposal decline accepted",
        "proposal delete accepted", "stopped: id-in-use", "stopped: replaced", "stopped: closed", "event repair.paused",
        "event lease.ran-out", "verdict purged", "sleepers", "cold starts abandoned", "marks that are void",
        "forged records", "event record.forged",
        "single connections cut", "hung loops", "readers that lag", "seats given up by a hung loop", "event leader.withdrew",
        "event leader.fit-again", "event deputy.began", "reports without an offset",
        "readers opened anew", "departures during a join", "stopped: shutdown-late", "subscriptions", "streams interrupted",
        "blackouts", "trickles", "late returns", "late losers", "deaf joiners", "registry floods", "transactions", "lost heads",
        "joint shutdowns", "owners left sick", "starters left sick", "event membership.suspended", "event membership.resumed",
        "owners named by the observer", "owners with an age named by the observer", "faults of the observer",
        "answers of the observer that no broker lives",
    ),
}  # fmt: skip


@dataclass(slots=True)
class SeedTally:
    """What came of the seeds so far."""

    next_seed: int = 0
    runs: int = 0
    seconds: float = 0.0
    failures: list[tuple[str, int, str, str]] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {level: Counter() for level in LEVELS})

    def add(self, results: Iterable[SimResult]) -> None:
        for result in results:
            self.runs += 1
            self.counts[result.case.level] += result.counts
            if result.kind is not None:
                self.failures.append((result.case.level, result.case.seed, result.kind, result.detail))
        self.next_seed += 1

    def save(self, path: Path) -> None:
        """Write the state that `--resume` reads."""
        temporary = path.with_suffix(path.suffix + ".new")
        state = {
            "next_seed": self.next_seed,
            "runs": self.runs,
            "seconds": self.seconds,
            "failures": self.failures,
            "counts": self.counts,
        }
        temporary.write_text(json.dumps(state))
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> SeedTally:
        state = json.loads(path.read_text())
        counts = {level: Counter(state["counts"].get(level, {})) for level in LEVELS}
        failures = [tuple(failure) for failure in state["failures"]]
        return cls(state["next_seed"], state["runs"], state["seconds"], failures, counts)

    def never(self, levels: Iterable[str]) -> list[str]:
        return [f"{level}: {name}" for level in levels for name in MUST_HAPPEN[level] if not self.counts[level][name]]


def _run_seed(levels: tuple[str, ...], seed: int) -> list[SimResult]:
    return [run(SimCase(level, seed)) for level in levels]


@contextmanager
def _mapped(workers: int, levels: tuple[str, ...], seeds: Iterable[int]) -> Iterator[Iterator[list[SimResult]]]:
    work = partial(_run_seed, levels)
    if workers <= 1:
        yield map(work, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield pool.imap(work, seeds, chunksize=4)


def run_seeds(
    count: int,
    *,
    first: int,
    levels: tuple[str, ...],
    workers: int,
    resume: Path | None,
    console: Console,
    limit_s: float,
) -> SeedTally:
    """Run the seeds from `first` on; `limit_s` ends the whole before its time."""
    tally = SeedTally(next_seed=first)
    if resume is not None and resume.exists():
        tally = SeedTally.load(resume)
        console.print(f"resuming at seed {tally.next_seed}")
    started_s = saved_s = time.monotonic()
    before_s = tally.seconds
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console,
        disable=not console.is_terminal,
    )  # fmt: skip
    with bar, _mapped(workers, levels, range(tally.next_seed, first + count)) as results:
        task = bar.add_task("seeds", total=count, completed=tally.next_seed - first)
        for result in results:
            shown = len(tally.failures)
            tally.add(result)
            for level, seed, kind, detail in tally.failures[shown:]:
                if len(tally.failures) <= FAILURES_SHOWN:
                    console.print(
                        f"[red]FAIL[/red] {level} seed {seed}: {kind}: {escape(detail[:300])}", highlight=False
                    )
                    console.print(f"     {SimCase(level, seed).command()}", highlight=False)
            bar.update(task, advance=1, description=f"{len(tally.failures)} violations")
            now_s = time.monotonic()
            tally.seconds = before_s + now_s - started_s
            if resume is not None and now_s - saved_s > SAVE_EVERY_S:
                saved_s = now_s
                tally.save(resume)
            if now_s - started_s > limit_s:
                break
    if resume is not None:
        tally.save(resume)
    return tally


def report(tally: SeedTally, levels: Iterable[str], console: Console) -> None:
    """What was exercised, what was not, and what went wrong."""
    for level in levels:
        table = Table(title=f"{level} level: what was exercised", show_header=False)
        names = sorted(tally.counts[level])
        for index in range(0, len(names), 2):
            row = []
            for name in names[index : index + 2]:
                row += [name, f"{tally.counts[level][name]:,}"]
            table.add_row(*row)
        console.print(table)
    for name in tally.never(levels):
        console.print(f"[yellow]never happened:[/yellow] {name}")
    rate = tally.runs / tally.seconds if tally.seconds else 0.0
    console.print(f"{tally.runs} runs in {tally.seconds:.0f} s ({rate:.1f}/s), {len(tally.failures)} violations")
