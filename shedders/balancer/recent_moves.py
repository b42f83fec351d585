"""Recent moves as every broker sees them in the log: a new leader knows those of the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from loaddata.view.ownership import AcceptedChange
from shedders.model.cluster import RecentMoves
from statechannel.protocol.states import State

REMEMBERED_MAX = 100_000


class AcceptedOfBundle(AcceptedChange, Protocol):
    """An accepted record with its bundle; `statechannel.broker.changes.Change` implements it."""

    @property
    def bundle(self) -> str:
        """Its key."""
        ...


class RecentTrail:
    """Fold of accepted records: when a bundle came to another broker, and which two brokers took part.

    Args:
        keep_s: How long a move is remembered.
        most: Maximum number of bundles, and of brokers; beyond it the oldest is forgotten.
    """

    def __init__(self, keep_s: Callable[[], float], most: Callable[[], int] = lambda: REMEMBERED_MAX) -> None:
        self._keep_s = keep_s
        self._most = most
        self._bundles: dict[str, float] = {}
        self._brokers: dict[str, float] = {}

    def changed(self, change: AcceptedOfBundle, now_s: float) -> None:
        """Take note of an accepted record."""
        if change.state is not State.ASSIGNED or change.from_ in (None, change.to) or change.to is None:
            return
        self._note(self._bundles, change.bundle, now_s)
        self._note(self._brokers, str(change.from_), now_s)
        self._note(self._brokers, change.to, now_s)

    def recent(self, now_s: float) -> RecentMoves:
        """Ages in seconds, by name."""
        keep_s = self._keep_s()
        for table in (self._bundles, self._brokers):
            while table and now_s - next(iter(table.values())) > keep_s:
                del table[next(iter(table))]
        return RecentMoves(
            {name: now_s - self._bundles[name] for name in sorted(self._bundles)},
            {name: now_s - self._brokers[name] for name in sorted(self._brokers)},
        )

    def _note(self, table: dict[str, float], name: str, now_s: float) -> None:
        table.pop(name, None)
        table[name] = now_s
        if len(table) > self._most():
            del table[next(iter(table))]
