"""What brokers' usage will be when the bundles that are on their way to them have arrived.

A broker's report does not know them yet; upstream's placement strategies do not either, so that until the next report
everything goes to whoever was least loaded. Here each such bundle counts

    measured:  bytes a second * (usage of all brokers / bytes a second of all brokers)
    else:      usage of all brokers / bundles of all brokers

and at least a thousandth of a broker, so that idle bundles spread, too; one that nobody has measured at most a twentieth, as
brokers of a small cluster are busy with more than their few bundles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from loaddata.broker_load import BrokerLoad
from shedders.candidates import BookedSums
from shedders.cluster import Cluster
from shedders.readings import is_sound

LEAST = 0.001
"""What an idle bundle counts: a thousand of them fill a broker."""


MOST_UNSEEN = 0.05
"""What a bundle counts at most that nobody has measured."""


class Projection:
    """Usage of brokers with what is on its way.

    Args:
        loads: Reports of all brokers that can be judged.
        usages: Their usage now, as the strategy sees it.
    """

    def __init__(self, cluster: Cluster, loads: Mapping[str, BrokerLoad], usages: Mapping[str, float]) -> None:
        self._cluster = cluster
        self.usages = usages
        used = fsum(usages.values())
        traffic = fsum(load.msg_throughput for load in loads.values())
        bundles = sum(map(cluster.bundles_of.count, loads))
        self._per_byte = used / traffic if traffic > 0 else 0.0
        self._unseen = max(LEAST, min(MOST_UNSEEN, used / bundles)) if bundles else LEAST
        self._booked = BookedSums(self.weight)

    def of(self, names: Sequence[str], booked: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """What brokers' usage will be, in the order of `names`."""
        found = {name: self.usages[name] for name in names}
        for broker in booked:
            if broker in found:
                found[broker] += self._booked.of(broker, booked[broker])
        return found

    def weight(self, name: str) -> float:
        """What a bundle counts, as a part of a broker."""
        bundle = self._cluster.bundles.get(name)
        average = None if bundle is None else bundle.averages.short
        if average is None or not average.samples or not is_sound(average):
            return self._unseen
        return max(LEAST, average.msg_throughput * self._per_byte)
