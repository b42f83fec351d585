"""What differs between the accepted states of two moments. Pure functions over the lines of the digest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from statechannel.core.bundle import parse_key, partition_of
from statechannel.core.states import State


class Accepted(NamedTuple):
    """One accepted state, as the digest has it."""

    key: str
    version: int
    state: str
    from_: str | None
    to: str | None
    id: str

    @property
    def is_namespace(self) -> bool:
        """Whether the key is a namespace's."""
        return self.key.count("/") == 1

    @property
    def owner(self) -> str | None:
        """Broker that serves the bundle."""
        if self.state == State.ASSIGNED:
            return self.to
        return self.from_ if self.state in (State.RELEASING, State.SPLITTING) else None

    @property
    def generation(self) -> int | None:
        """Version of the record by which it serves."""
        if self.state == State.ASSIGNED:
            return self.version
        return self.version - 1 if self.state in (State.RELEASING, State.SPLITTING) else None

    @property
    def is_live(self) -> bool:
        """Whether it is there: a Deleted namespace, and a bundle that was split, are not."""
        return self.state != State.DELETED


def accepted_of(line: bytes) -> Accepted:
    """A line of the digest."""
    return Accepted(*orjson.loads(line))


def sides(before: Iterable[bytes], after: Iterable[bytes]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The lines that are not on both sides, those of one key together; both sides are sorted by key."""
    left, right = iter(before), iter(after)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if one == other:
            one, other = next(left, None), next(right, None)
            continue
        first = None if one is None else _key(one)
        second = None if other is None else _key(other)
        if first is not None and (second is None or first <= second):
            yield one, other if first == second else None
            one = next(left, None)
            if first == second:
                other = next(right, None)
        else:
            yield None, other
            other = next(right, None)


def _key(line: bytes) -> bytes:
    return line[2 : line.index(b'"', 2)]


class Differences:
    """Rows and sums of what differs.

    Args:
        partitions: Of the channel.
        unknown: Partitions of which one of the moments is not known: nothing is said of them.
    """

    def __init__(self, partitions: int, unknown: frozenset[int] = frozenset()) -> None:
        self._partitions = partitions
        self._unknown = unknown
        self.counts: Counter[str] = Counter()
        self.owners: dict[str, list[int]] = {}

    def rows(self, before: Iterable[bytes], after: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        """Every key that differs, by key."""
        for one, other in sides(before, after):
            left = None if one is None else accepted_of(one)
            right = None if other is None else accepted_of(other)
            name = left.key if left is not None else "" if right is None else right.key
            partition = _partition(name, self._partitions)
            if partition in self._unknown:
                continue
            row = _row(name, partition, left, right)
            self._count(row, left, right)
            yield row

    def _count(self, row: dict[str, Any], left: Accepted | None, right: Accepted | None) -> None:
        self.counts[f"{row['kind']}s_{row['change']}"] += 1
        for what in row["differs"]:
            self.counts[f"{row['kind']}s_{what}"] += 1
        for place, side in enumerate((left, right)):
            if side is not None and side.owner is not None:
                self.owners.setdefault(side.owner, [0, 0])[place] += 1

    def moved(self) -> dict[str, dict[str, int]]:
        """Broker to the number of bundles that it came by, and that it lost."""
        return {name: {"before": was, "after": now} for name, (was, now) in sorted(self.owners.items())}


def _row(name: str, partition: int, left: Accepted | None, right: Accepted | None) -> dict[str, Any]:
    was = left is not None and left.is_live
    now = right is not None and right.is_live
    change = "came" if now and not was else "went" if was and not now else "changed"
    differs = []
    if left is not None and right is not None:
        differs = [what for what in ("state", "owner", "generation") if getattr(left, what) != getattr(right, what)]
    return {
        "key": name,
        "partition": partition,
        "kind": "namespace" if name.count("/") == 1 else "bundle",
        "change": change,
        "differs": differs,
        "before": _side(left),
        "after": _side(right),
    }


def _side(found: Accepted | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "state": found.state,
        "owner": found.owner,
        "generation": found.generation,
        "from": found.from_,
        "to": found.to,
        "version": found.version,
        "id": found.id,
    }


def _partition(name: str, partitions: int) -> int:
    parts = parse_key(name.encode())
    return -1 if parts is None else partition_of(parts.namespace, partitions)
