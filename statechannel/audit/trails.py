"""What the records that a joining reader takes still tell of how a bundle came to be without an owner. Pure.

What a joining reader takes has no verdict. But the record that it ends with was accepted, and so was the one whose id is its
base, and so on: a trail is the unbroken chain of such records that ends with the one held. Where the cleaner has taken the
records before it, the state, the version and the words of its first record say whether anybody had served the bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statechannel.core.bundle import bundle_key
from statechannel.core.record import Kind
from statechannel.core.states import Flow, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.core.inputs import RecordRead
    from statechannel.core.keys import KeyState
    from statechannel.core.record import Record
    from statechannel.core.view import View

STEPS_MAX = 64
"""Records of a trail; of a longer one only the last is kept, and how the gap began is not known then."""

_SERVED = frozenset({State.ASSIGNED, State.SPLITTING})
_LET_GO = frozenset({Flow.TRANSFER, Flow.UNLOAD})
_FIRST_ASSIGNED = 2
"""Moves from a namespace's record to the first Assigned of a bundle of it: Assigning, Assigned."""


class Step(NamedTuple):
    """One record of a trail."""

    record: RecordRead
    decoded: Record


Trail = list[Step]


class Trails:
    """Follows the records that a joining reader holds, one after the other, for each key."""

    def __init__(self) -> None:
        self._trails: dict[bytes, Trail] = {}
        self._times_ms: dict[int, int] = {}

    def take(self, record: RecordRead, decoded: Record) -> None:
        """The reader now holds this record for its key."""
        key = record.key
        if key is None:
            return
        self._times_ms[record.offset] = record.timestamp_ms
        trail = self._trails.get(key)
        step = Step(record._replace(value=None), decoded)
        if trail is None or decoded.state in _SERVED or not _follows(trail, decoded) or len(trail) >= STEPS_MAX:
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
        """Log time of a record that is held; 0 where nobody knows."""
        return self._times_ms.get(offset, 0)


def was_served(first: Record, split: KeyState | None) -> bool:
    """Whether the first record of a trail shows, by the moves or in its writer's words, that somebody had served the bundle."""
    if split is not None or first.state is State.RELEASING:
        return True
    moved = first.state is State.ASSIGNING and not first.forced and first.from_ is not None
    return moved or first.text("flow") in _LET_GO


def never_served(first: Record, split: KeyState | None, created: int) -> bool:
    """Whether nobody can have served the bundle before the first record of its trail: its version leaves no room for it.

    Args:
        created: Version of the namespace's record.
    """
    return split is None and first.state is not State.RELEASING and first.version <= created + _FIRST_ASSIGNED


def _follows(trail: Sequence[Step], decoded: Record) -> bool:
    last = trail[-1].decoded
    if decoded.kind is Kind.PROPOSAL:
        return last.kind is Kind.PROPOSAL and decoded.base == last.id and decoded.version == last.version + 1
    restated = last.id if last.kind is Kind.PROPOSAL else last.base
    same = (decoded.version, decoded.state, decoded.from_, decoded.to)
    return decoded.base == restated and same == (last.version, last.state, last.from_, last.to)


def splits_of(view: View) -> dict[bytes, KeyState]:
    """The bundle by whose split each bundle came to be, by the key of the child; without those of a namespace's own ring."""
    found = {}
    for parent in view.existing():
        if parent.lower < 0 or parent.state is not State.DELETED or parent.bounds is None:
            continue
        for lower, upper in zip(parent.bounds, parent.bounds[1:], strict=False):
            found[bundle_key(parent.namespace, lower, upper).encode()] = parent
    return found
