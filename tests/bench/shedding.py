"""Decisions, placements, splits and snapshots at two sizes, each strategy in a process of its own on one core, in CPU time.

Every figure stands beside a floor of the same process: one plain pass over all bundles that adds up their traffic, taken
between the rounds. Machines and their neighbours differ, the ratio hardly does.

`python -m tests.bench.shedding KIND NAME SIZE` is the worker.
"""

import gc
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

from rich.table import Table

from shedders.decision.booked_moves import Booked, adjusted
from shedders.decision.distance import DistanceReader
from shedders.decision.dry_run import decide, place_all
from shedders.decision.placing import Pipeline
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Cluster
from shedders.model.moved_cluster import MovedLoad
from shedders.model.plan import BundleMove, Reason
from shedders.model.strategy import PLACEMENT, SHEDDING, SPLIT, shedding_maker
from shedders.snapshots.cluster import cluster_of, snapshot_of
from shedders.snapshots.file import read_snapshot, write_snapshot
from shedders.split.triggers import SplitSettings, SplitWhen
from tests.bench.measure import Figure, Load, median, worker
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import declared

SIZES = {
    "1000x100": Shape(brokers=1000, bundles_each=100, namespaces=100, hot=30, idle=20),
    "100x1000": Shape(brokers=100, bundles_each=1000, namespaces=100, hot=5, idle=3),
}
AIM_MS = 200.0
DISTANCE_AIM_MS = 10.0
ROUNDS = 7
FILES = 3
PLACED = 1000
ON_THE_WAY = 50


def run(sizes: Sequence[str] = tuple(SIZES)) -> list[Figure]:
    """All figures."""
    figures: list[Figure] = []
    for size in sizes:
        for name in declared()[SHEDDING]:
            figures += _figures("decision", name, size, "ms", AIM_MS)
        for name in declared()[PLACEMENT]:
            figures += _figures("placement", name, size, "placements/s", None)
        figures += _figures("split", "range-equally-divide", size, "ms", AIM_MS)
        figures += _figures("distance", "to the best", size, "ms", DISTANCE_AIM_MS)
        figures += _figures("booked", f"{ON_THE_WAY} moves", size, "ms", None)
        figures += _figures("snapshot", "file", size, "s", None)
    return figures


def _figures(what: str, name: str, size: str, unit: str, aim: float | None) -> list[Figure]:
    load = Load()
    facts: Mapping[str, Any] = worker("tests.bench.shedding", what, name, size)
    floor_ms = median(facts["floor_ms"])
    notes = {**facts["notes"], "floor_ms": floor_ms}
    figures = []
    for part, rounds_ms in facts["rounds_ms"].items():
        rounds = [_in_unit(round_ms, unit) for round_ms in rounds_ms]
        figures.append(
            Figure(
                ".".join(filter(None, ("shedding", what, name, part, size))),
                median(rounds),
                unit,
                ratio=median(rounds_ms) / floor_ms,
                aim="" if aim is None else f"<= {aim:g} {unit}",
                rounds=rounds,
                load=str(load),
                notes=notes,
            )
        )
    memory = {"shedding.memory." + ".".join((what, name, size)): facts["memory_mib"]}
    return figures + [Figure(place, mib, "MiB", load=str(load)) for place, mib in memory.items()]


def _in_unit(took_ms: float, unit: str) -> float:
    return {"ms": took_ms, "s": took_ms / 1000, "placements/s": PLACED * 1000 / took_ms}[unit]


