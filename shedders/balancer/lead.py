"""The leader's memory between cycles, and its decisions. Pure except for the strategies it is passed.

`Balance` gets times and clusters, and returns moves; the loop around it (`shedders.balancer.balancer`) makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from loaddata.bulk import uncollected
from shedders.decision.booked_moves import Admitted, BookedMoves, DecisionRules, EndedBooking, allowed
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
        memory: Of the shedding strategy, by its name: another strategy starts without.
        estimates: Unmeasured children of splits; at most `estimates_max`.
    """

    booked: BookedMoves
    memory: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    estimates: dict[str, Bundle] = field(default_factory=dict)
    number: int = 0
    estimates_max: int = 10_000

    def look(self, cluster: Cluster, now_s: float) -> tuple[Cluster, Sequence[EndedBooking]]:
        """Compare the bookings with the cluster, and add this leader's own estimates and recent moves."""
        ended = self.booked.acknowledge(cluster, now_s)
        self._forget_estimates(cluster)
        known = with_estimates(cluster, self.estimates) if self.estimates else cluster
        return replace(known, recent=_newer(cluster.recent, self.booked.recent(now_s))), ended

    def question(self, cluster: Cluster, chosen: ActiveStrategies) -> Callable[[], Decision]:
        """A function that makes the decision on a cluster from `look`.

        It may take a while, so it runs in a thread. The leader's memory is captured now: moves that end in the loop meanwhile
        do not change the input of the decision.
        """
        memory, booked = self.memory.get(chosen.names["shedding"], {}), self.booked.moves

        def make_decision() -> Decision:
            # Nearly all objects of a decision are freed when it ends: collections meanwhile took a third of its time.
            with uncollected(lasting=False):
                return decide(cluster, chosen.shedding, memory, chosen.pipeline, booked=booked)

        return make_decision

    def commit(
        self, cluster: Cluster, chosen: ActiveStrategies, decision: Decision, rules: DecisionRules, now_s: float
    ) -> tuple[Admitted, Sequence[BundleMove]]:
        """Keep the memory, and book the moves that the rules admit; the moves to make.

        Args:
            rules: With `only_unload` the bundles are unloaded, and their destinations are not known.
        """
        self.memory = {chosen.names["shedding"]: decision.memory}
        admitted = allowed(cluster, decision.moves, self.booked.moves, rules)
        moves = admitted.moves
        if rules.only_unload:
            moves = [replace(move, destination=None) for move in moves]
        return admitted, self.booked.book(cluster, moves, now_s)

    def was_split(self, parent: Bundle, positions: Sequence[int]) -> None:
        """Record a split: its children may be moved at once, with estimates from the parent."""
        for child in offspring(parent, positions):
            self.estimates[child.name] = child
        while len(self.estimates) > self.estimates_max:
            del self.estimates[next(iter(self.estimates))]

    def _forget_estimates(self, cluster: Cluster) -> None:
        for name in list(self.estimates):
            bundle = cluster.bundles.get(name)
            if bundle is None or bundle.stats is not None:
                del self.estimates[name]


def _newer(left: RecentMoves, right: RecentMoves) -> RecentMoves:
    return RecentMoves(_youngest(left.bundles, right.bundles), _youngest(left.brokers, right.brokers))


def _youngest(left: Mapping[str, float], right: Mapping[str, float]) -> Mapping[str, float]:
    never = float("inf")
    return {name: min(left.get(name, never), right.get(name, never)) for name in sorted({*left, *right})}
