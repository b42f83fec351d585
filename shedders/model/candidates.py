"""What placement strategies know of the candidates, looked up once for each state of the cluster."""

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
"""Stands where a filter's name does: the broker was not removed by one, but nothing is known of its load."""
_NAMED = 3
_NOBODY: Mapping[str, Collection[str]] = {}


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """Brokers whose reports can be judged, and the others with the reason.

    Attributes:
        usages: Weighted maximum of each, as present.
        lapsed: Those of them whose reports are older than the last change of what they serve. That is the best that is known
            of them, as what has come since is reckoned with (`shedders.model.projection`).
    """

    loads: Mapping[str, BrokerLoad]
    usages: Mapping[str, float]
    faults: Mapping[str, tuple[str, str]]
    lapsed: Collection[str] = ()

    def remark(self, names: Sequence[str]) -> str:
        """What is to be said, behind anything else, of the reports of these brokers; mostly nothing."""
        old = [name for name in names if name in self.lapsed] if self.lapsed else []
        if not old:
            return ""
        more = f" and {len(old) - _NAMED} more" if len(old) > _NAMED else ""
        said = f"{', '.join(old[:_NAMED])}{more}"
        if len(old) == 1:
            return f"; the report of {said} is from before the last change of what it serves, what came since is added"
        return f"; the reports of {said} are from before the last change of what they serve, what came since is added"

    def judged(self, candidates: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, str]]]:
        """Candidates that can be judged, sorted, and the others with the reason."""
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
        """What is known of its brokers."""
        if self._cluster is not cluster:
            found = read(cluster, self._settings, self._weights, lapsed=True)
            faults = {left.name: (left.reason, left.why) for left in found.left}
            # With `upstream` nobody asks whether a report has lapsed.
            marked = () if self._settings.upstream else [one for one in found.loads if cluster.brokers[one].load_lapsed]
            self._known, self._cluster = KnownBrokers(found.loads, found.usages, faults, frozenset(marked)), cluster
        return self._known


class BookedSums:
    """Sums over the bundles on their way to brokers; what was summed before is not summed again while lists only grow.

    Args:
        counted: By broker, bundles that count there already: they are not added again.
    """

    def __init__(self, amount: Callable[[str], float], counted: Mapping[str, Collection[str]] = _NOBODY) -> None:
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
    """One of several brokers that are as good: upstream takes one at random, this the same one for the same bundle."""
    return equals[crc32(bundle.encode()) % len(equals)]


def blind(
    cluster: Cluster,
    bundle: Bundle,
    candidates: Sequence[str],
    booked: Mapping[str, Sequence[str]],
    removed: Mapping[str, tuple[str, str]],
    memory: Mapping[str, Any],
) -> Placed:
    """Nobody's load is known: one of those with the fewest bundles, those on their way included."""
    if not candidates:
        return nobody(bundle, memory)
    scores = {name: float(cluster.bundles_of.count(name) + len(booked.get(name, ()))) for name in sorted(candidates)}
    least = min(scores.values())
    best = [name for name, score in scores.items() if score == least]
    why = f"no candidate's load is known; fewest bundles: {least:.0f}"
    return Placed(bundle.name, pick(bundle.name, best), why, best, removed, scores, memory)


def nobody(bundle: Bundle, memory: Mapping[str, Any]) -> Placed:
    """There are no candidates."""
    return Placed(bundle.name, None, "no broker may take it", memory=memory)
