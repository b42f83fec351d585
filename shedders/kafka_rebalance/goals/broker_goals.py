"""Goals of sums: what each broker carries should lie in a range around the mean, or below a share of its capacity."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loaddata.samples.partitions import CPU_UNITS
from shedders.kafka_rebalance.goals.goal import WORDS, BrokerGoal, exact, out_of_reach, range_near, whole_range
from shedders.kafka_rebalance.planning.leveling import level
from shedders.kafka_rebalance.planning.limits import FAR
from shedders.kafka_rebalance.planning.plan import compared
from shedders.kafka_rebalance.planning.reachable import nearest_means
from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.kafka_rebalance.planning.virtual_cluster import Measure
from shedders.model.amounts import count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.search import Search


LEVELLED: Final = 0.1
"""Range around the mean of brokers that cannot keep a limit, up."""
WITNESS_BROKERS_MAX: Final = 5
DISK_CAPACITY: Final = "disk-capacity"
CAPACITY_SHARE: Final = 0.8
"""Share of a capacity that may be used."""


class LeveledGoal(BrokerGoal):
    """A goal of sums that is reached by leveling."""

    def _without_limits(self) -> None:
        self.low = np.full(len(self.cells), -FAR, dtype=np.int64)
        self.high = np.full(len(self.cells), FAR, dtype=np.int64)

    def _missing(self) -> str | None:
        """Which figure is known of no partition; one that is missing for some partitions is a remark."""
        known = self.cluster.known
        for column in self.needs:
            without = int(np.count_nonzero(~known[:, column]))
            if without == len(known):
                return f"{WORDS[column]} is known of no partition"
            if without:
                self.remarks.append(
                    f"{self.name}: {WORDS[column]} of {without} of {len(known)} partitions is not known "
                    "and counts as nothing"
                )
        return None

    def improve(self, search: Search) -> None:
        level(search, self)

    def witness(self, search: Search) -> str:
        beyond = np.where(self.cells, self.distance(self.values), 0)
        worst = int(beyond.argmax())
        value = int(self.values[worst])
        above = value > self.high[worst]
        bound = int(self.high[worst] if above else self.low[worst])
        has, limit = compared(value, bound, self.unit)
        text = f"broker {self.cluster.broker_ids[worst]} has {has}, {'more' if above else 'less'} than {limit}"
        return f"{text}; {self.blocked(search, worst, above=above)}"


class RangeGoal(LeveledGoal):
    """A soft goal of sums: each broker within a share of the mean."""

    share_of = "of the mean, up and down"

    def prepare(self) -> str | None:
        reason = self._missing()
        if reason is not None:
            return reason
        self.cells = self.scope.leaders if self.led else self.scope.homes
        self._without_limits()
        total, parts = self.scope.total(self.measure), self._parts()
        means = {broker: total * part for broker, part in parts.items()}
        if self.cells is self.scope.homes or self.scope.all_lead:
            means = nearest_means(self.scope, self.measure, parts)
        strayed: dict[int, Fraction] = {}
        for broker, part in parts.items():
            common = whole_range(total, part, self.share)
            self.low[broker], self.high[broker] = near = range_near(common, means[broker], self.share)
            if near != common:
                strayed[broker] = means[broker] / (total * part)
        if strayed:
            self.remarks.append(f"{self.name}: {out_of_reach(self.cluster, strayed)}")
        return None

    def _parts(self) -> dict[int, Fraction]:
        """Share of the total that each broker should carry: of bytes by its disks, where those of all are known; else equal."""
        cells = np.nonzero(self.cells)[0].tolist()
        known = disk_capacities(self) if self.measure is Measure.DISK else {}
        if not all(broker in known for broker in cells):
            return {broker: Fraction(1, len(cells)) for broker in cells}
        whole = sum(known[broker] for broker in cells)
        return {broker: Fraction(known[broker], whole) for broker in cells}


class CapacityGoal(LeveledGoal):
    """A hard goal of sums: no broker above a share of what it can carry.

    Attributes:
        bounds: What each broker may carry. B.
        forced: Brokers that have to carry more than that, whatever moves, with their nearest means.
        overloaded: Those of them that are levelled: their `high` is around that mean.
    """

    hard = True
    share_of = "of the capacity that may be used"

    bounds: NDArray[np.int64]
    forced: dict[int, Fraction]
    overloaded: list[int]

    def prepare(self) -> str | None:
        self.forced, self.overloaded = {}, []
        self.cells = self.scope.homes
        self._without_limits()
        known = {broker: value for broker, value in capacities(self).items() if self.cells[broker]}
        if not known:
            return "no capacity is known"
        reason = self._missing()
        if reason is not None:
            return reason
        for broker, capacity in known.items():
            self.high[broker] = int(capacity * exact(self.share) // 1)
        self.bounds = self.high.copy()
        without = int(np.count_nonzero(self.cells)) - len(known)
        if without:
            self.remarks.append(f"{self.name}: the capacity of {count(without, 'broker')} is not known: no limit there")
        else:
            self._heed_sums()
        return None

    def _heed_sums(self) -> None:
        """Where brokers have to carry more than they may, level them instead of filling some up to their limits."""
        bounds = {broker: int(self.bounds[broker]) for broker in np.nonzero(self.cells)[0].tolist()}
        whole = sum(bounds.values())
        if not whole:
            return
        parts = {broker: Fraction(bound, whole) for broker, bound in bounds.items()}
        means = nearest_means(self.scope, self.measure, parts)
        self.forced = {broker: mean for broker, mean in means.items() if mean > bounds[broker]}
        if self.scope.mode is PlanMode.REBALANCE and not self.scope.emptied.any():
            # Nothing has to come to these brokers, so that limits may only be exceeded where they are exceeded already.
            for broker, mean in self.forced.items():
                self.overloaded.append(broker)
                self.high[broker] = max(bounds[broker], whole_range(mean, Fraction(1), LEVELLED)[1])

    def shortage(self) -> str:
        """Which brokers have to get more than they may, as part of a sentence; empty: none."""
        short = {broker: mean for broker, mean in self.forced.items() if mean > self.values[broker]}
        if not short:
            return ""
        carried, limit = compared(round(sum(short.values())), int(self.bounds[list(short)].sum()), self.unit)
        return f"{self._named(list(short))} would carry {carried}, more than the {limit} that may be"

    def _named(self, brokers: list[int]) -> str:
        ids = [str(self.cluster.broker_ids[broker]) for broker in brokers[:WITNESS_BROKERS_MAX]]
        more = ", ..." if len(ids) < len(brokers) else ""
        return f"{'broker' if len(brokers) == 1 else 'brokers'} {', '.join(ids)}{more}"

    def measured(self) -> tuple[Any, Any]:
        return self.values[self.cells], np.maximum(self.values - self.bounds, 0)[self.cells]

    def witness(self, search: Search) -> str:
        bounds, total = self.bounds[self.cells], self.scope.total(self.measure)
        instead = "; they are levelled around their mean instead" if self.overloaded else ""
        if (bounds < FAR).all() and total > int(bounds.sum()):
            carried, limit = compared(total, int(bounds.sum()), self.unit)
            return f"all brokers together carry {carried}, more than the {limit} that they may{instead}"
        if not self.overloaded:
            return super().witness(search)
        few = self.overloaded
        carried, limit = compared(int(self.values[few].sum()), int(self.bounds[few].sum()), self.unit)
        who = f"{self._named(few)}, which no other rack can relieve,"
        return f"{who} carry {carried}, more than the {limit} that they may{instead}"


def capacities(goal: BrokerGoal) -> dict[int, int]:
    """What brokers can carry by the measure of a goal, by place, where that is known."""
    match goal.measure:
        case Measure.DISK:
            return disk_capacities(goal)
        case Measure.CPU:
            return {place: round(share * CPU_UNITS) for place, share in _requested(goal, "cpu").items()}
        case Measure.NET_IN:
            return _requested(goal, "bytes_in_per_s")
        case Measure.NET_OUT:
            return _requested(goal, "bytes_out_per_s")
    most = goal.request.replicas_max
    return {} if most is None else dict.fromkeys(np.nonzero(goal.cells)[0].tolist(), most)


def _requested(goal: BrokerGoal, field: str) -> dict[int, Any]:
    """One field of the requested capacities, by place: of the broker, else the default; unknown ones are left out."""
    requested = goal.request.capacities
    default = getattr(requested.default, field)
    values = {
        place: getattr(requested.of.get(broker, requested.default), field)
        for place, broker in enumerate(goal.cluster.broker_ids)
    }
    by_place = {place: default if value is None else value for place, value in values.items()}
    return {place: value for place, value in by_place.items() if value is not None}


def disk_capacities(goal: BrokerGoal) -> dict[int, int]:
    """Bytes: as requested, else the sum of the online log directories, where all of them report theirs; 0 is not known."""
    sizes: dict[int, int] = {}
    for broker in goal.scope.layout.brokers:
        online = [directory.total_bytes for directory in broker.log_dirs if not directory.offline]
        reported = [size for size in online if size is not None]
        if sum(reported) and len(reported) == len(online):
            sizes[goal.cluster.index[broker.id]] = sum(reported)
    return sizes | _requested(goal, "disk_bytes")
