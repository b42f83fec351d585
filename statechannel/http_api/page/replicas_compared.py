"""Whether the replicas of all brokers agree: digests of their accepted states, compared at the same offset only. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statechannel.protocol.bounded import remember

if TYPE_CHECKING:
    from statechannel.audit.verify import PartWord, ReplicaWord

OFFSETS_MAX: Final = 4_096
"""Offsets of all partitions whose digests are kept: a replica may come to an offset later than another."""


class ReplicaStanding(StrEnum):
    """What is known of one replica, the worst first."""

    DIFFERS = "differs"
    UNKNOWN = "unknown"
    NOT_AT_OFFSET = "not-at-this-offset"
    AGREES = "agrees"


class ReplicaSeen(NamedTuple):
    """One replica.

    Attributes:
        broker: Its id; that of the process that compares has the name that the page gives it.
        partition: Of `offset`; None: all of them, or none.
        offset: At which it differs, or through which it has read.
        others: Offset through which most others had read the partition.
        keys: Number of its keys there; with `keys_of_others` it shows what kind of difference it is.
    """

    broker: str
    state: ReplicaStanding
    partition: int | None = None
    offset: int | None = None
    others: int | None = None
    why: str | None = None
    keys: int | None = None
    keys_of_others: int | None = None

    def message(self) -> str:
        """The sentence for people."""
        place = f"offset {self.offset} of partition {self.partition}"
        if self.state is ReplicaStanding.DIFFERS:
            return f"the replica of {self.broker} differs from the others at {place}"
        if self.state is ReplicaStanding.NOT_AT_OFFSET:
            return f"{self.broker} is not at this offset yet: it has read through {place}, others through {self.others}"
        if self.state is ReplicaStanding.UNKNOWN:
            return f"the digest of {self.broker} is not known: {self.why}"
        return f"the replica of {self.broker} agrees"


class ReplicasCompared(NamedTuple):
    """The result of a round.

    Attributes:
        at_ms: Its end, by the wall clock.
        rows: The worst first.
    """

    at_ms: int
    rows: Sequence[ReplicaSeen]

    def document(self) -> dict[str, Any]:
        """What the page shows."""
        return {
            "at_ms": self.at_ms,
            "all": len(self.rows),
            "agree": sum(row.state is ReplicaStanding.AGREES for row in self.rows),
            "rows": [
                {"broker": row.broker, "state": row.state.value, "message": row.message()}
                for row in self.rows
                if row.state is not ReplicaStanding.AGREES
            ],
        }


class _Judged(NamedTuple):
    incarnation: str
    offset: int
    equal: bool
    keys: int | None
    keys_of_others: int | None


class ReplicaComparison:
    """Compares what replicas say, round by round.

    Args:
        own: Name of the replica of this process: it decides where equally many have each of two digests.

    Attributes:
        at_ms: End of the newest round; None before the first.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._words: dict[str, ReplicaWord | str] = {}
        self._digests: dict[tuple[int, int], dict[str, PartWord]] = {}
        self._judged: dict[tuple[str, int], _Judged] = {}
        self._fresh: set[tuple[str, int]] = set()
        self.at_ms: int | None = None

    def begin(self) -> None:
        """A new round: what replicas say from now on is compared with each other, and with earlier rounds."""
        self._words = {}
        self._fresh = set()

    def take(self, words: Mapping[str, ReplicaWord | str], at_ms: int) -> set[str]:
        """What replicas say; those that could not be compared yet, because no other was at their offset.

        Args:
            words: By broker; a string says why it is not known.
        """
        self._words |= words
        self.at_ms = at_ms
        for broker, number, _, part in self._parts(words):
            there = self._digests.get((number, part.applied), {})
            remember(self._digests, (number, part.applied), {**there, broker: part}, OFFSETS_MAX)
        for broker, number, incarnation, part in self._parts(self._words):
            self._judge((broker, number), incarnation, part)
        self._judged = {place: known for place, known in self._judged.items() if place[0] in self._words}
        return {row.broker for row in self.rows() if row.state is ReplicaStanding.NOT_AT_OFFSET}

    @staticmethod
    def _parts(words: Mapping[str, ReplicaWord | str]) -> Iterator[tuple[str, int, str, PartWord]]:
        for broker, word in words.items():
            if not isinstance(word, str):
                for number, part in word.partitions.items():
                    if part.digest is not None:
                        yield broker, number, word.incarnation, part

    def _judge(self, place: tuple[str, int], incarnation: str, part: PartWord) -> None:
        known = self._judged.get(place)
        if known is not None and known.incarnation != incarnation:
            del self._judged[place]
        there = self._digests.get((place[1], part.applied), {})
        if len(there) > 1:  # one alone agrees with nobody
            right = self._most_have(there)
            keys = next(other.keys for other in there.values() if other.digest == right)
            self._judged[place] = _Judged(incarnation, part.applied, part.digest == right, part.keys, keys)
            self._fresh.add(place)

    def _most_have(self, there: Mapping[str, PartWord]) -> str | None:
        counts = Counter(part.digest for part in there.values())
        own = there.get(self._own)
        return max(counts, key=lambda digest: (counts[digest], own is not None and own.digest == digest, str(digest)))

    def rows(self) -> list[ReplicaSeen]:
        """Of every replica of the newest round, the worst first."""
        order = list(ReplicaStanding)
        seen = [self._seen(broker, word) for broker, word in sorted(self._words.items())]
        return sorted(seen, key=lambda row: order.index(row.state))

    def _seen(self, broker: str, word: ReplicaWord | str) -> ReplicaSeen:
        if isinstance(word, str):
            return ReplicaSeen(broker, ReplicaStanding.UNKNOWN, why=word)
        for number in word.partitions:
            judged = self._judged.get((broker, number))
            if judged is not None and not judged.equal:
                return ReplicaSeen(
                    broker, ReplicaStanding.DIFFERS, number, judged.offset, None, None, judged.keys, judged.keys_of_others
                )  # fmt: skip
        for number, part in word.partitions.items():
            if part.digest is None:
                why = part.why or "it has not read the channel to its end"
                return ReplicaSeen(broker, ReplicaStanding.UNKNOWN, number, part.applied, why=why)
        for number, part in word.partitions.items():
            if (broker, number) not in self._fresh:
                others = Counter(self._applied_of_others(broker, number))
                if not others:
                    return ReplicaSeen(broker, ReplicaStanding.UNKNOWN, why="no other replica gives a digest")
                most = max(others, key=lambda offset: (others[offset], offset))
                return ReplicaSeen(broker, ReplicaStanding.NOT_AT_OFFSET, number, part.applied, most)
        return ReplicaSeen(broker, ReplicaStanding.AGREES)

    def _applied_of_others(self, broker: str, number: int) -> Iterator[int]:
        for other, word in self._words.items():
            part = None if other == broker or isinstance(word, str) else word.partitions.get(number)
            if part is not None and part.digest is not None:
                yield part.applied

    def result(self) -> ReplicasCompared | None:
        """Of the newest round; None before the first."""
        return None if self.at_ms is None else ReplicasCompared(self.at_ms, self.rows())
