"""`python -m tests.interleavings`: engines on one log, in every order of deliveries, crashes, pauses and time-outs.

    python -m tests.interleavings                              # everything; the figures of design/evidence/proof.md
    python -m tests.interleavings --flow transfer split        # these flows only
    python -m tests.interleavings --flow loss --scope sleep --states 5000
    python -m tests.interleavings --without resumed-at-the-same-generation --flow transfer

It ends with 1 where something is wrong, and shows the shortest way that it knows; and where everything was searched, but one of
the dangerous moments was met less often than 100 times.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.interleavings.flows import FLOWS
from tests.interleavings.search import Case, Result, run_case
from tests.interleavings.state import Danger

KEPT = Path(__file__).parents[2] / "design" / "evidence" / "interleavings-figures.json"
AT_LEAST = 100


def cases_of(flows: Sequence[str], scopes: Sequence[str], states_max: int | None, without: str) -> list[Case]:
    return [
        Case(flow, scope, states_max, without)
        for flow in flows
        for scope in FLOWS[flow].scopes
        if not scopes or scope in scopes
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flow", nargs="+", choices=list(FLOWS), default=list(FLOWS), metavar="FLOW")
    parser.add_argument("--scope", nargs="+", default=[], metavar="SCOPE", help="faults that may come (all)")
    parser.add_argument("--states", type=int, metavar="N", help="end each search after so many states")
    parser.add_argument("--without", metavar="BUG", default="", help="planted bug (tests/mutants)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--keep", action="store_true", help=f"keep the figures in {KEPT.name}, for design/evidence/proof.md"
    )
    options = parser.parse_args(argv)
    console = Console(soft_wrap=True, highlight=False)
    cases = cases_of(options.flow, options.scope, options.states, options.without)
    results: list[Result] = []
    # One search a process: what its automaton has learned is of no use to another, and memory is given back.
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as executor:
        for future in as_completed([executor.submit(run_case, case) for case in cases]):
            result = future.result()
            results.append(result)
            console.print(_line(result), markup=False)
    results.sort(key=lambda result: cases.index(result.case))
    seen = sum((result.search.seen for result in results), Counter[Danger]())
    console.print(_table(seen))
    if options.keep:
        keep(results, seen)
    violations = [result for result in results if result.search.violation]
    for result in violations:
        console.print(f"{result.case.flow}, {result.case.scope}: {result.search.violation}", markup=False)
    rare = [danger for danger in Danger if seen[danger] < AT_LEAST]
    is_all = options.flow == list(FLOWS) and not options.scope
    return 1 if violations or (is_all and rare) else 0


def _line(result: Result) -> str:
    search = result.search
    scope = f"{result.case.flow}, {result.case.scope}"
    return (
        f"{scope:40} {search.states:>9,} states {search.moves:>10,} moves {search.engine_states:>7,} of engines "
        f"{search.calm:>6,} recoveries {result.seconds:>6,.0f} s  {'all' if search.complete else 'limited'}"
        f"{'  WRONG' if search.violation else ''}"
    )


def _table(seen: Counter[Danger]) -> Table:
    table = Table("dangerous moment", "moves that went through it")
    for danger in Danger:
        table.add_row(str(danger), f"{seen[danger]:,}", style="red" if seen[danger] < AT_LEAST else "")
    return table


def keep(results: Sequence[Result], seen: Counter[Danger]) -> None:
    """Take the place of the figures of before, of the same flows and scopes."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"searches": {}}
    for case, search, seconds in results:
        kept["searches"][f"{case.flow} {case.scope}"] = {
            "states": search.states,
            "moves": search.moves,
            "engine_states": search.engine_states,
            "recoveries": search.calm,
            "slowest_recovery_s": search.slowest_s,
            "complete": search.complete,
            "seconds": round(seconds),
            "seen": {str(danger): search.seen[danger] for danger in Danger if search.seen[danger]},
        }
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
