"""TransferShedder exactly as in upstream, defects included: the `upstream` setting of TransferShedder.

Source: Pulsar's `TransferShedder.findBundlesForUnloading` (4.2 and 5.0). Upstream goes through hash maps; here brokers are
summed, and sorted where their loads are equal, in the order of their names.

What the cluster says is read as upstream's classes would have it: a broker's report is its entry in the load store, `rank`
is the place in the list of top bundles, a bundle in flight is one that the source does not own, and ages become the
wall-clock times that upstream compares. Only sources cool down there: brokers that only got bundles are remembered (`receivers`).
It ignores stale reports, cordons, pins and brokers that accept nothing; filters it does not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shedders.model.amounts import part_of, rate, seconds
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import BundleMove, Label, Left, Plan, Reason
from shedders.model.strategy import CanTake
from shedders.shedding.transfer_pairs import TransferCandidate, WithPolicies

if TYPE_CHECKING:
    from shedders.shedding.transfer_pairs import TransferSettings

MIN_KEPT = 0.75  # a swap has to leave the source less than this share of its traffic


@dataclass(slots=True)
class _Pair:
    source: str
    destination: str
    reason: Reason
    source_traffic: float
    destination_traffic: float
    target: float
    moved: float = 0.0
    gained: float = 0.0
    moves: list[BundleMove] = field(default_factory=list)

    def move(self, top: TransferCandidate, *, transfer: bool = True) -> BundleMove:
        return BundleMove(
            bundle=top.bundle.name,
            source=self.source,
            destination=self.destination if transfer else None,
            reason=self.reason,
            load=top.load,
            why=f"{part_of(self.moved - self.gained + top.load, self.target)} to offload from {self.source}",
        )

    def give_back(self, top: TransferCandidate) -> BundleMove:
        return BundleMove(
            bundle=top.bundle.name,
            source=self.destination,
            destination=self.source,
            reason=self.reason,
            load=top.load,
            why=f"returned to {self.source} in exchange",
            swap=True,
        )


class UpstreamCycle:
    """One decision.

    Args:
        hits: How often in a row the condition was met before.
        receivers: Brokers whose last move only brought them bundles.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: TransferSettings,
        can_take: CanTake | None,
        hits: int,
        receivers: Collection[str],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._can_take = can_take
        self._with_policies = WithPolicies(cluster)
        self._hits = hits
        self._receivers = {name for name in receivers if name in cluster.recent.brokers}
        self._store = {name: load for name in cluster.broker_names if (load := cluster.brokers[name].load) is not None}
        self._sorted = sorted(self._store, key=lambda name: ascending(self._store[name].weighted_max_ema))
        self._lowest, self._highest = 0, len(self._sorted) - 1
        self._spread = UpstreamSpread(())
        self._first = self._spread.std
        self._no_data = self._few = 0
        self._moves: list[BundleMove] = []
        self._left: list[Left] = []

    def plan(self) -> Plan:
        skipped = self._measure()
        if skipped is not None:
            return self._answer(Label.SKIP, *skipped)
        met = self._spread.std > self._settings.target_std or self._under() or self._over()
        self._hits = self._hits + 1 if met else 0
        if self._hits <= self._settings.hit_threshold:
            why = f"condition met {self._hits} times in a row; more than {self._settings.hit_threshold} are needed"
            return self._answer(Label.SKIP, Reason.HIT_COUNT, why)
        self._pair_up()
        if self._moves:
            why = f"{len(self._moves)} bundles to move; spread {self._first:.4f} becomes {self._spread.std:.4f}"
            return self._answer(Label.SUCCESS, self._moves[0].reason, why)
        if self._no_data:
            return self._answer(Label.SKIP, Reason.NO_LOAD_DATA, f"{self._no_data} brokers report no top bundles")
        if self._few:
            return self._answer(Label.SKIP, Reason.NO_BUNDLES, f"{self._few} brokers have no bundle that fits")
        return self._answer(Label.SKIP, Reason.HIT_COUNT, "no pair of brokers to even out")

    def _measure(self) -> tuple[Reason, str] | None:
        """Average and deviation, or why the cycle stops here."""
        now_ms, settings = self._cluster.now_ms, self._settings
        loads: list[float] = []
        outdated = False
        for name, load in self._store.items():
            if now_ms - load.updated_at_ms > settings.max_age_s * 1000:
                outdated = True
                self._left.append(Left(name, "outdated", f"updated at {load.updated_at_ms} ms, now is {now_ms} ms"))
                continue
            age_s = None if name in self._receivers else self._cluster.recent.brokers.get(name)
            # Milliseconds are whole numbers upstream; an age in seconds is not quite one.
            if age_s is not None and load.updated_at_ms - (now_ms - round(age_s * 1000)) < settings.cool_down_s * 1000:
                return Reason.COOL_DOWN, f"{name} gave bundles away {seconds(age_s)} ago and cools down"
            loads.append(load.weighted_max_ema)
        if not loads:
            return (Reason.OUTDATED_DATA if outdated else Reason.NO_BROKERS), "no broker has usable load data"
        missing = [name for name in self._cluster.broker_names if name not in self._store]
        if missing:
            return Reason.NO_LOAD_DATA, f"no load data of {', '.join(missing[:5])} ({len(missing)} brokers)"
        self._spread = UpstreamSpread(loads)
        self._first = self._spread.std
        return None

    def _under(self) -> bool:
        """The broker at the low end is all but idle, by its load or by its traffic."""
        load, share = self._store[self._sorted[self._lowest]], self._settings.underloaded_share
        if load.weighted_max_ema < self._spread.mean * share:
            return True
        return load.msg_throughput_ema < self._store[self._sorted[self._highest]].msg_throughput_ema * share

    def _over(self) -> bool:
        """The broker at the high end is beyond the threshold and stands out."""
        load = self._store[self._sorted[self._highest]].weighted_max_ema
        settings = self._settings
        return load > settings.overloaded_percent / 100 and load > self._spread.mean + settings.target_std

    def _pair_up(self) -> None:
        done = 0
        while done < self._settings.max_pairs_per_cycle and self._lowest < self._highest:
            reason = self._reason()
            if reason is None:
                return
            source, destination = self._sorted[self._highest], self._sorted[self._lowest]
            self._highest -= 1
            tops = self._tops(source)
            if not tops:
                self._no_data += 1
                self._left.append(Left(source, "no-bundles", "reports no top bundles"))
            elif len(tops) == 1:
                self._few += 1
                self._left.append(Left(source, "sole-bundle", f"only {tops[0].bundle.name} is reported"))
            elif self._offload(source, destination, reason, tops):
                done += 1
                self._lowest += 1
            else:
                self._few += 1
                self._left.append(Left(source, "nothing-fits", f"no bundle can go to {destination}"))

    def _reason(self) -> Reason | None:
        if self._spread.std > self._settings.target_std:
            return Reason.OVERLOADED
        if self._under():
            return Reason.UNDERLOADED
        return Reason.OVERLOADED if self._over() else None

    def _tops(self, broker: str) -> list[TransferCandidate]:
        ranked = [
            (bundle.rank, bundle.name, bundle)
            for bundle in self._cluster.bundles_of.get(broker, ())
            if bundle.rank is not None
        ]
        return [
            TransferCandidate(bundle, bundle.stats.msg_throughput)
            for _, _, bundle in sorted(ranked)
            if bundle.stats is not None
        ]

    def _offload(self, source: str, destination: str, reason: Reason, tops: Sequence[TransferCandidate]) -> bool:
        """Mark bundles of one pair; whether there are any."""
        heavy, light = self._store[source], self._store[destination]
        high, low = heavy.weighted_max_ema, light.weighted_max_ema
        target = divide(heavy.msg_throughput * ((high - low) / 2), high)
        pair = _Pair(source, destination, reason, heavy.msg_throughput, light.msg_throughput, target)
        self._choose(pair, tops, iter(self._tops(destination)))
        self._moves += pair.moves
        if not pair.moved > 0:
            return False
        self._spread.shift(high, low, divide((pair.moved - pair.gained) * high, heavy.msg_throughput))
        return True

    def _choose(self, pair: _Pair, tops: Sequence[TransferCandidate], theirs: Iterator[TransferCandidate]) -> None:
        remaining = len(tops)
        for top in tops:
            word = self._held(top.bundle, pair)
            if word is not None:
                self._left.append(Left(top.bundle.name, word, f"stays on {pair.source}"))
                continue
            if remaining <= 1:
                self._left.append(Left(top.bundle.name, "last-one", f"the last reported bundle of {pair.source}"))
                return
            if top.load == 0:
                continue
            back = self._in_return(pair, top, theirs)
            if back is None:
                why = f"{rate(top.load)}, {rate(pair.target)} to offload"
                self._left.append(Left(top.bundle.name, "too-heavy", why))
                return
            pair.moves += [pair.give_back(top) for top in back]
            pair.moves.append(pair.move(top, transfer=self._settings.transfer))
            if self._settings.upstream_debug:
                pair.gained += _total(back)
            pair.moved += top.load
            remaining -= 1

    def _held(self, bundle: Bundle, pair: _Pair) -> str | None:
        """Why a bundle of the source is passed over."""
        if bundle.in_flight:
            return "in-flight"
        if bundle.namespace in self._cluster.policies.excluded:
            return "excluded"
        if self._cluster.recent.bundles.get(bundle.name, float("inf")) <= self._settings.grace_s:
            return "recently-moved"
        return None if self._may_go(bundle, pair.destination) else "filtered"

    def _may_go(self, bundle: Bundle, destination: str) -> bool:
        """Upstream's `isTransferable`: a filter that fails says no."""
        if not self._settings.shed_with_policies and bundle.namespace in self._with_policies:
            return False
        try:
            return self._can_take is None or self._can_take(bundle, destination) is None
        except Exception:
            return False

    def _in_return(
        self, pair: _Pair, top: TransferCandidate, theirs: Iterator[TransferCandidate]
    ) -> list[TransferCandidate] | None:
        """What has to come back for a bundle: nothing if it fits; None if it stays.

        The iterator goes on where the last search ended.
        """
        if not pair.moved - pair.gained + top.load > pair.target:
            return []
        if not self._settings.transfer:
            return None
        source = pair.source_traffic - pair.moved + pair.gained - top.load
        destination = pair.destination_traffic + pair.moved - pair.gained + top.load
        back: list[TransferCandidate] = []
        for other in theirs:
            if not self._may_go(other.bundle, pair.source) or other.load == 0:
                continue
            if not (source + other.load < pair.source_traffic and destination - other.load < pair.source_traffic):
                continue
            back.append(other)
            source, destination = source + other.load, destination - other.load
            if destination <= source < pair.source_traffic * MIN_KEPT:
                return back
        return None

    def _answer(self, label: Label, reason: Reason, why: str) -> Plan:
        sources = {move.source for move in self._moves}
        receivers = self._receivers | {move.destination for move in self._moves if move.destination is not None}
        figures = {
            "avg": self._spread.mean,
            "std": self._first,
            "std_after": self._spread.std,
            "target_std": self._settings.target_std,
            "hits": float(self._hits),
        }
        return Plan(
            strategy="transfer",
            label=label,
            reason=reason,
            why=why,
            moves=tuple(self._moves),
            left=tuple(self._left),
            scores={
                name: load.weighted_max_ema
                for name, load in self._store.items()
                if math.isfinite(load.weighted_max_ema)
            },
            stats={name: figure for name, figure in figures.items() if math.isfinite(figure)},
            memory={"hits": 0 if self._moves else self._hits, "receivers": sorted(receivers - sources)},
        )


