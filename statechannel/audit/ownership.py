"""Owners of bundles since when, and changes of owner by cause; and the way to a state that a joining reader holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from ulid import ULID

from statechannel.protocol.bundle import bundle_key
from statechannel.protocol.codec import HEARTBEAT_KEY, decode_heartbeat
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import Flow, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver, PartitionAudit
from statechannel.stories.bundle import lost_of, owners_after

SERVED = frozenset({State.ASSIGNED, State.SPLITTING})
"""States in which a broker serves the bundle."""


def writing_process(record: RecordRead, judgement: Judgement) -> tuple[str, str] | None:
    """Broker and incarnation that a record names, heartbeats of the log among them; None if it names none."""
    decoded = decode_heartbeat(record.value) if record.key == HEARTBEAT_KEY else judgement.record
    return None if decoded is None else (decoded.broker, decoded.incarnation)


def process_started_ms(incarnation: str) -> int | None:
    """When a process began, by its own clock, as its incarnation says; None if that is no ULID."""
    try:
        return int(ULID.from_str(incarnation).milliseconds)
    except ValueError:
        return None


STEPS_MAX = 64
"""Maximum number of records of a trail; of a longer one only the last is kept, and the gap's start is unknown."""

_LET_GO = frozenset({Flow.TRANSFER, Flow.UNLOAD, Flow.SHUTDOWN})
_FIRST_ASSIGNED = 2
"""Moves from a namespace's record to the first Assigned of its bundles: Assigning, Assigned."""


class TrailStep(NamedTuple):
    """One record of a trail."""

    record: RecordRead
    decoded: Record


Trail = list[TrailStep]


class Trails:
    """Follows the records that a joining reader holds for each key."""

    def __init__(self) -> None:
        self._trails: dict[bytes, Trail] = {}
        self._times_ms: dict[int, int] = {}

    def take(self, record: RecordRead, decoded: Record) -> None:
        key = record.key
        if key is None:
            return
        self._times_ms[record.offset] = record.timestamp_ms
        trail = self._trails.get(key)
        step = TrailStep(record._replace(value=None), decoded)
        if trail is None or decoded.state in SERVED or not _follows(trail, decoded) or len(trail) >= STEPS_MAX:
            self._forget(trail)
            self._trails[key] = [step]
        elif decoded.kind is Kind.PROPOSAL:  # an assert that restates the last step adds nothing
            trail.append(step)

    def _forget(self, trail: Trail | None) -> None:
        for step in trail or ():
            self._times_ms.pop(step.record.offset, None)

    def of(self, key: bytes) -> Trail:
        """The trail that ends with the record held; the first step may be an assert, the others are proposals."""
        return self._trails.get(key, [])

    def time_ms(self, offset: int) -> int:
        """Log time of a held record; 0 if unknown."""
        return self._times_ms.get(offset, 0)


def was_served(first: Record, split: KeyState | None) -> bool:
    """Whether the first record of a trail shows, by the moves or its reason, that the bundle had been served."""
    if split is not None or first.state is State.RELEASING:
        return True
    moved = first.state is State.ASSIGNING and not first.forced and first.from_ is not None
    return moved or first.text("flow") in _LET_GO


def never_served(first: Record, split: KeyState | None, created: int) -> bool:
    """Whether the bundle cannot have been served before the first record of its trail: its version leaves no room.

    Args:
        created: Version of the namespace's record.
    """
    return split is None and first.state is not State.RELEASING and first.version <= created + _FIRST_ASSIGNED


def _follows(trail: Sequence[TrailStep], decoded: Record) -> bool:
    last = trail[-1].decoded
    if decoded.kind is Kind.PROPOSAL:
        return last.kind is Kind.PROPOSAL and decoded.base == last.id and decoded.version == last.version + 1
    restated = last.id if last.kind is Kind.PROPOSAL else last.base
    same = (decoded.version, decoded.state, decoded.from_, decoded.to)
    return decoded.base == restated and same == (last.version, last.state, last.from_, last.to)


def splits_of(view: View) -> dict[bytes, KeyState]:
    """The split parent of each bundle, by the key of the child; without those of a namespace's own ring."""
    splits = {}
    for parent in view.existing():
        if parent.state is not State.DELETED or parent.bounds is None:
            continue
        for lower, upper in zip(parent.bounds, parent.bounds[1:], strict=False):
            splits[bundle_key(parent.namespace, lower, upper).encode()] = parent
    return splits


# --- changes of owner ---


class Owners(JoinObserver):
    """Notes the record that began each owner's generation, also of what a joining reader takes."""

    def __init__(self) -> None:
        self._since: dict[bytes, tuple[int, int]] = {}
        self._held: dict[bytes, tuple[int, int]] = {}

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        for key, _ in owners_after(judgement):
            if key.state is State.ASSIGNED:
                self._since[key.key] = record.offset, record.timestamp_ms

    def taken(self, record: RecordRead, decoded: Record) -> None:  # noqa: ARG002
        if record.key is not None:
            self._held[record.key] = record.offset, record.timestamp_ms

    def joined(self, view: View, *, sure: bool) -> None:  # noqa: ARG002 - a guess is marked as one by the answer
        """Start from a joining reader's view: its proposals show when a generation began, its asserts do not."""
        times = dict(self._held.values())
        for key in view.existing():
            if key.state is State.ASSIGNED and key.writer is not None and key.offset in times:
                self._since[key.key] = key.offset, times[key.offset]
        self._held.clear()

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:  # noqa: ARG002 - the same for all observers
        """Forget what a cold start has overruled: no record of the log began it."""
        for overruled in cold_start.overruled or ():
            self._since.pop(overruled.key.encode(), None)

    def owned_in(self, part: PartitionAudit) -> Iterator[dict[str, Any]]:
        """Every served bundle of the part, for the JSON output; the start is null if the log does not show it."""
        for key in part.view.live():
            if key.generation is None:
                continue
            offset, timestamp_ms = self._since.get(key.key, (None, None))
            yield {
                "bundle": key.name,
                "partition": part.view.partition,
                "owner": key.owner,
                "generation": key.generation,
                "state": None if key.state is None else key.state.value,
                "since_offset": offset,
                "since_ms": timestamp_ms,
            }


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
    """Counts the accepted records that change the owner of a bundle, by hour of log time.

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
        if key.is_namespace or change.state is State.DELETED:
            if key.is_namespace:
                self._forget(key.namespace)
            self._last.update(owners_after(judgement))
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

    def _forget(self, namespace: str) -> None:
        self._last = {bundle: owner for bundle, owner in self._last.items() if bundle.namespace != namespace}
        self._cause = {bundle: cause for bundle, cause in self._cause.items() if bundle.namespace != namespace}

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
    for (hour_ms, cause), count in sorted(counts):
        yield {"hour_ms": hour_ms, "cause": cause.value, "count": count}
