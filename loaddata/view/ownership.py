"""Changes of ownership that affect a broker's load, as positions of the channel's log. Pure.

A report names, by partition, the position up to which its figures count changes of its own bundles. A reader that knows of
a later change marks the report as stale. Positions of one log are compared, never clocks of two machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from statechannel.protocol.states import State

GIVES_AWAY = frozenset({State.ASSIGNING, State.UNASSIGNED, State.DELETED})
"""States after which the broker named in `from` no longer serves the bundle (or serves its parts instead)."""


class OwnershipChange(NamedTuple):
    """A bundle came to a broker, or left it."""

    broker: str
    partition: int
    offset: int


class AcceptedChange(Protocol):
    """An accepted record; `statechannel.broker.changes.Change` implements it."""

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def state(self) -> State: ...

    @property
    def from_(self) -> str | None: ...

    @property
    def to(self) -> str | None: ...


def change_of(accepted: AcceptedChange) -> OwnershipChange | None:
    """The broker whose load an accepted record changes.

    Assigned: the new owner. Assigning, Unassigned, Deleted: the one that gave the bundle away or split it. While it is
    Releasing or Splitting its owner still serves it. (Upstream deletes load data at Releasing, Splitting and Owned.)
    """
    broker = accepted.to if accepted.state is State.ASSIGNED else None
    if accepted.state in GIVES_AWAY:
        broker = accepted.from_
    return None if broker is None else OwnershipChange(broker, accepted.partition, accepted.offset)


def newest_changes(assigned: Iterable[OwnershipChange]) -> list[OwnershipChange]:
    """The newest change for each broker and partition, sorted, for a reader that missed changes.

    A broker that lost a bundle meanwhile, and got none since, is not among them; it reports by itself as soon as its figures
    show the loss.
    """
    newest: dict[tuple[str, int], int] = {}
    for broker, partition, offset in assigned:
        newest[broker, partition] = max(newest.get((broker, partition), -1), offset)
    return [OwnershipChange(broker, partition, newest[broker, partition]) for broker, partition in sorted(newest)]


@dataclass(slots=True)
class OwnChanges:
    """The positions up to which this broker's figures count changes.

    A position is counted once `settle_s` have passed since it was applied: rates need a moment to show a bundle that
    came or went. One sample of all positions ripens at a time, so that nothing waits longer than twice `settle_s` even
    where bundles come and go all the time, and positions advance also where nothing of this broker's changes.

    Attributes:
        settled: Counted offset, by partition.
    """

    settle_s: float
    settled: dict[int, int] = field(default_factory=dict)
    _waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    _ripening: Mapping[int, int] | None = None
    _ripening_s: float = 0.0

    def started(self, positions: Mapping[int, int]) -> None:
        """Count the positions applied before this broker's first reading."""
        _raise_to(self.settled, positions)

    def changed(self, partition: int, offset: int) -> None:
        """Record that one of this broker's bundles came or went."""
        first, last = self._waiting.get(partition, (offset, offset))
        self._waiting[partition] = (min(first, offset), max(last, offset))

    def ripen(self, positions: Mapping[int, int], now_s: float) -> bool:
        """Count the changes that have settled.

        Args:
            positions: Offset through which each partition is applied now.
            now_s: Monotonic.

        Returns:
            Whether they include a change of this broker's own: then a report is due.
        """
        ripe = False
        if self._ripening is not None and now_s >= self._ripening_s + self.settle_s:
            _raise_to(self.settled, self._ripening)
            self._ripening = None
            ripe = self._take_in()
        if self._ripening is None:
            self._ripening, self._ripening_s = dict(positions), now_s
        return ripe

    def _take_in(self) -> bool:
        """Count waiting changes up to the settled position; the rest of a range keeps waiting."""
        ripe = False
        for partition, (first, last) in list(self._waiting.items()):
            settled = self.settled.get(partition, -1)
            ripe = ripe or first <= settled
            if last <= settled:
                del self._waiting[partition]
            else:
                self._waiting[partition] = (max(first, settled + 1), last)
        return ripe


def _raise_to(table: dict[int, int], more: Mapping[int, int]) -> None:
    for partition, offset in more.items():
        table[partition] = max(table.get(partition, -1), offset)
