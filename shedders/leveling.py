"""Which of a broker's bundles go: upstream's greedy way, and ours that never makes a pair worse."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from shedders.cluster import Bundle
from shedders.draft import Weighed


def greedy(bundles: Weighed, need: float) -> list[tuple[Bundle, float]]:
    """Largest first until the need is met; at least one, whatever its size (upstream's threshold and overload shedder)."""
    chosen: list[tuple[Bundle, float]] = []
    marked = 0.0
    for bundle, weight in bundles:
        if chosen and not marked < need:
            break
        chosen.append((bundle, weight))
        marked += weight
    return chosen


class Receivers:
    """Brokers that could take something, with what this plan has already booked on them."""

    def __init__(self, loads: Mapping[str, float]) -> None:
        self._heap = sorted((load, name) for name, load in loads.items())

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def least(self) -> float:
        """Load of the least loaded."""
        return self._heap[0][0]

    def book(self, load: float, below: float) -> str | None:
        """The least loaded, if it ends below; None if nobody does."""
        if not self._heap or not self.least + load < below:
            return None
        before, name = self._heap[0]
        heapq.heapreplace(self._heap, (before + load, name))
        return name


@dataclass(frozen=True, slots=True)
class Need:
    """What a broker should give away.

    Attributes:
        traffic: How much, in bytes or messages a second.
        floor: Less than this is not worth another move.
        load: The broker's own load.
        load_per_traffic: What one byte or message a second weighs in that load.
    """

    traffic: float
    floor: float
    load: float
    load_per_traffic: float


def level(bundles: Weighed, need: Need, receivers: Receivers) -> list[tuple[Bundle, float, str]]:
    """Choose bundles, each with its traffic and the broker that was reckoned with.

    Largest first, those that fit into what is still needed. If then a floor's worth is still missing: the smallest of the
    larger ones. Each only if the least loaded receiver, with all that is booked on it, ends below where the source stands,
    so that every single move lowers the maximum of its pair. Idle bundles stay: moving them levels nothing.
    """
    chosen: list[tuple[Bundle, float, str]] = []
    missing, load = need.traffic, need.load
    larger: list[tuple[Bundle, float]] = []
    for bundle, weight in bundles:
        if missing <= 0 or weight <= 0:
            break
        if weight > missing:
            larger.append((bundle, weight))
            continue
        receiver = receivers.book(weight * need.load_per_traffic, load)
        if receiver is not None:
            chosen.append((bundle, weight, receiver))
            missing -= weight
            load -= weight * need.load_per_traffic
    if larger and missing > 0 and (not chosen or missing >= need.floor):
        bundle, weight = larger[-1]
        receiver = receivers.book(weight * need.load_per_traffic, load)
        if receiver is not None:
            chosen.append((bundle, weight, receiver))
    return chosen
