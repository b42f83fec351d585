"""Projection of brokers' usage to the time when the bundles in flight have arrived.

A broker's report does not count them yet; neither do upstream's placement strategies, so that until the next report
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

from collections.abc import Collection, Mapping, Sequence
from math import fsum

from loaddata.model.broker_load import BrokerLoad
from shedders.model.candidates import BookedSums
from shedders.model.cluster import Cluster
from shedders.model.readings import is_sound

LEAST = 0.001
"""Load of an idle bundle: a thousand of them fill a broker."""


MOST_UNSEEN = 0.05
"""Maximum load of an unmeasured bundle."""


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
        loads: All usable reports.
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
        """The projected usage of brokers, in the order of `names`."""
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
