"""Decision cycle of `weighted-move`: which brokers deviate from the mean, for how long, and which bundles move. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Plan, Reason, SplitWanted
from shedders.model.readings import SheddingSettings, may_receive
from shedders.shedding.draft import Draft
from shedders.shedding.leveling import CanTake
from shedders.weighted_move.doubt import FELL, LIES, PROBED, ROSE, pulse_of
from shedders.weighted_move.loads import (
    RESOURCES,
    BrokerLevel,
    BundleDemand,
    Use,
    Weights,
    inverse_of,
    parts_of,
    times,
    use_of,
    whole,
)
from shedders.weighted_move.memory import Memory
from shedders.weighted_move.steps import FilterRefusals, MoveStep, StepRules, Steps
from shedders.weighted_move.watch import BrokerHistory

if TYPE_CHECKING:
    from shedders.weighted_move.settings import WeightedMoveSettings


REST = 0.02
"""Levels this close to 1 count as 1: reports are not more precise."""

UNDER = 2.0
"""A broker counts as idle at this multiple of the gap: an idle broker does no harm, a busy one does."""

OVERLOADED = 0.85
"""A broker above this part of a limit is relieved after at most two hits (upstream's overload limit)."""

RELIEVED = 0.8
"""Such a broker is relieved down to this part of its limit."""

FINISHED = 0.5
"""A deviation below this part of the last large plan's change counts as its error; more has another cause."""

SETTLED_S = 300.0
"""Bundles that others (a drain, for example) have moved are left alone for this time, until their load has settled."""

LEAST_DONE = 0.05
"""Least assumed capacity of a broker, as a part of the reported one."""

LARGE = 0.05
"""A plan that moves at least this part of all load is checked afterwards."""

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
        self._memory = Memory.recall(memory, cluster.now_ms, settings.grace_s, cluster.brokers)
        self._cargo: dict[str, list[BundleDemand]] = {}
        self._sides: dict[str, BrokerLevel] = {}
        self._began: dict[str, float] = {}
        self._levels: dict[str, float] = {}
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
        steps = Steps(list(self._sides.values()), rules, self._cargo_of, self._refused, self._filters)
        planned = steps.run()
        for name, (word, why) in steps.stuck.items():
            draft.leave(name, word, why)
        for step in planned:
            self._move(step)
        self._memory.large = steps.churn >= LARGE * len(self._sides)
        stuck = [self._sides[name] for name, (word, _) in steps.stuck.items() if word == "nothing-fits"]
        splits = wanted_splits(stuck, self._cargo_of, self._memory, settings.gap_percent / 100, steps.has_room)
        why = "no broker deviates from the mean"
        if self._waiting:
            why = f"{self._waiting} brokers deviate from the mean, none for long enough"
        if steps.stuck:
            why = f"{len(steps.stuck)} brokers have too much load, none of their bundles is worth moving"
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
        self._doubt(levels, changed)
        for name in loads:
            weakness = self._weakness(name, levels[name])
            if weakness is not None:
                capacity, done = weakness
                uses[name], inverses[name] = times(uses[name], 1 / done), times(inverses[name], 1 / capacity)
        doubts = memory.doubts
        sound = {name: load for name, load in loads.items() if doubts.of(name) is None or name in doubts.weak}
        # New load counts once it has lasted: a burst raises only its own broker's level.
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
        return BrokerLevel(
            name, use, inverse, 1 / level if level >= TINY else 0.0, 1 / share if share > 0 else 1.0, takes=takes
        )

    def _doubt(self, levels: Mapping[str, float], changed: Collection[str]) -> None:
        """Compare the bundles' present traffic with their usual one."""
        groups, pulses, doubts = self._cluster.bundles_of, {}, self._memory.doubts
        for name in levels:
            pulse, sizes = pulse_of(groups.unsorted(name))
            if pulse is not None:
                pulses[name] = pulse
            doubts.look_at(name, sizes, changed=name in changed)
        doubts.judge(pulses, levels)

    def _weakness(self, name: str, level: float) -> tuple[float, float] | None:
        """The capacity of a slow broker, as a part of the reported one, and the part of its demand that it serves."""
        doubts = self._memory.doubts
        done = min(1.0, max(LEAST_DONE, doubts.now.get(name, 1.0)))
        if name in doubts.weak:
            return max(LEAST_DONE, doubts.weak[name][0]), done
        return (max(LEAST_DONE, level), done) if doubts.to_try(name) else None

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
        if name in self._memory.touched:
            watched.usual = self._whole.level  # the level that the last plan aimed at
        usual = watched.usual * side.scale - 1
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
        if kind is None or (name in doubts.weak and kind == FELL):
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
            weights = Weights(draft.loads[side.name], side.use, side.inverse, known, self._whole)
            cargo = [
                demand
                for bundle in known
                if not self._was_moved(bundle.name)
                and (demand := weights.cargo(bundle)) is not None
                and demand.size > 0
            ]
            cargo.sort(key=lambda demand: (demand.size, demand.bundle.name))
            self._cargo[side.name] = cargo
        return cargo

    def _was_moved(self, name: str) -> bool:
        """Whether a bundle has to stay as this strategy moved it recently."""
        age_s = self._cluster.recent.bundles.get(name)
        grace_s = self._settings.grace_s
        if (age_s is not None and age_s > grace_s) or not self._memory.moved(name, age_s):
            return False
        ago = "" if age_s is None else f" {age_s:.0f} s ago"
        self._draft.leave(name, "recently-moved", f"it was moved{ago}; it stays for {grace_s:.0f} s")
        return True

    def _refused(self, bundle: Bundle, side: BrokerLevel) -> str | None:
        age_s = self._memory.has_left(bundle.name, side.name)
        if age_s is not None:
            return f"it was there {age_s:.0f} s ago"
        return self._filters.why(bundle, side.name)

    def _move(self, step: MoveStep) -> None:
        cargo, source, side = step.cargo, step.source, step.destination
        back = " returned for one that is too heavy by itself;" if step.back else ""
        why = (
            f"{cargo.size:.4f} of {source.name}:{back} levels {step.before[0]:.3f} and {step.before[1]:.3f} become "
            f"{step.after[0]:.3f} and {step.after[1]:.3f} of the average, mainly {RESOURCES[step.resource]}; gain per "
            f"churn {step.value:.3f}"
        )
        reason = Reason.OVERLOADED if (side if step.back else source).over else Reason.UNDERLOADED
        self._draft.move(cargo.bundle, source.name, reason, cargo.throughput, why, side.name)
        if step.back:
            self._draft.moves[-1] = replace(self._draft.moves[-1], swap=True)
        self._memory.came.setdefault(cargo.bundle.name, []).append((source.name, 0.0))

    def _answer(self, splits: list[SplitWanted], why: str, otherwise: Reason) -> Plan:
        draft, memory = self._draft, self._memory
        memory.touched = {
            name: abs(side.level - self._began[name])
            for name, side in self._sides.items()
            if (side.gives or side.taken)
        }
        for name, side in self._sides.items():
            added = (side.level - self._began.get(name, side.level)) / side.scale if side.scale > 0 else 0.0
            if side.over and memory.doubts.to_try(name) and side.gives:
                memory.doubts.tried(name, self._levels[name], -added / (self._began[name] / side.scale))
            elif side.taken and not side.gives:
                memory.doubts.sent[name] = self._levels[name], added, float(side.came)
        draft.memory = memory.dumped()
        return replace(draft.plan(why, otherwise), splits=tuple(splits))


BIG = 0.2
"""A bundle with less than this part of an average broker's load can be balanced by others."""

SPLITS_MAX = 4
"""Maximum number of splits in one decision: each costs its clients a reconnect."""

LOOKED_MAX = 32
"""Maximum number of brokers for whose bundles room is searched: filters may confine those of hundreds."""


def wanted_splits(
    stuck: Sequence[BrokerLevel],
    cargo: Callable[[BrokerLevel], list[BundleDemand]],
    memory: Memory,
    gap: float,
    has_room: Callable[[BrokerLevel, Bundle, float], bool],
) -> list[SplitWanted]:
    """The largest bundle of each broker that has too much load and no movable bundle.

    Args:
        stuck: Those brokers, the busiest first.
        gap: How far above the level a broker may be.
        has_room: Whether any broker with a lower level may take a bundle at all: if not, its parts could go nowhere either.
    """
    splits: list[SplitWanted] = []
    looked = 0
    for side in stuck:
        if len(splits) >= SPLITS_MAX or not side.level > 1 + gap:
            continue
        largest = next(reversed(cargo(side)), None)
        if largest is None or largest.young or largest.size * side.scale < BIG:
            continue
        bundle = largest.bundle
        if bundle.name in memory.asked or bundle.stats is None or bundle.stats.topics < 2:  # noqa: PLR2004
            continue
        looked += 1
        if looked > LOOKED_MAX or not has_room(side, bundle, gap):
            continue
        memory.asked[bundle.name] = (largest.throughput, 0.0)
        splits.append(
            SplitWanted(
                bundle.name,
                f"{side.name} is at {side.level:.3f} of the average, {largest.size * side.scale:.3f} of it this bundle, too "
                "much for any other broker",
            )
        )
    return splits
