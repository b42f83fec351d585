"""Decoded record of the channel (records.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from statechannel.protocol.bundle import bounds_of, joined_bounds
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from array import array


FORMAT: Final = 1
"""The first format of records, written by every version while a registered broker knows no newer one."""
NEWEST_FORMAT: Final = 1
"""The newest format that this version reads (`statechannel.protocol.record`)."""


class Kind(StrEnum):
    PROPOSAL = "proposal"
    ASSERT = "assert"
    HEARTBEAT = "heartbeat"


class Record:
    """A decoded record. Fields not used by its kind and state keep their defaults.

    A plain slotted class, not a frozen dataclass: replay creates one for every record. Immutable after decoding.

    Attributes:
        base: Id of the accepted record built on (proposal) or restated (assert, the field `asserts`).
        raw: The JSON object, for the fields that verdicts do not depend on.
        numbers: Of the children, if the decoder has them: lower and upper bound of each, one after the other.
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
        """Bounds of the children, or None if they are not contiguous."""
        if self.children is None:
            return None
        if self.numbers is None:
            return bounds_of(self.children)
        return joined_bounds(self.numbers)

    def text(self, name: str) -> str | None:
        """An informative field: its value if it is a string, else None."""
        value = self.raw.get(name)
        return value if isinstance(value, str) else None


_NAMED_MAX: Final = 64
REASON_MAX: Final = 1_000
"""Longest reason that this project writes, in characters: it stays in the log, and every table repeats it."""


def readable(newest: int) -> tuple[int, ...]:
    """All formats read by a version with this newest one: every version reads all older ones."""
    return tuple(range(FORMAT, newest + 1))


def writable_format(members: Iterable[Collection[int]], own: Collection[int]) -> int:
    """The newest format that may be written.

    Args:
        members: The formats that each registered broker reads.
        own: Those that the writer reads, and can write.

    Returns:
        The newest that all of them read. If there is none, the oldest of its own: then a broker is stopped in any case.
    """
    common = set(own).intersection(*members)
    return max(common, default=min(own))


def formats_of(info: Mapping[str, Any]) -> frozenset[int]:
    """The formats in a registry record; without them its version reads the first one only."""
    named = info.get("formats")
    if type(named) is not list or len(named) > _NAMED_MAX:
        return frozenset({FORMAT})
    return frozenset(number for number in named if type(number) is int and number >= FORMAT) or frozenset({FORMAT})


def held_back_by(members: Mapping[str, Collection[int]]) -> tuple[int, tuple[str, ...]]:
    """The newest format that any registered broker reads, and the brokers that do not read it, by name."""
    newest = max((max(formats) for formats in members.values()), default=FORMAT)
    return newest, tuple(sorted(broker for broker, formats in members.items() if newest not in formats))
