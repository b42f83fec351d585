"""A partition of a compacted Kafka topic with a cleaner as nasty as the real one may be.

The rules are those of Kafka's log cleaner: a record may go only if a later record of its key lies in the part of the
log that the pass covers; the pass ends below the active segment and below the first segment with a record younger than
`min.compaction.lag.ms`; segments are rewritten one after another, so a reader may see any mixture; a pass may end early
(its key map is full) or be dropped half-way; each copy of the partition is cleaned on its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


class CleanerSettings(NamedTuple):
    """The topic settings that the cleaner follows, in milliseconds of log time."""

    lag_ms: int = 3_600_000
    tombstone_ms: int = 7 * 86_400_000
    segment_ms: int = 600_000


class _Copy:
    """One replica of the partition: which offsets are left of it."""

    def __init__(self) -> None:
        self.alive: list[int] = []
        self.checkpoint = 0
        self.horizon: dict[int, int] = {}
        self.running: Iterator[None] | None = None


class SimLog:
    """One partition: everything ever appended, and what the cleaner left of it in each copy.

    Attributes:
        entries: Every record, the offset is the index; the omniscient reader reads these.
        first_offset: Low watermark; only deletion moves it, by `expire` (delete policy) or `delete_head`.
        markers: Offsets of transaction markers: entries without key and value, which no reader is given.
    """

    def __init__(self, topic: Topic, partition: int, settings: CleanerSettings, copies: int = 1) -> None:
        self.topic = topic
        self.partition = partition
        self.settings = settings
        self.entries: list[RecordRead] = []
        self.first_offset = 0
        self.cleaned = 0
        self.markers: set[int] = set()
        self._copies = [_Copy() for _ in range(copies)]
        self._leader = 0
        self._bases = [0]

    @property
    def end(self) -> int:
        """High watermark: the next offset to be written."""
        return len(self.entries)

    def append(self, now_ms: int, key: bytes | None, value: bytes | None) -> int:
        offset = len(self.entries)
        base = self._bases[-1]
        if offset > base and now_ms - self.entries[base].timestamp_ms >= self.settings.segment_ms:
            self._bases.append(offset)
        self.entries.append(RecordRead(self.topic, self.partition, offset, now_ms, key, value))
        for copy in self._copies:
            copy.alive.append(offset)
        return offset

    def end_transaction(self, now_ms: int) -> int:
        offset = self.append(now_ms, None, None)
        self.markers.add(offset)
        for copy in self._copies:
            copy.alive.pop()
        return offset

    def next(self, position: int) -> RecordRead | None:
        alive = self._copies[self._leader].alive
        index = bisect_left(alive, position)
        return self.entries[alive[index]] if index < len(alive) else None

    def left(self) -> list[RecordRead]:
        return [self.entries[offset] for offset in self._copies[self._leader].alive]

    def fail_over(self) -> None:
        self._leader = (self._leader + 1) % len(self._copies)

    def expire(self, now_ms: int, retention_ms: int) -> None:
        """Delete policy: whole old segments go, never the active one."""
        while len(self._bases) > 1 and now_ms - self.entries[self._bases[1] - 1].timestamp_ms > retention_ms:
            del self._bases[0]
        self.first_offset = self._bases[0]
        for copy in self._copies:
            del copy.alive[: bisect_left(copy.alive, self.first_offset)]

    def delete_head(self, first_offset: int) -> None:
        """Delete all records below an offset, which compaction never does."""
        self.first_offset = max(self.first_offset, first_offset)
        for copy in self._copies:
            del copy.alive[: bisect_left(copy.alive, self.first_offset)]

    def clean(self, now_ms: int, rng: Random) -> int:
        """Let the cleaner work on some copy: begin a pass, or go on with one by a few segments; records removed."""
        copy = rng.choice(self._copies)
        before = len(copy.alive)
        if copy.running is None or rng.random() < 0.1:  # noqa: PLR2004 - a pass that is dropped half-way
            copy.running = self._pass(copy, now_ms, rng)
        for _ in range(rng.choice((1, 1, 2, 5, 1000))):
            if next(copy.running, self) is self:
                copy.running = None
                break
        removed = before - len(copy.alive)
        self.cleaned += removed
        return removed

    def clean_all(self, now_ms: int, rng: Random) -> None:
        for copy in self._copies:
            before = len(copy.alive)
            copy.running = None
            for _ in self._pass(copy, now_ms, rng, whole=True):
                pass
            self.cleaned += before - len(copy.alive)

    def _bound(self, copy: _Copy, now_ms: int) -> int:
        """First offset that this pass must not touch."""
        first = max(0, bisect_right(self._bases, copy.checkpoint) - 1)
        for index in range(first, len(self._bases) - 1):
            newest = self.entries[self._bases[index + 1] - 1].timestamp_ms
            if newest > now_ms - self.settings.lag_ms:
                return self._bases[index]
        return self._bases[-1]

    def _pass(self, copy: _Copy, now_ms: int, rng: Random, *, whole: bool = False) -> Iterator[None]:
        bound = self._bound(copy, now_ms)
        if bound <= copy.checkpoint:
            return
        if not whole and rng.random() < 0.3:  # noqa: PLR2004 - the key map is full
            bound = rng.randint(copy.checkpoint + 1, bound)
        newest: dict[bytes | None, int] = {}
        for offset in copy.alive[bisect_left(copy.alive, copy.checkpoint) : bisect_left(copy.alive, bound)]:
            newest[self.entries[offset].key] = offset
        bases = [*self._bases[: bisect_left(self._bases, bound)], bound]
        for index in range(len(bases) - 1):
            low = bisect_left(copy.alive, bases[index])
            high = bisect_left(copy.alive, bases[index + 1])
            copy.alive[low:high] = [
                offset for offset in copy.alive[low:high] if self._stays(copy, offset, newest, now_ms)
            ]
            yield
        copy.checkpoint = bound

    def _stays(self, copy: _Copy, offset: int, newest: dict[bytes | None, int], now_ms: int) -> bool:
        entry = self.entries[offset]
        if newest.get(entry.key, -1) > offset:
            return False
        if entry.value is not None:
            return True
        # KIP-534: the deletion time of a null is stamped at its first cleaning.
        due = copy.horizon.setdefault(offset, now_ms + self.settings.tombstone_ms)
        return now_ms < due
