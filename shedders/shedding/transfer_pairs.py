"""Pairs of TransferShedder: which brokers take part, which of their bundles may move, and what two brokers exchange.

Upstream walks both brokers' lists once, smallest first, and stops at the first bundle that does not fit; this searches further
(design/decisions/0034). Brokers and bundles left alone have a reason; `TransferShedder` lists the words.

The settings of `transfer` are here as well: its twin that behaves as upstream shares them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field

from loaddata.model.broker_load import BrokerLoad, ResourceWeights
from shedders.filters.anti_affinity import group_of
from shedders.filters.isolation import Isolation
from shedders.filters.rules import pin_of
from shedders.model.amounts import part_of, rate, seconds
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.model.plan import Left
from shedders.model.readings import GraceSettings, why_unreadable
from shedders.model.strategy import CanTake


class TransferSettings(GraceSettings):
    """Settings of `transfer`; defaults are upstream's where upstream has the setting.

    `max_age_s` (loadBalancerBrokerLoadDataTTLInSeconds) also holds with `upstream`, by upstream's clocks.
    """

    target_std: float = Field(
        default=0.25,
        ge=0,
        description="Spread of the brokers' loads that is aimed at; 1.0 is a full broker (loadBalancerBrokerLoadTargetStd)",
    )
    overloaded_percent: float = Field(
        default=85.0,
        ge=0,
        description="A broker above this, and above the average by target_std, is relieved in any case "
        "(loadBalancerBrokerOverloadedThresholdPercentage)",
    )
    hit_threshold: int = Field(
        default=3,
        ge=0,
        description="Bundles move if the condition was met more than this many times in a row "
        "(loadBalancerSheddingConditionHitCountThreshold)",
    )
    transfer: bool = Field(
        default=True,
        description="Name the destination; off: unload, and let the placement choose (loadBalancerTransferEnabled)",
    )
    max_pairs_per_cycle: int = Field(
        default=3,
        ge=0,
        description="Pairs of brokers evened out in one cycle (loadBalancerMaxNumberOfBrokerSheddingPerCycle)",
    )
    cool_down_s: float = Field(
        default=180.0,
        ge=0,
        description="A broker that gave or got a bundle stays out until it has made a report this long afterwards "
        "(loadBalanceSheddingDelayInSeconds)",
    )
    shed_with_policies: bool = Field(
        default=False,
        description="Bundles whose namespace has an isolation policy or an anti-affinity group may move as well "
        "(loadBalancerSheddingBundlesWithPoliciesEnabled)",
    )
    max_bundles_per_pair: int = Field(
        default=10,
        ge=1,
        description="Bundles that one pair exchanges at most, both ways together; upstream: as many as are reported",
    )
    enough_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A pair that has moved this share of what would even it out needs no swap, and a swap has to bring "
        "this share of the rest; upstream has a fixed rule instead",
    )
    max_destinations_per_source: int = Field(
        default=8,
        ge=1,
        description="Destinations tried for a source whose bundles may not go to the least loaded one; upstream: 1",
    )
    max_tries_per_cycle: int = Field(
        default=64, ge=1, description="Pairs examined in one cycle, with or without a result; upstream: no limit"
    )
    max_refusals_per_pair: int = Field(
        default=100,
        ge=1,
        description="A pair is given up after filters refused this many of its bundles; upstream: no limit",
    )
    min_reporting_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Nothing moves if fewer than this share of the brokers have a usable report; upstream: all must have one",
    )
    upstream_debug: bool = Field(
        default=False,
        description="With upstream: count bundles that swaps return, as only its debug mode does (loadBalancerDebugModeEnabled)",
    )

    @property
    def underloaded_share(self) -> float:
        """Below this share of the average load, or of the busiest broker's traffic, a broker counts as all but idle."""
        return min(0.5, max(0.0, self.target_std / 2))


Book = Callable[[str, str], None]
"""Called with the names of a broker and a bundle that it will get, so that the filters count it there."""

MOST_LOAD = 1e6
MOST_TRAFFIC = 1e18  # larger figures count as measurement errors
MOST_NAMED = 50
"""Maximum number of bundles of one broker among those left alone: a decision has to fit into one record."""

SLACK = 1e-9  # share of the target by which rounding may go beyond it
ANY_RESOURCE = ResourceWeights(direct_memory=1.0)
"""A report has to have a limit for one of these, else its load of 0 means nothing."""


@dataclass(frozen=True, slots=True)
class PairSide:
    """A broker that takes part.

    Attributes:
        gives_only: It takes no bundles (cordoned).
    """

    name: str
    report: BrokerLoad
    gives_only: bool

    @property
    def load(self) -> float:
        """Moving average of its weighted maximum."""
        return self.report.weighted_max_ema


