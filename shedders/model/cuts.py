"""Arithmetic of splits: the ends of a bundle on the hash ring, positions inside it, and the names of its parts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from shedders.model.cluster import Bundle, TopicLoad
from statechannel.errors import StateChannelError
from statechannel.protocol.bundle import FULL_UPPER, bounds_at, bundle_key, parse_key

UPSTREAM_NAMES = {
    "range_equally_divide": "range-equally-divide",
    "topic_count_equally_divide": "topic-count-equally-divide",
    "specified_positions_divide": "specified-positions-divide",
    "flow_or_qps_equally_divide": "flow-or-qps-equally-divide",
}
"""Our names of the split algorithms by upstream's (`supportedNamespaceBundleSplitAlgorithms`)."""


class CannotSplitError(StateChannelError):
    """A bundle cannot be split as requested."""

    def __init__(self, bundle: str, why: str, *, hint: str) -> None:
        super().__init__(f"{bundle} cannot be split: {why}", hint=hint)


def algorithm_name(text: str) -> str:
    """Our name of a split algorithm; accepts upstream's name as well."""
    return UPSTREAM_NAMES.get(text, text)


def ends(bundle: Bundle) -> tuple[int, int]:
    """Lower (in it) and upper (not in it, but at the end of the ring) hash of a bundle.

    Raises:
        CannotSplitError: Its name is not a valid bundle name.
    """
    parts = parse_key(bundle.name.encode(errors="replace"))
    if parts is None or parts.is_namespace or not parts.lower < parts.upper:
        raise CannotSplitError(
            bundle.name, "the name is not valid", hint="A bundle's name is tenant/namespace/0xLLLLLLLL_0xUUUUUUUU."
        )
    return parts.lower, parts.upper


def inside(positions: Iterable[int], lower: int, upper: int) -> list[int]:
    """Those strictly inside, ascending, each once."""
    return sorted({position for position in positions if lower < position < upper})


def topics_in(bundle: Bundle, lower: int, upper: int) -> list[TopicLoad]:
    """Its topics by hash and name; one whose hash lies elsewhere is not its own."""
    last = upper if upper == FULL_UPPER else upper - 1
    return sorted((topic for topic in bundle.topics if lower <= topic.position <= last), key=_place)


def children(bundle: Bundle, positions: Sequence[int]) -> list[str]:
    """Keys of the parts, in order.

    Raises:
        CannotSplitError: A position is not strictly inside, or duplicated, or there is none.
    """
    lower, upper = ends(bundle)
    try:
        bounds = bounds_at(lower, upper, positions)
    except ValueError as error:
        raise CannotSplitError(bundle.name, str(error), hint="Cut strictly inside, each hash once.") from error
    return [bundle_key(bundle.namespace, first, second) for first, second in pairwise(bounds)]


def part_of(position: int, cuts: Sequence[int]) -> int:
    """Which part a hash falls into: those below the first cut into 0; a cut belongs to the part above it."""
    return bisect_right(cuts, position)


def _place(topic: TopicLoad) -> tuple[int, str]:
    return topic.position, topic.name
