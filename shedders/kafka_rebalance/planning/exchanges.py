"""Exchanges: a moved replica goes back, and cheaper moves keep what its move was for.

A chain begins with a replica that returns to the broker that it came from. Where that leaves a broker out of its limits, the
next step moves a replica away from it, or brings it one, and so on. What the steps copy so far is always less than what the
first one saves, as in the search of Lin and Kernighan, so the first chain that ends within all limits copies less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, MoveReplica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shedders.kafka_rebalance.goals.goal import Goal
    from shedders.kafka_rebalance.planning.limits import GoalLimits
    from shedders.kafka_rebalance.planning.search import Search

WIDTHS: Final = ((12, 6, 3, 2), (60, 30, 15, 8, 4))
"""Most chains that are followed from a chain, by its length; the wider search follows where the narrow one finds nothing."""
CHAINS_MAX: Final = (250, 2_000)
"""Most chains that are looked at after one first step, in either search."""
ALL_CHAINS_MAX: Final = 40_000
"""Most chains of a goal that are looked at for one plan: with more goals each chain costs more, and fewer are looked at."""
CHOICES: Final = 6
"""Exchanges of which the one that saves most is made."""
FIRST_MAX: Final = 100
"""Most replicas that are sent back, the largest first."""


class _Chain(NamedTuple):
    """Steps that are only good together: partition, source and destination of each; what brokers get, M x B; bytes copied."""

    steps: tuple[tuple[int, int, int], ...]
    change: NDArray[np.int64]
    copied_bytes: int


class _Moves(NamedTuple):
    """Possible steps, n each: a replica, its broker, its destination, whether it leads, and the bytes that it copies more."""

    partitions: NDArray[np.int64]
    sources: NDArray[np.int64]
    to: NDArray[np.int64]
    leads: NDArray[np.bool_]
    copied_bytes: NDArray[np.int64]

    def of(self, rows: Any) -> _Moves:
        """Some of them."""
        return _Moves(
            self.partitions[rows], self.sources[rows], self.to[rows], self.leads[rows], self.copied_bytes[rows]
        )


def exchange(search: Search, goals: Sequence[Goal], limits: GoalLimits, settle: Callable[[], None]) -> None:
    """Make exchanges that copy less, as long as no cell of a measure gets (further) out of its range, and no goal worse.

    Args:
        search: State of the search.
        goals: All goals.
        limits: Their joint limits.
        settle: Continues the search of all goals to its end.

    Raises:
        TimeSpentError: The time budget is spent.
    """
    left = ALL_CHAINS_MAX // len(goals)
    for widths, most in zip(WIDTHS, CHAINS_MAX, strict=True):
        better = True
        while better and left > 0:
            exchanges = _Exchanges(search, goals, limits, widths)
            better, looked_at = exchanges.make(most, left)
            left -= looked_at
            if better:
                settle()


class _Exchanges:
    def __init__(self, search: Search, goals: Sequence[Goal], limits: GoalLimits, widths: Sequence[int]) -> None:
        self._search, self._goals, self._limits, self._widths = search, goals, limits, widths
        self._rows = sorted({int(search.full_by), *limits.bound})
        self._sums = search.cluster.sums[self._rows]
        self._most = np.maximum(limits.high[self._rows], self._sums)
        self._least = np.minimum(limits.low[self._rows], self._sums)
        mean = self._sums.sum(axis=1) / max(1, int(search.scope.homes.sum()))
        self._scale = mean[self._rows.index(int(search.full_by))] / np.maximum(mean, 1.0)
        self._brokers = np.nonzero(search.scope.homes)[0]
        self._left = 0

    def make(self, most: int, in_all: int) -> tuple[bool, int]:
        """Look for an exchange and make it: whether there was one, and how many chains were looked at."""
        looked_at, wholes = 0, list[_Chain]()
        for chain in self._first():
            if looked_at >= in_all or len(wholes) >= CHOICES:
                break
            self._left = share = min(most, in_all - looked_at)
            whole = self._follow(chain)
            looked_at += share - self._left
            if whole is not None:
                wholes.append(whole)
        if wholes:
            self._make(min(wholes, key=lambda chain: chain.copied_bytes))
        return bool(wholes), looked_at

    def _first(self) -> Iterator[_Chain]:
        cluster, scope = self._search.cluster, self._search.scope
        rows = np.nonzero((cluster.replicas != scope.began).any(axis=1))[0]
        rows = rows[np.lexsort((rows, -cluster.load[rows, LoadColumn.DISK]))][:FIRST_MAX]
        for row in rows.tolist():
            here = cluster.holders(row)
            began = scope.former_holders(row)
            for source in here:
                if source not in began:
                    yield from self._to_former(
                        row, source, np.array([home for home in began if home not in here], dtype=int)
                    )

    def _to_former(self, row: int, source: int, homes: NDArray[np.int64]) -> Iterator[_Chain]:
        moves = self._moves(np.full(len(homes), row), np.full(len(homes), source), homes)
        empty = np.zeros(self._sums.shape, dtype=np.int64)
        for at in range(len(moves.to)):
            yield self._grown(_Chain((), empty, 0), moves, at)

    def _follow(self, chain: _Chain) -> _Chain | None:
        """A chain that begins with this one and may be made; the most promising are followed first."""
        if self._left <= 0 or chain.copied_bytes >= 0:
            return None
        self._left -= 1
        self._search.look()
        beyond = self._beyond(self._sums + chain.change)
        if not beyond.any():
            return None if self._worsens(chain) else chain
        if len(chain.steps) > len(self._widths):
            return None
        measure, broker = np.unravel_index(int((np.abs(beyond) * self._scale[:, None]).argmax()), beyond.shape)
        moves = self._from(int(broker)) if beyond[measure, broker] > 0 else self._to(int(broker))
        copied_bytes = moves.copied_bytes + chain.copied_bytes
        good = copied_bytes < 0
        for partition, source, to in chain.steps:
            good &= (moves.partitions != partition) | ((moves.sources != source) & (moves.to != to))
        moves, copied_bytes = moves.of(good), copied_bytes[good]
        left = self._left_beyond(chain, moves, beyond)
        order = np.lexsort((moves.to, moves.partitions, copied_bytes + left))
        closing = order[left[order] == 0][:1]
        best = np.concatenate([closing, order[: self._widths[len(chain.steps) - 1]]])
        grown = (self._follow(self._grown(chain, moves, at)) for at in dict.fromkeys(best.tolist()))
        return next((whole for whole in grown if whole is not None), None)

    def _grown(self, chain: _Chain, moves: _Moves, at: int) -> _Chain:
        partition, source, to = int(moves.partitions[at]), int(moves.sources[at]), int(moves.to[at])
        change = chain.change.copy()
        for number, row in enumerate(self._rows):
            weight = int(self._search.cluster.weight(moves.partitions[at : at + 1], moves.leads[at : at + 1], row)[0])
            change[number, source] -= weight
            change[number, to] += weight
        return _Chain((*chain.steps, (partition, source, to)), change, chain.copied_bytes + int(moves.copied_bytes[at]))

    # --- steps -------------------------------------------------------------------------------

    def _from(self, broker: int) -> _Moves:
        held = self._search.movable(broker)
        count = len(self._brokers)
        return self._moves(
            np.repeat(held, count), np.full(len(held) * count, broker), np.tile(self._brokers, len(held))
        )

    def _to(self, broker: int) -> _Moves:
        cluster, scope = self._search.cluster, self._search.scope
        partitions, places = np.nonzero(cluster.replicas >= 0)
        sources = cluster.replicas[partitions, places].astype(np.int64)
        fits = scope.movable(partitions, sources)
        partitions, sources = partitions[fits], sources[fits]
        return self._moves(partitions, sources, np.full(len(partitions), broker))

    def _moves(self, partitions: Any, sources: Any, to: Any) -> _Moves:
        """Those that may be made, whatever they do to brokers' sums."""
        cluster, scope = self._search.cluster, self._search.scope
        fits = scope.homes[to] & ~(cluster.replicas[partitions] == to[:, None]).any(axis=1)
        fits &= scope.takers[to] | ~scope.placed(partitions, to)
        fits &= ~scope.emptied[to] & scope.movable(partitions, sources)
        leads = cluster.leader[partitions] == sources
        fits &= ~leads | scope.may_lead(partitions, to)
        if scope.lost is not None:
            fits &= ~(scope.lost[partitions] == to[:, None]).any(axis=1)
        for rule in self._limits.rules:
            fits &= rule.moves_to(partitions, sources, to)
        partitions, sources, to, leads = partitions[fits], sources[fits], to[fits], leads[fits]
        more = scope.placed(partitions, to).astype(np.int64) - scope.placed(partitions, sources)
        return _Moves(partitions, sources, to, leads, more * cluster.load[partitions, LoadColumn.DISK])

    # --- judging -----------------------------------------------------------------------------

    def _beyond(self, sums: Any, brokers: Any = slice(None), row: Any = slice(None)) -> Any:
        """How far above (or, negative, below) their limits brokers are."""
        most, least = self._most[row, brokers], self._least[row, brokers]
        return np.maximum(sums - most, 0) + np.minimum(sums - least, 0)

    def _left_beyond(self, chain: _Chain, moves: _Moves, beyond: Any) -> Any:
        """How far all brokers are out of their limits after each step; other measures as parts of a broker's mean."""
        left = np.zeros(len(moves.to))
        for number, row in enumerate(self._rows):
            weight = self._search.cluster.weight(moves.partitions, moves.leads, row)
            out = np.abs(beyond[number])
            total = np.full(len(weight), int(out.sum())) - out[moves.sources] - out[moves.to]
            for brokers, sign in ((moves.sources, -1), (moves.to, 1)):
                then = self._sums[number, brokers] + chain.change[number, brokers] + sign * weight
                total += np.abs(self._beyond(then, brokers, number))
            left += total * self._scale[number]
        return left

    def _worsens(self, chain: _Chain) -> bool:
        """Whether a goal gets worse by a chain, such as one that counts topics."""
        cluster = self._search.cluster
        before = [goal.spread().excess for goal in self._goals]
        inverses = [cluster.apply(move) for move in self._replica_moves(chain)]
        worse = any(goal.spread().excess > excess for goal, excess in zip(self._goals, before, strict=True))
        for inverse in reversed(inverses):
            cluster.apply(inverse)
        return worse

    def _make(self, chain: _Chain) -> None:
        search = self._search
        search.make(*self._replica_moves(chain), taken_back=True)
        reasons = int(np.bitwise_or.reduce([search.reasons[row] for row, _, _ in chain.steps]))
        for row, _, _ in chain.steps:
            search.leader_first(row)
            search.reasons[row] |= reasons

    def _replica_moves(self, chain: _Chain) -> list[MoveReplica]:
        holders = self._search.cluster.holders
        return [MoveReplica(row, holders(row).index(source), to) for row, source, to in chain.steps]
