"""Trace from a snapshot of a real cluster: its brokers and bundles, with the demand of that moment continued.

The present configuration of the cluster is a contender.

Data missing from a snapshot is assumed, with a remark of the trace. Bundles have their present figures, else their short
or long average; those without any share the rest of their broker's report evenly.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from loaddata.model.broker_load import BrokerLoad
from loaddata.model.bundle_load import UNSEEN
from shedders.contest.contenders import AS_IT_IS, Contender, contender
from shedders.contest.demand_noise import DemandVariation, noise_layers
from shedders.contest.trace import CORE, SETTLE_S, Demand, Namespace, Trace, TraceMachine, Units, settled_spans
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.model.strategy import KINDS
from shedders.snapshots.cluster import cluster_of
from shedders.snapshots.file import SnapshotError
from shedders.snapshots.model import Snapshot
from shedders.snapshots.selection import choose
from statechannel.protocol.bundle import FULL_UPPER, bundle_key, parse_key

FIGURES: Final = ("msg_rate_in", "msg_rate_out", "msg_throughput_in", "msg_throughput_out")
PARTS: Final = 8
"""Equal units of a bundle without known topics, so that it can be halved three times."""
IDLE_PERCENT: Final = 3.0
"""CPU that is taken to be used without traffic, where a broker uses that much."""
MESSAGE_CPU: Final = 25e-6 * CORE
"""CPU of a message, in percent of a core a second, where no broker reports both."""
_USUAL: Final = TraceMachine("usual")


@dataclass(frozen=True, slots=True)
class UnitTraffic:
    """Traffic a second, and what goes with it: CPU in percent of a core, direct memory in MiB."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    cpu: float = 0.0
    direct_memory_mib: float = 0.0

    @classmethod
    def of(cls, rates: Any) -> UnitTraffic:
        """Traffic by the four figures that reports, bundles and topics have."""
        return cls(*(float(getattr(rates, name)) for name in FIGURES))

    @property
    def msg_rate(self) -> float:
        """Messages in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def msg_throughput(self) -> float:
        """Bytes in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out

    def share(self, messages: float, size: float) -> float:
        """Share of messages and bytes: the mean of both, or the known one."""
        shares = [own / whole for own, whole in ((self.msg_rate, messages), (self.msg_throughput, size)) if whole > 0]
        return sum(shares) / len(shares) if shares else 0.0

    def part(self, count: int) -> UnitTraffic:
        """One of `count` equal parts of the traffic."""
        return UnitTraffic(*(getattr(self, name) / count for name in FIGURES))


def rest_of(whole: Any, known: Iterable[UnitTraffic]) -> UnitTraffic:
    """Traffic of a whole that is in none of the known parts."""
    parts = list(known)
    return UnitTraffic(
        *(max(0.0, getattr(whole, name) - math.fsum(getattr(part, name) for part in parts)) for name in FIGURES)
    )


def machine_of(name: str, load: BrokerLoad | None, remarks: list[str], domain: str | None = None) -> TraceMachine:
    """The machine that a broker reports.

    Args:
        remarks: What has to be assumed of it is added.
    """
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


def busy_cpu(machine: TraceMachine, load: BrokerLoad) -> float | None:
    """CPU that traffic uses; None where the broker does not know it."""
    return max(0.0, load.cpu.usage - machine.cores * machine.idle_percent) if load.cpu.limit > 0 else None


def places(lower: int, upper: int, count: int = PARTS) -> list[int]:
    """`count` evenly spaced positions in a range of the ring; fewer in a smaller range."""
    width = upper - lower + (upper == FULL_UPPER)
    count = max(1, min(count, width))
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


def shared_cpu(traffics: Sequence[UnitTraffic], whole: float | None) -> list[float]:
    """CPU of each bundle of a broker: its part of what the broker's traffic uses.

    Args:
        whole: Used by all of them together; None: by the number of their messages.
    """
    if whole is None:
        return [traffic.msg_rate * MESSAGE_CPU for traffic in traffics]
    messages, size = sum(traffic.msg_rate for traffic in traffics), sum(traffic.msg_throughput for traffic in traffics)
    return [traffic.share(messages, size) * whole for traffic in traffics]


TOPIC_SESSIONS: Final = 2
_UNSEEN: Final = UnitTraffic.of(UNSEEN)


def from_snapshot(
    snapshot: Snapshot,
    *,
    name: str = "snapshot",
    seed: int = 1,
    hours: float = 2.0,
    step_s: float = 20.0,
    noise: Sequence[tuple[float, float]] = ((0.1, 60.0),),
) -> Trace:
    """Make a trace that continues a snapshot with its load and some noise.

    Args:
        noise: Layers of noise: standard deviation in parts of a unit's demand, and seconds between two draws.

    Raises:
        SnapshotError: It has no broker, or no bundle.
    """
    cluster = cluster_of(snapshot)
    if not cluster.brokers or not cluster.bundles:
        raise SnapshotError(name, ["a trace needs at least one broker and one bundle"], hint="Take another snapshot.")
    remarks: list[str] = []
    brokers = [cluster.brokers[name] for name in cluster.broker_names]
    machines = [machine_of(broker.name, broker.load, remarks, broker.domain) for broker in brokers]
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
    variation = DemandVariation(len(units.position), noise_layers(seed, noise, len(units.position)))
    return Trace(
        name=name,
        about=f"A cluster of {len(machines)} brokers and {len(cluster.bundles)} bundles, going on as in its snapshot.",
        seed=seed,
        step_s=step_s,
        steps=steps,
        machines=machines,
        namespaces=namespaces,
        units=units,
        judged=settled_spans([(0.0, 0.0)], SETTLE_S, steps * step_s),
        base=base,
        rows=lambda step: variation.at(step * step_s),
        remarks=remarks,
    )


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
    rest = _UNSEEN
    if unknown and broker is not None and broker.load is not None:
        rest = rest_of(broker.load, [traffic for traffic in known.values() if traffic is not None]).part(len(unknown))
        remarks.append(f"{broker.name} has {len(unknown)} bundles without figures: they share the rest of its report")
    load = None if broker is None else broker.load
    traffics = [traffic or rest for traffic in known.values()]
    busy = None if load is None or machine is None else busy_cpu(machine, load)
    cpus = shared_cpu(traffics, busy)
    memory = shared_cpu(traffics, 0.0 if load is None else load.direct_memory.usage)
    return {
        name: replace(bundle_name, cpu=cpu, direct_memory_mib=mib)
        for name, bundle_name, cpu, mib in zip(known, traffics, cpus, memory, strict=True)
    }


def _known(bundle: Bundle) -> UnitTraffic | None:
    for rates, counts in (
        (bundle.stats, bundle.stats is not None),
        (bundle.averages.short, bundle.averages.short.samples > 0),
        (bundle.averages.long, bundle.averages.long.samples > 0),
    ):
        if counts:
            return UnitTraffic.of(rates)
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
        named = [UnitTraffic.of(topic) for topic in bundle.topics]
        left = rest_of(traffic, named)
        at = [topic.position for topic in bundle.topics]
        # What the topics do not add up to lies somewhere in the bundle.
        spread = places(parts.lower, parts.upper) if left.msg_rate + left.msg_throughput > 0 or not at else []
        whole = [*named, *(left.part(len(spread)) for _ in spread)]
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


def _scaled_to(values: list[float], whole: float) -> list[float]:
    """The same parts, but together exactly so much; equal ones where there are none."""
    have = math.fsum(values)
    if have <= 0:
        return [whole / len(values)] * len(values)
    return [value * whole / have for value in values]


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
