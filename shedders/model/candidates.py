"""Loads of the candidates of a placement, and their projection to the time when the bundles in flight have arrived. Pure.

A broker's report does not count bundles in flight yet; neither do upstream's placement strategies, so that until the next report
all bundles go to the broker that was least loaded. Here each such bundle counts

    measured:  bytes a second * (usage of all brokers / bytes a second of all brokers)
    else:      usage of all brokers / bundles of all brokers

and at least a thousandth of a broker, so that idle bundles spread as well; an unmeasured one counts at most a twentieth, as
brokers of a small cluster are busy with more than their few bundles.

The same holds for a bundle that came to a broker after its newest report was made, if that report is stale and the bundle is
among the recent moves. Bundles that such a broker has given away since still count there: it seems busier than it is until it
reports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any
from zlib import crc32

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed
from shedders.model.readings import ReadingSettings, is_sound, read

NO_DATA = "load-data"  # used in place of a filter's name: no filter removed the broker, but its load is unknown
_NAMED = 3
_NONE_COUNTED: Mapping[str, Collection[str]] = {}


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """Brokers with usable reports, and the others with the reason.

    Attributes:
        usages: Weighted maximum of each, as present.
        lapsed: Those of them whose reports are stale: older than the last change of their bundles. They are still used,
            with the bundles that came since added (`shedders.model.candidates`).
    """

    loads: Mapping[str, BrokerLoad]
    usages: Mapping[str, float]
    faults: Mapping[str, tuple[str, str]]
    lapsed: Collection[str] = ()

    def remark(self, names: Sequence[str]) -> str:
        """A remark on stale reports among these brokers, to be appended to a sentence; mostly empty."""
        old = [name for name in names if name in self.lapsed] if self.lapsed else []
        if not old:
            return ""
        more = f" and {len(old) - _NAMED} more" if len(old) > _NAMED else ""
        names_text = f"{', '.join(old[:_NAMED])}{more}"
        if len(old) == 1:
            return f"; the report of {names_text} is stale, bundles that came since are added"
        return f"; the reports of {names_text} are stale, bundles that came since are added"

    def judged(self, candidates: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, str]]]:
        """Candidates with usable reports, sorted, and the others with the reason."""
        loads = self.loads
        names = [name for name in candidates if name in loads]
        names.sort()
        if len(names) == len(candidates):
            return names, {}
        unknown = ("no-load-data", "no such broker")
        return names, {
            name: (NO_DATA, f"{word}: {why}")
            for name in candidates
            if name not in loads
            for word, why in (self.faults.get(name, unknown),)
        }


class CandidateReader:
    """Reads a cluster once, however many bundles are placed with it; answers depend on nothing but the cluster."""

    def __init__(self, settings: ReadingSettings, weights: ResourceWeights) -> None:
        self._settings = settings
        self._weights = weights
        self._cluster: Cluster | None = None
        self._known = KnownBrokers({}, {}, {})

    def of(self, cluster: Cluster) -> KnownBrokers:
        if self._cluster is not cluster:
            readings = read(cluster, self._settings, self._weights, lapsed=True)
            faults = {left.name: (left.reason, left.why) for left in readings.left}
            # With `upstream` stale reports are not marked.
            marked = (
                ()
                if self._settings.upstream
                else [name for name in readings.loads if cluster.brokers[name].load_lapsed]
            )
            self._known, self._cluster = (
                KnownBrokers(readings.loads, readings.usages, faults, frozenset(marked)),
                cluster,
            )
        return self._known


class BookedSums:
    """Sums over the bundles in flight to brokers; they are updated incrementally while lists only grow.

    Args:
        counted: By broker, bundles that it counts already: they are not added again.
    """

    def __init__(self, amount: Callable[[str], float], counted: Mapping[str, Collection[str]] = _NONE_COUNTED) -> None:
        self._amount = amount
        self._counted = counted
        self._sums: dict[str, tuple[int, str, float]] = {}

    def of(self, broker: str, bundles: Sequence[str]) -> float:
        if not bundles:
            return 0.0
        count, last, total = self._sums.get(broker, (0, "", 0.0))
        if count > len(bundles) or (count and bundles[count - 1] != last):
            count, total = 0, 0.0
        counted = self._counted.get(broker, ())
        for bundle in bundles[count:]:
            if bundle not in counted:
                total += self._amount(bundle)
        self._sums[broker] = (len(bundles), bundles[-1], total)
        return total


def pick(bundle: str, equals: Sequence[str]) -> str:
    """One of several equally good brokers: upstream takes one at random, this the same one for the same bundle."""
    return equals[crc32(bundle.encode()) % len(equals)]


def blind(
    cluster: Cluster,
    bundle: Bundle,
    candidates: Sequence[str],
    booked: Mapping[str, Sequence[str]],
    removed: Mapping[str, tuple[str, str]],
    memory: Mapping[str, Any],
) -> Placed:
    """Place without any known load: on one of the brokers with the fewest bundles, those in flight included."""
    if not candidates:
        return unplaced(bundle, memory)
    scores = {name: float(cluster.bundles_of.count(name) + len(booked.get(name, ()))) for name in sorted(candidates)}
    least = min(scores.values())
    best = [name for name, score in scores.items() if score == least]
    why = f"no candidate's load is known; fewest bundles: {least:.0f}"
    return Placed(bundle.name, pick(bundle.name, best), why, best, removed, scores, memory)


def unplaced(bundle: Bundle, memory: Mapping[str, Any]) -> Placed:
    """The answer without candidates."""
    return Placed(bundle.name, None, "no broker may take it", memory=memory)


LEAST = 0.001  # load of an idle bundle: a thousand of them fill a broker
MOST_UNSEEN = 0.05  # maximum load of an unmeasured bundle


def came_since(cluster: Cluster, names: Collection[str]) -> dict[str, frozenset[str]]:
    """By broker with a stale report, the bundles that came there after it was made, according to the recent moves."""
    brokers = cluster.brokers
    lapsed = {name: brokers[name].load_age_s for name in names if name in brokers and brokers[name].load_lapsed}
    arrivals: dict[str, set[str]] = {}
    for moved, age_s in cluster.recent.bundles.items() if lapsed else ():
        bundle = cluster.bundles.get(moved)
        # A bundle in flight is still where it was, or is booked.
        if bundle is None or bundle.in_flight or bundle.owner not in lapsed:
            continue
        if age_s < lapsed[bundle.owner]:
            arrivals.setdefault(bundle.owner, set()).add(moved)
    return {name: frozenset(bundles) for name, bundles in arrivals.items()}


class Projection:
    """Usage of brokers with the bundles in flight.

    Args:
        usages: The brokers' present usage, as the strategy sees it.
    """

    def __init__(self, cluster: Cluster, loads: Mapping[str, BrokerLoad], usages: Mapping[str, float]) -> None:
        self._cluster = cluster
        self.usages = usages
        used = fsum(usages.values())
        traffic = fsum(load.msg_throughput for load in loads.values())
        bundles = sum(map(cluster.bundles_of.count, loads))
        self._per_byte = used / traffic if traffic > 0 else 0.0
        self._unseen = max(LEAST, min(MOST_UNSEEN, used / bundles)) if bundles else LEAST
        self._came = came_since(cluster, usages)
        self._came_sums = {name: fsum(map(self.weight, arrivals)) for name, arrivals in self._came.items()}
        self._booked = BookedSums(self.weight, self._came)

    def of(self, names: Sequence[str], booked: Mapping[str, Sequence[str]]) -> dict[str, float]:
        projected = {name: self.usages[name] for name in names}
        for broker, more in self._came_sums.items():
            if broker in projected:
                projected[broker] += more
        for broker in booked:
            if broker in projected:
                projected[broker] += self._booked.of(broker, booked[broker])
        return projected

    def weight(self, name: str) -> float:
        """The load of a bundle, as a part of a broker."""
        bundle = self._cluster.bundles.get(name)
        average = None if bundle is None else bundle.averages.short
        if average is None or not average.samples or not is_sound(average):
            return self._unseen
        return max(LEAST, average.msg_throughput * self._per_byte)
