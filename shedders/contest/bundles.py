"""Bundles of a simulated cluster as arrays: their units, owners and demand.

A bundle keeps its number for ever; a bundle that was split is no longer live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shedders.contest.trace import Demand, Units
from statechannel.protocol.bundle import FULL_UPPER, parse_key

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints

NOBODY = -1
RESOURCES = 6
"""Rows of demand: messages in and out, bytes in and out, CPU, direct memory."""
MSG_IN, MSG_OUT, BYTES_IN, BYTES_OUT, CPU, MEMORY = range(RESOURCES)


class BundleTable:
    """See the module.

    Attributes:
        names: By number.
        owner: Number of the broker that serves it, `NOBODY` where none does; one entry a bundle.
        live: Whether it was not split.
        topics, sessions: Of its units.
        place: Of its name among all names, sorted.
    """

    def __init__(self, units: Units) -> None:
        self._units = units
        self._of_unit: Ints = np.full(len(units.position), NOBODY, dtype=np.int64)
        self.names: list[str] = []
        self.number: dict[str, int] = {}
        self.owner: Ints = np.zeros(0, dtype=np.int64)
        self.live = np.zeros(0, dtype=np.bool_)
        self.topics: Ints = np.zeros(0, dtype=np.int64)
        self.sessions: Ints = np.zeros(0, dtype=np.int64)
        self.place: Ints = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def add_namespace(self, index: int, names: Sequence[str]) -> None:
        """Add the bundles of a namespace, in the order of the ring, without owners.

        Args:
            index: Number of the namespace, as units have it.
        """
        first = self._grow(names)
        lowers = np.array([_range(name)[0] for name in names], dtype=np.int64)
        mine = np.flatnonzero(self._units.namespace == index)
        self._of_unit[mine] = first + np.searchsorted(lowers, self._units.position[mine], side="right") - 1
        self._count()

    def split(self, parent: str, children: Sequence[str]) -> None:
        """A bundle is cut; its children have its owner."""
        number = self.number[parent]
        first = self._grow(children)
        self.owner[first:] = self.owner[number]
        self.owner[number], self.live[number] = NOBODY, False
        lowers = np.array([_range(name)[0] for name in children], dtype=np.int64)
        mine = np.flatnonzero(self._of_unit == number)
        self._of_unit[mine] = first + np.searchsorted(lowers, self._units.position[mine], side="right") - 1
        self._count()

    def units_of(self, bundle: str) -> Ints:
        """Numbers of the units that fall into a bundle."""
        return np.flatnonzero(self._of_unit == self.number[bundle])

    def demand(self, demand: Demand) -> Floats:
        """Demand by resource (row) and bundle (column)."""
        known = self._of_unit >= 0
        if known.all():
            where, rows = self._of_unit, list(demand)
        else:
            where, rows = self._of_unit[known], [row[known] for row in demand]
        return np.stack([_sums(where, row, len(self)) for row in rows])

    def by_broker(self, rows: Floats, brokers: int) -> Floats:
        """Sums by broker of what its bundles have."""
        served = self.owner >= 0
        where = self.owner[served]
        return np.stack([_sums(where, row[served], brokers) for row in rows])

    def served_by(self, broker: int) -> Iterator[str]:
        """Names of its bundles, by number."""
        for number in np.flatnonzero(self.owner == broker):
            yield self.names[number]

    def _grow(self, names: Sequence[str]) -> int:
        first, more = len(self.names), len(names)
        for name in names:
            self.number[name] = len(self.names)
            self.names.append(name)
        self.owner = np.concatenate([self.owner, np.full(more, NOBODY, dtype=np.int64)])
        self.live = np.concatenate([self.live, np.ones(more, dtype=np.bool_)])
        self.place = np.empty(len(self.names), dtype=np.int64)
        self.place[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))
        return first

    def _count(self) -> None:
        known = self._of_unit[self._of_unit >= 0]
        sessions = self._units.sessions[self._of_unit >= 0].astype(np.float64)
        self.topics = np.bincount(known, minlength=len(self))
        self.sessions = np.bincount(known, weights=sessions, minlength=len(self)).astype(np.int64)


def _sums(where: Ints, values: Floats, count: int) -> Floats:
    """Added up in order, one after the other: the same on every machine. Without values numpy would give whole numbers."""
    return np.bincount(where, weights=values, minlength=count).astype(np.float64)


def _range(name: str) -> tuple[int, int]:
    parts = parse_key(name.encode())
    if parts is None:
        raise ValueError(f"{name} is not a bundle")
    return parts.lower, parts.upper if parts.upper != FULL_UPPER else FULL_UPPER + 1
