"""Placement pipeline: pins, then filters, then the strategy, with the moves in flight counted.

One `Pipeline` is kept as long as its strategy; it makes new `Filters` for every new cluster, and keeps the strategy's memory.
Shedders ask it what may go where: `pipeline.can_take(cluster)`; and `permitted` goes through the moves of a whole
plan in order, each counted for those after it, so that no two moves together break a policy that each keeps alone. With
`upstream` the moves of a plan are not counted, as Pulsar checks each move on the same data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loaddata.model.broker_load import ResourceWeights
from shedders.errors import StrategyFailedError
from shedders.filters.chain import Filters
from shedders.filters.rules import FilterSettings, pin_of, summary
from shedders.filters.upstream import kind_forgotten
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import BundleMove, Left, Placed, together
from shedders.model.readings import UsageSettings
from shedders.model.strategy import CanTake, Placing

_NOTHING: Mapping[str, Sequence[str]] = {}


class Pipeline:
    """Chooses a broker for a bundle, filters first.

    Attributes:
        memory: What the strategy remembers from one choice to the next.
    """

    def __init__(
        self, strategy: Placing, settings: FilterSettings | None = None, memory: Mapping[str, Any] | None = None
    ) -> None:
        self.strategy = strategy
        self.settings = settings or FilterSettings()
        self.name = strategy.name
        self.memory: dict[str, Any] = dict(memory or {})
        self._filters: Filters | None = None
        self._booked: Mapping[str, Sequence[str]] = _NOTHING
        self._taken: dict[str, int] = {}

    def filters(self, cluster: Cluster, booked: Mapping[str, Sequence[str]] = _NOTHING) -> Filters:
        """The filters on a cluster.

        They are rebuilt only if the cluster or `booked` is another object, or something was removed from `booked`; additions
        to it are applied.
        """
        filters = self._filters
        fewer = any(len(booked.get(broker, ())) < count for broker, count in self._taken.items())
        if filters is None or filters.cluster is not cluster or booked is not self._booked or fewer:
            filters = self._filters = Filters(cluster, self.settings)
            self._booked, self._taken = booked, {}
        for broker in sorted(booked):
            known = self._taken.get(broker, 0)
            if known < len(booked[broker]):
                for name in booked[broker][known:]:
                    filters.book(broker, name)
                self._taken[broker] = len(booked[broker])
        return filters

    def can_take(self, cluster: Cluster, booked: Mapping[str, Sequence[str]] = _NOTHING) -> CanTake:
        """The check for shedders: why a broker may not take a bundle, None if it may."""
        return self.filters(cluster, booked).can_take

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        booked: Mapping[str, Sequence[str]] = _NOTHING,
        among: Collection[str] | None = None,
    ) -> Placed:
        """Choose a broker; none, if the filters leave none.

        Args:
            booked: Bundles in flight to a broker that its report does not count yet.
            among: Brokers to choose from; None: all.

        Raises:
            StrategyFailedError: The strategy raises, or chooses a broker that is not among those offered.
        """
        filters = self.filters(cluster, booked)
        passed = filters.passed(bundle, among)
        if not passed.names:
            return Placed(
                bundle.name, None, f"no broker may take it: {summary(passed.removed)}", removed=passed.removed
            )
        placed = self._chosen(filters, bundle, passed.names)
        hot = None if placed.broker is None else self._too_hot(cluster, placed.broker)
        if hot is not None and pin_of(cluster.policies, bundle) is None:
            allowed = filters.allowed(bundle, among)
            second = self._chosen(filters, bundle, allowed)
            if second.broker is not None:
                # A broker that other filters had removed may take it after all.
                out = {name: fault for name, fault in passed.removed.items() if name not in set(allowed)}
                why = f"{second.why}; chosen again, as {placed.broker} {hot}"
                return replace(second, why=why, removed={**second.removed, **out})
        # The filters' reason takes precedence: they ran first.
        removed = {**placed.removed, **passed.removed} if placed.removed else passed.removed
        return replace(placed, removed=removed)

    __call__ = place

    def _chosen(self, filters: Filters, bundle: Bundle, names: Sequence[str]) -> Placed:
        try:
            placed = self.strategy.place(filters.cluster, bundle, list(names), filters.bookings, self.memory)
        except Exception as error:
            raise StrategyFailedError("placement", self.name, f"fails: {error!r}") from error
        if placed.broker is not None and placed.broker not in names:
            raise StrategyFailedError(
                "placement", self.name, f"names {placed.broker}, which may not take {bundle.name}"
            )
        self.memory = dict(placed.memory)
        return placed

    def _too_hot(self, cluster: Cluster, broker: str) -> str | None:
        """Why upstream's older manager chooses again; None where it does not, and always without `upstream`."""
        if not (self.settings.upstream and self.settings.generation == "modular"):
            return None
        load = cluster.brokers[broker].load
        if load is None:
            return None
        own = getattr(self.strategy, "settings", None)
        weights = own.weights if isinstance(own, UsageSettings) else ResourceWeights()
        limit = float(getattr(own, "overloaded_percent", self.settings.overloaded_percent)) / 100.0
        usage = load.weighted_max(weights)
        return f"has {usage:.3f}, more than {limit:.3f}" if usage > limit else None

    def permitted(
        self, cluster: Cluster, moves: Sequence[BundleMove], booked: Mapping[str, Sequence[str]] = _NOTHING
    ) -> tuple[Sequence[BundleMove], Sequence[Left]]:
        """Those moves of a plan that the filters let pass, and the others with the filter's name as reason.

        Moves between two brokers that exchange bundles (`BundleMove.swap`) go together or not at all. A move without destination
        passes if another broker may take the bundle.
        """
        filters = Filters(cluster, self.settings, booked)
        kept: list[BundleMove] = []
        left: list[Left] = []
        for group in together(moves):
            faults: list[tuple[str, str] | None] = []
            for move in group:
                faults.append(self._refused(filters, move))
                if faults[-1] is None and move.destination is not None and self.counts_moves:
                    filters.book(move.destination, move.bundle)
            refusal = next((entry for entry in faults if entry is not None), None)
            if refusal is None:
                kept += group
                continue
            for move, own in zip(group, faults, strict=True):
                word, why = own or ("swap", f"another bundle of the exchange may not move: {refusal[1]}")
                left.append(Left(move.bundle, word, f"{move.source} to {move.destination or 'any broker'}: {why}"))
            if len(group) > 1:
                filters = self._again(cluster, kept, booked)
        order = {id(move): place for place, move in enumerate(moves)}
        return sorted(kept, key=lambda move: order[id(move)]), left

    def _again(self, cluster: Cluster, kept: Sequence[BundleMove], booked: Mapping[str, Sequence[str]]) -> Filters:
        filters = Filters(cluster, self.settings, booked)
        for move in kept:
            if move.destination is not None and self.counts_moves:
                filters.book(move.destination, move.bundle)
        return filters

    @property
    def counts_moves(self) -> bool:
        """Whether each move of a plan counts for those after it; Pulsar checks each on the same data (decision record 26)."""
        return not self.settings.upstream

    def as_shed(self, bundle: Bundle) -> Bundle:
        """The bundle as the placement sees it when it is shed: upstream's older manager has forgotten its topics."""
        upstream = self.settings.upstream and self.settings.generation == "modular"
        return kind_forgotten(bundle) if upstream else bundle

    def _refused(self, filters: Filters, move: BundleMove) -> tuple[str, str] | None:
        bundle = filters.cluster.bundles.get(move.bundle)
        if bundle is None:
            return "gone", "the bundle does not exist"
        if bundle.owner != move.source:
            return "not-owned", f"{bundle.owner or 'no broker'} serves it"
        if move.destination == move.source:
            return "same-broker", "it is there"
        if move.destination is None:
            fault = filters.cannot_leave(bundle)
            return None if fault is None else ("nobody", fault)
        fault = filters.can_take(bundle, move.destination)
        if fault is None:
            return None
        word, _, why = fault.partition(": ")
        return word, why
