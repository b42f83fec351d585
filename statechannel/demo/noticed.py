"""What a client notices: gaps in service, and answers that two owners, or a stale one, must have given. Pure.

Times are wall-clock milliseconds, since they are compared with the log's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from statechannel.demo.served import place_of_bundle, place_of_topic


class NoticedGap(NamedTuple):
    """Time in which writes of a bundle's topics failed.

    Attributes:
        start_ms: The first write that nobody took.
        end_ms: The first that was taken again; None while they fail.
        bundle: Bundle that took the write in the end (after a split a child); before that the last one known.
    """

    bundle: str
    start_ms: int
    end_ms: int | None
    before: str
    after: str | None
    topics: int = 1

    @property
    def length_ms(self) -> int | None:
        """None while it is open."""
        return None if self.end_ms is None else self.end_ms - self.start_ms


class Taken(NamedTuple):
    """A write, or a claim to serve, that a broker answered with its generation."""

    broker: str
    bundle: str
    generation: int
    sent_ms: int
    answered_ms: int


@dataclass(slots=True)
class _Topic:
    last: Taken | None = None
    failing_since_ms: int | None = None
    writes: int = 0


@dataclass(slots=True)
class Notebook:
    """Everything that a client noticed.

    Attributes:
        broken: Sentences about answers that must never be given: two owners of one generation, or a generation that was
            already over when it was asked.
    """

    topics: dict[str, _Topic] = field(default_factory=dict)
    closed: list[NoticedGap] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _newest: dict[str, Taken] = field(default_factory=dict)

    def taken(self, topic: str, taken: Taken) -> None:
        """A write was taken."""
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

    def claimed(self, claim: Taken) -> None:
        """A broker said that it serves a bundle."""
        place = place_of_bundle(claim.bundle)
        for topic in self.topics:
            if place.holds(*place_of_topic(topic)):
                self._check(topic, claim)

    def failed(self, topic: str, at_ms: int) -> None:
        """Nobody took a write. Before the first one was taken that is no gap: nobody has served the topic yet."""
        held = self.topics.setdefault(topic, _Topic())
        if held.last is not None and held.failing_since_ms is None:
            held.failing_since_ms = at_ms

    def _check(self, topic: str, taken: Taken) -> None:
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
        """Writes taken so far."""
        return sum(topic.writes for topic in self.topics.values())

    @property
    def unserved(self) -> list[str]:
        """Topics whose last write was not taken, or that never had one taken."""
        return [name for name, held in self.topics.items() if held.last is None or held.failing_since_ms is not None]

    def gaps(self) -> list[NoticedGap]:
        """All gaps by start, a bundle's at a time: what its topics noticed at the same time is one gap."""
        still_open = [
            NoticedGap(held.last.bundle, held.failing_since_ms, None, held.last.broker, None)
            for held in self.topics.values()
            if held.failing_since_ms is not None and held.last is not None
        ]
        return _merged([*self.closed, *still_open])


def _merged(gaps: list[NoticedGap]) -> list[NoticedGap]:
    found: list[NoticedGap] = []
    for gap in sorted(gaps, key=lambda gap: gap.start_ms):
        for index, other in enumerate(found):
            if _same(gap, other):
                ends = [one.end_ms for one in (gap, other) if one.end_ms is not None]
                open_ = len(ends) < 2  # noqa: PLR2004 - one of the two
                found[index] = other._replace(end_ms=None if open_ else max(ends), topics=other.topics + 1)
                break
        else:
            found.append(gap)
    return found


def _same(gap: NoticedGap, other: NoticedGap) -> bool:
    if not place_of_bundle(gap.bundle).overlaps(place_of_bundle(other.bundle)):
        return False
    return other.end_ms is None or gap.start_ms <= other.end_ms
