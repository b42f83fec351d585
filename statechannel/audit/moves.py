"""Accepted changes of owner, by hour of log time and cause. Pure functions over an audit's observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from statechannel.audit.ownership import lost_of
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement

HOUR_MS = 3_600_000


class MoveCause(StrEnum):
    """Cause of a change of owner."""

    ASSIGNMENT = "assignment"  # it had no owner
    TRANSFER = "transfer"
    UNLOAD = "unload"  # its owner had let go of it, and another was named later
    OWNER_LOST = "owner-lost"  # forced, and the record says who was lost
    REPAIR = "repair"  # forced, and the record does not say so
    BEFORE_LOG = "before-log"  # how it came about lies before the first record judged


class Moves:
    """Counts the accepted records that change the owner of a bundle.

    Resume, take-back, an abandoned split, and the split itself do not change the owner.

    Attributes:
        counts: By the hour's first millisecond, and cause.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, MoveCause]] = Counter()
        self._last: dict[KeyState, str | None] = {}
        self._cause: dict[KeyState, MoveCause] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        change, key = judgement.record, judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or change is None or key is None:
            return
        if key.is_namespace:
            self._namespace(key)
        elif change.state is State.DELETED:
            self._split(key)
        elif change.forced:
            lost = lost_of(change)
            self._cause[key] = MoveCause.REPAIR if lost is None else MoveCause.OWNER_LOST
            if lost is not None:
                self._last.setdefault(key, lost.broker)
        elif change.state is State.ASSIGNED:
            self._assigned(record, change, key)
        elif change.state is State.RELEASING:
            self._last[key] = change.from_
            self._cause[key] = MoveCause.UNLOAD if change.to is None else MoveCause.TRANSFER

    def _namespace(self, key: KeyState) -> None:
        """A new ring: none of its bundles has been served."""
        for held in [bundle for bundle in self._last if bundle.namespace == key.namespace]:
            del self._last[held]
        for held in [bundle for bundle in self._cause if bundle.namespace == key.namespace]:
            del self._cause[held]
        if key.ring is not None:
            self._last.update(dict.fromkeys(key.ring.live.values()))

    def _split(self, key: KeyState) -> None:
        owner = self._last.pop(key, key.from_)
        if key.ring is None or key.bounds is None:
            return
        for lower in key.bounds[:-1]:
            child = key.ring.live.get(lower)
            if child is not None:
                self._last[child] = owner

    def _assigned(self, record: RecordRead, change: Record, key: KeyState) -> None:
        cause = self._cause.pop(key, None)
        if key.was is not State.ASSIGNING:
            self._last[key] = key.owner
            return
        known = key in self._last
        last = self._last[key] if known else change.from_
        if cause is None:
            cause = MoveCause.TRANSFER if change.from_ is not None else MoveCause.BEFORE_LOG
            if known:  # who lets go of a bundle, or repairs it, is a cause
                cause = MoveCause.ASSIGNMENT
        if last != key.owner:
            self.counts[record.timestamp_ms - record.timestamp_ms % HOUR_MS, cause] += 1
        self._last[key] = key.owner


def move_fields(counts: Iterable[tuple[tuple[int, MoveCause], int]]) -> Iterator[dict[str, Any]]:
    """Counts for the JSON output, by hour and the name of the cause."""
    for (hour_ms, cause), count in sorted((at, number) for at, number in counts):
        yield {"hour_ms": hour_ms, "cause": cause.value, "count": count}
