"""Gaps in service noticed by a client, and answers that show two owners or a stale one. Pure.

Times are wall-clock milliseconds, as they are compared with the log's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statechannel.demo.plane import place_of_bundle, place_of_topic


class NoticedGap(NamedTuple):
    """Interval in which writes to a bundle's topics failed.

    Attributes:
        start_ms: The first refused write.
        end_ms: The first accepted write after it; None while they fail.
        bundle: Bundle that accepted the write in the end (after a split a child); before that the last known one.
    """

    bundle: str
    start_ms: int
    end_ms: int | None
    before: str
    after: str | None
    topics: int = 1

    @property
    def length_ms(self) -> int | None:
        return None if self.end_ms is None else self.end_ms - self.start_ms


class AcceptedWrite(NamedTuple):
    """A write, or a claim to serve, answered by a broker with its generation."""

    broker: str
    bundle: str
    generation: int
    sent_ms: int
    answered_ms: int


@dataclass(slots=True)
class _Topic:
    last: AcceptedWrite | None = None
    failing_since_ms: int | None = None
    writes: int = 0


@dataclass(slots=True)
class Notebook:
    """Observations of a client.

    Attributes:
        broken: Sentences on answers that violate the protocol: two owners of one generation, or a generation that had
            already ended.
    """

    topics: dict[str, _Topic] = field(default_factory=dict)
    closed: list[NoticedGap] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _newest: dict[str, AcceptedWrite] = field(default_factory=dict)

    def taken(self, topic: str, taken: AcceptedWrite) -> None:
        held = self.topics.setdefault(topic, _Topic())
        held.writes += 1
        self._check(topic, taken)
        if held.failing_since_ms is not None and held.last is not None:
            before = held.last
            self.closed.append(
                NoticedGap(taken.bundle, held.failing_since_ms, taken.answered_ms, before.broker, taken.broker)
            )
        held.failing_since_ms = None
        held.last = taken

    def claimed(self, claim: AcceptedWrite) -> None:
        place = place_of_bundle(claim.bundle)
        for topic in self.topics:
            if place.holds(*place_of_topic(topic)):
                self._check(topic, claim)

    def failed(self, topic: str, at_ms: int) -> None:
        """Note a refused write. Before the first accepted one this is not a gap: the topic was never served."""
        held = self.topics.setdefault(topic, _Topic())
        if held.last is not None and held.failing_since_ms is None:
            held.failing_since_ms = at_ms

    def _check(self, topic: str, taken: AcceptedWrite) -> None:
        newest = self._newest.get(topic)
        if newest is not None and taken.generation == newest.generation and taken.broker != newest.broker:
            self.broken.append(
                f"{topic}: {newest.broker} and {taken.broker} both served generation {taken.generation} of {taken.bundle}"
            )
        # Asked after a newer generation had answered, so this one was over by then.
        if newest is not None and taken.generation < newest.generation and taken.sent_ms > newest.answered_ms:
            self.broken.append(
                f"{topic}: {taken.broker} still served generation {taken.generation} when {newest.broker} "
                f"had served {newest.generation}"
            )
        if newest is None or taken.generation >= newest.generation:
            self._newest[topic] = taken

    @property
    def writes(self) -> int:
        return sum(topic.writes for topic in self.topics.values())

    @property
    def unserved(self) -> list[str]:
        """Topics whose last write was refused, or that never had an accepted one."""
        return [name for name, held in self.topics.items() if held.last is None or held.failing_since_ms is not None]

    def gaps(self) -> list[NoticedGap]:
        """All gaps by start and bundle: simultaneous gaps of a bundle's topics are one gap."""
        still_open = [
            NoticedGap(held.last.bundle, held.failing_since_ms, None, held.last.broker, None)
            for held in self.topics.values()
            if held.failing_since_ms is not None and held.last is not None
        ]
        return _merged([*self.closed, *still_open])


def _merged(gaps: list[NoticedGap]) -> list[NoticedGap]:
    merged: list[NoticedGap] = []
    for gap in sorted(gaps, key=lambda gap: gap.start_ms):
        for index, other in enumerate(merged):
            if _same(gap, other):
                ends = [side.end_ms for side in (gap, other) if side.end_ms is not None]
                open_ = len(ends) < 2  # noqa: PLR2004 - one of the two
                merged[index] = other._replace(end_ms=None if open_ else max(ends), topics=other.topics + 1)
                break
        else:
            merged.append(gap)
    return merged


def _same(gap: NoticedGap, other: NoticedGap) -> bool:
    if not place_of_bundle(gap.bundle).overlaps(place_of_bundle(other.bundle)):
        return False
    return other.end_ms is None or gap.start_ms <= other.end_ms


