"""Bundles of a log with their number of records, and the selection of timelines for a report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from statechannel.protocol.bundle import FULL_UPPER, KeyParts, bundle_key, parse_key, split_typed_topic, topic_hash
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View


class TreeSeen:
    """All namespaces and bundles that ever existed, with the number of records on each key.

    Attributes:
        records: By key. Keys that never existed are not in it, even if they have records.
    """

    def __init__(self) -> None:
        self.records: dict[bytes, int] = {}

    def joined(self, view: View) -> None:
        """Start from a joining reader's view."""
        for key in view.existing():
            self.records.setdefault(key.key, 0)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Apply one judged record."""
        key, name = judgement.key, record.key
        if name is None:
            return
        if judgement.verdict is Verdict.ACCEPTED and key is not None:
            self.records.setdefault(name, 0)
            if key.bounds is not None:
                for child in derived_from(key):
                    self.records.setdefault(child.encode(), 0)
        if name in self.records:
            self.records[name] += 1


def derived_from(key: KeyState) -> list[str]:
    """Names of the bundles that an accepted state derives: those of a ring, or of a split."""
    if key.bounds is None or key.state not in {State.ACTIVE, State.DELETED}:
        return []
    return [bundle_key(key.namespace, lower, upper) for lower, upper in zip(key.bounds, key.bounds[1:], strict=False)]


def wanted_part(name: str) -> KeyParts | None:
    """The range of a name: a namespace, a bundle, or the place of a topic on the ring; None: invalid."""
    parts = parse_key(name.encode())
    if parts is not None:
        return parts
    topic = split_typed_topic(name)
    if topic is None:
        return None
    place = topic_hash(topic[1])
    return KeyParts(topic[0], place, place + 1)


def overlap(first: KeyParts, other: KeyParts) -> bool:
    """Whether two ranges of a namespace have a hash in common; a namespace has all of them."""
    if first.namespace != other.namespace:
        return False
    return first.is_namespace or other.is_namespace or (first.lower < _end(other) and other.lower < _end(first))


def _end(parts: KeyParts) -> int:
    """First hash after the range: the last range of the ring is closed."""
    return parts.upper + (parts.upper == FULL_UPPER)


def choose(
    records: Mapping[bytes, int], gaps: Mapping[str, Sequence[int]], wanted: Sequence[KeyParts], most: int
) -> list[str]:
    """Keys whose timelines are shown: those with the longest gaps and most records first, each with its ancestors.

    Args:
        records: Number of records by key.
        gaps: By bundle: number of gaps, and the sum of their lengths.
        wanted: Only keys that overlap one of these; empty: all.
        most: Maximum number of keys.

    Returns:
        In the order of selection.
    """
    by_namespace: dict[str, list[KeyParts]] = {}
    for key in records:
        parts = parse_key(key)
        if parts is not None and not parts.is_namespace:
            if not wanted or any(overlap(parts, name) for name in wanted):
                by_namespace.setdefault(parts.namespace, []).append(parts)
    exact = set(wanted)

    def rank(parts: KeyParts) -> tuple[bool, int, int, str, int]:
        name = _name(parts)
        number, sum_ms = gaps.get(name, (0, 0))
        number_of_records = records[name.encode()] + number
        return parts not in exact, -sum_ms, -number_of_records, parts.namespace, parts.lower

    chosen: dict[str, None] = {}
    for parts in sorted((key for every in by_namespace.values() for key in every), key=rank):
        family = [parts.namespace, *_ancestors(parts, by_namespace[parts.namespace]), _name(parts)]
        missing = [name for name in family if name not in chosen]
        if len(chosen) + len(missing) <= most:
            chosen.update(dict.fromkeys(missing))
        if len(chosen) >= most:
            break
    return list(chosen)


def _ancestors(parts: KeyParts, known: Iterable[KeyParts]) -> Iterator[str]:
    """Wider ranges that overlap this one, the widest first."""
    width = parts.upper - parts.lower
    wider = [key for key in known if key.upper - key.lower > width and overlap(key, parts)]
    for key in sorted(wider, key=lambda held: (held.lower - held.upper, held.lower)):
        yield _name(key)


def _name(parts: KeyParts) -> str:
    return bundle_key(parts.namespace, parts.lower, parts.upper)
