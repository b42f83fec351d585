"""Compares the gaps that a client noticed with those that the audit tells. Pure.

Both sides have wall-clock times of one machine: the log's time stamps are Kafka's, the client's are its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statechannel.demo.noticed import NoticedGap
from statechannel.demo.served import place_of_bundle, place_of_topic

CLOCK_MS = 250
"""How much earlier than the log a client may see a change: a record is stamped when it is appended, and acted on later."""
LATE_MS = 1_500
"""How much later than the log a client may see the end: hooks, its own retries and lookups."""
SEEN_FROM_MS = 500
"""A client that writes four times a second cannot miss a gap of this length."""
EXPLAINED = frozenset({"transfer", "unload", "owner-lost"})
"""Causes that name what happened; any other one means that the log cannot tell."""


class ToldGap(NamedTuple):
    """A gap as `statechannel audit --gaps --output json` has it."""

    bundle: str
    cause: str
    start_ms: int
    end_ms: int | None
    before: str | None
    after: str | None
    on_request_ms: int
    why: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> ToldGap:
        """Out of the audit's JSON."""
        return cls(
            fields["bundle"],
            fields["cause"],
            fields["start_ms"],
            fields["end_ms"],
            fields["from"],
            fields["to"],
            fields["on_request_ms"],
            fields["why"],
        )


class Pair(NamedTuple):
    """A gap of the audit, and what the client noticed of it."""

    told: ToldGap
    noticed: NoticedGap | None


@dataclass(slots=True)
class Comparison:
    """What came out.

    Attributes:
        pairs: Every gap of the audit, by start.
        problems: Sentences; none: the two agree.
    """

    pairs: list[Pair] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def compare(
    told: Sequence[ToldGap], noticed: Sequence[NoticedGap], *, topics: Iterable[str], since_ms: int, until_ms: int
) -> Comparison:
    """Pair them up.

    Args:
        topics: What the client wrote to.
        since_ms, until_ms: When it wrote to all of them.
    """
    places = [place_of_topic(topic) for topic in topics]
    found = Comparison()
    used: set[int] = set()
    for gap in sorted(told, key=lambda gap: gap.start_ms):
        index = next((i for i, one in enumerate(noticed) if i not in used and _meets(gap, one)), None)
        if index is None:
            index = next((i for i, one in enumerate(noticed) if _meets(gap, one)), None)
        seen = None if index is None else noticed[index]
        if index is not None:
            used.add(index)
        found.pairs.append(Pair(gap, seen))
        found.problems += _problems_of(gap, seen, places, since_ms=since_ms, until_ms=until_ms)
    for index, one in enumerate(noticed):
        if index not in used:
            found.problems.append(f"the client had a gap in {one.bundle} that the audit does not tell of: {one}")
        found.problems += _problems_of_end(one, [gap for gap in told if _meets(gap, one)])
    return found


def _meets(gap: ToldGap, one: NoticedGap) -> bool:
    if not place_of_bundle(gap.bundle).overlaps(place_of_bundle(one.bundle)):
        return False
    begins_before_it_ends = gap.end_ms is None or one.start_ms <= gap.end_ms + CLOCK_MS
    ends_after_it_begins = one.end_ms is None or one.end_ms >= gap.start_ms - CLOCK_MS
    return begins_before_it_ends and ends_after_it_begins


def _problems_of(
    gap: ToldGap, seen: NoticedGap | None, places: Sequence[tuple[str, int]], *, since_ms: int, until_ms: int
) -> Iterable[str]:
    if gap.cause not in EXPLAINED:
        yield f"the audit cannot tell why {gap.bundle} was not served ({gap.cause}: {gap.why})"
    if gap.end_ms is None:
        yield f"{gap.bundle} is not served by anybody ({gap.why})"
        return
    written = any(place_of_bundle(gap.bundle).holds(*place) for place in places)
    in_sight_ms = min(gap.end_ms, until_ms) - max(gap.start_ms, since_ms)
    if seen is None and written and in_sight_ms > SEEN_FROM_MS:
        yield f"the audit tells of a gap of {in_sight_ms} ms in {gap.bundle} that the client did not notice ({gap.why})"


def _problems_of_end(one: NoticedGap, told: Sequence[ToldGap]) -> Iterable[str]:
    if one.end_ms is None:
        yield f"writes to {one.bundle} fail still"
        return
    ends = [gap.end_ms for gap in told if gap.end_ms is not None]
    if ends and one.end_ms > max(ends) + LATE_MS:
        yield f"the client was served again {one.end_ms - max(ends)} ms after the audit's end of the gap in {one.bundle}"
    starts = [gap.start_ms for gap in told]
    if starts and one.start_ms < min(starts) - CLOCK_MS:
        yield f"the client's gap in {one.bundle} began {min(starts) - one.start_ms} ms before the audit's"
