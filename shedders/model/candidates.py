"""Loads of the candidates of a placement, read once for each state of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed
from shedders.model.readings import ReadingSettings, read

NO_DATA = "load-data"
"""Used in place of a filter's name: no filter removed the broker, but its load is unknown."""
_NAMED = 3
_NONE_COUNTED: Mapping[str, Collection[str]] = {}


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """Brokers with usable reports, and the others with the reason.

    Attributes:
        usages: Weighted maximum of each, as present.
        lapsed: Those of them whose reports are stale: older than the last change of their bundles. They are still used,
            with the bundles that came since added (`shedders.model.projection`).
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
        """The usable reports of its brokers."""
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
        """The sum for one broker, from the first bundle to the last."""
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
