"""Bundles served by a broker, by its hooks, and the new owners of those that left. Pure."""

from __future__ import annotations

from typing import NamedTuple

from statechannel.protocol.bundle import FULL_UPPER, parse_key, split_topic, topic_hash


class RingRange(NamedTuple):
    """A range of a namespace's ring, from `lower` to below `upper` (closed at the end of the ring)."""

    namespace: str
    lower: int
    upper: int

    def holds(self, namespace: str, position: int) -> bool:
        """Whether it contains a topic of that hash."""
        if namespace != self.namespace:
            return False
        return self.lower <= position < self.upper or position == self.upper == FULL_UPPER

    def overlaps(self, other: RingRange) -> bool:
        """Whether both have a hash in common."""
        return self.namespace == other.namespace and self.lower < other.upper and other.lower < self.upper


class Serving(NamedTuple):
    """A bundle that is served."""

    bundle: str
    generation: int


def place_of_topic(topic: str) -> tuple[str, int]:
    """Namespace and hash of a topic.

    Raises:
        ValueError: It has no namespace.
    """
    parts = split_topic(topic)
    if parts is None:
        raise ValueError(f"`{topic}` has no namespace: use tenant/namespace/topic")
    return parts[0], topic_hash(parts[1])


def place_of_bundle(bundle: str) -> RingRange:
    """Range of a bundle.

    Raises:
        ValueError: It is not the key of a bundle.
    """
    key = parse_key(bundle.encode())
    if key is None or key.is_namespace:
        raise ValueError(f"`{bundle}` is not a bundle")
    return RingRange(key.namespace, key.lower, key.upper)


class ServedBundles:
    """Updated by the hooks of one broker. Every lookup scans all bundles: for a demo's dozens."""

    def __init__(self) -> None:
        self._served: dict[RingRange, Serving] = {}
        self._moved: dict[RingRange, str] = {}

    def serve(self, bundle: str, generation: int) -> None:
        """Note that the broker serves a bundle. After a split the children replace the parent one by one."""
        place = place_of_bundle(bundle)
        self._served[place] = Serving(bundle, generation)
        self._moved = {there: url for there, url in self._moved.items() if not there.overlaps(place)}
        for wider in [other for other in self._served if other != place and other.overlaps(place)]:
            inside = [other for other in self._served if other != wider and other.overlaps(wider)]
            if sum(other.upper - other.lower for other in inside) == wider.upper - wider.lower:
                del self._served[wider]

    def release(self, bundle: str) -> None:
        """Note that the broker has released a bundle."""
        self._served.pop(place_of_bundle(bundle), None)

    def moved(self, bundle: str, url: str | None) -> None:
        """Note the new owner of a bundle, if known."""
        place = place_of_bundle(bundle)
        if url is None or place in self._served:
            self._moved.pop(place, None)
        else:
            self._moved[place] = url

    def find(self, topic: str) -> Serving | None:
        """The bundle of a topic, if it is served here; the newest generation during a split."""
        namespace, position = place_of_topic(topic)
        matches = [serving for place, serving in self._served.items() if place.holds(namespace, position)]
        return max(matches, key=lambda serving: serving.generation, default=None)

    def forward(self, topic: str) -> str | None:
        """New owner of a topic's bundle; None if unknown."""
        namespace, position = place_of_topic(topic)
        return next((url for place, url in self._moved.items() if place.holds(namespace, position)), None)

    def all(self) -> dict[str, int]:
        """Generation of every served bundle."""
        return {serving.bundle: serving.generation for serving in self._served.values()}
