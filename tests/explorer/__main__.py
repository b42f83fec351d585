"""`python -m tests.explorer`: all logs of a small world, everything that the cleaner may leave of them, all joins.

    python -m tests.explorer --records 4                       # the scope of every run of the tests, and more
    python -m tests.explorer --records 4 --start splitting     # logs that begin with a bundle about to be split
    python -m tests.explorer --start splitting --every 20      # the last record after one class of logs in twenty
    python -m tests.explorer --outages 4                       # outages, ages of records, pauses and cold starts
    python -m tests.explorer --outages 4 --start abandoned     # outages that begin with a record nobody has vouched for
    python -m tests.explorer --without covers-ignored          # the shortest log that needs this rule
    python -m tests.explorer --shortest                        # of every rule; writes tests/explorer/shortest

It ends with 1 where two readers differ, and shows the log.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from tests.explorer import counterexamples, outages
from tests.explorer.search import Counterexample, Level, Progress, begin, explore
from tests.explorer.world import START, Letter

KEPT = Path(__file__).parents[2] / "design" / "evidence" / "proof-figures.json"
KEEP_EVERY_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4, metavar="N", help="records after the start (4)")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="the last record after one in N classes only (1)"
    )
    parser.add_argument("--start", choices=[*START, *outages.START], help="with what to begin (empty; outages: awake)")
    parser.add_argument("--without", metavar="BUG", default="", help="planted bug that takes a rule away")
    parser.add_argument("--outages", type=int, metavar="N", help="instead: outages, cold starts and ages, N events")
    parser.add_argument("--shortest", action="store_true", help="search and keep the shortest log for every rule")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep the state here every minute, and go on from it"
    )
    parser.add_argument(
        "--keep", action="store_true", help=f"keep the figures in {KEPT.name}, for design/evidence/proof.md"
    )
    options = parser.parse_args(argv)
    options.start = options.start or ("empty" if options.outages is None else "awake")
    if options.start not in (START if options.outages is None else outages.START):
        parser.error(f"--start {options.start} is of the other search")
    console = Console(soft_wrap=True, highlight=False)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as executor:
        if options.shortest:
            return search_all(console, executor)
        if options.outages is not None:
            return search_outages(console, executor, options)
        return search(console, executor, options)


def search(console: Console, executor: ProcessPoolExecutor, options: argparse.Namespace) -> int:
    """One search, level by level."""
    began_s, figures = time.monotonic(), []
    scope = (options.records, options.start, options.without, options.every)
    progress = Progress([begin(options.start)])
    if options.resume is not None and options.resume.exists():
        kept, earlier_s, progress, figures = pickle.loads(options.resume.read_bytes())
        if kept != scope:
            console.print(f"{options.resume} is of another search: {kept[0]} records, start {kept[1]}")
            return 2
        began_s -= earlier_s
        console.print(
            f"going on after {progress.records} records, with {progress.done:,} of {len(progress.classes):,} classes"
        )
    kept_s = time.monotonic()

    def keep_state(reached: Progress) -> None:
        nonlocal kept_s
        if options.resume is None or time.monotonic() - kept_s < KEEP_EVERY_S:
            return
        state = pickle.dumps((scope, time.monotonic() - began_s, reached, figures))
        beside = options.resume.with_suffix(".new")
        beside.write_bytes(state)
        beside.replace(options.resume)
        kept_s = time.monotonic()

    console.print("records      logs read   classes   logs joined   triples compared   seconds")
    levels = explore(options.records, progress, executor, options.without, keep_state, options.every)
    for number, level in enumerate(levels, progress.records + 1):
        seconds = time.monotonic() - began_s
        figures.append(figures_of(number, level))
        console.print(
            f"{number:>7} {level.logs:>14,} {len(level.classes):>9,} {level.joined:>13,} {level.triples:>18,} {seconds:>9,.0f}"
        )
        if level.counterexample is not None:
            show(console, level.counterexample)
            return 1
    total = sum(figure["triples"] for figure in figures)
    console.print(f"{total:,} triples of log, removed records and begin of the join: all readers agree")
    if options.keep and not options.without:
        every = f" --every {options.every}" if options.every > 1 else ""
        keep(f"--records {options.records} --start {options.start}{every}", figures, began_s, options.workers)
    return 0


def search_outages(console: Console, executor: ProcessPoolExecutor, options: argparse.Namespace) -> int:
    """Paths of events, level by level."""
    began_s, figures = time.monotonic(), []
    levels = outages.explore(options.outages, executor, without=options.without, start=options.start)
    console.print("events          paths   readers compared      caught up   seconds   starts")
    for number, tally in enumerate(levels, 1):
        seconds = time.monotonic() - began_s
        starts = ", ".join(f"{count:,} {how}" for how, count in sorted(tally.starts.items()))
        console.print(
            f"{number:>6} {tally.paths:>14,} {tally.sessions:>18,} {tally.joined:>14,} {seconds:>9,.0f}   {starts}"
        )
        figures.append(
            {"events": number, "paths": tally.paths, "sessions": tally.sessions, "joined": tally.joined, **tally.starts}
        )
        if tally.wrong is not None:
            path, session, what = tally.wrong
            console.print(f"{what}: {', '.join(path.events)}; {session}", markup=False)
            show(console, Counterexample(tuple(Letter(*entry[:2]) for entry in path.log), what))
            return 1
    if options.keep and not options.without:
        start = "" if options.start == "awake" else f" --start {options.start}"
        keep(f"--outages {options.outages}{start}", figures, began_s, options.workers)
    return 0


def keep(arguments: str, levels: Sequence[dict[str, int]], began_s: float, workers: int) -> None:
    """Take the place of an earlier run with these arguments."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept[arguments] = {"levels": levels, "seconds": round(time.monotonic() - began_s), "workers": workers}
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def figures_of(records: int, level: Level) -> dict[str, int]:
    """Of one level, as JSON."""
    return {
        "records": records,
        "logs": level.logs,
        "classes": len(level.classes),
        "joined": level.joined,
        "triples": level.triples,
        "vouched_by_others": level.vouched_by_others,
    }


def show(console: Console, found: Counterexample) -> None:
    """A log on which two readers differ."""
    console.print(found.why, markup=False)
    for offset, letter in enumerate(found.log):
        console.print(
            f"  {offset}  {letter.key.decode()}  {'null' if letter.value is None else letter.value.decode()}",
            markup=False,
        )


def search_all(console: Console, executor: ProcessPoolExecutor) -> int:
    """Find the shortest log for every rule, and keep it."""
    missing = []
    for rule in counterexamples.RULES:
        found = counterexamples.search(rule, executor)
        if found is None:
            missing.append(rule)
            console.print(f"{rule.path.stem}: none that is short enough")
            continue
        counterexamples.save(rule, found)
        console.print(f"{rule.path.stem}: {len(found.log)} records, {len(found.removed)} removed")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