def sides(cluster: Cluster, settings: TransferSettings) -> tuple[list[PairSide], list[Left]]:
    """Brokers that take part, lightest first, and the others with the reason."""
    pair_sides, left = [], []
    for name in cluster.broker_names:
        broker = cluster.brokers[name]
        trouble = _why_not_in(cluster, broker, settings)
        if trouble is None and broker.load is not None:
            pair_sides.append(PairSide(name, broker.load, name in cluster.policies.cordons))
        elif trouble is not None:
            left.append(Left(name, *trouble))
    takers = [side.load for side in pair_sides if not side.gives_only]
    mean = math.fsum(takers) / len(takers) if takers else math.inf
    part = []
    for side in pair_sides:
        if side.gives_only and not side.load > mean:
            left.append(Left(side.name, "cordoned", f"takes no bundles, and its load {side.load:.3f} needs no relief"))
        else:
            part.append(side)
    return sorted(part, key=lambda side: (side.load, side.name)), left


def _why_not_in(cluster: Cluster, broker: Broker, settings: TransferSettings) -> tuple[str, str] | None:
    if not broker.accepting:
        return "not-accepting", "not caught up, draining, or in safe mode"
    fault = why_unreadable(broker, settings, ANY_RESOURCE)
    if fault is not None:
        return fault
    load, age_s = broker.load, broker.load_age_s
    if load is None or load.updated_at_ms <= 0:
        return "no-load-data", "it has measured nothing yet"
    if load.weighted_max_ema > MOST_LOAD or max(load.msg_throughput, load.msg_throughput_ema) > MOST_TRAFFIC:
        return "bad-load", f"load {load.weighted_max_ema:g}, traffic {rate(load.msg_throughput)} is impossible"
    moved_s = cluster.recent.brokers.get(broker.name)
    if moved_s is not None and not moved_s - age_s >= settings.cool_down_s:
        why = f"gave or got a bundle {seconds(moved_s)} ago, its report is {seconds(age_s)} old"
        return "cooling", f"{why}; the report must be {seconds(settings.cool_down_s)} younger than the move"
    return None


class LoadSpread:
    """Mean and standard deviation of the brokers' loads, kept up to date while moves are planned.

    The deviation is taken from the mean in a second pass over exactly rounded sums, so it is never below zero or not a
    number, whatever the order of the brokers (design/decisions/0037).
    """

    def __init__(self, loads: Mapping[str, float]) -> None:
        self._loads = dict(loads)
        self.mean = math.fsum(self._loads.values()) / len(self._loads) if self._loads else 0.0
        self.std = self._deviation()

    def shift(self, source: str, destination: str, amount: float) -> None:
        """Book that this much load goes from one broker to another; a source does not sink below 0."""
        self._loads[source] = max(0.0, self._loads[source] - amount)
        self._loads[destination] += amount
        self.std = self._deviation()

    def _deviation(self) -> float:
        if not self._loads:
            return 0.0
        squares = math.fsum((load - self.mean) * (load - self.mean) for load in self._loads.values())
        return math.sqrt(squares / len(self._loads))


class TransferCandidate(NamedTuple):
    """A bundle and its traffic in bytes a second."""

    bundle: Bundle
    load: float


