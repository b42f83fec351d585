"""The leader's decisions: one cycle after the other, from what is known to moves under way. Pure but for what it is handed.

`Balance` holds what a leader remembers between cycles. It is told the time, given clusters, and says what to do; the loop
around it (`shedders.live.balancer`) does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shedders.booked_moves import BookedMoves, Ended
from shedders.budget import Admitted, admit
from shedders.cluster import Bundle, Cluster, RecentMoves
from shedders.dry_run import Decision, decide
from shedders.offspring import offspring, with_estimates

if TYPE_CHECKING:
    from shedders.budget import BudgetSettings
    from shedders.live.chosen import Chosen
    from shedders.plan import Move

ESTIMATES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle came to.

    Attributes:
        cluster: What it was made from, bookings apart.
        skipped: Why nothing was decided; None if something was.
        moves: Those to make now.
        ended: Bookings that ended since the last cycle.
    """

    number: int
    cluster: Cluster
    skipped: str | None = None
    decision: Decision | None = None
    admitted: Admitted | None = None
    moves: Sequence[Move] = ()
    ended: Sequence[Ended] = ()


@dataclass(slots=True)
class Balance:
    """One leader's memory.

    Attributes:
        booked: Moves on their way.
        memory: Of the shedding strategy, by its name: another strategy starts without.
        estimates: Bundles that were split off and that nobody has measured yet.
    """

    booked: BookedMoves
    budget: BudgetSettings
    memory: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    estimates: dict[str, Bundle] = field(default_factory=dict)
    number: int = 0

    def look(self, cluster: Cluster, now_s: float) -> tuple[Cluster, Sequence[Ended]]:
        """Compare what is booked with the cluster, and add what this leader knows beside it."""
        ended = self.booked.acknowledge(cluster, now_s)
        self._forget_estimates(cluster)
        known = with_estimates(cluster, self.estimates) if self.estimates else cluster
        return replace(known, recent=_newer(cluster.recent, self.booked.recent(now_s))), ended

    def decide(self, cluster: Cluster, chosen: Chosen) -> Decision:
        """Decide on a cluster as `look` gave it. May take a while: called in a thread; changes nothing but the pipeline's memory.

        Raises:
            StrategyFailedError: A strategy raises or plans nonsense.
        """
        memory = self.memory.get(chosen.names["shedding"], {})
        return decide(cluster, chosen.shedding, memory, chosen.pipeline, booked=self.booked.moves)

    def commit(
        self, cluster: Cluster, chosen: Chosen, decision: Decision, now_s: float
    ) -> tuple[Admitted, Sequence[Move]]:
        """Keep the memory, and book what the budget lets through; the moves to make."""
        self.memory = {chosen.names["shedding"]: decision.memory}
        admitted = admit(cluster, decision.moves, self.booked.moves, self.budget)
        return admitted, self.booked.book(cluster, admitted.moves, now_s)

    def was_split(self, parent: Bundle, positions: Sequence[int]) -> None:
        """A bundle was split: its children are offered at once, by what is known of the parent."""
        for child in offspring(parent, positions):
            self.estimates[child.name] = child
        while len(self.estimates) > ESTIMATES_MAX:
            del self.estimates[next(iter(self.estimates))]

    def _forget_estimates(self, cluster: Cluster) -> None:
        for name in list(self.estimates):
            bundle = cluster.bundles.get(name)
            if bundle is None or bundle.stats is not None:
                del self.estimates[name]


def _newer(one: RecentMoves, other: RecentMoves) -> RecentMoves:
    """The smaller age of each."""
    return RecentMoves(_youngest(one.bundles, other.bundles), _youngest(one.brokers, other.brokers))


def _youngest(one: Mapping[str, float], other: Mapping[str, float]) -> Mapping[str, float]:
    return {name: min(one.get(name, float("inf")), other.get(name, float("inf"))) for name in sorted({*one, *other})}
