"""Whether a move may still be made when its turn comes: what was decided on may have waited for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shedders.booked_moves import on_the_way
from shedders.filters import Filters
from shedders.takers import Takers

if TYPE_CHECKING:
    from shedders.booked_moves import Booked
    from shedders.cluster import Cluster
    from shedders.filter_rules import FilterSettings
    from shedders.plan import Move
    from statechannel.core.picture import Picture

PRICE = 10.0
"""The cluster is not put together anew before so many times the time that it took, while nothing of it has changed."""


class Fresh:
    """The cluster of this moment. Moves come in bursts, and putting it together takes a while where there are many bundles.

    It is taken anew for each change of the channel, of the policies and of who accepts bundles; for load reports alone at most a
    tenth of the time.

    Args:
        cluster: Puts it together.
        policies: Those that stand.
    """

    def __init__(
        self, cluster: Callable[[Picture], Cluster], policies: Callable[[], object], now_s: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._policies = policies
        self._now_s = now_s
        self._of: tuple[object, object, object] = (None, None, None)
        self._last: Cluster | None = None
        self._until_s = float("-inf")

    def of(self, picture: Picture) -> Cluster:
        """The cluster; the one at hand if nothing but load has changed since and it is not too old."""
        begun_s = self._now_s()
        bundles, policies = picture.bundles, self._policies()
        brokers = [(one.broker, one.incarnation, one.accepting) for one in picture.brokers]
        same = bundles is self._of[0] and policies is self._of[1] and brokers == self._of[2]
        if self._last is None or not same or begun_s >= self._until_s:
            self._last = self._cluster(picture)
            self._of = bundles, policies, brokers
            self._until_s = begun_s + PRICE * (self._now_s() - begun_s)
        return self._last


def why_not_now(move: Move, cluster: Cluster, settings: FilterSettings, booked: Sequence[Booked]) -> str | None:
    """Why a move is not to be made any more; None if it is.

    That reports have lapsed since is no reason: moves of the same decision that were made before make them lapse, and what they
    brought is booked.

    Args:
        cluster: As it is now.
        booked: What is on its way, this move among it.
    """
    bundle = cluster.bundles.get(move.bundle)
    if bundle is None:
        return "there is no such bundle any more"
    if bundle.in_flight:
        return "it is on its way already, or being split"
    if bundle.owner != move.source:
        return f"{bundle.owner or 'nobody'} serves it, not {move.source}"
    if bundle.namespace in cluster.policies.excluded:
        return f"{bundle.namespace} is excluded"
    filters = Filters(cluster, settings, on_the_way(one for one in booked if one.bundle != move.bundle))
    if move.destination is None:
        return filters.cannot_leave(bundle)
    fault = Takers(cluster, settings.taker_max_age_s, lapsed=True).unknown(move.destination)
    return f"{move.destination}: {fault}" if fault is not None else filters.can_take(bundle, move.destination)
