"""Trace from a snapshot of a real cluster: its brokers and bundles, with the demand of that moment continued.

Data missing from a snapshot is assumed, with a remark of the trace. Bundles have their present figures, else their short
or long average; those without any share the rest of their broker's report evenly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from loaddata.model.bundle_load import UNSEEN
from shedders.contest.demand_noise import DemandVariation, NoiseLayer
from shedders.contest.timeline import SETTLE_S, settled_spans
from shedders.contest.trace import Costs, Demand, TraceMachine, Units
from shedders.contest.trace_parts import UnitTraffic, busy_cpu, machine_of, namespaces_of, places, shared_cpu
from shedders.contest.workload import ScaledTrace
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.snapshots.cluster import cluster_of
from shedders.snapshots.faults import SnapshotError
from shedders.snapshots.model import Snapshot
from statechannel.protocol.bundle import parse_key

FIGURES: Final = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
TOPIC_SESSIONS: Final = 2
_UNSEEN: Final = UnitTraffic(*(getattr(UNSEEN, name) for name in FIGURES))


def from_snapshot(
    snapshot: Snapshot,
    *,
    name: str = "snapshot",
    seed: int = 1,
    hours: float = 2.0,
    step_s: float = 20.0,
    noise: Sequence[tuple[float, float]] = ((0.1, 60.0),),
) -> ScaledTrace:
    """The trace.

    Args:
        noise: Layers of noise: standard deviation in parts of a unit's demand, and seconds between two draws.

    Raises:
        SnapshotError: It has no broker, or no bundle.
    """
    cluster = cluster_of(snapshot)
    if not cluster.brokers or not cluster.bundles:
        raise SnapshotError(name, ["a trace needs at least one broker and one bundle"], hint="Take another snapshot.")
    remarks: list[str] = []
    machines = _machines(cluster, remarks)
    traffics = _traffics(cluster, machines, remarks)
    owners = {key: bundle.owner if bundle.owner in cluster.brokers else None for key, bundle in cluster.bundles.items()}
    ranges = defaultdict(list)
    for key in cluster.bundles:
        parts = parse_key(key.encode())
        if parts is not None:
            ranges[parts.namespace].append((parts.lower, parts.upper))
    namespaces, gaps = namespaces_of(ranges, owners)
    if gaps:
        remarks.append(f"{gaps} parts of rings belong to no bundle of the snapshot: bundles without load are put there")
    units, base = _units(cluster, traffics, {namespace.name: number for number, namespace in enumerate(namespaces)})
    steps = max(1, int(hours * 3_600 // step_s))
    return ScaledTrace(
        name=name,
        about=f"A cluster of {len(machines)} brokers and {len(cluster.bundles)} bundles, going on as in its snapshot.",
        seed=seed,
        step_s=step_s,
        steps=steps,
        machines=machines,
        namespaces=namespaces,
        units=units,
        events=[],
        disturbances=[0.0],
        judged=settled_spans([(0.0, 0.0)], SETTLE_S, steps * step_s),
        costs=Costs(),
        base=base,
        wavering=DemandVariation(
            len(units.position),
            [NoiseLayer(seed, number, sd, every_s, len(units.position)) for number, (sd, every_s) in enumerate(noise)],
        ),
        remarks=remarks,
    )


def _machines(cluster: Cluster, remarks: list[str]) -> list[TraceMachine]:
    machines = []
    for name in cluster.broker_names:
        broker = cluster.brokers[name]
        machine, assumed = machine_of(name, broker.load, broker.domain)
        machines.append(machine)
        remarks += [] if assumed is None else [assumed]
    return machines


def _traffics(cluster: Cluster, machines: Sequence[TraceMachine], remarks: list[str]) -> dict[str, UnitTraffic]:
    """What each bundle does, CPU and memory among it."""
    traffics: dict[str, UnitTraffic] = {}
    by_name = {machine.name: machine for machine in machines}
    for owner in sorted({bundle.owner for bundle in cluster.bundles.values()} - {None}, key=str):
        bundles = list(cluster.bundles_of[str(owner)])
        broker = cluster.brokers.get(str(owner))
        traffics |= _of_broker(bundles, broker, None if broker is None else by_name[broker.name], remarks)
    for key, bundle in cluster.bundles.items():
        if key not in traffics:
            known = _known(bundle) or _UNSEEN
            traffics[key] = replace(known, cpu=shared_cpu([known], None)[0])
    return traffics


def _of_broker(
    bundles: Sequence[Bundle], broker: Broker | None, machine: TraceMachine | None, remarks: list[str]
) -> dict[str, UnitTraffic]:
    known = {bundle.name: _known(bundle) for bundle in bundles}
    unknown = [name for name, traffic in known.items() if traffic is None]
    load = None if broker is None else broker.load
    rest = _UNSEEN
    if unknown and load is not None:
        shown = [traffic for traffic in known.values() if traffic is not None]
        beyond = (
            max(0.0, getattr(load, name) - math.fsum(getattr(traffic, name) for traffic in shown)) for name in FIGURES
        )
        rest = UnitTraffic(*(amount / len(unknown) for amount in beyond))
        remarks.append(
            f"{_name_of(broker)} has {len(unknown)} bundles without figures: they share the rest of its report"
        )
    traffics = [traffic or rest for traffic in known.values()]
    busy = None if load is None or machine is None else busy_cpu(machine, load)
    cpus = shared_cpu(traffics, busy)
    memory = shared_cpu(traffics, 0.0 if load is None else load.direct_memory.usage)
    return {
        name: replace(bundle_name, cpu=cpu, direct_memory_mib=mib)
        for name, bundle_name, cpu, mib in zip(known, traffics, cpus, memory, strict=True)
    }


def _name_of(broker: Broker | None) -> str:
    """Its name, for people."""
    return "a broker that is gone" if broker is None else broker.name


def _known(bundle: Bundle) -> UnitTraffic | None:
    for rates, counts in (
        (bundle.stats, bundle.stats is not None),
        (bundle.averages.short, bundle.averages.short.samples > 0),
        (bundle.averages.long, bundle.averages.long.samples > 0),
    ):
        if counts:
            return UnitTraffic(*(float(getattr(rates, name)) for name in FIGURES))
    return None


def _units(cluster: Cluster, traffics: dict[str, UnitTraffic], namespaces: dict[str, int]) -> tuple[Units, Demand]:
    """Topics where they are known, and equal parts of what is left of each bundle."""
    rows: list[tuple[int, int, int]] = []
    wants: list[tuple[float, ...]] = []
    for key in sorted(cluster.bundles):
        bundle, traffic = cluster.bundles[key], traffics[key]
        parts = parse_key(key.encode())
        if parts is None:
            continue
        space = namespaces[parts.namespace]
        named = [UnitTraffic(*(float(getattr(topic, name)) for name in FIGURES)) for topic in bundle.topics]
        left = UnitTraffic(
            *(
                max(0.0, getattr(traffic, name) - math.fsum(getattr(traffic, name) for traffic in named))
                for name in FIGURES
            )
        )
        at = [topic.position for topic in bundle.topics]
        # What the topics do not add up to lies somewhere in the bundle.
        spread = places(parts.lower, parts.upper) if left.msg_rate + left.msg_throughput > 0 or not at else []
        whole = [*named, *([_part(left, len(spread))] * len(spread))]
        cpus = _scaled_to(shared_cpu(whole, traffic.cpu), traffic.cpu)
        memory = _scaled_to(shared_cpu(whole, traffic.direct_memory_mib), traffic.direct_memory_mib)
        sessions = 0 if bundle.stats is None else bundle.stats.sessions
        each = max(1, sessions // len(whole)) if sessions else TOPIC_SESSIONS
        rows += [(space, position, each) for position in [*at, *spread]]
        wants += [
            (*(getattr(part, name) for name in FIGURES), cpu, mib)
            for part, cpu, mib in zip(whole, cpus, memory, strict=True)
        ]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Units(*(np.ascontiguousarray(column) for column in columns)), Demand(
        *np.ascontiguousarray(np.array(wants).T)
    )


def _part(whole: UnitTraffic, count: int) -> UnitTraffic:
    return UnitTraffic(*(getattr(whole, name) / max(1, count) for name in FIGURES))


def _scaled_to(values: list[float], whole: float) -> list[float]:
    """The same parts, but together exactly so much; equal ones where there are none."""
    have = math.fsum(values)
    if have <= 0:
        return [whole / len(values)] * len(values)
    return [value * whole / have for value in values]
