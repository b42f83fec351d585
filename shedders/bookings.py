"""Bundles that are on their way to a broker and that its report does not count yet, with running totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from shedders.cluster import Bundle, Cluster


class Bookings(Mapping[str, Sequence[str]]):
    """Bundles by the broker they go to; as such it is handed to placement strategies.

    Attributes:
        topics: Topics on their way, by broker; every bundle counts one at least.
        most_topics: The largest of these.
    """

    def __init__(self, cluster: Cluster, booked: Mapping[str, Sequence[str]] | None = None) -> None:
        self._cluster = cluster
        self._bundles: dict[str, list[str]] = {}
        self._namespaces: dict[str, Counter[str]] = {}
        self.topics: Counter[str] = Counter()
        self.most_topics = 0
        for broker, bundles in (booked or {}).items():
            for bundle in bundles:
                self.book(broker, bundle)

    @classmethod
    def of(cls, cluster: Cluster, booked: Mapping[str, Sequence[str]]) -> Bookings:
        """The bookings themselves where they are some already, else their totals."""
        return booked if isinstance(booked, Bookings) else cls(cluster, booked)

    def book(self, broker: str, name: str) -> None:
        """Count a bundle for a broker; twice the same counts once."""
        bundles = self._bundles.setdefault(broker, [])
        if name in bundles:
            return
        bundles.append(name)
        bundle = self._cluster.bundles.get(name)
        if bundle is None or bundle.owner != broker:
            self._namespaces.setdefault(broker, Counter())[name.rpartition("/")[0]] += 1
        self.topics[broker] += 1 if bundle is None else topics_of(bundle)
        self.most_topics = max(self.most_topics, self.topics[broker])

    def of_namespace(self, broker: str, namespace: str, but: str) -> int:
        """Bundles of a namespace on their way to a broker, one bundle left out."""
        counts = self._namespaces.get(broker)
        if counts is None or not counts[namespace]:
            return 0
        bundle = self._cluster.bundles.get(but)
        counted = but in self._bundles[broker] and (bundle is None or bundle.owner != broker)
        return counts[namespace] - (counted and but.rpartition("/")[0] == namespace)

    def namespaces(self, broker: str) -> Sequence[str]:
        """Namespaces of which bundles are on their way to a broker."""
        return list(self._namespaces.get(broker, ()))

    def __getitem__(self, broker: str) -> Sequence[str]:
        return self._bundles[broker]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundles)

    def __len__(self) -> int:
        return len(self._bundles)


def topics_of(bundle: Bundle) -> int:
    """Topics of a bundle as far as known; one at least, as nobody places a bundle but for a topic in it."""
    return max(1, len(bundle.topics), 0 if bundle.stats is None else bundle.stats.topics)
