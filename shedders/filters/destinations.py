"""Rules for the destination of a bundle that is shed; they take precedence over strategies and placements. Pure.

A bundle is moved because of load, so it goes only where the load is known to be less: to a broker with a usable report, and,
if the strategy has planned no particular one, only to one that ends below the source's present load (decision record 49).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from loaddata.model.broker_load import BrokerLoad
from shedders.model.cluster import Bundle, Cluster
from shedders.model.moved_cluster import traffic_of
from shedders.model.readings import ReadingSettings, why_unreadable

NAMED_MAX = 5  # brokers that are named in one reason


class Takers:
    """The rules on one cluster, with the moves decided since counted.

    A broker's load is its score if the strategy gave both brokers one; else the moving average of the weighted maximum. A
    bundle's part of the source's score is its share of the source's bytes or of its messages, whichever is more.

    Args:
        cluster: With the moves in flight counted.
        max_age_s: An older report is not usable.
        lapsed: Whether a stale report is usable.
    """

    def __init__(
        self, cluster: Cluster, max_age_s: float, scores: Mapping[str, float] | None = None, *, lapsed: bool = False
    ) -> None:
        self._cluster = cluster
        self._readings = ReadingSettings(max_age_s=max_age_s)
        self._scores = scores or {}
        self._lapsed = lapsed
        self._faults: dict[str, str | None] = {}
        self._added: dict[str, float] = {}

    def unknown(self, name: str) -> str | None:
        """Why a broker's load is not known; None if it is."""
        if name not in self._faults:
            broker = self._cluster.brokers.get(name)
            if broker is None:
                fault: tuple[str, str] | None = ("gone", "it is not registered")
            else:
                known = replace(broker, load_lapsed=False) if self._lapsed and broker.load_lapsed else broker
                fault = why_unreadable(known, self._readings, None)
            self._faults[name] = None if fault is None else f"{fault[0]}: {fault[1]}"
        return self._faults[name]

    def why_not(self, bundle: Bundle, source: str, name: str) -> str | None:
        """Why a broker may not be chosen for a bundle that its source sheds; None if it may."""
        if name == source:
            return "it is the source"
        fault = self.unknown(name)
        if fault is not None:
            return fault
        mine, theirs = self._levels(source, name)
        if mine is None:
            return None  # the load of a source that is gone is unknown
        end = theirs + mine * self._share(bundle, source)
        return None if end < mine else f"it would have {end:.6g}, and {source} has {mine:.6g}"

    def open_to(self, bundle: Bundle, source: str) -> tuple[list[str], dict[str, str]]:
        """Brokers that may be chosen, sorted, and why the others may not."""
        faults = {name: self.why_not(bundle, source, name) for name in self._cluster.broker_names}
        return (
            [name for name, fault in faults.items() if fault is None],
            {name: fault for name, fault in faults.items() if fault is not None},
        )

    def book(self, bundle: Bundle, source: str, name: str) -> None:
        if name in self._cluster.brokers:
            mine, _ = self._levels(source, name)
            self._added[name] = self._added.get(name, 0.0) + (mine or 0.0) * self._share(bundle, source)

    def _levels(self, source: str, name: str) -> tuple[float | None, float]:
        added = self._added.get(name, 0.0)
        mine, theirs = self._scores.get(source), self._scores.get(name)
        if mine is not None and theirs is not None and isfinite(mine) and isfinite(theirs):
            return mine, theirs + added
        giver, taker = self._load(source), self._load(name)
        if giver is None or taker is None:
            return None, added
        return giver.weighted_max_ema, taker.weighted_max_ema + added

    def _load(self, name: str) -> BrokerLoad | None:
        broker = self._cluster.brokers.get(name)
        return None if broker is None else broker.load

    def _share(self, bundle: Bundle, source: str) -> float:
        load, traffic = self._load(source), traffic_of(bundle)
        if load is None:
            return 0.0
        pairs = ((traffic.msg_throughput, load.msg_throughput), (traffic.msg_rate, load.msg_rate))
        shares = [min(1.0, own / whole) for own, whole in pairs if own > 0 and whole > 0]
        # A source that reports no traffic at all may be this bundle alone.
        return max(shares, default=1.0 if any(own > 0 for own, _ in pairs) else 0.0)


def describe(faults: Mapping[str, str]) -> str:
    """A sentence that says why no broker is left."""
    named = [f"{name} ({why})" for name, why in sorted(faults.items())[:NAMED_MAX]]
    more = len(faults) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")
