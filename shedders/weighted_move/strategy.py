"""The default strategy `weighted-move`: its settings, its decision cycle, and its two ports. Pure.

A cycle finds the brokers that deviate from the mean for long enough, and the bundles that move, by gain per load moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import fsum
from statistics import median
from typing import Any, ClassVar

from pydantic import Field

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from shedders.model.amounts import are, count
from shedders.model.candidates import CandidateReader, blind, pick
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed, Plan, Reason, SplitWanted
from shedders.model.readings import ReadingSettings, SheddingSettings, may_receive
from shedders.model.strategy import CanTake, StrategySettings
from shedders.shedding.draft import Draft
from shedders.weighted_move.doubt import FELL, LIES, PROBED, ROSE, SlowBroker, pulse_of
from shedders.weighted_move.habits import MOST_BUNDLES, bytes_of
from shedders.weighted_move.loads import (
    LEAST_WEIGHT,
    RESOURCES,
    SAMPLES,
    BrokerLevel,
    BundleDemand,
    Use,
    Weights,
    inverse_of,
    is_memory_scarce,
    parts_of,
    times,
    use_of,
    whole,
)
from shedders.weighted_move.memory import BrokerHistory, Memory
from shedders.weighted_move.placement import Expected
from shedders.weighted_move.steps import FilterRefusals, MoveStep, StepRules, Steps, wanted_splits


class WeightedMoveSettings(StrategySettings):
    """Settings of `weighted-move`, for shedding and placement. Percentages are of the level of perfect balance."""

    max_age_s: float = Field(
        default=1800.0,
        gt=0,
        description="A broker whose report is older is left alone: by then two reports should have come.",
    )
    grace_s: float = Field(
        default=1800.0,
        ge=0,
        description="A bundle is not moved again within this time, and never back to where it was within it: each move "
        "costs its clients a reconnect, and two that undo each other are wasted.",
    )
    back_hours: float = Field(
        default=24.0,
        ge=0,
        le=168,
        description="A move back to a broker that a bundle has left costs several times as much; less and less, until after "
        "these hours: load that rises and falls with the day should stay.",
    )
    gap_percent: float = Field(
        default=5.0,
        gt=0,
        description="A broker this far above the level has too much load, unless it is within the noise (twice as far below: too "
        "little). The default is half of a target of 10 %, as loads keep changing.",
    )
    urgent_percent: float = Field(
        default=25.0,
        gt=0,
        description="A broker this far off is relieved or filled at once; in between, the farther off, the fewer hits it needs.",
    )
    hits: int = Field(
        default=8,
        ge=1,
        description="Number of decisions in a row that have to see a gap of gap_percent, or one that is all new; longer than a "
        "typical burst.",
    )
    hit_s: float = Field(
        default=30.0,
        ge=0,
        description="Minimum average time between two hits, in seconds: half of the usual time between two decisions; less where "
        "everything is faster (a demo).",
    )
    noise_factor: float = Field(
        default=3.0,
        ge=0,
        description="A gap counts only beyond this number of standard deviations of the noise measured of a broker: three are "
        "chance once in a few hundred looks.",
    )
    least_gain_percent: float = Field(
        default=4.0,
        gt=0,
        description="A move to a broker less than this below the source is not worth it.",
    )
    move_cost_percent: float = Field(
        default=1.0,
        gt=0,
        description="Fixed cost of a move in addition to its load, in percent of an average broker's traffic: of two plans with "
        "the same balance the one with fewer moves is better.",
    )
    max_moved_percent: float = Field(
        default=65.0,
        gt=0,
        le=100,
        description="Maximum part of the cluster's traffic that one decision moves, by bytes or messages, whichever is more: "
        "when the number of brokers doubles, half of it moves.",
    )
    max_moves: int = Field(
        default=1_000,
        ge=1,
        description="Maximum number of bundles that one decision moves: about what one minute allows.",
    )
    cpu_weight: float = Field(
        default=1.0,
        ge=0,
        description="Weight of CPU; 0: not considered, for brokers that share their CPU with other work.",
    )
    bandwidth_in_weight: float = Field(
        default=1.0, ge=0, description="Weight of bytes received: less if the network's limit is a guess."
    )
    bandwidth_out_weight: float = Field(default=1.0, ge=0, description="Weight of bytes sent, likewise.")

    @property
    def weights(self) -> ResourceWeights:
        """The weights, the largest scaled to 1; memory never counts, as no move makes it smaller."""
        each = self.cpu_weight, self.bandwidth_in_weight, self.bandwidth_out_weight
        most = max(each)
        cpu, inwards, outwards = (weight / most if weight > most * LEAST_WEIGHT else 0.0 for weight in each)
        return ResourceWeights(cpu, 0.0, 0.0, inwards, outwards)


REST = 0.02  # levels this close to 1 count as 1: reports are not more precise
UNDER = 2.0  # a broker counts as idle at this multiple of the gap: an idle broker does no harm, a busy one does
OVERLOADED = 0.85  # a broker above this part of a limit is relieved after at most two hits (upstream's overload limit)
RELIEVED = 0.8  # such a broker is relieved down to this part of its limit
# A deviation below this part of the last large plan's change counts as its error; more has another cause.
FINISHED = 0.5
# Bundles that others (a drain, for example) have moved are left alone for this time, until their load has settled.
SETTLED_S = 300.0
BACK = 3.0  # a move straight back is worth it if it gains four times as much for its load as another one
LEAST_DONE = 0.05  # least assumed capacity of a broker, as a part of the reported one
LARGE = 0.05  # a plan that moves at least this part of all load is checked afterwards
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
        self._filters = FilterRefusals(can_take)
        self._draft = Draft(name, cluster, common, memory, settings.weights, can_take)
        self._weights = settings.weights
        keep_s = max(settings.grace_s, settings.back_hours * 3_600)
        self._memory = Memory.recall(memory, cluster.now_ms, settings.grace_s, cluster.brokers, keep_s)
        self._cargo: dict[str, list[BundleDemand]] = {}
        self._sides: dict[str, BrokerLevel] = {}
        self._began: dict[str, float] = {}
        self._levels: dict[str, float] = {}
        self._heavy: dict[str, list[Bundle]] = {}
        self._as_usual: set[str] = set()
        self._present: dict[str, Use] = {}
        self._lift: dict[str, float] = {}
        self._waiting = 0

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
        settings = self._settings
        rules = StepRules(
            REST,
            settings.least_gain_percent / 100 * 2,
            settings.move_cost_percent / 100,
            settings.max_moved_percent / 100 * len(self._sides),
            settings.max_moves,
        )
        self._began = {name: side.level for name, side in self._sides.items()}
        steps = Steps(list(self._sides.values()), rules, self._cargo_of, self._refused, self._filters, self._backs)
        planned = steps.run()
        for name, (word, why) in steps.stuck.items():
            draft.leave(name, word, why)
        for step in planned:
            self._move(step)
        self._memory.large = steps.churn >= LARGE * len(self._sides)
        stuck = [self._sides[name] for name, (word, _) in steps.stuck.items() if word == "nothing-fits"]
        splits = wanted_splits(stuck, self._cargo_of, self._memory, settings.gap_percent / 100, steps.has_room)
        why = "balanced: no broker is far enough from the average"
        if self._waiting:
            waiting = self._waiting
            why = f"{count(waiting, 'broker')} {are(waiting)} far from the average, but not for long enough yet"
        if steps.stuck:
            stuck_count = len(steps.stuck)
            why = f"{count(stuck_count, 'broker')} {are(stuck_count)} overloaded, but no move would help"
        otherwise = Reason.NO_BUNDLES if steps.stuck else Reason.HIT_COUNT
        return self._answer(splits, why, otherwise)

    def _read(self) -> None:
        """Record the readings, and compute the brokers' levels."""
        draft, memory, cluster = self._draft, self._memory, self._cluster
        memory.settle(cluster.bundles, cluster.recent.bundles)
        loads = {name: load for name, load in draft.loads.items() if cluster.brokers[name].accepting}
        for name in sorted(draft.loads.keys() - loads.keys()):
            draft.leave(name, "not-accepting", "not caught up, draining, or in safe mode")
        uses, inverses, levels = {}, {name: inverse_of(load, self._weights) for name, load in loads.items()}, {}
        changed: set[str] = set()
        for name, load in loads.items():
            history = memory.watched.setdefault(name, BrokerHistory())
            age_s = cluster.recent.brokers.get(name)
            moved = name in memory.touched or (age_s is not None and age_s <= memory.passed_s)
            use = use_of(load)
            level = levels[name] = parts_of(use, inverses[name])
            if moved or history.bundles != draft.size(name):
                changed.add(name)
            history.read(use, level, draft.size(name), moved=moved, passed_s=memory.passed_s)
            uses[name] = history.use
        self._levels = levels
        self._doubt(loads, inverses, changed)
        self._correct(loads, uses, inverses)
        doubts = memory.doubts
        sound = {name: load for name, load in loads.items() if doubts.of(name) is None or name in doubts.slow}
        # New load counts once it has lasted: a burst raises only its own broker's level.
        steady = {name: times(uses[name], memory.watched[name].steady(self._settings.hits)) for name in sound}
        self._whole = whole(sound, steady, inverses)
        if self._expect(loads, uses, inverses):
            steady = {name: times(uses[name], memory.watched[name].steady(self._settings.hits)) for name in sound}
            self._whole = whole(sound, steady, inverses)
        for name in loads:
            self._sides[name] = self._side(name, uses[name], inverses[name])
        draft.scores = {name: parts_of(uses[name], inverses[name]) for name in loads}
        draft.stats.update(level=self._whole.level, brokers=float(len(loads)), doubted=float(len(loads) - len(sound)))

    def _side(self, name: str, use: Use, inverse: Use) -> BrokerLevel:
        level = self._whole.level
        share = inverse[self._whole.scarcest] * self._whole.limit
        takes = may_receive(self._cluster, name) and self._memory.doubts.may_take(name)
        scarce = is_memory_scarce(self._draft.loads[name], parts_of(use, inverse))
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
        pulse, namespaces = median(pulses.values()) if pulses else 0.0, len(self._cluster.bundles_in)
        doubts.arrivals.look(self._cluster.bundles, pulse, namespaces=namespaces, slow=doubts.slow)
        levels = {}
        for name, load in loads.items():
            use, inverse = use_of(load), inverses[name]
            levels[name] = [part * each for part, each in zip(use, inverse, strict=True)]
        doubts.judge(pulses, levels)

    def _correct(self, loads: Mapping[str, BrokerLoad], uses: dict[str, Use], inverses: dict[str, Use]) -> None:
        """Count brokers whose figures are a part of the truth, and slow ones, by what is known of them."""
        doubts, plain = self._memory.doubts, 0.0
        if doubts.slow:
            plain = whole(loads, uses, inverses).level
            doubts.slow = {name: slow for name, slow in doubts.slow.items() if not slow.has_recovered(plain)}
        for name in loads:
            before = parts_of(uses[name], inverses[name])
            factor, slow = doubts.arrivals.factors.get(name), doubts.slow.get(name)
            if factor is not None:
                uses[name] = times(uses[name], 1 / factor)
                self._draft.leave(name, "corrected", doubts.why_corrected(name))
            if slow is not None:
                inverse = list(inverses[name])
                inverse[slow.resource] /= max(LEAST_DONE, slow.assumed(plain))
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
            weights = Weights(loads[name], uses[name], inverses[name], [bundle for bundle, _ in bundles], whole)
            cpu, inwards, outwards = self._present.setdefault(name, uses[name])
            for bundle, part in bundles:
                cargo = weights.cargo(bundle)
                if cargo is not None:
                    cpu += cargo.use[0] * (part - 1)
                    inwards += cargo.use[1] * (part - 1)
                    outwards += cargo.use[2] * (part - 1)
            uses[name] = max(0.0, cpu), max(0.0, inwards), max(0.0, outwards)
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
        noise = settings.noise_factor * watched.deviation(side.level / side.scale) * side.scale
        if self._is_doubted(side):
            return
        off = side.level - 1
        band = max(gap, noise)
        above, below = off > band, -off > max(UNDER * gap, noise)
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
        needed = max(1, round(settings.hits * min(1.0, part)))
        changed = self._memory.touched.get(name, 0.0) if self._memory.large else 0.0
        if band < abs(off) < changed * FINISHED:
            needed = 1  # complete the last plan
        side.aim = 1 + REST
        overloaded = above and side.level / side.scale > OVERLOADED and hits < needed
        if overloaded:
            # Whatever the cause, relieve the worst of it now; the rest has to wait for more hits.
            needed, side.aim = min(needed, 2), max(side.aim, RELIEVED * side.scale)
        if hits >= needed and since_s >= (needed - 1) * settings.hit_s:
            side.over, side.under = above, below
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
        if kind in (LIES, ROSE) and side.level / side.scale > OVERLOADED:
            return False
        if doubts.to_try(name):
            side.over = side.urgent = True
            side.aim = side.level * (1 - PROBED)
        self._draft.leave(name, "doubted", doubts.why(name))
        return True

    def _cargo_of(self, side: BrokerLevel) -> list[BundleDemand]:
        """Its movable bundles, the smallest first."""
        cargo = self._cargo.get(side.name)
        if cargo is None:
            draft = self._draft
            known = draft.movable(side.name)
            use = self._present.get(side.name, side.use)
            weights = Weights(draft.loads[side.name], use, side.inverse, known, self._whole)
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
        if self._was_misled(self._cluster.bundles[name].owner):
            return False
        self._draft.leave(name, "recently-moved", f"it was moved{ago}; it stays for {grace_s:.0f} s")
        return True

    def _was_misled(self, owner: str | None) -> bool:
        """Whether bundles came to a broker by mistake: it has just been found slow, or still is so."""
        slow = self._memory.doubts.slow.get(owner or "")
        return slow is not None and not slow.trying and slow.waited_s <= self._settings.grace_s

    def _refused(self, bundle: Bundle, side: BrokerLevel) -> str | None:
        age_s = self._memory.has_left(bundle.name, side.name)
        if age_s is not None and age_s <= self._settings.grace_s and not self._was_misled(bundle.owner):
            return f"it was there {age_s:.0f} s ago"
        return self._filters.why(bundle, side.name)

    def _backs(self, bundle: Bundle, side: BrokerLevel) -> float:
        """By how much dearer it is to move a bundle to a broker that it has left: the less, the longer ago."""
        age_s, kept_s = self._memory.has_left(bundle.name, side.name), self._settings.back_hours * 3_600
        if age_s is None or age_s >= kept_s or self._was_misled(bundle.owner):
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
        self._memory.doubts.arrivals.left(cargo.bundle, source.name, side.name)

    def _answer(self, splits: list[SplitWanted], why: str, otherwise: Reason) -> Plan:
        draft, memory, doubts = self._draft, self._memory, self._memory.doubts
        memory.touched = {
            name: abs(side.level - self._began[name])
            for name, side in self._sides.items()
            if (side.gives or side.taken)
        }
        for name, side in self._sides.items():
            began = self._began.get(name, side.level)
            added = (side.level - began) / side.scale if side.scale > 0 else 0.0
            slow = doubts.slow.get(name)
            if side.over and doubts.to_try(name) and side.gives:
                doubts.tried(name, self._levels[name], -added / (began / side.scale))
            elif slow is not None:
                if side.gives and added < 0:
                    slow.relieved(min(1.0, 1 - side.level / began))
            elif side.taken and not side.gives:
                doubts.sent[name] = self._levels[name], added, float(side.came)
            elif side.gives and not side.taken:
                doubts.taken[name] = self._levels[name], -added, 0.0
        draft.memory = memory.dumped()
        return replace(draft.plan(why, otherwise), splits=tuple(splits))


