"""How many seeds it takes until each planted bug is caught."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from rich.console import Console
from rich.table import Table

from statechannel.sim.runs import SimCase, run
from tests.mutants import PLANTED, run_planted

SEEDS_MAX = 400


def catch(name: str, seeds_max: int = SEEDS_MAX, first: int = 0) -> tuple[int, str]:
    """Number of seeds that it took to catch a planted bug, and how it showed; (0, "") if none did.

    A seed counts only if it passes without the bug.
    """
    bug = PLANTED[name]
    for number, seed in enumerate(range(first, first + seeds_max), start=1):
        case = SimCase(bug.level, seed, overrides=bug.options())
        bent = run_planted(name, case)
        if bent.kind is not None and run(case).kind is None:
            return number, bent.kind
    return 0, ""


def hunt(names: Sequence[str], console: Console, workers: int, seeds_max: int) -> int:
    """Try these planted bugs; the exit code is 1 if one was not caught."""
    table = Table("planted bug", "level", "what", "seeds", "shows as")
    escaped = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name, (number, kind) in zip(names, pool.map(catch, names, [seeds_max] * len(names)), strict=True):
            bug = PLANTED[name]
            table.add_row(name, bug.level, bug.what, str(number) if number else "NOT CAUGHT", kind)
            if not number:
                escaped.append(name)
                console.print(f"not caught within {seeds_max} seeds: {name}")
    console.print(table)
    console.print(f"{len(names) - len(escaped)} of {len(names)} planted bugs caught")
    return 1 if escaped else 0