class Bundles:
    """The bundles that may move; filters are called as late as possible, and once for each bundle and destination.

    Attributes:
        left: Why a bundle was left alone; of each broker the heaviest, and not all of a long list.
    """

    def __init__(
        self, cluster: Cluster, settings: TransferSettings, can_take: CanTake | None, book: Book | None
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._can_take = can_take
        self._book = book
        self._cargo: dict[str, list[TransferCandidate]] = {}
        self._answers: dict[tuple[str, str], tuple[str, str] | None] = {}
        self._bound = WithPolicies(cluster)
        self.left: dict[str, Left] = {}

    def cargo(self, broker: str) -> list[TransferCandidate]:
        """Bundles of a broker that could go somewhere, with their traffic, heaviest first."""
        if broker not in self._cargo:
            self._cargo[broker] = self._find(broker)
        return self._cargo[broker]

    def why_not(self, bundle: Bundle, destination: str) -> tuple[str, str] | None:
        """Why pins and filters refuse a destination, as a word and a sentence; a filter that fails refuses."""
        key = (bundle.name, destination)
        if key not in self._answers:
            self._answers[key] = self._refusal(bundle, destination)
        refusal = self._answers[key]
        if refusal is not None:
            self.left[bundle.name] = Left(bundle.name, *refusal)
        return refusal

    def book(self, bundle: Bundle, destination: str) -> None:
        """Count it there from now on; earlier answers of the filters are dropped."""
        if self._book is not None:
            self._book(destination, bundle.name)
            self._answers.clear()

    def stayed(self, cargo: Sequence[TransferCandidate], target: float, moved: float) -> None:
        """Record bundles without another reason: too heavy for the target, or not needed any more."""
        for candidate in cargo[:MOST_NAMED]:
            if candidate.load > target * (1 + SLACK):
                left = Left(
                    candidate.bundle.name,
                    "too-heavy",
                    f"{rate(candidate.load)} are more than the {rate(target)} to give",
                )
            elif moved > 0:
                left = Left(candidate.bundle.name, "enough", f"{part_of(moved, target)} to give go without it")
            else:
                continue
            self.left.setdefault(candidate.bundle.name, left)

    def _find(self, broker: str) -> list[TransferCandidate]:
        cargo: list[TransferCandidate] = []
        stay: list[tuple[TransferCandidate, str]] = []
        for bundle in self._cluster.bundles_of.get(broker, ()):
            word = self._word(bundle)
            load = 0.0 if bundle.stats is None else bundle.stats.msg_throughput
            if word is None:
                cargo.append(TransferCandidate(bundle, load))
            else:
                stay.append((TransferCandidate(bundle, load), word))
        if len(stay) > MOST_NAMED:
            stay.sort(key=lambda entry: (-entry[0].load if entry[0].load > 0 else 0.0, entry[0].bundle.name))
        for candidate, word in stay[:MOST_NAMED]:
            name = candidate.bundle.name
            self.left[name] = Left(name, word, self._sentence(candidate.bundle, word))
        return sorted(cargo, key=lambda candidate: (-candidate.load, candidate.bundle.name))

    def _refusal(self, bundle: Bundle, destination: str) -> tuple[str, str] | None:
        pin = pin_of(self._cluster.policies, bundle)
        if pin is not None and pin != destination:
            return "pinned", f"it is pinned to {pin}"
        try:
            why = None if self._can_take is None else self._can_take(bundle, destination)
        except Exception as error:
            return "filter-failed", f"whether {destination} may take it is unknown: {error!r}"
        return None if why is None else ("filtered", f"{destination} may not take it: {why}")

    def _word(self, bundle: Bundle) -> str | None:
        if bundle.in_flight:
            return "in-flight"
        if bundle.namespace in self._cluster.policies.excluded:
            return "excluded"
        if not self._settings.shed_with_policies and bundle.namespace in self._bound:
            return "policies"
        age_s = self._cluster.recent.bundles.get(bundle.name)
        if age_s is not None and not age_s > self._settings.grace_s:
            return "recently-moved"
        stats = bundle.stats
        if stats is None:
            return "no-stats"
        if not (0 <= stats.msg_throughput_in <= MOST_TRAFFIC and 0 <= stats.msg_throughput_out <= MOST_TRAFFIC):
            return "bad-load"
        return None if stats.msg_throughput > 0 else "no-traffic"

    def _sentence(self, bundle: Bundle, word: str) -> str:
        stats = bundle.stats
        if word == "recently-moved":
            age_s = self._cluster.recent.bundles[bundle.name]
            return f"moved {seconds(age_s)} ago, stays for {seconds(self._settings.grace_s)}"
        if word == "bad-load" and stats is not None:
            return f"traffic {stats.msg_throughput_in} in, {stats.msg_throughput_out} out is impossible"
        if word == "no-stats" and bundle.secondhand:
            return f"{bundle.owner} has not measured it since it came there, or since other bundles came or went"
        return {
            "in-flight": "it is in flight or being split",
            "excluded": f"{bundle.namespace} is never shed",
            "policies": f"{bundle.namespace} has an isolation policy or an anti-affinity group",
            "no-stats": "its owner does not report it",
        }.get(word, "moving it changes nothing")


class Way:
    """The way to a destination, for bundles of one other broker.

    After `patience` refusals the filters are not called any more: they cost more than all else here.
    """

    def __init__(self, bundles: Bundles, destination: str, patience: int) -> None:
        self._bundles = bundles
        self._destination = destination
        self._patience = patience

    def is_open(self, bundle: Bundle) -> bool:
        """Whether pins and filters let it go."""
        if self._patience < 1:
            return False
        refusal = self._bundles.why_not(bundle, self._destination)
        if refusal is not None:
            self._patience -= refusal[0] != "pinned"
        return refusal is None

    def take(self, bundle: Bundle) -> bool:
        """The same, and it goes if it may."""
        if not self.is_open(bundle):
            return False
        self._bundles.book(bundle, self._destination)
        return True


class WithPolicies:
    """Namespaces that have an isolation policy or an anti-affinity group; an invalid policy holds for all."""

    def __init__(self, cluster: Cluster) -> None:
        self._policies = cluster.policies
        self._isolation = Isolation(cluster.policies.isolation, cluster.brokers)
        self._known: dict[str, bool] = {}

    def __contains__(self, namespace: str) -> bool:
        if namespace not in self._known:
            zone = self._isolation.zone(namespace)
            isolated = zone is not None and (zone.policy is not None or zone.broken is not None)
            self._known[namespace] = isolated or group_of(self._policies, namespace) is not None
        return self._known[namespace]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bundles that go, and bundles that come back for them."""

    going: Sequence[TransferCandidate] = ()
    back: Sequence[TransferCandidate] = ()

    @property
    def net(self) -> float:
        """Bytes a second by which the source becomes lighter."""
        return math.fsum((*(cargo.load for cargo in self.going), *(-cargo.load for cargo in self.back)))


@dataclass(frozen=True, slots=True)
class ExchangeTarget:
    """The target of an exchange.

    Attributes:
        target: Bytes a second that should go; no exchange moves more than that.
        enough: Once this share of the target is reached the search ends; a swap has to bring this share of the rest.
        most_going: Maximum number of bundles that go, 0 or more.
        most: Maximum number of bundles in both directions together.
        swap: Bundles may come back.
    """

    target: float
    enough: float
    most_going: int
    most: int
    swap: bool


def exchange(
    mine: Sequence[TransferCandidate],
    theirs: Callable[[], Sequence[TransferCandidate]],
    aim: ExchangeTarget,
    there: Way,
    back: Way,
) -> Exchange:
    """Find the best exchange.

    Heavy bundles are tried before light ones, so few are moved. If that brings too little, one bundle that is too heavy
    by itself goes as well, against bundles of the other broker that make up for it.

    Args:
        mine: Bundles of the source that could go, heaviest first.
        theirs: Gives the bundles of the destination that could come back, heaviest first; called only if a swap is looked for.
        there: Asked only about bundles that fit.
    """
    slack = aim.target * SLACK
    going: list[TransferCandidate] = []
    moved, heavy = 0.0, []
    for cargo in mine:
        if cargo.load > aim.target + slack - moved:
            heavy.append(cargo)
        elif len(going) < min(aim.most, aim.most_going) and there.take(cargo.bundle):
            going.append(cargo)
            moved += cargo.load
    if aim.swap and moved < aim.enough * aim.target and len(going) < min(aim.most - 1, aim.most_going):
        swap = _swap(heavy, theirs(), aim, len(going), moved, there, back)
        # Bundles that may move alone may not move together: any refusal ends the swap.
        if swap is not None and all(
            way.take(cargo.bundle) for way, part in ((there, swap.going), (back, swap.back)) for cargo in part
        ):
            return Exchange((*going, *swap.going), swap.back)
    return Exchange(tuple(going))


def _swap(
    heavy: Sequence[TransferCandidate],
    theirs: Sequence[TransferCandidate],
    aim: ExchangeTarget,
    taken: int,
    moved: float,
    there: Way,
    back: Way,
) -> Exchange | None:
    """The swap that brings most of what is still missing, and among equals the one of fewest bundles."""
    light_first = sorted(theirs, key=_by_weight)
    loads = [cargo.load for cargo in light_first]
    rest, slack = aim.target - moved, aim.target * SLACK
    best, best_key = None, (0.0, 0)
    for cargo in sorted(heavy, key=_by_weight):
        least, most = cargo.load - rest - slack, cargo.load - aim.enough * rest
        returns = _make_up(light_first, loads, least, most, aim.most - taken - 1, back)
        if returns is None:
            continue
        swap = Exchange((cargo,), returns)
        key = (-swap.net, len(returns))
        if (best is None or key < best_key) and there.is_open(cargo.bundle):
            best, best_key = swap, key
    return best


def _by_weight(cargo: TransferCandidate) -> tuple[float, str]:
    return cargo.load, cargo.bundle.name


def _make_up(
    light_first: Sequence[TransferCandidate], loads: Sequence[float], least: float, most: float, slots: int, way: Way
) -> tuple[TransferCandidate, ...] | None:
    """Bundles that together have from `least` to `most`: one if possible, else the heaviest that still fit, one by one."""
    if slots < 1:
        return None
    for place in range(bisect_left(loads, least), bisect_right(loads, most)):
        if way.is_open(light_first[place].bundle):
            return (light_first[place],)
    back: list[TransferCandidate] = []
    total, place = 0.0, len(loads)
    while len(back) < slots:
        place = min(place, bisect_right(loads, most - total)) - 1
        if place < 0:
            return None
        if way.is_open(light_first[place].bundle):
            back.append(light_first[place])
            total += loads[place]
            if total >= least:
                return tuple(back)
    return None
