"""The default strategy `weighted-move`: its two ports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from shedders.model.candidates import CandidateReader, blind, pick
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed, Plan
from shedders.model.readings import ReadingSettings
from shedders.model.strategy import CanTake, StrategySettings
from shedders.weighted_move.cycle import Cycle
from shedders.weighted_move.placement import Expected
from shedders.weighted_move.settings import WeightedMoveSettings


class WeightedMove:
    """One cost over several resources, moves by what they take from it for their traffic, once a gap has cost as much as a move.

    The page design/balancing-strategy.md explains it with an example. In short:

    - A broker's **level** is its use of its limits, relative to perfect balance: `y = (sum of x_r^8)^(1/8)` over CPU, both
      directions of the network and, where it is scarce and follows traffic, direct memory. Its **cost** is `capacity * y^4 / 12`.
    - **Debt**: each minute adds what a broker's gap costs, `(y^3 - 1) / 3`, beyond `gap_percent` and its noise. It acts once the
      debt is the price of a move, a gap of 10 % for `payback_min` minutes, as one who rents until buying had been cheaper.
    - **Moves**: the busiest broker first, the move that takes most from the cost for its traffic and a fixed part; at least
      `least_gain_percent`. The destination ends below the source's present level. Of about equal moves the one that spreads
      a namespace is preferred. If none is worth it, two bundles are exchanged; else the largest is to be split.
    - **Grace**: a bundle never goes back within `grace_s`, later at a price that falls over `back_hours`; one that has just come
      may move on, at a higher price. Bundles that others have moved stay for five minutes.
    - **Wrong figures, or full?** A bundle's traffic does not depend on its broker. Where it changes with the broker, this is
      corrected, or gives a part of its load to find out whether it is full (`shedders.weighted_move.evidence`).

    Placement: the broker whose most used resource has the most headroom afterwards, with the bundles in flight added.

    Words in `Plan.left`. Brokers: `no-load-data`, `bad-load`, `outdated`, `lapsed`, `no-limits`, `not-accepting`, `hit-count`
    (its debt is below the price), `doubted`, `corrected`, `slow`, `memory-does-not-follow`, `nothing-fits`, `budget`. Bundles:
    those of `shedders.shedding.draft`.

    Source: ours, after weighted-move of Slicer (OSDI 2016, 4.4.1: most gain per churn, under a budget), rent or buy (Karlin et
    al., 1988), a CUSUM test (Page, 1954); never more than a gap can take, #17456.

    Args:
        can_take: Filters; without it every broker may take every bundle.
    """

    name: ClassVar[str] = "weighted-move"
    Settings: ClassVar[type[StrategySettings]] = WeightedMoveSettings

    def __init__(self, settings: WeightedMoveSettings, can_take: CanTake | None = None) -> None:
        self.settings = settings
        self._can_take = can_take
        self._reader = CandidateReader(ReadingSettings(max_age_s=settings.max_age_s), settings.weights)
        self._expected: tuple[Cluster, Expected] | None = None

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once; remembers `shedders.weighted_move.memory`."""
        return Cycle(self.name, cluster, self.settings, memory, self._can_take).plan()

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose the broker whose most used resource has the most headroom afterwards. Remembers nothing of its own."""
        known = self._reader.of(cluster)
        names, removed = known.judged(candidates)
        if not names:
            return blind(cluster, bundle, candidates, booked, removed, memory)
        if self._expected is None or self._expected[0] is not cluster:
            self._expected = (cluster, Expected(cluster, known, self.settings.weights))
        expected = self._expected[1]
        levels = expected.levels(names, booked)
        least, best = expected.best(bundle, levels)
        chosen = pick(bundle.name, best)
        share = f"{least * 100:.1f} % of its most used resource, including bundles in flight"
        why = f"{chosen} is the only candidate (afterwards at {share})"
        if len(levels) > 1:
            why = f"chosen because {chosen} would be the least loaded of {len(levels)} candidates afterwards ({share})"
        placed = Placed(bundle.name, chosen, why, best, removed, levels, memory)
        return replace(placed, why=why + known.remark(names)) if known.lapsed else placed
