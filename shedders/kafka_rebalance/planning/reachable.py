"""Nearest reachable means: what brokers can carry where racks, or partitions that stay, forbid equal loads.

Where racks differ, a rule of racks fixes how much each of them carries: with one replica in each of three racks, a rack of two
brokers holds as much as a rack of four. A range around the mean of all brokers is then out of reach for whole racks, and no move
within them brings one nearer to it. Here loads are levelled as far as the rule allows: no group of brokers can have more without
another, which has as much or less for its part, having less. There is exactly one such division, and it depends on nothing that
a plan moves, so that planning again on the result sees the same ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.scope import Scope
    from shedders.kafka_rebalance.planning.virtual_cluster import Measure

KINDS_MAX: Final = 10
"""Most kinds of replicas that are distinguished, one for each replication factor; others count as free to go anywhere."""


class ReplicaKind(NamedTuple):
    """Partitions with equally many replicas.

    Attributes:
        weight: Load of one replica of each of them.
        replicas: Replicas of each that are on brokers that count.
        least: Fewest of them in each group of brokers.
        most: Most of them in each group of brokers.
    """

    weight: int | Fraction
    replicas: int
    least: tuple[int, ...]
    most: tuple[int, ...]


def kind_in(groups: Sequence[int], weight: int, replicas: int, most_in_group: int) -> ReplicaKind:
    """Kind of partitions with this number of replicas.

    Args:
        most_in_group: Most of them in one group; if they find no place then, only the number of brokers limits them.
    """
    most = [min(most_in_group, size) for size in groups]
    if sum(most) < replicas:
        most = [min(replicas, size) for size in groups]
    whole = sum(most)
    replicas = min(replicas, whole)
    least = tuple(max(0, replicas - (whole - own)) for own in most)
    return ReplicaKind(weight, replicas, least, tuple(most))


def nearest_loads(
    parts: Sequence[Fraction], kinds: Sequence[ReplicaKind], fixed: Sequence[int] | None = None
) -> list[Fraction]:
    """Loads of groups of brokers, as near to their parts as the kinds allow.

    Args:
        parts: Part of the whole that each group should carry.
    """
    loads = [Fraction(0)] * len(parts)
    stays = [0] * len(parts) if fixed is None else list(fixed)
    open_ = [(list(range(len(parts))), [kind.replicas for kind in kinds])]
    while open_:
        groups, counts = open_.pop()
        total = sum(kind.weight * count for kind, count in zip(kinds, counts, strict=True))
        total += sum(stays[group] for group in groups)
        part = sum((parts[group] for group in groups), Fraction(0))
        crowd = _overfull(groups, counts, parts, kinds, stays, total / part) if part else []
        if not crowd:
            for group in groups:
                loads[group] = total * parts[group] / part if part else Fraction(total, len(groups))
            continue
        rest = [group for group in groups if group not in crowd]
        inside = [_most_in(crowd, rest, kind, count) for kind, count in zip(kinds, counts, strict=True)]
        open_ += [(crowd, inside), (rest, [count - own for count, own in zip(counts, inside, strict=True)])]
    return loads


def _most_in(groups: Sequence[int], others: Sequence[int], kind: ReplicaKind, count: int) -> int:
    """Most replicas of a kind that fit into groups, of those that these groups and others share."""
    return min(sum(kind.most[group] for group in groups), count - sum(kind.least[other] for other in others))


def _overfull(
    groups: Sequence[int],
    counts: Sequence[int],
    parts: Sequence[Fraction],
    kinds: Sequence[ReplicaKind],
    stays: Sequence[int],
    level: Fraction,
) -> list[int]:
    """Groups whose equal parts are further beyond what they can hold together than those of any others; none: all fit.

    Each kind is bound either by what these groups hold, or by what the others need; for each choice of the bounds the groups
    can be judged one by one.
    """
    best, crowd = Fraction(0), []
    for bound_by_most in product((True, False), repeat=len(kinds)):
        worth = Fraction(0)
        chosen: list[int] = []
        for kind, count, by_most in zip(kinds, counts, bound_by_most, strict=True):
            if not by_most:
                worth += kind.weight * (count - sum(kind.least[group] for group in groups))
        for group in groups:
            own = stays[group] - level * parts[group]
            for kind, by_most in zip(kinds, bound_by_most, strict=True):
                own += kind.weight * (kind.most[group] if by_most else kind.least[group])
            if own < 0:
                chosen.append(group)
                worth += own
        if worth < best and len(chosen) < len(groups):
            best, crowd = worth, chosen
    return crowd


def nearest_means(scope: Scope, measure: Measure, parts: dict[int, Fraction]) -> dict[int, Fraction]:
    """Load of each broker, as near to its part as the rule of racks, and partitions that stay, allow."""
    brokers = sorted(parts)
    group_of = _groups(scope, brokers)
    groups = sorted({group_of[broker] for broker in brokers})
    members = [[broker for broker in brokers if group_of[broker] == group] for group in groups]
    stays = _staying(scope, measure)
    kinds = _kinds(scope, measure, [len(own) for own in members])
    shares = [sum((parts[broker] for broker in own), Fraction(0)) for own in members]
    loads = nearest_loads(shares, kinds, [sum(stays[broker] for broker in own) for own in members])
    means: dict[int, Fraction] = {}
    for own, load in zip(members, loads, strict=True):
        fixed = [stays[broker] for broker in own]
        moving = ReplicaKind(load - sum(fixed), 1, (0,) * len(own), (1,) * len(own))
        means.update(zip(own, nearest_loads([parts[broker] for broker in own], [moving], fixed), strict=True))
    return means


def _groups(scope: Scope, brokers: Sequence[int]) -> dict[int, int]:
    """Racks, or each broker on its own where there is no rule of racks."""
    spread = scope.spread
    return {broker: broker if spread is None else int(spread.rack[broker]) for broker in brokers}


def _staying(scope: Scope, measure: Measure) -> list[int]:
    """Load of each broker by partitions that stay. B."""
    cluster = scope.cluster
    rows = np.nonzero(scope.frozen)[0]
    at, places = np.nonzero(cluster.replicas[rows] >= 0)
    held = cluster.replicas[rows[at], places]
    loads = np.zeros(len(cluster.broker_ids), dtype=np.int64)
    np.add.at(loads, held, cluster.weight(rows[at], cluster.leader[rows[at]] == held, measure))
    result: list[int] = loads.tolist()
    return result


def _kinds(scope: Scope, measure: Measure, sizes: Sequence[int]) -> list[ReplicaKind]:
    """Kinds of the replicas that may move, and what leading weighs beyond following."""
    cluster = scope.cluster
    follows, leads = cluster.as_follower[measure], cluster.as_leader[measure]
    free = ~scope.frozen
    factors, counts = replica_counts(scope)
    key = factors * (int(counts.max(initial=0)) + 1) + counts
    kinds: list[ReplicaKind] = []
    if follows[free].any():
        values, first = np.unique(key, return_index=True)
        weights = [int(follows[free & (key == value)].sum()) for value in values.tolist()]
        order = sorted(range(len(weights)), key=lambda place: (-weights[place], place))
        for place in order[:KINDS_MAX]:
            row = int(first[place])
            if weights[place] and counts[row]:
                kinds.append(kind_in(sizes, weights[place], int(counts[row]), _most(scope, int(factors[row]))))
        rest = sum(weights[place] * int(counts[first[place]]) for place in order[KINDS_MAX:])
        if rest:
            kinds.append(kind_in(sizes, rest, 1, 1))
    extra = int(np.where(free & scope.led_at_home(), leads - follows, 0).sum())
    if extra:
        kinds.append(kind_in(sizes, extra, 1, 1))
    return kinds


def _most(scope: Scope, factor: int) -> int:
    return 1 if scope.spread is None else int(scope.spread.most[factor])


def replica_counts(scope: Scope) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each partition, all of its replicas at the end, and those on homes. P each."""
    cluster = scope.cluster
    factors = (cluster.replicas >= 0).sum(axis=1) + scope.extra
    counts = (np.append(scope.homes, False)[cluster.replicas]).sum(axis=1) + scope.extra
    rows, _ = scope.coming()
    np.add.at(counts, rows, 1)
    result: tuple[Any, Any] = (factors.astype(np.int64), counts.astype(np.int64))
    return result


