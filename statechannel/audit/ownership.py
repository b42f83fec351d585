"""What single records show of a bundle's owners: lost ones, and the way to a state that a joining reader holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ulid import ULID

from statechannel.protocol.bundle import bundle_key
from statechannel.protocol.codec import HEARTBEAT_KEY, decode_heartbeat
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import Flow, State
from statechannel.protocol.view import Judgement, View

SERVED = frozenset({State.ASSIGNED, State.SPLITTING})
"""States in which a broker serves the bundle."""


class LostOwner(NamedTuple):
    """The lost owner, as named by a repair, or by the resume of its next process."""

    broker: str
    incarnation: str | None
    last_heard_ms: int


def lost_of(record: Record) -> LostOwner | None:
    """The field `lost`, if it is well-formed; verdicts do not depend on it."""
    lost = record.raw.get("lost")
    if not isinstance(lost, dict):
        return None
    broker, incarnation, heard_ms = lost.get("broker"), lost.get("incarnation"), lost.get("last_heard_ms")
    if not isinstance(broker, str) or type(heard_ms) is not int or heard_ms < 0:
        return None
    return LostOwner(broker, incarnation if isinstance(incarnation, str) else None, heard_ms)


def writing_process(record: RecordRead, judgement: Judgement) -> tuple[str, str] | None:
    """Broker and incarnation that a record names, heartbeats of the log among them; None if it names none."""
    decoded = decode_heartbeat(record.value) if record.key == HEARTBEAT_KEY else judgement.record
    return None if decoded is None else (decoded.broker, decoded.incarnation)


def repair_reason(record: Record) -> str:
    """Description of a forced record."""
    lost = lost_of(record)
    what = f"repaired by {record.broker}"
    return what if lost is None else f"{lost.broker} was gone, {what}"


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
