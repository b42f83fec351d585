"""Plans of random clusters, held against what has to hold of every plan: `python -m tests.partitions_check`.

    python -m tests.partitions_check --clusters 10000 --seed 1 --jobs 2

Each cluster is planned for a rebalance, for its new brokers and for brokers that go, some for brokers that are dead or
demoted as well. Whoever finds something wrong repeats it by `--clusters 1 --seed N`. Ends with 1 where something is wrong;
plans with more bytes than 1.05 times the bound, and other ends of the search, are counted and shown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.partition_cases import RATIO_MAX, Checked, check, requests
from tests.support.partition_clusters import random_cluster
from tests.support.partition_figures import keep

SHOWN_MAX = 20


def checked(seed: int, brokers_max: int = 40) -> list[Checked]:
    """All plans of one cluster."""
    cluster = random_cluster(seed, brokers_max=brokers_max)
    found = []
    for request in requests(cluster):
        try:
            found.append(check(cluster, request))
        except Exception:
            # One plan that fails says nothing about the others; it is a finding like any other.
            found.append(Checked(seed, str(request.mode), wrong=[f"failed: {traceback.format_exc(limit=-3)}"]))
    return found


def summary(found: Sequence[Checked]) -> dict[str, Any]:
    """Figures by mode."""
    by_mode: dict[str, Any] = {}
    for mode in sorted({one.mode for one in found}):
        mine = [one for one in found if one.mode == mode]
        planned = [one for one in mine if not one.refused]
        bounded = [one for one in planned if one.bound_bytes >= 0]
        ratios = sorted(ratio(one) for one in bounded)
        times = sorted(one.took_s for one in planned)
        by_mode[mode] = {
            "plans": len(planned),
            "refused": len(mine) - len(planned),
            "wrong": sum(bool(one.wrong) for one in mine),
            "dear": sum(bool(one.dear) for one in mine),
            "other_end": sum(bool(one.other_end) for one in mine),
            "empty": sum(not one.moves for one in planned),
            "partitions moved": sum(one.moves for one in planned),
            "with an unmet soft goal": sum(bool(one.unmet) for one in planned),
            "with an infeasible hard goal": sum(bool(one.infeasible) for one in planned),
            "unmet": dict(Counter(goal for one in planned for goal in one.unmet).most_common()),
            "infeasible": dict(Counter(goal for one in planned for goal in one.infeasible).most_common()),
        }
        if times:
            by_mode[mode] |= {"p50_ms": 1000 * at(times, 0.5), "max_ms": 1000 * times[-1]}
        if ratios:
            copied, bound = (sum(getattr(one, name) for one in bounded) for name in ("copied_bytes", "bound_bytes"))
            by_mode[mode] |= {
                "within": sum(one <= RATIO_MAX for one in ratios) / len(ratios),
                "ratio p50": at(ratios, 0.5),
                "ratio p95": at(ratios, 0.95),
                "ratio max": ratios[-1],
                "ratio of all bytes": copied / bound if bound else 1.0,
            }
    return by_mode


def ratio(one: Checked) -> float:
    """Bytes copied against the bound; 1 where both are nothing."""
    if one.bound_bytes:
        return one.copied_bytes / one.bound_bytes
    return float("inf") if one.copied_bytes else 1.0


def at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first cluster; the others follow it")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, help="end after so long, with the clusters that were looked at until then"
    )
    parser.add_argument("--output", type=Path, help="the figures as JSON")
    parser.add_argument("--keep", action="store_true", help="put the figures where the documentation has them from")
    parser.add_argument("--verbose", action="store_true", help="each finding, not only the first ones")
    given = parser.parse_args(argv)
    began_s = time.monotonic()
    seeds = range(given.seed, given.seed + given.clusters)
    found: list[Checked] = []
    number = 0
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for number, plans in enumerate(pool.imap(checked, seeds, chunksize=4), start=1):
            found += plans
            if number % 500 == 0:
                print(f"{number} clusters, {time.monotonic() - began_s:,.0f} s", file=sys.stderr, flush=True)
            if given.minutes is not None and time.monotonic() - began_s >= 60 * given.minutes:
                break
    wrong = [one for one in found if one.wrong]
    noted = [one for one in found if one.wrong or one.dear or one.other_end]
    for one in noted if given.verbose else (wrong or noted)[:SHOWN_MAX]:
        for line in (*one.wrong, *filter(None, [one.dear]), *one.other_end):
            print(f"seed {one.seed}, {one.mode}: {line}")
    figures = {"clusters": number, "seed": given.seed, "modes": summary(found)}
    refusals = Counter(one.refused for one in found if one.refused)
    print(json.dumps(figures, indent=1))
    for text, count in refusals.most_common(SHOWN_MAX):
        print(f"refused {count} times: {text}")
    print(
        f"{len(found)} plans of {number} clusters, {len(wrong)} with something wrong, {time.monotonic() - began_s:,.0f} s"
    )
    if given.keep:
        keep("check", figures)
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        body = figures | {"findings": [asdict(one) for one in noted]}
        given.output.write_text(json.dumps(body, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
