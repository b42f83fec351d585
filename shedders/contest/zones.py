"""Brokers that policies allow for bundles in the simulator: the bound of each part of a divided cluster, and what is misplaced.

Isolation divides brokers; a pin leaves one. Anti-affinity forbids nothing, and a lower bound may leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shedders.filters.isolation import Isolation, Zone
from shedders.filters.rules import inherited
from shedders.model.cluster import Broker

if TYPE_CHECKING:
    from shedders.contest.bundles import BundleTable
    from shedders.contest.measures import MachineCapacity
    from shedders.contest.trace import Floats, Ints
    from shedders.model.cluster import Policies

Allowed = frozenset[int]
"""Numbers of brokers."""


class PolicyZones:
    """Brokers that policies allow. Answers are cached until brokers come or go, or bundles are created or split.

    Args:
        names: Of all brokers, by number.
    """

    def __init__(self, policies: Policies, names: Sequence[str], table: BundleTable) -> None:
        self._policies = policies
        self._names = names
        self._table = table
        self._of: tuple[tuple[int, ...], int] | None = None
        self._groups: Mapping[Allowed, Ints] = {}

    def groups(self, alive: Ints) -> Mapping[Allowed, Ints]:
        """Numbers of the live bundles by the brokers that are allowed for them; without those that no broker may have."""
        key = tuple(alive.tolist()), len(self._table)
        if key != self._of:
            self._of, self._groups = key, self._grouped(key[0])
        return self._groups

    def _grouped(self, alive: tuple[int, ...]) -> Mapping[Allowed, Ints]:
        if not (self._policies.isolation or self._policies.pins):
            return {frozenset(alive): np.flatnonzero(self._table.live)} if alive else {}
        by_allowed: dict[Allowed, list[int]] = {}
        for number, allowed in self._each(alive):
            if allowed:
                by_allowed.setdefault(allowed, []).append(number)
        return {allowed: np.array(by_allowed[allowed], np.int64) for allowed in sorted(by_allowed, key=sorted)}

    def parts(
        self, wanted: Floats, alive: Ints, capacity: MachineCapacity, topics: Callable[[Ints], Floats]
    ) -> Iterator[tuple[Ints, float]]:
        """Brokers among which load can be moved, directly or by way of others, and the bound of their largest load.

        The bound is the least that any placement could have, however bundles are split: all brokers equally full in the scarcest
        resource, or the largest topic alone.

        Args:
            wanted: Demand by bundle.
            topics: Demand of the topics of bundles.
        """
        groups = self.groups(alive)
        for part in _connected([frozenset([number]) for number in alive.tolist()], groups):
            inside = {allowed: bundles for allowed, bundles in groups.items() if allowed <= part}
            bound = 0.0
            for brokers in {*inside, part}:
                within = [bundles for allowed, bundles in inside.items() if allowed <= brokers]
                columns = np.concatenate(within) if within else np.zeros(0, np.int64)
                least = capacity.even_load(wanted[:, columns], _array(brokers))
                bound = max(bound, least)
            for allowed, bundles in inside.items():
                brokers_of = _array(allowed)
                large = bundles[capacity.single_loads(wanted[:, bundles], brokers_of) > bound]
                if len(large):
                    bound = max(bound, float(capacity.single_loads(topics(large), brokers_of).max(initial=0.0)))
            yield _array(part), bound

    def misplaced(self, alive: Ints) -> int:
        owner = self._table.owner
        return sum(
            int(((owner[bundles] >= 0) & ~np.isin(owner[bundles], _array(allowed))).sum())
            for allowed, bundles in self.groups(alive).items()
        )

    def _each(self, alive: tuple[int, ...]) -> Iterator[tuple[int, Allowed]]:
        brokers = {self._names[number]: Broker(self._names[number]) for number in alive}
        numbers = {self._names[number]: number for number in alive}
        isolation = Isolation(tuple(self._policies.isolation), brokers)
        live = np.flatnonzero(self._table.live).tolist()
        names = [self._table.names[number] for number in live]
        pins = inherited(self._policies, names).pins
        zones: dict[str, Allowed] = {}
        for number, name in zip(live, names, strict=True):
            namespace = name.rpartition("/")[0]
            if namespace not in zones:
                zones[namespace] = frozenset(numbers[broker] for broker in _usable(isolation.zone(namespace), brokers))
            allowed, pin = zones[namespace], pins.get(name, pins.get(namespace))
            yield number, allowed if pin is None else allowed & {numbers.get(pin, -1)}


def _usable(zone: Zone | None, brokers: Mapping[str, Broker]) -> frozenset[str]:
    """Primaries, and secondaries where too few of those are alive."""
    if zone is None:
        return frozenset(brokers)
    if zone.broken is not None:
        return frozenset()
    return zone.primary if len(zone.primary) >= zone.min_available else zone.primary | zone.secondary


def _connected(brokers: Sequence[Allowed], groups: Mapping[Allowed, Ints]) -> list[Allowed]:
    """Parts of the brokers that no group of bundles connects."""
    parts = list(brokers)
    for allowed in groups:
        touched = [part for part in parts if part & allowed]
        parts = [part for part in parts if not part & allowed] + [frozenset().union(*touched)]
    return sorted(parts, key=sorted)


def _array(numbers: Allowed) -> Ints:
    return np.array(sorted(numbers), np.int64)