class RackMeans:
    """Replicas of a topic on each broker of a rack, as near to equal as the rule of racks allows."""

    def __init__(self, scope: Scope) -> None:
        """Read the scope, whose rule of racks must be set, at its beginning."""
        brokers = np.nonzero(scope.homes)[0].tolist()
        group_of = _groups(scope, brokers)
        self._scope = scope
        self._racks = [
            [broker for broker in brokers if group_of[broker] == group] for group in sorted(set(group_of.values()))
        ]
        self._sizes = [len(rack) for rack in self._racks]
        self._parts = [Fraction(size, len(brokers)) for size in self._sizes]
        self._factors, self._counts = replica_counts(scope)
        self._known: dict[tuple[tuple[int, int, int], ...], list[Fraction]] = {}

    @property
    def even(self) -> bool:
        """Whether all racks have equally many brokers, so that each of them can hold as much."""
        return len(set(self._sizes)) == 1

    def of_topic(self, topic: int) -> list[tuple[list[int], Fraction]]:
        first = self._scope.cluster.first_of
        rows = slice(int(first[topic]), int(first[topic + 1]))
        pairs, numbers = np.unique(
            np.stack((self._factors[rows], self._counts[rows]), axis=1), axis=0, return_counts=True
        )
        key = tuple(
            (factor, own, number) for (factor, own), number in zip(pairs.tolist(), numbers.tolist(), strict=True)
        )
        if key not in self._known:
            kinds = [
                kind_in(self._sizes, number, own, _most(self._scope, factor)) for factor, own, number in key if own
            ]
            loads = nearest_loads(self._parts, kinds)
            self._known[key] = [load / size for load, size in zip(loads, self._sizes, strict=True)]
        return list(zip(self._racks, self._known[key], strict=True))
