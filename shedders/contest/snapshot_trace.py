"""Trace from a snapshot of a real cluster: its brokers and bundles, with the demand of that moment continued.

The present configuration of the cluster is a contender.

Data missing from a snapshot is assumed, with a remark of the trace. Bundles have their present figures, else their short
or long average; those without any share the rest of their broker's report evenly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import UNSEEN
from shedders.contest.contenders import AS_IT_IS, Contender, contender
from shedders.contest.demand_noise import DemandVariation, noise_layers
from shedders.contest.trace import CORE, Demand, Namespace, Trace, TraceMachine, Units, settled_spans
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.model.strategy import KINDS
from shedders.snapshots.cluster import cluster_of
from shedders.snapshots.file import SnapshotError
from shedders.snapshots.model import Snapshot
from shedders.snapshots.selection import choose
from statechannel.protocol.bundle import FULL_UPPER, bundle_key, parse_key

if TYPE_CHECKING:
    from shedders.contest.trace import Floats

PARTS: Final = 8
"""Equal units of a bundle without known topics, so that it can be halved three times."""
IDLE_PERCENT: Final = 3.0
"""CPU that is taken to be used without traffic, where a broker uses that much."""
MESSAGE_CPU: Final = 25e-6 * CORE
"""CPU of a message, in percent of a core a second, where no broker reports both."""
SETTLE_S: Final = 900.0
"""Time from the start from which balance is judged."""
STEP_S: Final = 20.0
NOISE: Final = ((0.1, 60.0),)
"""Layers of noise: standard deviation in parts of a unit's demand, and seconds between two draws."""
_USUAL: Final = TraceMachine("usual")
_RATES: Final = attrgetter(*Demand._fields[:4])


def rates_of(known: Any) -> Floats:
    """Messages in and out, bytes in and out a second of what has these figures: a report, a bundle, a topic."""
    return np.array(_RATES(known), np.float64)


def shares(rates: Floats) -> Floats:
    """Share of each row of rates in all: the mean of its shares of messages and bytes, or of those that are there."""
    whole = rates.sum(axis=0)
    parts = [
        rates[:, kind].sum(axis=1) / whole[kind].sum() for kind in (slice(0, 2), slice(2, 4)) if whole[kind].sum() > 0
    ]
    return np.mean(parts, axis=0) if parts else np.zeros(len(rates))


def used_by_traffic(load: BrokerLoad, machine: TraceMachine) -> Floats:
    """CPU and direct memory that a broker reports, as in `Demand`, without its idle CPU."""
    busy = load.cpu.usage - machine.cores * machine.idle_percent
    cpu = max(0.0, busy) if load.cpu.limit > 0 else rates_of(load)[:2].sum() * MESSAGE_CPU
    return np.array([cpu, load.direct_memory.usage])


def machine_of(broker: Broker, remarks: list[str]) -> TraceMachine:
    """The machine that a broker reports.

    Args:
        remarks: What has to be assumed of it is added.
    """
    name, load, domain = broker.name, broker.load, broker.domain
    if load is None:
        remarks.append(f"{name} reported nothing: a usual machine of {_USUAL.cores:g} cores is assumed")
        return TraceMachine(name, domain=domain)
    unknown = [
        word
        for word, usage in (
            ("CPU", load.cpu),
            ("inbound network", load.bandwidth_in),
            ("outbound network", load.bandwidth_out),
        )
        if not usage.limit > 0
    ]
    if unknown:
        remarks.append(f"{name} does not say its {', '.join(unknown)}: usual limits are assumed")
    used = load.cpu.percent if load.cpu.limit > 0 else IDLE_PERCENT
    return TraceMachine(
        name,
        cores=load.cpu.limit / CORE if load.cpu.limit > 0 else _USUAL.cores,
        memory_mib=load.memory.limit or _USUAL.memory_mib,
        direct_memory_mib=load.direct_memory.limit or _USUAL.direct_memory_mib,
        bandwidth_in_kbit=load.bandwidth_in.limit or _USUAL.bandwidth_in_kbit,
        bandwidth_out_kbit=load.bandwidth_out.limit or _USUAL.bandwidth_out_kbit,
        idle_percent=min(IDLE_PERCENT, used),
        domain=domain,
    )