class UpstreamSpread:
    """Upstream's `LoadStats`: running sums of loads and of their squares, in the order given.

    The difference of two nearly equal numbers under the root can be below zero; Java's root of that is not a number, and
    every comparison with it is false. So it is here.
    """

    def __init__(self, loads: Iterable[float]) -> None:
        total, self._squares, self._count = 0.0, 0.0, 0
        for load in loads:
            total += load
            self._squares += load * load
            self._count += 1
        self.mean = total / self._count if self._count else 0.0
        self.std = _root(self._squares / self._count - self.mean * self.mean) if self._count else 0.0

    def shift(self, source: float, destination: float, amount: float) -> None:
        """Book a pair by the loads that its brokers had before."""
        self._squares -= source * source + destination * destination
        lower, higher = _larger(0.0, source - amount), destination + amount
        self._squares += lower * lower + higher * higher
        self.std = _root(abs(self._squares / self._count - self.mean * self.mean))


def divide(value: float, by: float) -> float:
    """Division as IEEE 754 has it: by zero it gives an infinity or not-a-number, never an error."""
    if by:
        return value / by
    if not value or math.isnan(value):
        return math.nan
    return math.copysign(math.inf, value) * math.copysign(1.0, by)


def ascending(load: float) -> tuple[bool, float, float]:
    """Sort key of Java's `Double.compare`: -0.0 before 0.0, not-a-number last."""
    return (True, 0.0, 0.0) if math.isnan(load) else (False, load, math.copysign(1.0, load))


def _larger(left: float, right: float) -> float:
    """The larger one; not-a-number if either is (Java's `Math.max`)."""
    return math.nan if math.isnan(left) or math.isnan(right) else max(left, right)


def _root(value: float) -> float:
    """Square root; not-a-number below zero."""
    return math.sqrt(value) if value >= 0 else math.nan


def _total(tops: Sequence[TransferCandidate]) -> float:
    """Plain sum from left to right: `sum` rounds otherwise from Python 3.12 on."""
    total = 0.0
    for top in tops:
        total += top.load
    return total
