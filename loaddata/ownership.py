"""Which changes of ownership change a broker's load, as positions of the channel's log. Pure.

A report names the position up to which its figures take changes of its own bundles in. A reader that knows of a later one
marks the report as lapsed. Positions of one log are compared, never clocks of two machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from statechannel.core.states import State

GIVES_AWAY = frozenset({State.ASSIGNING, State.UNASSIGNED, State.DELETED})
"""States after which the broker named in `from` serves the bundle no more (or serves its parts instead)."""


class OwnershipChange(NamedTuple):
    """A bundle came to a broker, or left it."""

    broker: str
    partition: int
    offset: int


class Accepted(Protocol):
    """What is needed of an accepted record; `statechannel.runtime.changes.Change` has it."""

    @property
    def partition(self) -> int:
        """Partition of the channel."""
        ...

    @property
    def offset(self) -> int:
        """Position in the log."""
        ...

    @property
    def state(self) -> State:
        """State that the record leads to."""
        ...

    @property
    def from_(self) -> str | None:
        """`from` of the record."""
        ...

    @property
    def to(self) -> str | None:
        """`to` of the record."""
        ...


def change_of(accepted: Accepted) -> OwnershipChange | None:
    """The broker whose load an accepted record changes.

    Assigned: the new owner. Assigning, Unassigned, Deleted: the one that gave the bundle away or split it. While it is
    Releasing or Splitting its owner still serves it. (Upstream deletes load data at Releasing, Splitting and Owned.)
    """
    broker = accepted.to if accepted.state is State.ASSIGNED else None
    if accepted.state in GIVES_AWAY:
        broker = accepted.from_
    return None if broker is None else OwnershipChange(broker, accepted.partition, accepted.offset)


class Key(Protocol):
    """What is needed of a key that a view holds; `statechannel.core.keys.KeyState` has it."""

    @property
    def state(self) -> State | None:
        """State that the record leads to."""
        ...

    @property
    def from_(self) -> str | None:
        """`from` of the record."""
        ...

    @property
    def to(self) -> str | None:
        """`to` of the record."""
        ...

    @property
    def offset(self) -> int:
        """Position in the log."""
        ...


def changes_in(partition: int, keys: Iterable[Key]) -> list[OwnershipChange]:
    """The newest change of each broker that a view of a partition still tells, for a reader that has just started.

    A change of a bundle that has changed again since is not seen; the broker that got it last is.
    """
    newest: dict[str, int] = {}
    for key in keys:
        state = key.state
        broker = key.to if state is State.ASSIGNED else key.from_ if state in GIVES_AWAY else None
        if broker is not None:
            newest[broker] = max(newest.get(broker, -1), key.offset)
    return [OwnershipChange(broker, partition, newest[broker]) for broker in sorted(newest)]


@dataclass(slots=True)
class OwnChanges:
    """Changes of this broker's own bundles, and from when on its figures take them in.

    A change counts as taken in once `settle_s` have passed since it: rates need a moment to show a bundle that came or
    went. Changes are dealt with in two groups, the one that ripens and the one that gathers meanwhile, so that nothing
    waits longer than twice `settle_s` even where bundles come and go all the time.

    Attributes:
        settled: Offset of the newest change taken in, by partition.
    """

    settle_s: float
    settled: dict[int, int] = field(default_factory=dict)
    _ripening: dict[int, int] = field(default_factory=dict)
    _ripe_s: float = 0.0
    _gathering: dict[int, int] = field(default_factory=dict)
    _gathered_s: float = 0.0

    def started(self, positions: Mapping[int, int]) -> None:
        """What was accepted before this broker began counts as taken in."""
        _newest(self.settled, positions)

    def changed(self, partition: int, offset: int, now_s: float) -> None:
        """One of this broker's bundles came or went."""
        _newest(self._gathering, {partition: offset})
        self._gathered_s = now_s
        self._promote()

    def ripen(self, now_s: float) -> bool:
        """Take in what is ripe; True if that was anything: a report is due then."""
        ripe = bool(self._ripening) and now_s >= self._ripe_s
        if ripe:
            _newest(self.settled, self._ripening)
            self._ripening = {}
            self._promote()
        return ripe

    def _promote(self) -> None:
        if not self._ripening and self._gathering:
            self._ripening, self._gathering = self._gathering, {}
            self._ripe_s = self._gathered_s + self.settle_s


def _newest(table: dict[int, int], more: Mapping[int, int]) -> None:
    for partition, offset in more.items():
        table[partition] = max(table.get(partition, -1), offset)