def _use(parts: Sequence[float]) -> Use:
    cpu, inwards, outwards = parts
    return cpu, inwards, outwards


class WeightedMove:
    """One score over several resources; sources and destinations chosen together, by gain per load moved.

    A broker's level is its most used resource, relative to that of a perfectly balanced cluster:

        x_b = max_r(w_r * usage_br / limit_br) / T        T = max_r(w_r * sum of usage_r / sum of limit_r)

    over CPU and both directions of the network, each against the broker's own limits, the largest weight w counting as 1 (as all
    do unless operators set others); usage is the mean of the last three readings since a bundle came or went.
    A bundle's part of it: `shedders.weighted_move.loads`. The value of a move from
    a to b is gain / churn:

        gain  = C_a (x_a^2 - x_a'^2) - C_b (x_b'^2 - x_b^2)     x': levels afterwards, C: capacity
        churn = traffic of the bundle + `move_cost_percent`     both in parts of an average broker's

    - Which brokers: a broker has too much load from x = 1 + max(`gap_percent`, `noise_factor` * noise) on, too little at twice
      that below; noise is measured between readings. Beyond `urgent_percent` it acts at once if the level is not new (a broker
      has joined), at `gap_percent` after `hits` decisions in a row, `hit_s` apart; in between, the farther the fewer. A level
      that has just risen counts as new until it has lasted for `hits` decisions, so that bursts pass; above 85 % of a limit
      two hits are enough, and then only the worst of it moves.
    - Which bundles: the busiest broker first; of its bundles and the idlest brokers those with the most gain per churn. The
      destination ends below the source's present level; if it ends above the source's new level, the larger of the two must
      have fallen by a quarter of the gap. The gain per churn must be at least that of a gap of `least_gain_percent`. Each move
      counts at once. If no bundle fits, two are exchanged: with one of the idlest brokers, or for four times the least gain with
      one that is as busy by another resource, unless direct memory is scarce anywhere. If that does not help and the largest
      has more than one topic, it is to be split (`Plan.splits`).
    - Grace: within `grace_s` a bundle that this strategy has moved is not moved again, nor moved back to a former broker, its
      parents' included; after that going back costs more than other moves, less and less for `back_hours`. Bundles that others
      have moved stay for five minutes.
    - Habits: bundles count with what is to be expected of them over the next hours, by what they, and others, did before
      (`shedders.weighted_move.habits`); on a broker above 85 % of a limit with what they do now.
    - Doubts: brokers with implausible reports get no bundles; figures that were found to be a part of the truth are corrected,
      and slow brokers count with what they can do (`shedders.weighted_move.doubt`, `shedders.weighted_move.arrivals`).

    Example (also a test): a has 0.8 with bundles of 40, 25, 10 and 5 MB/s, b 0.4 with 20 and 20, c 0.3 with 20 and 10. T is
    0.5, the levels are 1.6, 0.8 and 0.6, and a is urgent. 5 of 50 MB/s are 0.1: to c they gain 1.6^2 - 1.5^2 - (0.7^2 - 0.6^2)
    = 0.18, for 0.1 + 0.01 of churn: 1.636. 10 gain 0.32 for 0.21: 1.524; 25 gain 0.5 for 0.51; 40 would leave c at 1.4. So 5
    goes, then 10 (0.24 for 0.21). Levels are 1.3, 0.8, 0.9: nothing fits alone, but 25 against one of the 20 of b gains 0.08
    for 0.92: 0.087, more than the 0.08 of a gap of 0.04. Levels 1.2, 0.9, 0.9.

    Placement: the broker whose most used resource has the most headroom afterwards, with the bundles in flight added.

    Words in `Plan.left`. Brokers: `no-load-data`, `bad-load`, `outdated`, `lapsed`, `no-limits`, `not-accepting`, `hit-count`,
    `doubted`, `corrected`, `slow`, `nothing-fits`, `budget`. Bundles: those of `shedders.shedding.draft`.

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
