"""The leader's decisions: one cycle after the other, from what is known to moves under way. Pure but for what it is handed.

`Balance` holds what a leader remembers between cycles. It is told the time, given clusters, and says what to do; the loop
around it (`shedders.balancer.balancer`) does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shedders.decision.booked_moves import BookedMoves, EndedBooking
from shedders.decision.budget import Admitted, DecisionRules, allowed
from shedders.decision.dry_run import Decision, decide
from shedders.model.cluster import Bundle, Cluster, RecentMoves
from shedders.model.moved_cluster import offspring, with_estimates

if TYPE_CHECKING:
    from shedders.balancer.active_strategies import ActiveStrategies
    from shedders.model.plan import BundleMove


@dataclass(slots=True)
class Balance:
    """One leader's memory.

    Attributes:
        booked: Moves on their way.
        memory: Of the shedding strategy, by its name: another strategy starts without.
        estimates: Bundles that were split off and that nobody has measured yet; at most `estimates_max`.
    """

    booked: BookedMoves
    memory: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    estimates: dict[str, Bundle] = field(default_factory=dict)
    number: int = 0
    estimates_max: int = 10_000

    def look(self, cluster: Cluster, now_s: float) -> tuple[Cluster, Sequence[EndedBooking]]:
        """Compare what is booked with the cluster, and add what this leader knows beside it."""
        ended = self.booked.acknowledge(cluster, now_s)
        self._forget_estimates(cluster)
        known = with_estimates(cluster, self.estimates) if self.estimates else cluster
        return replace(known, recent=_newer(cluster.recent, self.booked.recent(now_s))), ended

    def question(self, cluster: Cluster, chosen: ActiveStrategies) -> Callable[[], Decision]:
        """The decision on a cluster as `look` gave it, ready to be made.

        It may take a while, so it is made in a thread. Everything that this leader remembers is taken now: what ends in the
        loop meanwhile does not change what is decided on.
        """
        memory, booked = self.memory.get(chosen.names["shedding"], {}), self.booked.moves
        return lambda: decide(cluster, chosen.shedding, memory, chosen.pipeline, booked=booked)

    def commit(
        self,
        cluster: Cluster,
        chosen: ActiveStrategies,
        decision: Decision,
        rules: DecisionRules,
        now_s: float,
    ) -> tuple[Admitted, Sequence[BundleMove]]:
        """Keep the memory, and book what the rules let through; the moves to make.

        Args:
            rules: With `only_unload` the bundles are let go, and nobody knows who will get them.
        """
        self.memory = {chosen.names["shedding"]: decision.memory}
        admitted = allowed(cluster, decision.moves, self.booked.moves, rules)
        moves = admitted.moves
        if rules.only_unload:
            moves = [replace(move, destination=None) for move in moves]
        return admitted, self.booked.book(cluster, moves, now_s)

    def was_split(self, parent: Bundle, positions: Sequence[int]) -> None:
        """A bundle was split: its children are offered at once, by what is known of the parent."""
        for child in offspring(parent, positions):
            self.estimates[child.name] = child
        while len(self.estimates) > self.estimates_max:
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
