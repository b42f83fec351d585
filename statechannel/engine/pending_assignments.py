"""Bundles that records of this process assign, and that were not read back yet; and how many each broker gets by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class PendingAssignment(NamedTuple):
    """The broker that a record of this process chose for a bundle; the record was not read back yet."""

    broker: str | None
    at_s: float


class PendingAssignments:
    """The choices by bundle. How many go to each broker is kept: a storm asks that for every bundle."""

    def __init__(self) -> None:
        self._chosen: dict[str, PendingAssignment] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._chosen)

    def __contains__(self, bundle: str) -> bool:
        return bundle in self._chosen

    @property
    def counts(self) -> Mapping[str, int]:
        """Pending bundles, by broker."""
        return self._counts

    def add(self, bundle: str, chosen: PendingAssignment) -> None:
        """The record is written."""
        self.drop(bundle)
        self._chosen[bundle] = chosen
        if chosen.broker is not None:
            self._counts[chosen.broker] = self._counts.get(chosen.broker, 0) + 1

    def drop(self, bundle: str) -> None:
        """The record was read back, or is given up."""
        chosen = self._chosen.pop(bundle, None)
        if chosen is None or chosen.broker is None:
            return
        left = self._counts[chosen.broker] - 1
        if left:
            self._counts[chosen.broker] = left
        else:
            del self._counts[chosen.broker]

    def drop_late(self, now_s: float, patience_s: float) -> bool:
        """Forget those that were written longer ago than this: the record is lost, or late. Whether there were any."""
        late = [bundle for bundle, chosen in self._chosen.items() if now_s - chosen.at_s > patience_s]
        for bundle in late:
            self.drop(bundle)
        return bool(late)

    def clear(self) -> None:
        """Forget all."""
        self._chosen.clear()
        self._counts.clear()
