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
    """One score over several resources; sources and destinations chosen together, by gain per load moved.

    A broker's level is its most used resource, relative to that of a perfectly balanced cluster:

        x_b = max_r(w_r * usage_br / limit_br) / T        T = max_r(w_r * sum of usage_r / sum of limit_r)

    over CPU, both directions of the network and, where it is scarce, direct memory, each against the broker's own limits, the
    largest weight w counting as 1 (as all do unless operators set others); usage is the mean of the last three readings since a
    bundle came or went. A bundle's part of it: `shedders.weighted_move.loads`. The value of a move from a to b is gain / churn:

        gain  = C_a (x_a^2 - x_a'^2) - C_b (x_b'^2 - x_b^2)     x': levels afterwards, C: capacity
        churn = traffic of the bundle + `move_cost_percent`     both in parts of an average broker's

    - Which brokers: a broker has too much load from x = 1 + max(`gap_percent`, `noise_factor` * noise) on, too little at twice
      that below; noise is measured between readings. Beyond `urgent_percent` it acts at once if the level is not new (a broker
      has joined), at `gap_percent` after `hits` decisions in a row, `hit_s` apart; in between, the farther the fewer. A level
      that has just risen counts as new until it has lasted for `hits` decisions, so that bursts pass; above 85 % of a limit
      two hits are enough, and then only the worst of it moves: down to 80 %, or to a little more if the next best move would
      take more than twice as much as is missing, and no broker is idle. Where most levels that had lasted for as long fell by
      themselves within three minutes, it waits: for up to twice `hits`, above 85 % of a limit for `hits`. Where most lasted for
      longer, one hit is enough, of a gap of twice `gap_percent`, but of no more than `urgent_percent`, and of `gap_percent` above
      85 % of a limit (`shedders.weighted_move.bursts`).
    - Which bundles: the busiest broker first; of its bundles and the idlest brokers those with the most gain per churn. The
      destination ends below the source's present level; if it ends above the source's new level, the larger of the two must
      have fallen by a quarter of the gap. The gain per churn must be at least that of a gap of `least_gain_percent`; of about
      equal moves the one that spreads a namespace evenly is preferred, as its bundles tend to be busy at the same time. Each move
      counts at once. If no bundle fits, two are exchanged: with one of the idlest brokers, or for four times the least gain with
      one that is as busy by another resource, unless direct memory is scarce anywhere and has not followed moves. If that
      does not help and the largest has more than one topic, it is to be split (`Plan.splits`).
    - Grace: within `grace_s` a bundle that this strategy has moved is not moved again, nor moved back to a former broker, its
      parents' included; after that going back costs sixteen times as much, less and less for `back_hours`. Bundles that others
      have moved stay for five minutes. From a broker that has just been found slow bundles may move again at once; back, where
      no other broker can take them.
    - Habits: bundles count with what is to be expected of them over the next hours, by what they, and others, did before
      (`shedders.weighted_move.habits`); on a broker above 85 % of a limit with what they do now.
    - Doubts: brokers with implausible reports get no bundles; figures that were found to be a part of the truth are corrected,
      and slow brokers count with what they can do (`shedders.weighted_move.doubt`, `shedders.weighted_move.arrivals`).

    - Direct memory counts while a broker uses more of it than of anything else, and more than 40 % of its limit, if it follows
      traffic and moves. No report says what a bundle has of it: what a byte a second of each namespace costs is learned from the
      brokers' differences. At first three brokers give a quarter of theirs; once it has fallen by 40 % of what was expected,
      all take part. If it does not fall three times in a row, it does not count for two hours, later four, up to a day
      (`shedders.weighted_move.direct_memory`).

    Example (also a test): a has 0.8 with bundles of 40, 25, 10 and 5 MB/s, b 0.4 with 20 and 20, c 0.3 with 20 and 10. T is
    0.5, the levels are 1.6, 0.8 and 0.6, and a is urgent. 5 of 50 MB/s are 0.1: to c they gain 1.6^2 - 1.5^2 - (0.7^2 - 0.6^2)
    = 0.18, for 0.1 + 0.01 of churn: 1.636. 10 gain 0.32 for 0.21: 1.524; 25 gain 0.5 for 0.51; 40 would leave c at 1.4. So 5
    goes, then 10 (0.24 for 0.21). Levels are 1.3, 0.8, 0.9: nothing fits alone, but 25 against one of the 20 of b gains 0.08
    for 0.92: 0.087, more than the 0.08 of a gap of 0.04. Levels 1.2, 0.9, 0.9.

    Placement: the broker whose most used resource has the most headroom afterwards, with the bundles in flight added.

    Words in `Plan.left`. Brokers: `no-load-data`, `bad-load`, `outdated`, `lapsed`, `no-limits`, `not-accepting`, `hit-count`,
    `doubted`, `corrected`, `slow`, `memory-tried`, `memory-does-not-follow`, `nothing-fits`, `budget`. Bundles: those of
    `shedders.shedding.draft`.

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
