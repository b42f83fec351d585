"""Bundles of a simulated cluster: the channel that assigns them, and a table of their units, owners and demand.

In the channel the real core folds one record after the other, and must accept each. It has one partition, one log and no delay:
the time until a record is read is part of the costs of a trace. Agreement of concurrent writers is not simulated here, but by
`statechannel.sim`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shedders.contest.trace import Demand, Units, sums
from statechannel.engine.cluster_view import BundleSeen, PartitionBundles, part_of
from statechannel.errors import StateChannelError
from statechannel.protocol.bundle import bounds_at, children_of, namespace_bounds, parse_key
from statechannel.protocol.codec import encode
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.sim.drafts import Scribe

if TYPE_CHECKING:
    from shedders.contest.trace import Floats, Ints
    from statechannel.protocol.view import Judgement


_WRITER = "simulation"


class RefusedError(StateChannelError):
    """The core refuses a record of the simulator: a bug of the simulator, never of a strategy."""


class BundleArrival(NamedTuple):
    """An accepted record that gave a bundle to a broker, as `shedders.balancer.cluster_inputs` reads it."""

    bundle: str
    state: State
    from_: str | None
    to: str | None
    offset: int
    partition: int = 0


class ContestChannel:
    """Channel of the simulated cluster.

    Attributes:
        offset: Of the last record.
    """

    def __init__(self) -> None:
        self.view = View(0, 1)
        self.offset = -1
        self._scribe = Scribe(_WRITER, _WRITER)
        self._part: PartitionBundles | None = None
        self._seen: list[BundleSeen] = []

    def create(self, namespace: str, bounds: Sequence[int]) -> list[str]:
        """Create a namespace; its bundles in the order of the ring.

        Args:
            bounds: Ascending from 0 to the end of the ring.
        """
        key = KeyState(namespace, -1, -1)
        fields = self._scribe.proposal(key, self.offset, {"state": State.ACTIVE, "children": children_of(bounds)})
        self._append(key.key, fields)
        return [f"{namespace}/{range_}" for range_ in children_of(bounds)]

    def assign(self, bundle: str, broker: str) -> BundleArrival:
        self._write(bundle, {"state": State.ASSIGNING, "from": None, "to": broker})
        self._write(bundle, {"state": State.ASSIGNED, "from": None, "to": broker})
        return BundleArrival(bundle, State.ASSIGNED, None, broker, self.offset)

    def transfer(self, bundle: str, to: str) -> BundleArrival:
        source = self._key(bundle).owner
        self._write(bundle, {"state": State.RELEASING, "from": source, "to": to})
        self._write(bundle, {"state": State.ASSIGNING, "from": source, "to": to})
        self._write(bundle, {"state": State.ASSIGNED, "from": source, "to": to})
        return BundleArrival(bundle, State.ASSIGNED, source, to, self.offset)

    def unload(self, bundle: str) -> None:
        source = self._key(bundle).owner
        self._write(bundle, {"state": State.RELEASING, "from": source, "to": None})
        self._write(bundle, {"state": State.UNASSIGNED, "from": source, "to": None})

    def remove_owner(self, bundle: str) -> None:
        """Take a bundle from its lost owner, as repair does."""
        self._write(bundle, {"state": State.UNASSIGNED, "from": self._key(bundle).owner, "to": None, "forced": True})

    def split(self, bundle: str, positions: Sequence[int]) -> list[str]:
        """Split a bundle; its children, in the order of the ring, stay with its owner."""
        key = self._key(bundle)
        owner, children = key.owner, children_of(bounds_at(key.lower, key.upper, sorted(positions)))
        self._write(bundle, {"state": State.SPLITTING, "from": owner, "to": None})
        self._write(bundle, {"state": State.DELETED, "from": owner, "to": None, "children": children})
        return [f"{key.namespace}/{range_}" for range_ in children]

    def live_bundles(self) -> Sequence[BundleSeen]:
        """Live bundles, as a member's picture has them; the same list as long as nothing has changed."""
        before = self._part
        self._part = part_of(0, self.view, before)
        if self._part is not before:
            self._seen = list(self._part.seen.values())
        return self._seen

    def bundle_counts(self) -> Mapping[str, int]:
        return self.view.load

    def _key(self, bundle: str) -> KeyState:
        key = self.view.get(bundle)
        if key is None:
            raise RefusedError(f"bundle {bundle} not found", hint="This is a bug in the simulator.")
        return key

    def _write(self, bundle: str, fields: dict[str, object]) -> None:
        key = self._key(bundle)
        self._append(key.key, self._scribe.proposal(key, self.offset, fields))

    def _append(self, key: bytes, fields: dict[str, object]) -> None:
        self.offset += 1
        judgement: Judgement = self.view.read(self.offset, key, encode(fields))
        if judgement.verdict is not Verdict.ACCEPTED:
            raise RefusedError(
                f"record {self.offset} of {key.decode()} is {judgement.verdict}", hint="This is a bug in the simulator."
            )


