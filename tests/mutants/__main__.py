"""`python -m tests.mutants`: how many seeds it takes to catch each planted bug, or one seed with one of them.

python -m tests.mutants                                  # all: about eight minutes on two idle cores
python -m tests.mutants covers-ignored no-deputy         # these two
python -m tests.mutants covers-ignored --seed 7          # replay a seed with this bug
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from rich.console import Console

from statechannel.sim.runs import LEVELS, SimCase, parse_overrides, parse_ranges, replay
from tests.mutants import PLANTED, run_planted
from tests.mutants.hunt import SEEDS_MAX, hunt


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="planted bugs; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, metavar="N", help=f"tried for each bug ({SEEDS_MAX})")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that share the bugs")
    parser.add_argument("--seed", type=int, help="replay one seed with its trace")
    parser.add_argument("--level", choices=LEVELS, help="of that seed; default: the bug's own")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="override an option")
    parser.add_argument("--skip", default="", metavar="RANGES", help="steps or planned events to leave out: 3-7,12")
    parser.add_argument("--no-shrink", action="store_true", help="show the failing trace as it is")
    parser.add_argument("--quiet", action="store_true", help="no trace")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - PLANTED.keys():
        parser.error(f"no such bug: {', '.join(sorted(unknown))}; there are {', '.join(sorted(PLANTED))}")
    console = Console(soft_wrap=True)
    if options.seed is None:
        simulated = sorted(name for name, bug in PLANTED.items() if bug.level in LEVELS)
        return hunt(options.names or simulated, console, options.workers, options.seeds)
    if len(options.names) != 1:
        parser.error("--seed takes the name of one bug")
    name = options.names[0]
    try:
        case = SimCase(options.level or PLANTED[name].level, options.seed, skip=parse_ranges(options.skip))
        case = parse_overrides(case, options.set)
    except ValueError as error:
        parser.error(str(error))
    return replay(
        case,
        console,
        run=partial(run_planted, name),
        program=("tests.mutants", name),
        shrink_limit_s=None if options.no_shrink else 60.0,
        quiet=options.quiet,
    )


if __name__ == "__main__":
    sys.exit(main())
