"""A record of the channel after decoding (records.md)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from statechannel.core.bundle import bounds_of, joined_bounds
from statechannel.core.states import State

if TYPE_CHECKING:
    from array import array

FORMAT = 1
"""The first format of records, which every version writes as long as anybody is registered who knows no newer one."""
NEWEST_FORMAT = 1
"""The newest format that this version reads (`statechannel.core.formats`)."""


class Kind(StrEnum):
    """What a record wants."""

    PROPOSAL = "proposal"
    ASSERT = "assert"
    HEARTBEAT = "heartbeat"


class Record:
    """A decoded record. Fields that its kind and state do not have keep their defaults.

    A plain slotted class, not a frozen dataclass: replay makes one for every record. Nobody changes it after decoding.

    Attributes:
        base: Id of the accepted record built on (proposal) or restated (assert, the field `asserts`).
        raw: The JSON object as read, for the fields that are never judged.
        numbers: Of the children, where the decoder has them: lower and upper bound of each, one after the other.
    """

    __slots__ = (
        "base",
        "broker",
        "children",
        "clean_to",
        "covers",
        "forced",
        "from_",
        "id",
        "incarnation",
        "kind",
        "numbers",
        "raw",
        "state",
        "to",
        "version",
    )

    def __init__(
        self,
        kind: Kind,
        record_id: str,
        covers: int,
        broker: str,
        incarnation: str,
        raw: dict[str, Any],
        version: int = -1,
        base: str | None = None,
        state: State = State.ABSENT,
        from_: str | None = None,
        to: str | None = None,
        forced: bool = False,
    ) -> None:
        self.kind = kind
        self.id = record_id
        self.covers = covers
        self.broker = broker
        self.incarnation = incarnation
        self.raw = raw
        self.version = version
        self.base = base
        self.state = state
        self.from_ = from_
        self.to = to
        self.children: list[str] | None = None
        self.numbers: array[int] | None = None
        self.forced = forced
        self.clean_to = -1

    def bounds(self) -> array[int] | None:
        """Bounds of the children, or None where they are not contiguous."""
        if self.children is None:
            return None
        if self.numbers is None:
            return bounds_of(self.children)
        return joined_bounds(self.numbers)

    def text(self, name: str) -> str | None:
        """A field that is for people only: its value if it is a string, else None."""
        value = self.raw.get(name)
        return value if isinstance(value, str) else None