def places(lower: int, upper: int) -> list[int]:
    """`PARTS` evenly spaced positions in a range of the ring; fewer in a smaller range."""
    width = upper - lower + (upper == FULL_UPPER)
    count = max(1, min(PARTS, width))
    return [lower + width * (2 * part + 1) // (2 * count) for part in range(count)]


def namespaces_of(
    ranges: Mapping[str, Iterable[tuple[int, int]]], owners: Mapping[str, str | None]
) -> tuple[list[Namespace], int]:
    """Namespaces with complete rings, and the number of gaps that were filled by unreported bundles.

    Args:
        ranges: By namespace; they do not overlap.
        owners: By key of the bundle.
    """
    namespaces, gaps = [], 0
    for name, some in sorted(ranges.items()):
        known, bounds = set(some), {0, FULL_UPPER}
        for lower, upper in known:
            bounds |= {lower, upper}
        whole = sorted(bounds)
        pairs = list(pairwise(whole))
        gaps += sum(pair not in known for pair in pairs)
        own = [owners.get(bundle_key(name, lower, upper)) for lower, upper in pairs]
        namespaces.append(Namespace(name, len(pairs), tuple(whole), tuple(own)))
    return namespaces, gaps


TOPIC_SESSIONS: Final = 2


def from_snapshot(snapshot: Snapshot, *, name: str = "snapshot", seed: int = 1, hours: float = 2.0) -> Trace:
    """Make a trace that continues a snapshot with its load and some noise.

    Raises:
        SnapshotError: It has no broker, or no bundle.
    """
    cluster = cluster_of(snapshot)
    if not cluster.brokers or not cluster.bundles:
        raise SnapshotError(name, ["a trace needs at least one broker and one bundle"], hint="Take another snapshot.")
    remarks: list[str] = []
    brokers = [cluster.brokers[name] for name in cluster.broker_names]
    machines = [machine_of(broker, remarks) for broker in brokers]
    demands = _demands(cluster, {machine.name: machine for machine in machines}, remarks)
    owners = {key: bundle.owner if bundle.owner in cluster.brokers else None for key, bundle in cluster.bundles.items()}
    ranges = defaultdict(list)
    for key in cluster.bundles:
        parts = parse_key(key.encode())
        if parts is not None:
            ranges[parts.namespace].append((parts.lower, parts.upper))
    namespaces, gaps = namespaces_of(ranges, owners)
    if gaps:
        remarks.append(f"{gaps} parts of rings belong to no bundle of the snapshot: bundles without load are put there")
    units, base = _units(cluster, demands, {namespace.name: number for number, namespace in enumerate(namespaces)})
    steps = max(1, int(hours * 3_600 // STEP_S))
    variation = DemandVariation(len(units.position), noise_layers(seed, NOISE, len(units.position)))
    return Trace(
        name=name,
        about=f"A cluster of {len(machines)} brokers and {len(cluster.bundles)} bundles, going on as in its snapshot.",
        seed=seed,
        step_s=STEP_S,
        steps=steps,
        machines=machines,
        namespaces=namespaces,
        units=units,
        judged=settled_spans([(0.0, 0.0)], SETTLE_S, steps * STEP_S),
        base=base,
        rows=lambda step: variation.at(step * STEP_S),
        remarks=remarks,
    )


def _demands(cluster: Cluster, machines: Mapping[str, TraceMachine], remarks: list[str]) -> dict[str, Floats]:
    """What each bundle wants, as the rows of `Demand`."""
    by_owner = defaultdict[str | None, list[Bundle]](list)
    for key in sorted(cluster.bundles):
        by_owner[cluster.bundles[key].owner].append(cluster.bundles[key])
    demands: dict[str, Floats] = {}
    for owner, bundles in by_owner.items():
        broker = cluster.brokers.get(owner or "")
        known = [_known(bundle) for bundle in bundles]
        unknown = sum(rates is None for rates in known)
        rest = rates_of(UNSEEN)
        if unknown and broker is not None and broker.load is not None:
            named = np.sum([rates for rates in known if rates is not None], axis=0)
            rest = np.maximum(rates_of(broker.load) - named, 0.0) / unknown
            remarks.append(f"{broker.name} has {unknown} bundles without figures: they share the rest of its report")
        rates = np.stack([rest if own is None else own for own in known])
        if broker is not None and broker.load is not None:
            columns = np.outer(shares(rates), used_by_traffic(broker.load, machines[broker.name]))
        else:
            columns = np.outer(rates[:, :2].sum(axis=1), [MESSAGE_CPU, 0.0])
        demands |= zip((bundle.name for bundle in bundles), np.hstack([rates, columns]), strict=True)
    return demands


def _known(bundle: Bundle) -> Floats | None:
    averages = [average for average in (bundle.averages.short, bundle.averages.long) if average.samples > 0]
    figures = next((known for known in (bundle.stats, *averages) if known is not None), None)
    return None if figures is None else rates_of(figures)


def _units(cluster: Cluster, demands: Mapping[str, Floats], namespaces: Mapping[str, int]) -> tuple[Units, Demand]:
    """Topics where they are known, and equal parts of what is left of each bundle."""
    rows: list[tuple[int, int, int]] = []
    wants: list[Floats] = []
    for key in sorted(cluster.bundles):
        bundle, demand = cluster.bundles[key], demands[key]
        parts = parse_key(key.encode())
        if parts is None:
            continue
        named = [rates_of(topic) for topic in bundle.topics]
        at = [topic.position for topic in bundle.topics]
        left = np.maximum(demand[:4] - np.sum(named, axis=0), 0.0)
        # What the topics do not add up to lies somewhere in the bundle.
        spread = places(parts.lower, parts.upper) if left.any() or not at else []
        rates = np.array([*named, *(left / len(spread) for _ in spread)])
        part = shares(rates) if rates.any() else np.full(len(rates), 1 / len(rates))
        wants.append(np.hstack([rates, np.outer(part, demand[4:])]))
        sessions = 0 if bundle.stats is None else bundle.stats.sessions
        each = max(1, sessions // len(rates)) if sessions else TOPIC_SESSIONS
        rows += [(namespaces[parts.namespace], position, each) for position in [*at, *spread]]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Units(*map(np.ascontiguousarray, columns)), Demand(*np.ascontiguousarray(np.concatenate(wants).T))


def present(snapshot: Snapshot) -> Contender:
    """Contender with the strategies and settings of a snapshot's cluster, without its policies on single bundles or brokers.

    Raises:
        StateChannelError: A strategy, a setting or the profile in it does not exist.
    """
    base = contender(f"profile/{snapshot.profile}")
    chosen = {kind: choose(snapshot, kind).name for kind in KINDS}
    settings: dict[str, Any] = {}
    for kind in (*KINDS, "parts"):
        for name, values in getattr(snapshot.settings, kind).items():
            settings |= {f"{kind}.{name}.{setting}": value for setting, value in values.items()}
    return replace(
        base,
        name=AS_IT_IS,
        about=f"what the cluster of the snapshot does: {chosen['shedding']}, {chosen['placement']}",
        shedding=chosen["shedding"],
        placement=chosen["placement"],
        split=chosen["split"],
        overrides={**base.overrides, **settings},
    )
