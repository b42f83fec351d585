"""Decision cycle of `weighted-move`: readings, debts, evidence, then the search. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from statistics import median
from typing import Any

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from shedders.model.amounts import are, count
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Plan, Reason
from shedders.model.readings import SheddingSettings, may_receive
from shedders.model.strategy import CanTake
from shedders.shedding.draft import Draft
from shedders.weighted_move.direct_memory import SCARCE
from shedders.weighted_move.evidence import PROBE, factor_of
from shedders.weighted_move.loads import (
    MEMORY,
    RESOURCES,
    SETTLED_S,
    TINY,
    BrokerLevel,
    BundleDemand,
    ClusterTotals,
    MemoryCosts,
    Use,
    add_up,
    demands,
    inverse_of,
    memory_share,
    parts_of,
    times,
    use_of,
)
from shedders.weighted_move.memory import BrokerHistory, Memory
from shedders.weighted_move.search import REST, FilterRefusals, MoveRules, MoveSearch, Step
from shedders.weighted_move.settings import WeightedMoveSettings

BACK = 30.0  # a move straight back has to gain this many times more
AGAIN = 5.0  # another move of a bundle that has just come likewise
PAID = 0.1  # price of acting for each minute in which a move has to pay: a gap of this size for a minute


class Cycle:
    """One decision."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        settings: WeightedMoveSettings,
        memory: Mapping[str, Any],
        can_take: CanTake | None,
    ) -> None:
        common = SheddingSettings(max_age_s=settings.max_age_s, grace_s=min(SETTLED_S, settings.grace_s))
        self._cluster, self._settings, self._can_take = cluster, settings, can_take
        self._draft = Draft(name, cluster, common, memory, settings.weights, can_take)
        self._memory, self._passed_s = Memory.recall(memory, cluster)
        self._sides: dict[str, BrokerLevel] = {}
        self._began: dict[str, Use] = {}
        self._demands: dict[str, list[BundleDemand]] = {}
        self._former: dict[str, Mapping[str, float]] = {}
        self._waiting = 0

    def plan(self) -> Plan:
        draft, settings = self._draft, self._settings
        if draft.stopped is not None:
            return replace(draft.stopped, memory=self._dumped())
        loads = {name: load for name, load in draft.loads.items() if self._cluster.brokers[name].accepting}
        for name in sorted(draft.loads.keys() - loads.keys()):
            draft.leave(name, "not-accepting", "not caught up, draining, or in safe mode")
        self._read(loads)
        if self._totals.level < TINY:
            return replace(draft.plan("no broker has any load", Reason.HIT_COUNT), memory=self._dumped())
        rules = MoveRules(
            settings.least_gain_percent / 100,
            settings.max_moved_percent / 100 * len(self._sides),
            settings.max_moves,
            settings.gap_percent / 100,
        )
        sides, refusals = list(self._sides.values()), FilterRefusals(self._can_take)
        cost = sum(side.cost_of(side.power) for side in sides)
        self._began = {side.name: side.use for side in sides}
        search = MoveSearch(sides, rules, self._demands_of, self._dearer, refusals, self._count)
        search.run()
        for name, (word, why) in search.stuck.items():
            draft.leave(name, word, f"level {self._sides[name].level:.3f}: {why}")
        splits = search.splits(self._memory.asked.__contains__)
        self._memory.asked.update((split.bundle, self._memory.clock_s) for split in splits)
        for step in search.steps:
            self._move(step)
        if self._counts_memory:
            self._took_memory()
        draft.stats.update(
            level=self._totals.level,
            brokers=float(len(loads)),
            cost=cost,
            cost_after=sum(side.cost_of(side.power) for side in sides),
        )
        why = "balanced: no broker's gap has cost as much as a move"
        if self._waiting:
            why = f"{count(self._waiting, 'broker')} {are(self._waiting)} off the average, but not for long enough yet"
        if search.stuck:
            why = f"{count(len(search.stuck), 'broker')} {are(len(search.stuck))} overloaded, but no move would help"
        plan = draft.plan(why, Reason.NO_BUNDLES if search.stuck else Reason.HIT_COUNT)
        return replace(plan, splits=tuple(splits), memory=self._dumped())

    def _dumped(self) -> dict[str, Any]:
        settings = self._settings
        return self._memory.dumped(settings.grace_s, max(settings.grace_s, settings.back_hours * 3_600))

    def _read(self, loads: Mapping[str, BrokerLoad]) -> None:
        """Record the readings and the evidence, and compute the brokers' levels."""
        memory, cluster, draft = self._memory, self._cluster, self._draft
        plain = ResourceWeights(*(float(weight > 0) for weight in self._settings.weights))
        usages = {name: parts_of(use_of(load), inverse_of(load, plain)) for name, load in loads.items()}
        touched = memory.settle(cluster, self._passed_s)
        noise = median(memory.brokers[name].noise for name in memory.brokers) if memory.brokers else 0.0
        touched |= memory.evidence.look(cluster, loads, usages, noise, memory.clock_s)
        costs = self._memory_costs(loads, usages, touched)
        self._counts_memory = costs is not None
        weights = self._settings.weights if costs is None else self._settings.counting
        uses: dict[str, Use] = {}
        inverses: dict[str, Use] = {}
        for name, load in loads.items():
            age_s = cluster.recent.brokers.get(name)
            moved = name in touched or (age_s is not None and age_s <= self._passed_s)
            history = memory.brokers.get(name, BrokerHistory()).read(
                use_of(load), usages[name], draft.size(name), moved=moved
            )
            memory.brokers[name] = history
            uses[name], inverses[name] = self._corrected(name, history.use, inverse_of(load, weights))
        self._totals: ClusterTotals = add_up(loads, uses, inverses, costs or MemoryCosts())
        draft.scores = {name: parts_of(uses[name], inverses[name]) for name in loads}
        if self._totals.level >= TINY:
            for name in loads:
                self._sides[name] = self._side(name, uses[name], inverses[name])

    def _memory_costs(
        self, loads: Mapping[str, BrokerLoad], usages: Mapping[str, float], touched: Collection[str]
    ) -> MemoryCosts | None:
        """What traffic costs in direct memory, if that counts in this decision."""
        memory, known = self._memory, self._memory.direct_memory
        shares = {name: memory_share(load) for name, load in loads.items()}
        if not self._settings.direct_memory_weight or not known.look(shares, usages, touched, memory.clock_s):
            return None
        believed = {name for name in loads if not self._suspected(name)}
        costs = known.learn(loads, self._cluster.bundles_of.unsorted, self._passed_s, believed)
        held = memory.clock_s < known.held_s
        if costs is not None and not held:
            return costs
        why = "it did not fall when load was moved away" if held else "brokers with more traffic have no more of it"
        for name in loads:
            if shares[name] > max(SCARCE, usages[name]):
                self._draft.leave(
                    name, "memory-does-not-follow", f"{shares[name]:.0%} of its direct memory is used; {why}"
                )
        return None

    def _suspected(self, name: str) -> bool:
        figures = self._memory.evidence.brokers.get(name)
        return figures is not None and figures.suspected

    def _corrected(self, name: str, use: Use, inverse: Use) -> tuple[Use, Use]:
        """A broker's use and inverse limits by what is known of its figures and its capacity."""
        figures = self._memory.evidence.brokers.get(name)
        if figures is None:
            return use, inverse
        factor, capacity = factor_of(figures), figures.capacity
        if factor != 1:
            use = times(use, 1 / factor)
            self._draft.leave(
                name, "corrected", f"its figures are {factor:.2f} of the truth, by what its bundles have elsewhere"
            )
        if figures.suspected and figures.probe is not None:
            capacity = max(0.05, min(1.0, figures.probe.usage))
            why = f"its bundles have {figures.unexplained:+.2f} (logarithm) of what they had, others have not"
            self._draft.leave(
                name, "doubted", f"{why}: wrong figures, or full; a part of its load is taken to find out"
            )
        elif capacity:
            tried = "; more is being tried" if figures.probe is not None else ""
            self._draft.leave(name, "slow", f"with more load its usage stays at {capacity:.2f} of its limit{tried}")
        if capacity:
            cpu, inwards, outwards, cached = inverse
            inverse = cpu / capacity, inwards / capacity, outwards / capacity, cached
        return use, inverse

    def _side(self, name: str, use: Use, inverse: Use) -> BrokerLevel:
        """A broker's level, and whether its debts have reached the price of a move."""
        totals, settings, memory = self._totals, self._settings, self._memory
        limited = inverse[totals.scarcest]
        inverse = _use([each / totals.level for each in inverse])
        # Bounded, so that sums of its powers stay finite.
        use = _use([min(each, 1 / (TINY * by)) if by > 0 else each for each, by in zip(use, inverse, strict=True)])
        suspected = self._suspected(name)
        takes = may_receive(self._cluster, name) and not suspected
        side = BrokerLevel(name, use, inverse, 1 / (limited * totals.limit) if limited > 0 else 1.0, takes=takes)
        paid, gap = PAID * settings.payback_min, settings.gap_percent / 100
        history = memory.brokers[name]
        tolerance = history.tolerance(gap, paid)
        history = memory.brokers[name] = history.owing(side.level, tolerance, self._passed_s / 60)
        if suspected:
            probe = memory.evidence.brokers[name].probe
            due = max(PROBE, 4 * history.noise) - (probe.part if probe is not None else 0.0)
            side.over, side.aim = due > REST, side.level * (1 - max(0.0, due))
            return side
        side.aim = 1 + gap / 2
        side.over = history.over >= paid and side.level > side.aim
        side.under = history.under >= paid
        side.owes = history.over / max(paid, TINY)
        if not side.over and side.level > 1 + gap and history.over > 0:
            self._waiting += 1
            debt = f"debt {history.over:.2f} of {paid:.2f}, tolerance {tolerance:.3f}"
            self._draft.leave(name, "hit-count", f"level {side.level:.3f}, mainly {RESOURCES[side.busiest]}; {debt}")
        return side

    def _demands_of(self, side: BrokerLevel) -> list[BundleDemand]:
        """Its movable bundles, the smallest first."""
        if side.name not in self._demands:
            movable = self._draft.movable(side.name)
            self._demands[side.name] = demands(
                self._draft.loads[side.name], side, self._began[side.name], movable, self._totals
            )
        return self._demands[side.name]

    def _dearer(self, bundle: Bundle, side: BrokerLevel) -> float:
        """By how much dearer a move is: of a bundle that this strategy has just moved, and back to a broker that it has left."""
        if bundle.name not in self._former:
            self._former[bundle.name] = self._memory.former_brokers(bundle)
        former = self._former[bundle.name]
        if not former:
            return 1.0
        grace_s, back_s = self._settings.grace_s, self._settings.back_hours * 3_600
        latest_s, age_s = min(former.values()), former.get(side.name, inf)
        if age_s <= grace_s:
            return inf
        figures = self._memory.evidence.brokers.get(bundle.owner or "")
        misled = figures is not None and (figures.probe is not None or figures.capacity > 0)
        again = AGAIN * (1 - latest_s / grace_s) if latest_s < grace_s and not misled else 0.0
        return 1 + max(again, BACK * (1 - age_s / back_s) if age_s < back_s else 0.0)

    def _count(self, name: str) -> Counter[str]:
        return Counter([bundle.namespace for bundle in self._cluster.bundles_of.unsorted(name)])

    def _move(self, step: Step) -> None:
        demand, source, side = step.demand, step.source, step.destination
        back = " in exchange" if step.back else ""
        why = (
            f"{demand.traffic * 100:.1f} % of an average broker's traffic{back}, mainly for {RESOURCES[step.resource]}: level of "
            f"{source.name} {step.before[step.back]:.3f} to {step.after[step.back]:.3f}, of {side.name} "
            f"{step.before[not step.back]:.3f} to {step.after[not step.back]:.3f}; cost of both {step.costs[0]:.4f} to "
            f"{step.costs[1]:.4f}, gain for its traffic {step.value:.3f}"
        )
        reason = Reason.OVERLOADED if (side if step.back else source).over else Reason.UNDERLOADED
        self._draft.move(demand.bundle, source.name, reason, demand.throughput, why, side.name)
        if step.back:
            self._draft.moves[-1] = replace(self._draft.moves[-1], swap=True)
        self._memory.left.setdefault(demand.bundle.name, []).append((source.name, round(self._memory.clock_s, 1)))

    def _took_memory(self) -> None:
        """Record what the plan takes from direct memory, to see whether that follows."""
        for name, side in self._sides.items():
            limit = self._draft.loads[name].direct_memory.limit
            began = self._began[name][MEMORY]
            if side.gives and limit > 0:
                self._memory.direct_memory.took(
                    name, began / limit, (began - side.use[MEMORY]) / limit, self._memory.clock_s
                )


def _use(parts: list[float]) -> Use:
    cpu, inwards, outwards, cached = parts
    return cpu, inwards, outwards, cached
