"""Brokers that hold other accepted states, by what all of them report: who, with whom, and since which offset. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

REPORTED_MAX: Final = 100
"""Differences of one broker that are looked at: anybody may write to the registry."""
_NAMED: Final = 3


class DifferingReplica(NamedTuple):
    """A broker that differs from others in one partition; of two it is unknown which is right.

    Attributes:
        others: With whom it differs.
        offset: The first at which they had these numbers of keys.
        equal_at: The newest offset at which both were equal; -1 if they never were.
        keys, their_keys: Numbers of their keys at `offset`.
    """

    partition: int
    broker: str
    others: tuple[str, ...]
    offset: int
    equal_at: int
    keys: int
    their_keys: int

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Which of them may be wrong: of two both, of more the one that differs from all others."""
        return (self.broker,) if len(self.others) > 1 else (self.broker, *self.others)

    @property
    def sentence(self) -> str:
        others = ", ".join(self.others[:_NAMED]) + (
            f" and {len(self.others) - _NAMED} more" * (len(self.others) > _NAMED)
        )
        since = f"equal through offset {self.equal_at}" if self.equal_at >= 0 else "never seen equal"
        return (
            f"{self.broker} and {others} hold different accepted states of partition {self.partition} at offset {self.offset} "
            f"({self.keys:,} and {self.their_keys:,} keys), {since}"
        )


class _Seen(NamedTuple):
    offset: int
    equal_at: int
    keys: Mapping[str, int]


def reported_differences(differs: object) -> list[dict[str, Any]]:
    """The well-formed ones of what a broker reports as `differs`."""
    rows = differs[:REPORTED_MAX] if isinstance(differs, list) else []
    numbers = ("partition", "offset", "equal_at", "keys", "their_keys")
    kept = [row for row in rows if isinstance(row, dict) and type(row.get("broker")) is str]
    return [
        {name: row[name] for name in ("broker", *numbers)}
        for row in kept
        if all(type(row.get(name)) is int and -1 <= row[name] < 2**53 for name in numbers)
    ]


def replica_differences(reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[DifferingReplica]:
    """One for each broker that differs from others: first the one that differs from most, as it is probably the odd one.

    Args:
        reports: What each broker that is alive reports (`reported_differences`).
    """
    pairs: dict[int, dict[frozenset[str], _Seen]] = {}
    for broker, rows in sorted(reports.items()):
        for row in rows:
            other, pair = row["broker"], frozenset((broker, row["broker"]))
            if other == broker or other not in reports:
                continue
            of_partition = pairs.setdefault(row["partition"], {})
            seen = _Seen(row["offset"], row["equal_at"], {broker: row["keys"], other: row["their_keys"]})
            of_partition[pair] = max(of_partition.get(pair, seen), seen, key=lambda seen: seen.offset)
    differences = []
    for partition, open_pairs in sorted(pairs.items()):
        while open_pairs:
            names = sorted({name for pair in open_pairs for name in pair})
            broker = max(names, key=lambda name: sum(name in pair for pair in open_pairs))
            taken = {pair: open_pairs.pop(pair) for pair in [*open_pairs] if broker in pair}
            others = tuple(sorted(name for pair in taken for name in pair if name != broker))
            newest = max(taken.values(), key=lambda seen: seen.offset)
            theirs = next(keys for name, keys in newest.keys.items() if name != broker)
            equal_at = max(seen.equal_at for seen in taken.values())
            differences.append(
                DifferingReplica(partition, broker, others, newest.offset, equal_at, newest.keys[broker], theirs)
            )
    return differences
