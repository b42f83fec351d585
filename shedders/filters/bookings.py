"""Bookings of bundles in flight to a broker that its report does not count yet, with running totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from shedders.model.cluster import Bundle, Cluster


class Bookings(Mapping[str, Sequence[str]]):
    """Bundles by the broker that they go to; placement strategies get it as this mapping.

    Attributes:
        topics: Topics in flight, by broker; every bundle counts at least one.
        most_topics: The largest of these.
        count: Bookings so far; it changes with each.
    """

    def __init__(self, cluster: Cluster, booked: Mapping[str, Sequence[str]] | None = None) -> None:
        self._cluster = cluster
        self._bundles: dict[str, list[str]] = {}
        self._homes: dict[str, list[str]] = {}
        self._namespaces: dict[str, Counter[str]] = {}
        self.topics: Counter[str] = Counter()
        self.most_topics = 0
        self.count = 0
        for broker in sorted(booked or {}):
            for bundle in (booked or {})[broker]:
                self.book(broker, bundle)

    def book(self, broker: str, name: str) -> bool:
        """Count a bundle for a broker; twice the same counts once.

        Returns:
            Whether it is new.
        """
        homes = self._homes.setdefault(name, [])
        if broker in homes:
            return False
        homes.append(broker)
        self._bundles.setdefault(broker, []).append(name)
        bundle = self._cluster.bundles.get(name)
        # Ownership counts a bundle that has arrived already, the broker's report may not.
        if bundle is None or bundle.owner != broker:
            self._namespaces.setdefault(broker, Counter())[name.rpartition("/")[0]] += 1
        self.topics[broker] += 1 if bundle is None else topics_of(bundle)
        self.most_topics = max(self.most_topics, self.topics[broker])
        self.count += 1
        return True

    def is_booked(self, broker: str, name: str) -> bool:
        """Whether this bundle is in flight to this broker."""
        return broker in self._homes.get(name, ())

    def of_bundle(self, name: str) -> Sequence[str]:
        """Brokers that a bundle is in flight to; more than one only if it was booked twice."""
        return self._homes.get(name, ())

    def of_namespace(self, namespace: str) -> Counter[str]:
        """Bundles of a namespace that are in flight and not owned by their destination yet, by broker."""
        return Counter({broker: counts[namespace] for broker, counts in self._namespaces.items() if counts[namespace]})

    def namespaces(self, broker: str) -> Sequence[str]:
        """Namespaces with bundles in flight to a broker."""
        return list(self._namespaces.get(broker, ()))

    def __getitem__(self, broker: str) -> Sequence[str]:
        return self._bundles[broker]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bundles)

    def __len__(self) -> int:
        return len(self._bundles)


def topics_of(bundle: Bundle) -> int:
    """Topics of a bundle as far as known; at least one, as a bundle is placed only when a client looks up one of its topics."""
    return max(1, len(bundle.topics), 0 if bundle.stats is None else bundle.stats.topics)
