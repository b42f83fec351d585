"""Which bundles a broker serves right now, as its hooks told it, and where those that left it went. Pure."""

from __future__ import annotations

from typing import NamedTuple

from statechannel.protocol.bundle import FULL_UPPER, parse_key, split_topic, topic_hash


class RingRange(NamedTuple):
    """A range of a namespace's ring, `lower` in, `upper` out (but for the end of the ring)."""

    namespace: str
    lower: int
    upper: int

    def holds(self, namespace: str, position: int) -> bool:
        """Whether a topic of that hash falls into it."""
        if namespace != self.namespace:
            return False
        return self.lower <= position < self.upper or position == self.upper == FULL_UPPER

    def overlaps(self, other: RingRange) -> bool:
        """Whether any topic falls into both."""
        return self.namespace == other.namespace and self.lower < other.upper and other.lower < self.upper


class Serving(NamedTuple):
    """A bundle that is served."""

    bundle: str
    generation: int


def place_of_topic(topic: str) -> tuple[str, int]:
    """Namespace and hash of a topic.

    Raises:
        ValueError: It names no namespace.
    """
    parts = split_topic(topic)
    if parts is None:
        raise ValueError(f"`{topic}` names no namespace: say tenant/namespace/topic")
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
    """Fed by the hooks of one broker. Every look-up walks all of its bundles: meant for a demo's dozens."""

    def __init__(self) -> None:
        self._served: dict[RingRange, Serving] = {}
        self._moved: dict[RingRange, str] = {}

    def serve(self, bundle: str, generation: int) -> None:
        """The broker serves a bundle from now on. After a split the children take the parent's place one by one."""
        place = place_of_bundle(bundle)
        self._served[place] = Serving(bundle, generation)
        self._moved = {there: url for there, url in self._moved.items() if not there.overlaps(place)}
        for wider in [other for other in self._served if other != place and other.overlaps(place)]:
            inside = [other for other in self._served if other != wider and other.overlaps(wider)]
            if sum(other.upper - other.lower for other in inside) == wider.upper - wider.lower:
                del self._served[wider]

    def release(self, bundle: str) -> None:
        """The broker serves the bundle no longer."""
        self._served.pop(place_of_bundle(bundle), None)

    def moved(self, bundle: str, url: str | None) -> None:
        """The bundle has a new owner, or none that is known."""
        place = place_of_bundle(bundle)
        if url is None or place in self._served:
            self._moved.pop(place, None)
        else:
            self._moved[place] = url

    def find(self, topic: str) -> Serving | None:
        """The bundle of a topic, if it is served here; the newest generation where a split is half announced."""
        namespace, position = place_of_topic(topic)
        matches = [serving for place, serving in self._served.items() if place.holds(namespace, position)]
        return max(matches, key=lambda serving: serving.generation, default=None)

    def forward(self, topic: str) -> str | None:
        """Where the bundle of a topic went; None if it was never here or nobody knows."""
        namespace, position = place_of_topic(topic)
        return next((url for place, url in self._moved.items() if place.holds(namespace, position)), None)

    def all(self) -> dict[str, int]:
        """Generation of every bundle served."""
        return {serving.bundle: serving.generation for serving in self._served.values()}
