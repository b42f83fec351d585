"""How many seeds it takes until each planted bug is caught."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from rich.console import Console
from rich.table import Table

from statechannel.sim.planted import PLANTED
from statechannel.sim.runs import SimCase, run

SEEDS_MAX = 400


def catch(name: str, seeds_max: int = SEEDS_MAX, first: int = 0) -> tuple[int, str]:
    """Seeds that it took to catch a planted bug, and how it showed; (0, "") if none did.

    A seed counts only if it is well without the bug.
    """
    bug = PLANTED[name]
    for number, seed in enumerate(range(first, first + seeds_max), start=1):
        case = SimCase(bug.level, seed, overrides=bug.options())
        bent = run(replace(case, plant=name))
        if bent.kind is not None and run(case).kind is None:
            return number, bent.kind
    return 0, ""


def hunt(names: str, console: Console, workers: int = 1, seeds_max: int = SEEDS_MAX) -> int:
    """Try the planted bugs; the exit code is 1 if one got away.

    Raises:
        ValueError: There is no such bug.
    """
    chosen = sorted(PLANTED) if names == "all" else names.split(",")
    for name in chosen:
        if name not in PLANTED:
            raise ValueError(f"there is no planted bug {name}; known are {', '.join(sorted(PLANTED))}")
    table = Table("planted bug", "level", "what", "seeds", "shows as")
    escaped = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for name, (number, kind) in zip(chosen, pool.map(catch, chosen, [seeds_max] * len(chosen)), strict=True):
            one = PLANTED[name]
            table.add_row(name, one.level, one.what, str(number) if number else "NOT CAUGHT", kind)
            if not number:
                escaped.append(name)
                console.print(f"not caught within {seeds_max} seeds: {name}")
    console.print(table)
    console.print(f"{len(chosen) - len(escaped)} of {len(chosen)} planted bugs caught")
    return 1 if escaped else 0
