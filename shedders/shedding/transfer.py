"""TransferShedder: moves bundles from the heaviest brokers to the lightest until the spread of loads is small enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from shedders.model.amounts import part_of, rate
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import BundleMove, Label, Left, Plan, Reason
from shedders.model.strategy import CanTake, StrategySettings
from shedders.shedding.transfer_pairs import (
    Book,
    Bundles,
    Exchange,
    ExchangeTarget,
    LoadSpread,
    PairSide,
    TransferSettings,
    Way,
    exchange,
    sides,
)
from shedders.shedding.transfer_upstream import UpstreamCycle

SKIP_REASONS = {
    "cooling": Reason.COOL_DOWN,
    "outdated": Reason.OUTDATED_DATA,
    "no-load-data": Reason.NO_LOAD_DATA,
    "lapsed": Reason.NO_LOAD_DATA,
    "bad-load": Reason.NO_LOAD_DATA,
    "no-limits": Reason.NO_LOAD_DATA,
}
"""Upstream's reasons for brokers that are left out; the first that applies is the cycle's."""

HITS_MAX = 2**31 - 1  # upstream counts in an int
_PAIR = 2


class TransferShedder:
    """Evens out the heaviest and the lightest broker, pair by pair, once their loads were too far apart several times in a row.

    x is a broker's load: the moving average of its weighted maximum, 1 for a full broker. T is its traffic in bytes a second.
    avg and std are over the brokers that take part, m = min(0.5, target_std / 2).

        condition:  std > target_std                                     (Overloaded)
                    or x_min < avg * m, or T_min < T_max * m on average  (Underloaded)
                    or x_max > overloaded_percent / 100 and x_max > avg + target_std   (Overloaded)
        a pair:     heaviest X, lightest N;  target = T_X * (x_X - x_N) / 2 / x_X
        booked:     net * x_X / T_X of load goes from X to N, by which std changes

    When the condition was met more than `hit_threshold` times in a row, pairs are formed while the projected loads still meet
    it, `max_pairs_per_cycle` at most; no broker is in two. Bundles are chosen heaviest first that together do not
    exceed the target. If that is less than half of it, one heavier bundle goes in exchange for lighter ones.

    Worked example (also a test): loads 0.02, 0.04, 0.06, 0.80, 0.90 have avg 0.364 and std 0.398, which is above 0.25. The
    fifth broker serves 9 MB/s with bundles of 2 and 7, and the first is to get 9 * 0.44 / 0.9 = 4.4 of it: the bundle of 2
    goes, 7 is too much. That is 0.2 of load; loads 0.22, 0.04, 0.06, 0.80, 0.70 have std 0.321, so the fourth broker comes
    next: of 8 MB/s it is to lose 8 * 0.38 / 0.8 = 3.8 to the second, and its bundle of 2 goes (the other has 6). Loads 0.22,
    0.24, 0.06, 0.60, 0.70 have std 0.244: enough.

    Words in `Plan.left`. Brokers: `not-accepting`, `no-load-data`, `bad-load`, `no-limits`, `outdated`, `lapsed`, `cooling`,
    `cordoned`, `no-traffic`, `sole-bundle` (split it), `no-bundles` (none that is reported may go), `small-gap` (the lightest
    is nearly as loaded), `nothing-fits`, `tries-used-up`. Bundles: `in-flight`, `excluded`, `policies`, `recently-moved`,
    `no-stats`, `bad-load`, `no-traffic`, `pinned`, `filtered`, `filter-failed`, `too-heavy`, `enough`; with `upstream` also
    `last-one`.

    Source: PIP-192, PIP-220, upstream `TransferShedder`. With `upstream` it is that class, defects included
    (`shedders.shedding.transfer_upstream`); ours differs as design/decisions/0031 to 0038 say.

    Args:
        can_take: Filters: why a broker may not take a bundle, None if it may. Without them every broker may take every bundle.
            They must be those of the planned cluster, so a strategy with filters is created for each decision.
        book: Called with each planned move, so that later calls of `can_take` count it; not with `upstream`.
    """

    name: ClassVar[str] = "transfer"
    Settings: ClassVar[type[StrategySettings]] = TransferSettings

    def __init__(self, settings: TransferSettings, can_take: CanTake | None = None, book: Book | None = None) -> None:
        self.settings = settings
        self._can_take = can_take
        self._book = book

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once; remembers how often in a row the condition was met (`hits`)."""
        kept = memory.get("hits", 0)
        # A larger count has no further effect; an invalid one must not stop the decision.
        most = HITS_MAX if self.settings.upstream else self.settings.hit_threshold
        hits = min(kept, most) if type(kept) is int and kept >= 0 else 0
        if cluster.safe is not None:
            kept = dict(memory) if self.settings.upstream else {"hits": 0}
            return Plan(
                self.name, Label.SKIP, Reason.UNKNOWN, f"the cluster is left alone: {cluster.safe}", memory=kept
            )
        if self.settings.upstream:
            names = memory.get("receivers", ())
            receivers = [name for name in names if isinstance(name, str)] if isinstance(names, list | tuple) else []
            return UpstreamCycle(cluster, self.settings, self._can_take, hits, receivers).plan()
        return _Cycle(cluster, self.settings, self._can_take, self._book, hits).plan()