def table(figures: Sequence[Figure]) -> Table:
    """One row for each thing measured, and for each size its value, the ratio to the floor, and the memory it took."""
    by_name = {figure.name: figure for figure in figures}
    sizes = [size for size in SIZES if any(name.endswith(f".{size}") for name in by_name)]
    shown = Table(title="Strategies: processor time of one core, times a plain pass over all bundles, memory on top")
    shown.add_column("figure")
    shown.add_column("unit")
    for size in sizes:
        shown.add_column(size, justify="right")
        shown.add_column("x floor", justify="right")
        shown.add_column("MiB", justify="right")
    shown.add_column("aim")
    floors = [
        f"{median(line.notes['floor_ms'] for line in figures if line.ratio is not None and line.name.endswith(size)):,.1f}"
        for size in sizes
    ]
    shown.add_row("floor: one pass over all bundles", "ms", *(text for floor in floors for text in (floor, "1.0", "")))
    rows = dict.fromkeys(name.rpartition(".")[0] for name, figure in by_name.items() if figure.ratio is not None)
    for row in rows:
        cells: list[str] = []
        for size in sizes:
            measured = by_name[f"{row}.{size}"]
            _, what, name, *_ = row.split(".")
            memory = by_name[f"shedding.memory.{what}.{name}.{size}"]
            cells += [f"{measured.value:,.{_DIGITS[measured.unit]}f}", f"{measured.ratio:.1f}", f"{memory.value:,.1f}"]
        shown.add_row(row.removeprefix("shedding."), measured.unit, *cells, measured.aim)
    return shown


_DIGITS = {"ms": 1, "s": 2, "placements/s": 0}


# --- workers ----------------------------------------------------------------------------------------------------------


def measure(what: str, name: str, size: str) -> dict[str, Any]:
    """One worker's answer."""
    base = cluster(1, SIZES[size])
    clock = Clock(base)
    act = {
        "decision": _decision,
        "placement": _placement,
        "split": _split,
        "distance": _distance,
        "booked": _booked,
        "snapshot": _snapshot,
    }
    facts = act[what](name, base, clock)
    return {**facts, "rounds_ms": clock.rounds_ms, "floor_ms": clock.floor_ms}


class Clock:
    """Times rounds, and the floor after each of them.

    Attributes:
        rounds_ms: By part.
    """

    def __init__(self, base: Cluster) -> None:
        self._base = base
        self.rounds_ms: dict[str, list[float]] = {}
        self.floor_ms: list[float] = []

    def time(self, part: str, act: Callable[[], object]) -> None:
        """One round."""
        self.rounds_ms.setdefault(part, []).append(_timed_ms(act))
        self.floor_ms.append(_timed_ms(lambda: _pass(self._base)))


def _pass(base: Cluster) -> float:
    total = 0.0
    for bundle in base.bundles.values():
        average = bundle.averages.short
        total += average.msg_throughput_in + average.msg_throughput_out
    return total


