"""`python -m statechannel.sim`: run seeds, or replay one."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

from rich.console import Console

from statechannel.sim.runs import LEVELS, SimCase, parse_overrides, parse_ranges, replay, report, run_seeds


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m statechannel.sim", description=__doc__)
    parser.add_argument("--level", choices=(*LEVELS, "both"), default="both", help="which simulator")
    parser.add_argument("--seeds", type=int, metavar="N", help="run N seeds")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that share the seeds")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the state here, and go on from it")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="SECONDS", help="end after this time")
    parser.add_argument("--seed", type=int, help="replay one seed with its trace")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override an option")
    parser.add_argument("--skip", default="", metavar="RANGES", help="steps or planned events to leave out: 3-7,12")
    parser.add_argument("--no-shrink", action="store_true", help="show the failing trace as it is")
    parser.add_argument("--shrink-limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--quiet", action="store_true", help="no trace")
    return parser


def main(words: list[str] | None = None) -> int:
    """Run the command; the exit code is 1 if an invariant was broken."""
    parser = _arguments()
    options = parser.parse_args(words)
    console = Console(soft_wrap=True)
    if options.seed is not None:
        try:
            level = "engine" if options.level == "both" else options.level
            case = SimCase(level, options.seed, skip=parse_ranges(options.skip))
            case = parse_overrides(case, options.set)
        except ValueError as error:
            parser.error(str(error))
        limit_s = None if options.no_shrink else options.shrink_limit
        return replay(case, console, shrink_limit_s=limit_s, quiet=options.quiet)
    levels = LEVELS if options.level == "both" else (options.level,)
    tally = run_seeds(
        options.seeds if options.seeds is not None else 200,
        first=options.first,
        levels=levels,
        workers=options.workers,
        resume=options.resume,
        console=console,
        limit_s=options.limit,
    )
    report(tally, levels, console)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