def bounds_of(bundles: int, bounds: Sequence[int]) -> Sequence[int]:
    """Bounds of a namespace: those given, else equal parts."""
    return bounds or namespace_bounds(bundles)


NOBODY = -1
RESOURCES = 6
"""Rows of demand: messages in and out, bytes in and out, CPU, direct memory."""
MSG_IN, MSG_OUT, BYTES_IN, BYTES_OUT, CPU, MEMORY = range(RESOURCES)


class BundleTable:
    """Bundles as arrays; a bundle keeps its number for ever, and one that was split is no longer live.

    Attributes:
        names: By number.
        owner: Number of the broker that serves it, `NOBODY` where none does; one entry a bundle.
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
        self._add(names, np.flatnonzero(self._units.namespace == index))

    def split(self, parent: str, children: Sequence[str]) -> None:
        """Replace a bundle by its children, which have its owner."""
        number = self.number[parent]
        first = self._add(children, np.flatnonzero(self._of_unit == number))
        self.owner[first:] = self.owner[number]
        self.owner[number], self.live[number] = NOBODY, False

    def units_of(self, bundle: str) -> Ints:
        return np.flatnonzero(self._of_unit == self.number[bundle])

    def units_in(self, bundles: Ints) -> Ints:
        return np.flatnonzero(np.isin(self._of_unit, bundles))

    def demand(self, demand: Demand) -> Floats:
        """Demand by resource (row) and bundle (column)."""
        known = self._of_unit >= 0
        if known.all():
            where, rows = self._of_unit, list(demand)
        else:
            where, rows = self._of_unit[known], [row[known] for row in demand]
        return np.stack([sums(where, row, len(self)) for row in rows])

    def by_broker(self, rows: Floats, brokers: int) -> Floats:
        served = self.owner >= 0
        where = self.owner[served]
        return np.stack([sums(where, row[served], brokers) for row in rows])

    def served_by(self, broker: int) -> Iterator[str]:
        for number in np.flatnonzero(self.owner == broker):
            yield self.names[number]

    def _add(self, names: Sequence[str], units: Ints) -> int:
        """Add adjacent bundles, in the order of the ring, that share these units; the number of the first."""
        first, more = len(self.names), len(names)
        for name in names:
            self.number[name] = len(self.names)
            self.names.append(name)
        self.owner = np.concatenate([self.owner, np.full(more, NOBODY, dtype=np.int64)])
        self.live = np.concatenate([self.live, np.ones(more, dtype=np.bool_)])
        self.place = np.empty(len(self.names), dtype=np.int64)
        self.place[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))
        lowers = np.array([_lower(name) for name in names], dtype=np.int64)
        self._of_unit[units] = first + np.searchsorted(lowers, self._units.position[units], side="right") - 1
        known = self._of_unit[self._of_unit >= 0]
        sessions = self._units.sessions[self._of_unit >= 0].astype(np.float64)
        self.topics = np.bincount(known, minlength=len(self))
        self.sessions = np.bincount(known, weights=sessions, minlength=len(self)).astype(np.int64)
        return first


def _lower(name: str) -> int:
    parts = parse_key(name.encode())
    if parts is None:
        raise ValueError(f"{name} is not a bundle")
    return parts.lower
