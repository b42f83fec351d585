"""Bundles that `weighted-move` would have split: too big to go anywhere, on a broker that has too much. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shedders.cluster import Bundle
from shedders.plan import SplitWanted
from shedders.weighted_loads import Cargo, Side
from shedders.weighted_memory import Memory

BIG = 0.2
"""A bundle with less than this part of what an average broker has can be made up for by others."""

SPLITS_MAX = 4
"""So many in one decision: each costs its clients a reconnect."""

LOOKED_MAX = 32
"""For the bundles of so many brokers it is asked who has room: those may be hundreds that filters shut in."""


def wanted_splits(
    stuck: Sequence[Side],
    cargo: Callable[[Side], list[Cargo]],
    memory: Memory,
    gap: float,
    has_room: Callable[[Side, Bundle, float], bool],
) -> list[SplitWanted]:
    """The largest bundle of each broker that has too much and of which nothing can go.

    Args:
        stuck: Those brokers, the busiest first.
        gap: How far above the level a broker may be.
        has_room: Whether anybody who stands lower may take a bundle at all: parts of it would go nowhere, either, if not.
    """
    found: list[SplitWanted] = []
    looked = 0
    for side in stuck:
        if len(found) >= SPLITS_MAX or not side.level > 1 + gap:
            continue
        largest = next(reversed(cargo(side)), None)
        if largest is None or largest.young or largest.size * side.scale < BIG:
            continue
        bundle = largest.bundle
        if bundle.name in memory.asked or bundle.stats is None or bundle.stats.topics < 2:  # noqa: PLR2004
            continue
        looked += 1
        if looked > LOOKED_MAX or not has_room(side, bundle, gap):
            continue
        memory.asked[bundle.name] = (largest.throughput, 0.0)
        found.append(
            SplitWanted(
                bundle.name,
                f"{side.name} stands at {side.level:.3f} of the average, {largest.size * side.scale:.3f} of it this bundle, too "
                "much for any other broker",
            )
        )
    return found
