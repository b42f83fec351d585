"""Our own default: one score over several resources, sources and destinations chosen together, by gain per load moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from shedders.model.candidates import CandidateReader, blind, pick
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed, Plan
from shedders.model.readings import ReadingSettings
from shedders.model.strategy import StrategySettings
from shedders.shedding.leveling import CanTake
from shedders.weighted_move.cycle import Cycle
from shedders.weighted_move.placement import Expected
from shedders.weighted_move.settings import WeightedMoveSettings


class WeightedMove:
    """One score over several resources; sources and destinations chosen together, by what a move gains for the load it moves.

    A broker's level is its most used resource in parts of what everybody would have if all were even:

        x_b = max_r(w_r * usage_br / limit_br) / T        T = max_r(w_r * sum of usage_r / sum of limit_r)

    over CPU and both directions of the network, each against the broker's own limits, the largest weight w counting as 1 (as all
    do unless operators set others); usage is the mean of the last three readings since a bundle came or went.
    What a bundle has of it: `shedders.weighted_move.loads`, `shedders.weighted_move.cpu_cost`. A move from a to b
    is worth gain / churn:

        gain  = C_a (x_a^2 - x_a'^2) - C_b (x_b'^2 - x_b^2)     x': levels afterwards, C: capacity
        churn = traffic of the bundle + `move_cost_percent`     both in parts of an average broker's

    - Who: a broker has too much from x = 1 + max(`gap_percent`, `noise_factor` * noise) on, too little from twice that below;
      noise is measured from reading to reading. From `urgent_percent` on it acts at once if that is no news (a broker has
      joined), at `gap_percent` after `hits` decisions in a row, `hit_s` apart, in between after the fewer the farther. What has
      just risen counts as news until it has lasted for `hits` decisions, so that bursts pass; above 85 % of a limit two are
      enough, and then only the worst of it goes.
    - What: the busiest broker first; of its bundles and the idlest brokers those with the most gain per churn. The destination
      ends below where the source stood; if it ends above where the source ends, the larger of the two must have fallen by a
      quarter of the gap. Less gain per churn than a gap of `least_gain_percent` gives is not worth it. Each move counts at
      once. Where no bundle fits, two are exchanged; where that does not help and the largest has more than one topic, it is to
      be split (`Plan.splits`).
    - Never within `grace_s`: a bundle again that this strategy has moved, or back to where it, or what it was split from, came
      from. What others have moved stays for five minutes.
    - Doubts: brokers whose figures cannot be what they say get nothing (`shedders.weighted_move.doubt`).

    Example (also a test): a has 0.8 with bundles of 40, 25, 10 and 5 MB/s, b 0.4 with 20 and 20, c 0.3 with 20 and 10. T is
    0.5, the levels are 1.6, 0.8 and 0.6, and a is urgent. 5 of 50 MB/s are 0.1: to c they gain 1.6^2 - 1.5^2 - (0.7^2 - 0.6^2)
    = 0.18, for 0.1 + 0.01 of churn: 1.636. 10 gain 0.32 for 0.21: 1.524; 25 gain 0.5 for 0.51; 40 would leave c at 1.4. So 5
    goes, then 10 (0.24 for 0.21). Levels are 1.3, 0.8, 0.9: nothing fits alone, but 25 against one of the 20 of b gains 0.08
    for 0.92: 0.087, more than the 0.08 of a gap of 0.04. Levels 1.2, 0.9, 0.9.

    Placement: the broker whose most used resource has most left afterwards, with what is on its way counted.

    Words in `Plan.left`. Brokers: `no-load-data`, `bad-load`, `outdated`, `lapsed`, `no-limits`, `not-accepting`, `hit-count`,
    `doubted`, `nothing-fits`, `budget`. Bundles: those of `shedders.shedding.draft`.

    Source: ours. Weighted-move of Slicer (OSDI 2016, 4.4.1: most gain per churn, under a budget); the most loaded resource
    decides, and no other may become worse than it was, as in CockroachDB's multi-metric allocator; thresholds that adapt,
    PIP-192; never more than a gap can take, #17456.

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
        """Decide once; remembers what `shedders.weighted_move.memory` says."""
        return Cycle(self.name, cluster, self.settings, memory, self._can_take).plan()

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose the broker whose most used resource has most left afterwards. Remembers nothing of its own."""
        known = self._reader.of(cluster)
        names, removed = known.judged(candidates)
        if not names:
            return blind(cluster, bundle, candidates, booked, removed, memory)
        if self._expected is None or self._expected[0] is not cluster:
            self._expected = (cluster, Expected(cluster, known, self.settings.weights))
        expected = self._expected[1]
        levels = expected.levels(names, booked)
        least, best = expected.best(bundle, levels)
        why = f"the least of {len(levels)} once it is there: {least:.3f} of its scarcest resource, what is on its way counted"
        placed = Placed(bundle.name, pick(bundle.name, best), why, best, removed, levels, memory)
        return replace(placed, why=why + known.remark(names)) if known.lapsed else placed