def _loaded(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def _decision(name: str, base: Cluster, clock: Clock) -> dict[str, Any]:
    """The strategy's plan alone, and the whole decision with filters and placement.

    A new cluster each round, as each cycle of the balancer has one. Strategies that count first are measured when they act.
    """
    loaded = _loaded(declared()[SHEDDING][name])
    maker = shedding_maker(loaded, loaded.Settings())
    memory: Mapping[str, Any] = {}
    line = _pipeline()
    for _ in range(10):
        decision = decide(replace(base), maker, memory, line)
        if decision.plan.moves:
            break
        memory = decision.memory
    for _ in range(ROUNDS):
        fresh = replace(base)
        strategy = maker(line.can_take(fresh))
        clock.time("plan", lambda fresh=fresh, strategy=strategy: strategy.plan(fresh, memory))
        fresh = replace(base)
        clock.time("whole", lambda fresh=fresh: decide(fresh, maker, memory, line))
    fresh = replace(base)
    memory_mib = _traced_mib(lambda: decide(fresh, maker, memory, line))
    return {"notes": {"moves": len(decision.plan.moves), "left": len(decision.plan.left)}, "memory_mib": memory_mib}


def _pipeline() -> Pipeline:
    placing = _loaded(declared()[PLACEMENT]["least-resource-usage"])
    return Pipeline(placing(placing.Settings()), FilterSettings())


def _placement(name: str, base: Cluster, clock: Clock) -> dict[str, Any]:
    """Bundles placed a second, one after the other, each counted for those after it: a storm after a lost broker."""
    strategy = _loaded(declared()[PLACEMENT][name])
    names = sorted(base.bundles)[:PLACED]
    bundles = {**base.bundles, **{broker: replace(base.bundles[broker], owner=None) for broker in names}}

    def placed() -> Callable[[], object]:
        line = Pipeline(strategy(strategy.Settings()), FilterSettings())
        fresh = replace(base, bundles=bundles)
        return lambda: place_all(fresh, names, line)

    for _ in range(ROUNDS):
        clock.time("", placed())
    return {"notes": {"bundles": PLACED}, "memory_mib": _traced_mib(placed())}


def _split(name: str, base: Cluster, clock: Clock) -> dict[str, Any]:
    algorithm = _loaded(declared()[SPLIT][name])
    when = SplitWhen(
        SplitSettings(hit_threshold=0, max_msg_rate=5000, max_bundles=4096), algorithm(algorithm.Settings())
    )
    for _ in range(ROUNDS):
        fresh = replace(base)
        clock.time("", lambda fresh=fresh: when.plan(fresh, {}))
    fresh = replace(base)
    planned = sum(bool(plan.positions) for plan in when.plan(base, {}).plans)
    return {"notes": {"splits": planned}, "memory_mib": _traced_mib(lambda: when.plan(fresh, {}))}


def _distance(name: str, base: Cluster, clock: Clock) -> dict[str, Any]:
    """The distance to the best of a decision that moves a bundle from each of the busiest brokers to the idlest.

    In parts: the cluster, which is read in the decision's thread, and the decision.
    """
    del name
    # This also groups the bundles by owner, which strategies have done before.
    reader = DistanceReader(base, FilterSettings().taker_max_age_s)
    busiest = sorted(base.brokers.values(), key=lambda broker: -broker.load.max_resource_usage if broker.load else 0.0)
    idlest = busiest[-1].name
    moves = [
        BundleMove(owned[0].name, broker.name, idlest, Reason.OVERLOADED, 0.0, "")
        for broker in busiest[:ON_THE_WAY]
        if (owned := base.bundles_of.unsorted(broker.name))
    ]
    for _ in range(ROUNDS):
        clock.time("read", lambda: DistanceReader(base, FilterSettings().taker_max_age_s))
        clock.time("decision", lambda: reader.of(moves))
    read = _traced_mib(lambda: DistanceReader(base, FilterSettings().taker_max_age_s))
    return {"notes": {"moves": len(moves)}, "memory_mib": read}


def _booked(name: str, base: Cluster, clock: Clock) -> dict[str, Any]:
    del name
    last = base.broker_names[-1]
    chosen = [bundle for bundle in sorted(base.bundles) if base.bundles[bundle].owner not in (None, last)][:ON_THE_WAY]
    booked = [
        Booked(bundle, base.bundles[bundle].owner or "", last, MovedLoad(1.0, 1.0, 1.0, 1.0)) for bundle in chosen
    ]
    for _ in range(ROUNDS):
        clock.time("", lambda: adjusted(base, booked))
    return {"notes": {"moves": len(booked)}, "memory_mib": _traced_mib(lambda: adjusted(base, booked))}


def _snapshot(name: str, base: Cluster, clock: Clock) -> dict[str, Any]:
    del name
    before_mib = _resident_mib()
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        path = Path(folder) / "snapshot.json"
        for _ in range(FILES):
            clock.time("write", lambda: write_snapshot(snapshot_of(base), path))
            clock.time("read", lambda: cluster_of(read_snapshot(path)))
        file_mib = path.stat().st_size / 2**20
    return {"notes": {"file_mib": file_mib}, "memory_mib": _resident_mib() - before_mib}


def _timed_ms(act: Callable[[], object]) -> float:
    # What was left behind before is not this round's.
    gc.collect()
    # CPU time: one thread that waits for nothing, so that others on the machine do not count.
    begun_s = time.process_time()
    # BundleCache until the time is taken: to throw it away is not part of it.
    result = act()
    took_s = time.process_time() - begun_s
    del result
    return took_s * 1000


def _traced_mib(act: Callable[[], object]) -> float:
    """The most that was allocated at once on top of what was there."""
    tracemalloc.start()
    act()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def _resident_mib() -> float:
    """The most that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


if __name__ == "__main__":
    _one_core()
    print(json.dumps(measure(*sys.argv[1:])))