class _Cycle:
    def __init__(
        self, cluster: Cluster, settings: TransferSettings, can_take: CanTake | None, book: Book | None, hits: int
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._hits, self._met = hits, 0
        self._sides, self._left = sides(cluster, settings)
        self._bundles = Bundles(cluster, settings, can_take, book)
        self._spread = LoadSpread({side.name: side.load for side in self._sides})
        self._first = self._spread.std
        self._done: set[str] = set()
        self._tries = 0
        self._moves: list[BundleMove] = []

    def plan(self) -> Plan:
        skipped = self._too_few()
        if skipped is not None:
            self._hits = 0
            return self._answer(Label.SKIP, *skipped)
        self._met = self._hits = self._hits + 1 if self._reason() is not None else 0
        if self._hits <= self._settings.hit_threshold:
            return self._answer(Label.SKIP, Reason.HIT_COUNT, self._why_waiting())
        self._met, self._hits = self._hits, 0
        self._pair_up()
        if self._moves:
            why = f"{len(self._moves)} bundles to move; spread {self._first:.3f} becomes {self._spread.std:.3f}"
            return self._answer(Label.SUCCESS, self._moves[0].reason, why)
        return self._answer(Label.SKIP, Reason.NO_BUNDLES, "no pair of brokers has bundles that would even it out")

    def _why_waiting(self) -> str:
        std, target, least = self._spread.std, self._settings.target_std, self._settings.hit_threshold
        if not self._hits:
            return f"the brokers are close enough: their spread is {std:.3f}, the target {target:.3f}; no broker deviates too far"
        times = "once" if self._hits == 1 else f"{self._hits} times in a row"
        return (
            f"their spread is {std:.3f}, the target {target:.3f}: condition met {times}, more than {least} are needed"
        )

    def _too_few(self) -> tuple[Reason, str] | None:
        words = {left.reason for left in self._left}
        reason = next((SKIP_REASONS[word] for word in SKIP_REASONS if word in words), Reason.NO_BROKERS)
        if len(self._sides) < _PAIR or all(side.gives_only for side in self._sides):
            return reason, f"{len(self._sides)} of {len(self._cluster.brokers)} brokers can take part; two are needed"
        blind = SKIP_REASONS.keys() - {"cooling"}
        unknown = sum(left.reason in blind for left in self._left)
        away = sum(left.reason == "not-accepting" for left in self._left)
        here = len(self._cluster.brokers) - away
        if here - unknown < self._settings.min_reporting_share * here:
            blamed = next(SKIP_REASONS[word] for word in SKIP_REASONS if word in words & blind)
            return blamed, f"only {here - unknown} of {here} brokers have a usable report"
        return None

    def _reason(self) -> Reason | None:
        """Why the lightest and heaviest brokers that are left should be evened out, if they should."""
        low = next((side for side in self._sides if self._takes(side)), None)
        high = next((side for side in reversed(self._sides) if side.name not in self._done), None)
        if low is None or high is None:
            return None
        settings, share = self._settings, self._settings.underloaded_share
        if self._spread.std > settings.target_std:
            return Reason.OVERLOADED
        if (
            low.load < self._spread.mean * share
            or low.report.msg_throughput_ema < high.report.msg_throughput_ema * share
        ):
            return Reason.UNDERLOADED
        if high.load > settings.overloaded_percent / 100 and high.load > self._spread.mean + settings.target_std:
            return Reason.OVERLOADED
        return None

    def _takes(self, side: PairSide) -> bool:
        return not side.gives_only and side.name not in self._done

    def _pair_up(self) -> None:
        pairs = 0
        for place in range(len(self._sides) - 1, -1, -1):
            source = self._sides[place]
            if pairs >= self._settings.max_pairs_per_cycle:
                return
            if source.name in self._done:
                continue
            reason = self._reason()
            if reason is None:
                return
            if self._tries >= self._settings.max_tries_per_cycle:
                self._left.append(Left(source.name, "tries-used-up", f"{self._tries} pairs were examined already"))
                return
            self._done.add(source.name)
            takers = [side for side in self._sides[:place] if self._takes(side)]
            if not takers:
                return
            if self._relieve(source, takers, reason):
                pairs += 1

    def _relieve(self, source: PairSide, takers: Sequence[PairSide], reason: Reason) -> bool:
        """Plan one pair with this source; whether there is one."""
        owned = self._cluster.bundles_of.get(source.name, ())
        trouble = self._nothing_to_give(source, owned)
        if trouble is not None:
            self._left.append(Left(source.name, *trouble))
            return False
        cargo = self._bundles.cargo(source.name)
        # The reason is one idle broker: filling another one instead would not help.
        most = 1 if reason is Reason.UNDERLOADED else self._settings.max_destinations_per_source
        word, why, largest = "nothing-fits", "", math.inf
        for turn, taker in enumerate(takers[:most]):
            gap = source.load - taker.load
            if not gap > 0 or (self._by_spread(reason) and gap <= self._settings.target_std):
                if not turn:
                    word, why = "small-gap", f"{taker.name} has only {gap:.3f} less"
                break
            if turn and self._tries >= self._settings.max_tries_per_cycle:
                break
            self._tries += 1
            target = source.report.msg_throughput * (gap / 2 / source.load)
            pair = self._exchange(source, taker, target, len(owned))
            if pair.going:
                self._book_pair(source, taker, pair, target, reason)
                self._bundles.stayed(cargo, target, pair.net)
                return True
            # The lightest comes first, so the first target is the largest.
            largest = largest if turn else target
            why = f"none of {len(cargo)} bundles can take {rate(target)} or less to {taker.name}"
        self._bundles.stayed(cargo, largest, 0.0)
        self._left.append(Left(source.name, word, why))
        return False

    def _nothing_to_give(self, source: PairSide, owned: Sequence[Bundle]) -> tuple[str, str] | None:
        if not source.load > 0 or not source.report.msg_throughput > 0:
            return "no-traffic", f"load {source.load:.3f} with {rate(source.report.msg_throughput)}"
        if len(owned) == 1:
            return "sole-bundle", f"{owned[0].name} is its only bundle: splitting it would help, moving it would not"
        if not self._bundles.cargo(source.name):
            self._tries += 1
            return "no-bundles", f"none of its {len(owned)} bundles is reported and movable"
        return None

    def _by_spread(self, reason: Reason) -> bool:
        return reason is Reason.OVERLOADED and self._spread.std > self._settings.target_std

    def _exchange(self, source: PairSide, taker: PairSide, target: float, owned: int) -> Exchange:
        aim = ExchangeTarget(
            target=target,
            enough=self._settings.enough_share,
            most_going=owned - 1,
            most=self._settings.max_bundles_per_pair,
            # The source would have to take the returned bundles.
            swap=self._settings.transfer and not source.gives_only,
        )
        return exchange(
            self._bundles.cargo(source.name),
            lambda: self._bundles.cargo(taker.name),
            aim,
            Way(self._bundles, taker.name, self._settings.max_refusals_per_pair),
            Way(self._bundles, source.name, self._settings.max_refusals_per_pair),
        )

    def _book_pair(self, source: PairSide, taker: PairSide, pair: Exchange, target: float, reason: Reason) -> None:
        self._done.add(taker.name)
        self._spread.shift(source.name, taker.name, pair.net * source.load / source.report.msg_throughput)
        why = (
            f"{source.name} has load {source.load:.3f}, {taker.name} {taker.load:.3f}: "
            f"{part_of(pair.net, target)} that would level them move"
        )
        # In order of execution: the heavy bundle first, then those returned for it.
        to = taker.name if self._settings.transfer else None
        for cargo in pair.going:
            self._moves.append(BundleMove(cargo.bundle.name, source.name, to, reason, cargo.load, why))
        for cargo in pair.back:
            swapped = f"returned for {pair.going[-1].bundle.name}, which is too heavy by itself; {why}"
            self._moves.append(
                BundleMove(cargo.bundle.name, taker.name, source.name, reason, cargo.load, swapped, swap=True)
            )

    def _answer(self, label: Label, reason: Reason, why: str) -> Plan:
        moved = {move.bundle for move in self._moves}
        bundles = [self._bundles.left[name] for name in sorted(self._bundles.left) if name not in moved]
        loads = {name: broker.load for name, broker in sorted(self._cluster.brokers.items())}
        scores = {name: load.weighted_max_ema for name, load in loads.items() if load is not None}
        return Plan(
            strategy=TransferShedder.name,
            label=label,
            reason=reason,
            why=why,
            moves=tuple(self._moves),
            left=(*sorted(self._left, key=lambda left: left.name), *bundles),
            scores={name: score for name, score in scores.items() if math.isfinite(score)},
            stats={
                "avg": self._spread.mean,
                "std": self._first,
                "std_after": self._spread.std,
                "target_std": self._settings.target_std,
                "hits": float(self._met),
                "brokers": float(len(self._sides)),
            },
            memory={"hits": self._hits},
        )
