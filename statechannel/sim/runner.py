"""Many seeds, over worker processes, resumable; and the report of what was exercised."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from statechannel.sim.runs import ENGINE, LEVELS, PROTOCOL, SimCase, SimResult, run

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
        "blackouts", "trickles", "late returns", "late losers", "deaf joiners", "registry floods",
        "owners left sick", "starters left sick", "event membership.suspended", "event membership.resumed",
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
        """Count the runs of one seed."""
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
        """The state of an earlier run."""
        state = json.loads(path.read_text())
        counts = {level: Counter(state["counts"].get(level, {})) for level in LEVELS}
        failures = [tuple(one) for one in state["failures"]]
        return cls(state["next_seed"], state["runs"], state["seconds"], failures, counts)

    def never(self, levels: Iterable[str]) -> list[str]:
        """What should have been exercised and was not."""
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
