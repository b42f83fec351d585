"""Choice of a broker's bundles to move: upstream's greedy algorithm, and ours, which never makes a pair worse."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from shedders.model.cluster import Bundle

CanTake = Callable[[Bundle, str], str | None]
"""Filters: why a broker may not take a bundle; None if it may."""

Weighed = Sequence[tuple[Bundle, float]]
"""Bundles with their traffic."""


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
    """Possible destinations, with the bundles that this plan has already booked on them.

    Args:
        loads: Their loads, in the measure in which the source's load is given.
        can_take: Filters; one that fails refuses. Without any every broker takes every bundle.
        tries: Number of the least loaded that are tried.

    Attributes:
        refusal: The last refusal of a filter.
    """

    def __init__(self, loads: Mapping[str, float], can_take: CanTake | None = None, tries: int = 1) -> None:
        self._sorted = sorted((load, name) for name, load in loads.items())
        self._can_take = can_take
        self._tries = tries
        self.refusal: str | None = None

    def __bool__(self) -> bool:
        return bool(self._sorted)

    @property
    def least(self) -> float:
        """Load of the least loaded."""
        return self._sorted[0][0]

    def book(self, bundle: Bundle, source: str, load: float, below: float) -> str | None:
        """Book a bundle on the least loaded broker that takes it and ends below; None if none does."""
        for index, (before, name) in enumerate(islice(self._sorted, self._tries)):
            if not before + load < below * _LOWER:
                return None
            if name != source and self._takes(bundle, name):
                del self._sorted[index]
                insort(self._sorted, (before + load, name))
                return name
        return None

    def _takes(self, bundle: Bundle, name: str) -> bool:
        why = refused(self._can_take, bundle, name)
        if why is not None:
            self.refusal = f"{name} may not take {bundle.name}: {why}"
        return why is None


def refused(can_take: CanTake | None, bundle: Bundle, broker: str) -> str | None:
    """Why a broker may not take a bundle; a filter that fails refuses."""
    try:
        return None if can_take is None else can_take(bundle, broker)
    except Exception as error:
        return f"a filter fails: {error!r}"


@dataclass(frozen=True, slots=True)
class LoadToGive:
    """The load that a broker should give away.

    Attributes:
        traffic: How much, in bytes or messages a second.
        floor: Less than this is not worth another move.
        load: The broker's own load.
        load_per_traffic: What one byte or message a second weighs in that load.
    """

    source: str
    traffic: float
    floor: float
    load: float
    load_per_traffic: float


def level(
    bundles: Weighed, need: LoadToGive, receivers: Receivers, most: int | None = None
) -> list[tuple[Bundle, float, str]]:
    """Choose bundles, each with its traffic and its planned destination.

    Largest first, those that fit into the remaining need. If at least the floor, and a tenth of the need, then still remains:
    the smallest of the larger ones that can go. Each only if a receiver, with all its bookings, ends below the source's
    present load, so that every single move lowers the maximum of its pair. Idle bundles stay: moving them levels nothing.

    Args:
        most: No more bundles than this.
    """
    chosen: list[tuple[Bundle, float, str]] = []
    missing, load = need.traffic, need.load
    larger: list[tuple[Bundle, float]] = []
    room = len(bundles) if most is None else most
    for bundle, weight in bundles:
        if missing <= 0 or weight <= 0 or len(chosen) >= room:
            break
        if weight > missing:
            larger.append((bundle, weight))
            continue
        receiver = receivers.book(bundle, need.source, weight * need.load_per_traffic, load)
        if receiver is not None:
            chosen.append((bundle, weight, receiver))
            missing -= weight
            load -= weight * need.load_per_traffic
    if missing > 0 and len(chosen) < room and (not chosen or missing >= max(need.floor, need.traffic * _TENTH)):
        for bundle, weight in islice(reversed(larger), _TRIES_BEYOND):
            receiver = receivers.book(bundle, need.source, weight * need.load_per_traffic, load)
            if receiver is not None:
                chosen.append((bundle, weight, receiver))
                break
    return chosen


_TENTH = 0.1
_LOWER = 1 - 1e-9
"""Lower by more than rounding."""

_TRIES_BEYOND = 8
"""Number of larger bundles that are tried, the smallest first: if these fit nowhere, heavier ones hardly will."""