CLOCK_MS = 250
"""How much earlier than in the log a client may see a change: a record is stamped when appended, and applied later."""
LATE_MS = 1_500
"""How much later than in the log a client may see the end: hooks, its own retries and lookups."""
SEEN_FROM_MS = 500
"""A client that writes four times a second cannot miss a gap of this length."""
EXPLAINED = frozenset({"transfer", "unload", "declined", "shutdown", "owner-lost"})
"""Known causes; any other one means that the log does not show the cause."""


class AuditedGap(NamedTuple):
    """A gap in `statechannel audit gaps --output json`."""

    bundle: str
    cause: str
    start_ms: int
    end_ms: int | None
    before: str | None
    after: str | None
    on_request_ms: int
    why: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> AuditedGap:
        names = ("bundle", "cause", "start_ms", "end_ms", "from", "to", "on_request_ms", "why")
        return cls(*(fields[name] for name in names))


class Pair(NamedTuple):
    """A gap of the audit, with the client's one."""

    audited: AuditedGap
    noticed: NoticedGap | None


@dataclass(slots=True)
class GapComparison:
    """Result of a comparison.

    Attributes:
        pairs: Every gap of the audit, by start.
        problems: Sentences; empty if both agree.
    """

    pairs: list[Pair] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def compare(
    audited: Sequence[AuditedGap], noticed: Sequence[NoticedGap], *, topics: Iterable[str], since_ms: int, until_ms: int
) -> GapComparison:
    """Match the audit's gaps with the client's.

    Args:
        topics: Topics of the client.
        since_ms, until_ms: Interval in which it wrote to all of them.
    """
    places = [place_of_topic(topic) for topic in topics]
    comparison = GapComparison()
    used: set[int] = set()
    for gap in sorted(audited, key=lambda gap: gap.start_ms):
        index = next((i for i, candidate in enumerate(noticed) if i not in used and _meets(gap, candidate)), None)
        if index is None:
            index = next((i for i, candidate in enumerate(noticed) if _meets(gap, candidate)), None)
        seen = None if index is None else noticed[index]
        if index is not None:
            used.add(index)
        comparison.pairs.append(Pair(gap, seen))
        comparison.problems += _problems_of(gap, seen, places, since_ms=since_ms, until_ms=until_ms)
    for index, observed in enumerate(noticed):
        if index not in used:
            comparison.problems.append(
                f"the client had a gap in {observed.bundle} that is not in the audit: {observed}"
            )
        comparison.problems += _problems_of_end(observed, [gap for gap in audited if _meets(gap, observed)])
    return comparison


def _meets(gap: AuditedGap, noticed: NoticedGap) -> bool:
    if not place_of_bundle(gap.bundle).overlaps(place_of_bundle(noticed.bundle)):
        return False
    begins_before_it_ends = gap.end_ms is None or noticed.start_ms <= gap.end_ms + CLOCK_MS
    ends_after_it_begins = noticed.end_ms is None or noticed.end_ms >= gap.start_ms - CLOCK_MS
    return begins_before_it_ends and ends_after_it_begins


def _problems_of(
    gap: AuditedGap, seen: NoticedGap | None, places: Sequence[tuple[str, int]], *, since_ms: int, until_ms: int
) -> Iterable[str]:
    if gap.cause not in EXPLAINED:
        yield f"the audit has no cause for the gap of {gap.bundle} ({gap.cause}: {gap.why})"
    if gap.end_ms is None:
        yield f"{gap.bundle} is not served ({gap.why})"
        return
    written = any(place_of_bundle(gap.bundle).holds(*place) for place in places)
    in_sight_ms = min(gap.end_ms, until_ms) - max(gap.start_ms, since_ms)
    if seen is None and written and in_sight_ms > SEEN_FROM_MS:
        yield f"the audit has a gap of {in_sight_ms} ms in {gap.bundle} that the client did not notice ({gap.why})"


def _problems_of_end(noticed: NoticedGap, audited: Sequence[AuditedGap]) -> Iterable[str]:
    if noticed.end_ms is None:
        yield f"writes to {noticed.bundle} still fail"
        return
    ends = [gap.end_ms for gap in audited if gap.end_ms is not None]
    if ends and noticed.end_ms > max(ends) + LATE_MS:
        yield f"the client was served again {noticed.end_ms - max(ends)} ms after the audit's end of the gap in {noticed.bundle}"
    starts = [gap.start_ms for gap in audited]
    if starts and noticed.start_ms < min(starts) - CLOCK_MS:
        yield f"the client's gap in {noticed.bundle} began {min(starts) - noticed.start_ms} ms before the audit's"
