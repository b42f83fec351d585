"""Decisions, placements and snapshots at two sizes, each strategy in a process of its own on one core, in CPU time.

`python -m tests.bench.shedding KIND NAME SIZE` is the worker.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from shedders.booked_moves import Booked, adjusted
from shedders.cluster import Cluster
from shedders.dry_run import decide, place_all
from shedders.filter_rules import FilterSettings
from shedders.moved import Cargo
from shedders.placing import Pipeline
from shedders.registry import shedding_maker
from shedders.snapshot_cluster import cluster_of, snapshot_of
from shedders.snapshot_file import read_snapshot, write_snapshot
from shedders.split_range import SplitRange
from shedders.split_settings import SplitSettings
from shedders.split_when import SplitWhen
from shedders.strategy import PLACEMENT, SHEDDING
from tests.bench.measure import Figure, Load, median, worker
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import declared

SIZES = {
    "1000x100": Shape(brokers=1000, bundles_each=100, namespaces=100, hot=30, idle=20),
    "100x1000": Shape(brokers=100, bundles_each=1000, namespaces=100, hot=5, idle=3),
}
AIM_MS = 200.0
ROUNDS = 7
PLACED = 1000
ON_THE_WAY = 50


def run(sizes: Sequence[str] = tuple(SIZES)) -> list[Figure]:
    """All figures."""
    found: list[Figure] = []
    for size in sizes:
        for name in declared()[SHEDDING]:
            found += _figures("decision", name, size, "ms", AIM_MS)
        for name in declared()[PLACEMENT]:
            found += _figures("placement", name, size, "placements/s", None)
        found += _figures("split", "range-equally-divide", size, "ms", AIM_MS)
        found += _figures("booked", f"{ON_THE_WAY} moves", size, "ms", None)
        found += _figures("snapshot", "file", size, "s", None)
    return found


def _figures(what: str, name: str, size: str, unit: str, aim: float | None) -> list[Figure]:
    load = Load()
    facts: Mapping[str, Any] = worker("tests.bench.shedding", what, name, size)
    found = []
    for part, rounds in facts["rounds"].items():
        value = median(rounds)
        found.append(
            Figure(
                f"shedding.{what}.{name}.{part}.{size}" if part else f"shedding.{what}.{name}.{size}",
                value,
                unit,
                ratio=None if aim is None else value / aim,
                aim="" if aim is None else f"<= {aim:g} {unit}",
                rounds=rounds,
                load=str(load),
                notes=facts["notes"],
            )
        )
    if "memory_mib" in facts:
        found.append(Figure(f"shedding.memory.{what}.{name}.{size}", facts["memory_mib"], "MiB", load=str(load)))
    return found


# --- workers ----------------------------------------------------------------------------------------------------------


def measure(what: str, name: str, size: str) -> dict[str, Any]:
    """One worker's answer."""
    base = cluster(1, SIZES[size])
    return {"decision": _decision, "placement": _placement, "split": _split, "booked": _booked, "snapshot": _snapshot}[
        what
    ](name, base)


def _loaded(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def _decision(name: str, base: Cluster) -> dict[str, Any]:
    """The strategy's plan alone, and the whole decision with filters and placement.

    A new cluster each round, as each cycle of the balancer has one. Strategies that count first are measured when they act.
    """
    found = _loaded(declared()[SHEDDING][name])
    maker = shedding_maker(found, found.Settings())
    memory: Mapping[str, Any] = {}
    line = _pipeline()
    for _ in range(10):
        decision = decide(replace(base), maker, memory, line)
        if decision.plan.moves:
            break
        memory = decision.memory
    plans, wholes = [], []
    for _ in range(ROUNDS):
        fresh = replace(base)
        strategy = maker(line.can_take(fresh))
        plans.append(_timed_ms(lambda fresh=fresh, strategy=strategy: strategy.plan(fresh, memory)))
        fresh = replace(base)
        wholes.append(_timed_ms(lambda fresh=fresh: decide(fresh, maker, memory, line)))
    fresh = replace(base)
    memory_mib = _traced_mib(lambda: decide(fresh, maker, memory, line))
    notes = {"moves": len(decision.plan.moves), "left": len(decision.plan.left)}
    return {"rounds": {"plan": plans, "whole": wholes}, "notes": notes, "memory_mib": memory_mib}


def _pipeline() -> Pipeline:
    placing = _loaded(declared()[PLACEMENT]["least-resource-usage"])
    return Pipeline(placing(placing.Settings()), FilterSettings())


def _placement(name: str, base: Cluster) -> dict[str, Any]:
    """Bundles placed a second, one after the other, each counted for those after it: a storm after a lost broker."""
    found = _loaded(declared()[PLACEMENT][name])
    names = sorted(base.bundles)[:PLACED]
    bundles = {**base.bundles, **{one: replace(base.bundles[one], owner=None) for one in names}}
    rounds = []
    for _ in range(3):
        line = Pipeline(found(found.Settings()), FilterSettings())
        fresh = replace(base, bundles=bundles)
        took_ms = _timed_ms(lambda line=line, fresh=fresh: place_all(fresh, names, line))
        rounds.append(PLACED / took_ms * 1000)
    return {"rounds": {"": rounds}, "notes": {"bundles": PLACED}}


def _split(name: str, base: Cluster) -> dict[str, Any]:
    del name
    when = SplitWhen(
        SplitSettings(hit_threshold=0, max_msg_rate=5000, max_bundles=4096), SplitRange(SplitRange.Settings())
    )
    rounds = []
    planned = 0
    for _ in range(ROUNDS):
        fresh = replace(base)
        rounds.append(_timed_ms(lambda fresh=fresh: when.plan(fresh, {})))
        planned = sum(bool(one.positions) for one in when.plan(fresh, {}).plans)
    return {"rounds": {"": rounds}, "notes": {"splits": planned}}


def _booked(name: str, base: Cluster) -> dict[str, Any]:
    del name
    last = base.broker_names[-1]
    chosen = [one for one in sorted(base.bundles) if base.bundles[one].owner not in (None, last)][:ON_THE_WAY]
    booked = [Booked(one, base.bundles[one].owner or "", last, Cargo(1.0, 1.0, 1.0, 1.0)) for one in chosen]
    rounds = [_timed_ms(lambda: adjusted(base, booked)) for _ in range(ROUNDS)]
    return {"rounds": {"": rounds}, "notes": {"moves": len(booked)}}


def _snapshot(name: str, base: Cluster) -> dict[str, Any]:
    del name
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        path = Path(folder) / "snapshot.json"
        written = [_timed_ms(lambda: write_snapshot(snapshot_of(base), path)) / 1000 for _ in range(2)]
        read = [_timed_ms(lambda: cluster_of(read_snapshot(path))) / 1000 for _ in range(2)]
        mib = path.stat().st_size / 2**20
    notes = {"file_mib": mib, "resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    return {"rounds": {"write": written, "read": read}, "notes": notes}


def _timed_ms(act: Callable[[], object]) -> float:
    # CPU time: one thread that waits for nothing, so that others on the machine do not count.
    begun_s = time.process_time()
    act()
    return (time.process_time() - begun_s) * 1000


def _traced_mib(act: Callable[[], object]) -> float:
    """The most that was allocated at once on top of what was there."""
    tracemalloc.start()
    act()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def _one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


if __name__ == "__main__":
    _one_core()
    print(json.dumps(measure(*sys.argv[1:])))
