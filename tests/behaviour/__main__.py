"""`python -m tests.behaviour`: whether a change of structure or wording changed what the product does.

    python -m tests.behaviour                      # compare with figures.json: about five minutes on two cores
    python -m tests.behaviour --seeds 20000        # all the simulator's seeds that are recorded: hours
    python -m tests.behaviour --record simulator   # record what has no digest yet; delete entries to record them again

A digest covers what other processes and the log see: records, offsets, times, verdicts, moves, plans. It leaves out texts for
people, so a better sentence changes no digest. It ends with 1 where a digest differs, and names the first seeds or files.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from . import digests

FIGURES = Path(__file__).parent / "figures.json"
BLOCK = 100
"""Seeds of the simulator that share a digest."""
SEEDS = 300
SHOWN_MAX = 20

Figures = dict[str, dict[str, str]]


def tasks(part: str, seeds: int) -> Iterator[digests.Task]:
    """Names and digests to take; each can run in another process."""
    if part == "simulator":
        for level in digests.LEVELS:
            for first in range(0, seeds, BLOCK):
                yield f"{level} {first}", partial(digests.seeds, level, first, BLOCK)
    elif part == "scenarios":
        for path in digests.scenario_files():
            yield path.stem, partial(digests.scenario, path)
    elif part == "contest":
        for scenario, contender, seed in digests.contest_runs():
            yield f"{scenario} {contender} {seed}", partial(digests.contest, scenario, contender, seed)
    elif part == "partitions":
        for seed in range(1, digests.CLUSTERS + 1):
            yield f"cluster {seed}", partial(digests.partitions, seed)


PARTS = ("scenarios", "partitions", "contest", "simulator")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of the simulator, at each level ({SEEDS})")
    parser.add_argument("--record", action="store_true", help="take and write the digests that are missing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    recorded: Figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    different = 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for part in options.parts:
            before = recorded.setdefault(part, {})
            began_s = time.monotonic()
            due = [task for task in tasks(part, options.seeds) if (task[0] in before) != options.record]
            for name, digest in pool.map(digests.take, due):
                if options.record:
                    before[name] = digest
                    FIGURES.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")
                elif before[name] != digest:
                    different += 1
                    if different <= SHOWN_MAX:
                        print(f"DIFFERENT {part}: {name}")
            took_s = time.monotonic() - began_s
            print(f"{part}: {len(due)} {'recorded' if options.record else 'compared'}, {took_s:.0f} s", flush=True)
    if not options.record:
        print(f"{different} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
