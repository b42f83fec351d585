"""Decision cycle of `weighted-move`. Pure.

It finds the brokers that deviate from the mean for long enough, and the bundles that move, by gain per load moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import fsum, inf
from statistics import median
from typing import Any

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from shedders.model.amounts import are, count
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Plan, Reason, SplitWanted
from shedders.model.readings import LEAST_LIMIT, SheddingSettings, may_receive
from shedders.model.strategy import CanTake
from shedders.shedding.draft import Draft
from shedders.weighted_move.arrivals import count_namespaces
from shedders.weighted_move.bursts import WAITS
from shedders.weighted_move.direct_memory import TRIED, TRIES_MAX
from shedders.weighted_move.doubt import CAPPED, FELL, PROBED, ROSE, Peak, pulse_of
from shedders.weighted_move.habits import MOST_BUNDLES, bytes_of
from shedders.weighted_move.loads import (
    MEMORY,
    OVERLOADED,
    RESOURCES,
    SAMPLES,
    BrokerLevel,
    BundleDemand,
    MemoryCosts,
    Use,
    Weights,
    inverse_of,
    is_full,
    memory_share,
    parts_of,
    times,
    use_of,
    whole,
    without_memory,
)
from shedders.weighted_move.memory import GAP_MAX_S, BrokerHistory, Memory
from shedders.weighted_move.refusals import FilterRefusals
from shedders.weighted_move.settings import WeightedMoveSettings
from shedders.weighted_move.slow_broker import SlowBroker
from shedders.weighted_move.steps import (
    RELIEVED,
    MoveStep,
    StepRules,
    Steps,
    wanted_splits,
)

FOLLOWED = 2.0  # where levels that rise last, a gap of this multiple of `gap_percent` is followed at once; less is not worth it
REST = 0.02  # levels this close to 1 count as 1: reports are not more precise
UNDER = 2.0  # a broker counts as idle at this multiple of the gap: an idle broker does no harm, a busy one does
# A deviation below this part of the last large plan's change counts as its error; more has another cause.
FINISHED = 0.5
# Bundles that others (a drain, for example) have moved are left alone for this time, until their load has settled.
SETTLED_S = 300.0
BACK = 15.0  # a move straight back is worth it if it gains sixteen times as much for its load as another one
LEAST_DONE = 0.05  # least assumed capacity of a broker, as a part of the reported one
LARGE = 0.05  # a plan that moves at least this part of all load is checked afterwards
# Brokers that stay at their peaks are probed a few at a time: so many, or of a large cluster one in `PROBES_OF`.
PROBES_MAX = 2
PROBES_OF = 20
TINY = 1e-6


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
        self._cluster = cluster
        self._settings = settings
        self._can_return: dict[str, bool] = {}
        self._filters = FilterRefusals(can_take)
        self._draft = Draft(name, cluster, common, memory, settings.weights, can_take)
        self._weights = settings.weights
        keep_s = max(settings.grace_s, settings.back_hours * 3_600)
        self._memory = Memory.recall(memory, cluster.now_ms, settings.grace_s, cluster.brokers, keep_s)
        self._cargo: dict[str, list[BundleDemand]] = {}
        self._sides: dict[str, BrokerLevel] = {}
        self._began: dict[str, float] = {}
        self._levels: dict[str, float] = {}
        self._usages: dict[str, float] = {}
        self._heavy: dict[str, list[Bundle]] = {}
        self._as_usual: set[str] = set()
        self._present: dict[str, Use] = {}
        self._lift: dict[str, float] = {}
        self._risen: dict[str, float] = {}
        self._probes = 0
        self._over_before: dict[str, tuple[int, float]] = {}
        self._waiting = 0
        self._rises_last = self._memory.bursts.rises_last
        self._hits = 1 if self._rises_last else settings.hits
        self._memory_counts = False
        self._memory_costs = MemoryCosts()
        self._used: dict[str, Use] = {}

    def plan(self) -> Plan:
        draft = self._draft
        if draft.stopped is not None:
            return replace(draft.stopped, memory=self._memory.dumped())
        self._read()
        if self._whole.level < TINY:
            self._memory.large = False
            return self._answer([], "no broker has any load", Reason.HIT_COUNT)
        for name in self._sides:
            self._judge(name)
        if self._memory.passed_s < GAP_MAX_S:
            self._memory.bursts.look({name: side.level for name, side in self._sides.items()})
        else:
            self._memory.bursts.relieved.clear()
        self._try_memory()
        settings = self._settings
        rules = StepRules(
            REST,
            settings.least_gain_percent / 100 * 2,
            settings.move_cost_percent / 100,
            settings.max_moved_percent / 100 * len(self._sides),
            settings.max_moves,
        )
        self._began = {name: side.level for name, side in self._sides.items()}
        self._used = {name: side.use for name, side in self._sides.items()}
        steps = Steps(
            list(self._sides.values()), rules, self._cargo_of, self._refused, self._filters, self._backs, self._count
        )
        planned = steps.run()
        stuck = {name: fault for name, fault in steps.stuck.items() if not self._sides[name].probed}
        for name, (word, why) in stuck.items():
            draft.leave(name, word, why)
        for step in planned:
            self._move(step)
        self._memory.large = steps.churn >= LARGE * len(self._sides)
        unfitting = [self._sides[name] for name, (word, _) in stuck.items() if word == "nothing-fits"]
        splits = wanted_splits(unfitting, self._cargo_of, self._memory, settings.gap_percent / 100, steps.has_room)
        why = "balanced: no broker is far enough from the average"
        if self._waiting:
            waiting = self._waiting
            why = f"{count(waiting, 'broker')} {are(waiting)} far from the average, but not for long enough yet"
        if stuck:
            why = f"{count(len(stuck), 'broker')} {are(len(stuck))} overloaded, but no move would help"
        otherwise = Reason.NO_BUNDLES if stuck else Reason.HIT_COUNT
        return self._answer(splits, why, otherwise)

    def _read(self) -> None:
        """Record the readings, and compute the brokers' levels."""
        draft, memory, cluster = self._draft, self._memory, self._cluster
        memory.settle(cluster.bundles, cluster.recent.bundles)
        loads = {name: load for name, load in draft.loads.items() if cluster.brokers[name].accepting}
        for name in sorted(draft.loads.keys() - loads.keys()):
            draft.leave(name, "not-accepting", "not caught up, draining, or in safe mode")
        self._levels = {name: parts_of(use_of(load), inverse_of(load, self._weights)) for name, load in loads.items()}
        plain = ResourceWeights(*(float(weight > 0) for weight in self._weights))
        self._usages = {name: parts_of(use_of(load), inverse_of(load, plain)) for name, load in loads.items()}
        weights = self._counting(loads)
        uses, inverses = {}, {name: inverse_of(load, weights) for name, load in loads.items()}
        changed: set[str] = set()
        for name, load in loads.items():
            history = memory.watched.setdefault(name, BrokerHistory())
            age_s = cluster.recent.brokers.get(name)
            moved = name in memory.touched or (age_s is not None and age_s <= memory.passed_s)
            use = use_of(load)
            level = parts_of(use, inverses[name])
            if moved or history.bundles != draft.size(name):
                changed.add(name)
            self._over_before[name] = history.over
            history.read(use, level, draft.size(name), moved=moved, passed_s=memory.passed_s)
            uses[name] = history.use
        self._doubt(loads, inverses, changed)
        self._correct(loads, uses, inverses)
        doubts = memory.doubts
        sound = {name: load for name, load in loads.items() if doubts.of(name) is None or name in doubts.slow}
        # New load counts once it has lasted: a burst raises only its own broker's level.
        steady = {name: times(uses[name], memory.watched[name].steady(self._hits)) for name in sound}
        costs = self._memory_costs
        self._whole = whole(sound, steady, inverses, costs)
        if self._expect(loads, uses, inverses):
            steady = {name: times(uses[name], memory.watched[name].steady(self._hits)) for name in sound}
            self._whole = whole(sound, steady, inverses, costs)
        for name in loads:
            self._sides[name] = self._side(name, uses[name], inverses[name])
        draft.scores = {name: parts_of(uses[name], inverses[name]) for name in loads}
        known = memory.direct_memory
        if known.counts and not known.is_trusted:
            for name, load in loads.items():
                if self._sides[name].memory_is_scarce:
                    draft.leave(name, "memory-does-not-follow", known.why_held(load))
        draft.stats.update(level=self._whole.level, brokers=float(len(loads)), doubted=float(len(loads) - len(sound)))

    def _counting(self, loads: Mapping[str, BrokerLoad]) -> ResourceWeights:
        """The weights of this decision: whether direct memory counts in it."""
        known, plain, settings = self._memory.direct_memory, self._weights, self._settings
        if not settings.direct_memory_weight or not known.look(loads, self._levels):
            return plain
        recent, bundles, doubts = self._cluster.recent.brokers, self._cluster.bundles_of, self._memory.doubts
        believed = {name for name in loads if doubts.of(name) is None or name in doubts.slow}
        costs = known.learn(loads, bundles.unsorted, self._memory.passed_s, believed)
        known.responses({name: memory_share(load) for name, load in loads.items() if recent.get(name, 1.0) > 0})
        self._memory_counts = known.is_trusted
        if not known.is_trusted:
            return plain
        self._memory_costs = costs
        return settings.counting

    def _try_memory(self) -> None:
        """Until direct memory has been seen to follow moves, few brokers give a part of theirs, and each waits for the result."""
        known = self._memory.direct_memory
        if not self._memory_counts or known.proven:
            return
        hot = sorted(
            (side for side in self._sides.values() if side.busiest == MEMORY and side.level > 1),
            key=lambda side: (not side.over, -side.level, side.name),
        )
        free = TRIES_MAX - sum(map(known.is_awaited, known.sent))
        for side in hot:
            if side.over and free > 0 and not known.is_awaited(side.name):
                side.aim = max(side.aim, side.level * (1 - TRIED))
                free -= 1
                continue
            if side.over:
                self._draft.leave(side.name, "memory-tried", known.why_tried(side.name))
            side.over, side.waits = False, True

    def _side(self, name: str, use: Use, inverse: Use) -> BrokerLevel:
        level = self._whole.level
        share = inverse[self._whole.scarcest] * self._whole.limit
        takes = may_receive(self._cluster, name) and self._memory.doubts.may_take(name)
        known = self._memory_counts and self._memory.direct_memory.proven
        scarce = not known and memory_share(self._draft.loads[name]) > parts_of(use, without_memory(inverse))
        scale, capacity = 1 / level if level >= TINY else 0.0, 1 / share if share > 0 else 1.0
        return BrokerLevel(name, use, inverse, scale, capacity, takes=takes, memory_is_scarce=scarce)

    def _doubt(self, loads: Mapping[str, BrokerLoad], inverses: Mapping[str, Use], changed: Collection[str]) -> None:
        """Compare the bundles' present traffic with their usual one, and with that on the brokers that they came from."""
        groups, pulses, doubts = self._cluster.bundles_of, {}, self._memory.doubts
        habits, count = self._memory.habits, len(self._cluster.bundles)
        least = habits.least
        if not least and count > 4 * MOST_BUNDLES:
            # The first decision: the smaller half of so many would not be remembered.
            least = 2 * fsum(load.msg_throughput for load in loads.values()) / count
        for name in loads:
            heavy = self._heavy[name] = []
            pulse, sizes = pulse_of(groups.unsorted(name), heavy, least)
            if pulse is not None:
                pulses[name] = pulse
            doubts.look_at(name, sizes, changed=name in changed)
        pulse = median(pulses.values()) if pulses else 0.0
        bundles = self._cluster.bundles
        full = {name for name, usage in self._usages.items() if is_full(usage)}
        namespaces = count_namespaces(bundles.values())
        doubts.arrivals.look(bundles, pulse, namespaces=namespaces, slow=doubts.slow, full=full)
        levels = {}
        for name, load in loads.items():
            use, inverse = use_of(load), inverses[name]
            levels[name] = [part * each for part, each in zip(use, without_memory(inverse), strict=True)]
        peaks = {
            name: Peak(load.peak_usage, load.peak_share, load.usage_without_memory) for name, load in loads.items()
        }
        doubts.judge(pulses, levels, peaks, self._usages)

    def _correct(self, loads: Mapping[str, BrokerLoad], uses: dict[str, Use], inverses: dict[str, Use]) -> None:
        """Count brokers whose figures are a part of the truth, and slow ones, by what is known of them."""
        doubts, plain = self._memory.doubts, 0.0
        if doubts.slow:
            plain = whole(loads, uses, inverses, MemoryCosts()).level
            doubts.slow = {name: slow for name, slow in doubts.slow.items() if not slow.has_recovered(plain)}
        for name in loads:
            before = parts_of(uses[name], inverses[name])
            factor, slow = doubts.arrivals.factors.get(name), doubts.slow.get(name)
            if factor is not None:
                uses[name] = times(uses[name], 1 / factor)
                self._draft.leave(name, "corrected", doubts.why_corrected(name))
            if slow is not None:
                inverse = [
                    each if place == MEMORY else each / max(LEAST_DONE, slow.assumed(plain, place))
                    for place, each in enumerate(inverses[name])
                ]
                uses[name], inverses[name] = times(uses[name], 1 / self._served(name, slow)), _use(inverse)
                self._draft.leave(name, "slow", doubts.why_slow(name))
            elif doubts.to_try(name):
                served = self._pulse(name)
                uses[name] = times(uses[name], 1 / served)
                inverses[name] = times(inverses[name], 1 / max(LEAST_DONE, self._levels[name]))
            if before > 0:
                self._lift[name] = parts_of(uses[name], inverses[name]) / before

    def _expect(self, loads: Mapping[str, BrokerLoad], uses: dict[str, Use], inverses: Mapping[str, Use]) -> bool:
        """Count what is to be expected of bundles in place of what they do now; whether that changes any broker's use."""
        memory, habits, whole = self._memory, self._memory.habits, self._whole
        factors, known = memory.doubts.arrivals.factors, []
        for name in loads:
            if memory.doubts.of(name) is None and name not in memory.doubts.slow:
                factor = factors.get(name, 1.0)
                known += [
                    (bytes_of(bundle) / factor, bundle)
                    for bundle in self._heavy[name]
                    if not bundle.estimated and not bundle.secondhand and bundle.averages.short.samples >= SAMPLES
                ]
        habits.see(known, whole.throughput, memory.passed_s, self._cluster.bundles)
        expected: dict[str, list[tuple[Bundle, float]]] = {}
        for traffic, bundle in known:
            part = habits.expected(bundle, traffic)
            if part != 1.0 and bundle.owner is not None:
                expected.setdefault(bundle.owner, []).append((bundle, part))
        for name, bundles in expected.items():
            # What is overloaded now has to be relieved now.
            if parts_of(uses[name], inverses[name]) > OVERLOADED:
                self._as_usual.add(name)
                continue
            weights = Weights(name, loads[name], uses[name], inverses[name], [bundle for bundle, _ in bundles], whole)
            cpu, inwards, outwards, cached = self._present.setdefault(name, uses[name])
            for bundle, part in bundles:
                cargo = weights.cargo(bundle)
                if cargo is not None:
                    cpu += cargo.use[0] * (part - 1)
                    inwards += cargo.use[1] * (part - 1)
                    outwards += cargo.use[2] * (part - 1)
                    cached += cargo.use[MEMORY] * (part - 1)
            uses[name] = max(0.0, cpu), max(0.0, inwards), max(0.0, outwards), max(0.0, cached)
        return bool(self._present)

    def _pulse(self, name: str) -> float:
        return min(1.0, max(LEAST_DONE, self._memory.doubts.now.get(name, 1.0)))

    def _served(self, name: str, slow: SlowBroker) -> float:
        """The part of what it is asked that a slow broker serves."""
        return min(slow.served, self._pulse(name) if self._memory.doubts.of(name) == FELL else 1.0)

    def _judge(self, name: str) -> None:
        """Decide whether a broker has deviated for long enough."""
        side, watched, settings = self._sides[name], self._memory.watched[name], self._settings
        gap, urgent = settings.gap_percent / 100, settings.urgent_percent / 100
        base_gap, overloaded = gap, side.level / side.scale > OVERLOADED
        if self._rises_last and not overloaded:
            gap = min(FOLLOWED * gap, max(gap, urgent))
        noise = settings.noise_factor * watched.deviation(side.level / side.scale) * side.scale
        if self._is_doubted(side):
            return
        off = side.level - 1
        band = max(gap, noise)
        above, below = off > band, -off > max(UNDER * gap, noise)
        hits_before, lasted_s = self._over_before[name]
        memory = self._memory
        if (
            hits_before
            and not off > max(base_gap, noise)
            and name not in memory.bursts.relieved
            and name not in memory.touched
            and memory.passed_s < GAP_MAX_S
        ):
            memory.bursts.ended(lasted_s + memory.passed_s)
        watched.hit(above=above, below=below, passed_s=self._memory.passed_s)
        if not (above or below):
            return
        hits, since_s = watched.over if above else watched.under
        # What was read of a broker whose figures are corrected counts as its figures do now.
        lift = self._lift.get(name, 1.0)
        if name in self._memory.touched:
            watched.usual = self._whole.level / lift  # the level that the last plan aimed at
        usual = watched.usual * lift * side.scale - 1
        steady = min(off, usual) if above else -max(off, usual) / UNDER
        part = (max(urgent, band) - steady) / (max(urgent, band) - gap) if max(urgent, band) > gap else 0.0
        needed = max(1, round(self._hits * min(1.0, part)))
        changed = self._memory.touched.get(name, 0.0) if self._memory.large else 0.0
        if band < abs(off) < changed * FINISHED:
            needed = 1  # complete the last plan
        side.aim = 1 + REST
        if above and overloaded and hits < needed:
            # Whatever the cause, relieve the worst of it now; the rest has to wait for more hits.
            needed, side.aim = min(needed, 2), max(side.aim, RELIEVED * side.scale)
            side.relieved = side.aim > 1 + REST
        has_risen = above and steady < gap
        if has_risen and self._memory.bursts.passes_soon(since_s, memory.passed_s):
            needed = self._hits * (1 if overloaded else WAITS)
        if hits >= needed and since_s >= (needed - 1) * settings.hit_s:
            side.over, side.under = above, below
            if has_risen and name not in self._memory.touched:
                self._risen[name] = since_s
            side.urgent = steady >= urgent
            return
        self._waiting += 1
        side.waits = above and steady < off
        self._draft.leave(
            name,
            "hit-count",
            f"at {side.level:.3f} of the average by {RESOURCES[side.busiest]}, {hits} of {needed} times in a row, for "
            f"{since_s:.0f} s; tolerance for its noise: {band:.3f}",
        )

    def _is_doubted(self, side: BrokerLevel) -> bool:
        """Whether its figures are not trusted; if it may be slow, a part of its load is moved away to find out."""
        doubts, name = self._memory.doubts, side.name
        kind = doubts.of(name)
        if kind is None or (name in doubts.slow and kind in (FELL, ROSE)):
            return False
        probing = doubts.to_try(name)
        if not probing and side.level / side.scale > OVERLOADED:
            return False
        if probing and kind == CAPPED and self._probes >= max(PROBES_MAX, len(self._sides) // PROBES_OF):
            side.waits = True
        elif probing:
            side.over = side.urgent = True
            side.aim = side.level * (1 - PROBED)
            side.probed = kind == CAPPED
            self._probes += side.probed
        self._draft.leave(name, "doubted", doubts.why(name))
        return True

    def _cargo_of(self, side: BrokerLevel) -> list[BundleDemand]:
        """Its movable bundles, the smallest first."""
        cargo = self._cargo.get(side.name)
        if cargo is None:
            draft = self._draft
            known = draft.movable(side.name)
            use = self._present.get(side.name, side.use)
            weights = Weights(side.name, draft.loads[side.name], use, side.inverse, known, self._whole)
            cargo = [
                self._expected(demand)
                for bundle in known
                if not self._was_moved(bundle.name)
                and (demand := weights.cargo(bundle)) is not None
                and demand.size > 0
            ]
            cargo.sort(key=lambda demand: (demand.size, demand.bundle.name))
            self._cargo[side.name] = cargo
        return cargo

    def _expected(self, demand: BundleDemand) -> BundleDemand:
        """A bundle with what is to be expected of it."""
        owner = demand.bundle.owner or ""
        factor = self._memory.doubts.arrivals.factors.get(owner, 1.0)
        part = self._memory.habits.expected(demand.bundle, demand.throughput / factor)
        if part == 1.0 or owner in self._as_usual or demand.young:
            return demand
        return demand._replace(size=demand.size * part, use=times(demand.use, part))

    def _was_moved(self, name: str) -> bool:
        """Whether a bundle has to stay as this strategy moved it recently."""
        age_s = self._cluster.recent.bundles.get(name)
        grace_s = self._settings.grace_s
        if (age_s is not None and age_s > grace_s) or not self._memory.moved(name, age_s, grace_s):
            return False
        ago = "" if age_s is None else f" {age_s:.0f} s ago"
        if self._is_newly_slow(self._cluster.bundles[name].owner):
            return False
        self._draft.leave(name, "recently-moved", f"it was moved{ago}; it stays for {grace_s:.0f} s")
        return True

    def _is_newly_slow(self, owner: str | None) -> bool:
        """Whether a broker was found slow, or a try to give it more ended, so recently that bundles may have come by mistake."""
        slow = self._memory.doubts.slow.get(owner or "")
        return slow is not None and not slow.trying and slow.waited_s <= self._settings.grace_s

    def _may_return(self, bundle: Bundle) -> bool:
        """Whether a bundle may go back at no extra cost.

        It may if its broker is newly slow, and every other one below the average refuses it or has had it.
        """
        if not self._is_newly_slow(bundle.owner):
            return False
        if bundle.name not in self._can_return:
            former = self._memory.former_brokers(bundle.name)
            self._can_return[bundle.name] = not any(
                side.takes and side.level < 1 and name not in former and self._filters.permit(bundle, name)
                for name, side in self._sides.items()
            )
        return self._can_return[bundle.name]

    def _refused(self, bundle: Bundle, side: BrokerLevel) -> str | None:
        age_s = self._memory.former_brokers(bundle.name).get(side.name, inf)
        if age_s <= self._settings.grace_s and not self._may_return(bundle):
            return f"it was there {age_s:.0f} s ago"
        return self._filters.why(bundle, side.name)

    def _count(self, name: str) -> Counter[str]:
        """A broker's bundles by namespace."""
        return Counter([bundle.namespace for bundle in self._cluster.bundles_of.unsorted(name)])

    def _backs(self, bundle: Bundle, side: BrokerLevel) -> float:
        """By how much dearer it is to move a bundle to a broker that it has left: the less, the longer ago."""
        age_s = self._memory.former_brokers(bundle.name).get(side.name, inf)
        kept_s = self._settings.back_hours * 3_600
        if age_s >= kept_s or self._may_return(bundle):
            return 1.0
        return 1.0 + BACK * (1 - age_s / kept_s)

    def _move(self, step: MoveStep) -> None:
        cargo, source, side = step.cargo, step.source, step.destination
        back = ", in exchange for a bundle that is too heavy by itself" if step.back else ""
        (hot, idle), (hot_after, idle_after) = step.before, step.after
        why = (
            f"moves {cargo.size * 100:.1f} % of {source.name}'s capacity to {side.name} (mainly {RESOURCES[step.resource]})"
            f"{back}: {source.name} goes from {hot * 100:.0f} % to {hot_after * 100:.0f} % of the average, {side.name} from "
            f"{idle * 100:.0f} % to {idle_after * 100:.0f} %; gain per load moved {step.value:.3f}"
        )
        reason = Reason.OVERLOADED if (side if step.back else source).over else Reason.UNDERLOADED
        self._draft.move(cargo.bundle, source.name, reason, cargo.throughput, why, side.name)
        if step.back:
            self._draft.moves[-1] = replace(self._draft.moves[-1], swap=True)
        self._memory.came.setdefault(cargo.bundle.name, []).append((source.name, 0.0))
        full = is_full(self._usages[source.name])
        self._memory.doubts.arrivals.left(cargo.bundle, source.name, side.name, full=full)

    def _added(self, side: BrokerLevel) -> float:
        """What the plan adds to (or takes from) a broker's most used resource but direct memory, in parts of the limit."""
        used, slow = self._used.get(side.name), side.name in self._memory.doubts.slow
        if used is None or not (slow or self._memory_counts):
            began = self._began.get(side.name, side.level)
            return (side.level - began) / side.scale if side.scale > 0 else 0.0
        inverse = without_memory(side.inverse)
        if slow:
            inverse = inverse_of(self._draft.loads[side.name], self._weights)
        return parts_of(side.use, inverse) - parts_of(used, inverse)

    def _took_memory(self) -> None:
        """Record what the plan takes from direct memory, to see whether that follows."""
        for name, used in self._used.items() if self._memory_counts else ():
            side, limit = self._sides[name], self._draft.loads[name].direct_memory.limit
            if (side.gives or side.taken) and limit >= LEAST_LIMIT:
                self._memory.direct_memory.took(name, used[MEMORY] / limit, (used[MEMORY] - side.use[MEMORY]) / limit)

    def _answer(self, splits: list[SplitWanted], why: str, otherwise: Reason) -> Plan:
        draft, memory, doubts = self._draft, self._memory, self._memory.doubts
        memory.touched = {
            name: abs(side.level - self._began[name])
            for name, side in self._sides.items()
            if (side.gives or side.taken)
        }
        for name, side in self._sides.items():
            began, added = self._began.get(name, side.level), self._added(side)
            if name in self._risen and side.gives and not side.taken:
                memory.bursts.relieve(name, self._risen[name], began, side.level)
            elif side.gives or side.taken:
                memory.bursts.adjust(name, began, side.level)
            slow = doubts.slow.get(name)
            if side.over and doubts.to_try(name):
                if side.gives:
                    doubts.tried(name, self._levels[name], -added / (began / side.scale))
                else:
                    doubts.pause(name)
            elif slow is not None:
                if side.gives and added < 0:
                    slow.relieved(min(1.0, 1 - side.level / began))
                elif side.taken and not side.gives:
                    doubts.sent[name] = self._levels[name], added, float(side.came)
            elif side.taken and not side.gives:
                doubts.sent[name] = self._levels[name], added, float(side.came)
            elif side.gives and not side.taken:
                doubts.taken[name] = self._levels[name], -added, 0.0
        self._took_memory()
        draft.memory = memory.dumped()
        return replace(draft.plan(why, otherwise), splits=tuple(splits))


def _use(parts: Sequence[float]) -> Use:
    cpu, inwards, outwards, cached = parts
    return cpu, inwards, outwards, cached
