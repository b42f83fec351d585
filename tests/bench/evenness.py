"""How even `weighted-move` makes random clusters whose load does not change, beside the best that integer programs find.

Each cluster is balanced until nothing moves any more. Then the largest use that is left is compared with the least that any moves
of the same load could have left, and the load with the least that leaves no larger use. Both are what the solver has *proven*
(HiGHS), so a gap is rather too large than too small. Beside them is the bound that decisions record.

The clusters, by a seed each; numbers are evenly drawn unless said otherwise:

- 5 to 10 brokers with 12 to 30 bundles each.
- Bundles: bytes sent, Pareto of shape 1.6, a single one at most a quarter of an average broker's; fan-out (sent by received
  bytes) 1 to 8; bytes of a message, lognormal around 1 KiB (sigma 1.2).
- Brokers: of one to three types of machines. `one`: bandwidth out alone has a limit, of the ratio 1, 1.5 or 2. `three`: CPU and
  both bandwidths, each of these ratios by itself. All brokers together use 0.5 to 0.65 of each resource. CPU is used by messages
  and bytes, half each, and 3 % of a broker's when it idles.
- Owners: by chance, with weights of the brokers of 1 to 6.

Reports are made of these each time, so that only bundles' CPU is estimated; as in a live cluster only the ten largest bundles of
a broker are known. Meta's `rebalancer` is no judge here: it needs Python 3.12, and being a local search it proves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.decision.dry_run import decide
from shedders.decision.placing import Pipeline
from shedders.decision.relaxed_bound import BrokerUse, BundleUse, RelaxedBound
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster, RecentMoves
from shedders.model.strategy import shedding_maker
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.bench.measure import Figure, Load, median, percentile
from tests.support.snapshots import NOW_MS, REPORTED
from tests.twin.moves_optimum import Optimum, least_load, least_use

KINDS: Final = ("one", "three")
CLUSTERS: Final = 20
EVERY_S: Final = 60.0
CYCLES_MAX: Final = 90
QUIET: Final = 40
"""Cycles without moves after which a cluster is balanced: longer than the grace of a bundle that was moved."""
SOLVER_S: Final = 10.0
SOLVER_GAP: Final = 0.002
GAP_MEDIAN_PERCENT: Final = 2.0
GAP_P95_PERCENT: Final = 5.0
RATIOS: Final = (1.0, 1.5, 2.0)
_IDLE: Final = 0.03
_KBIT: Final = 1_000 / 8


@dataclass(slots=True)
class Still:
    """A cluster whose load does not change.

    Attributes:
        traffic: By bundle: messages in and out, bytes in and out a second.
        limits: By broker: CPU, direct memory (none), bandwidth in and out.
        owners: Now.
        cpu: Of a message, and of a byte a second.
    """

    traffic: Mapping[str, tuple[float, float, float, float]]
    limits: Mapping[str, tuple[float, float, float, float]]
    owners: dict[str, str]
    cpu: tuple[float, float]
    moved_s: dict[str, float] = field(default_factory=dict)

    def use_of(self, bundle: str) -> BundleUse:
        """Use of each resource, and the bytes that a move of it costs."""
        rate_in, rate_out, inwards, outwards = self.traffic[bundle]
        cpu = self.cpu[0] * (rate_in + rate_out) + self.cpu[1] * (inwards + outwards)
        return (cpu, 0.0, inwards / _KBIT, outwards / _KBIT), inwards + outwards

    def owned(self, broker: str) -> list[str]:
        return sorted(bundle for bundle, owner in self.owners.items() if owner == broker)

    def use(self, broker: str) -> tuple[float, ...]:
        """Use of each resource of a broker, idling included."""
        uses = [self.use_of(bundle)[0] for bundle in self.owned(broker)]
        idle = (_IDLE * self.limits[broker][0], 0.0, 0.0, 0.0)
        return tuple(sum(column) for column in zip(idle, *uses, strict=True))

    def problem(self) -> tuple[list[BrokerUse], list[list[BundleUse]]]:
        """What the integer programs and the bound are asked about."""
        bundles = [[self.use_of(bundle) for bundle in self.owned(broker)] for broker in self.limits]
        brokers = []
        for (broker, limits), own in zip(self.limits.items(), bundles, strict=True):
            most = tuple(
                max((use[place] / load for use, load in own if load > 0), default=0.0) for place in range(len(limits))
            )
            brokers.append(BrokerUse(self.use(broker), limits, most, len(own)))
        return brokers, bundles

    def largest_use(self) -> float:
        """The largest of all brokers and resources."""
        pairs = (pair for broker, own in self.limits.items() for pair in zip(self.use(broker), own, strict=True))
        return max(use / limit for use, limit in pairs if limit > 0)

    def seen(self, now_s: float) -> Cluster:
        """As a leader sees it."""
        brokers = {broker: Broker(broker, load=self._report(broker, now_s), load_age_s=1.0) for broker in self.limits}
        bundles: dict[str, Bundle] = {}
        for broker in self.limits:
            owned = sorted(self.owned(broker), key=lambda bundle: self.use_of(bundle)[1])
            for rank, bundle in enumerate(owned, REPORTED - len(owned)):
                bundles[bundle] = self._bundle(bundle, broker, rank)
        ages = {bundle: now_s - moved_s for bundle, moved_s in self.moved_s.items()}
        return Cluster(brokers, bundles, recent=RecentMoves(bundles=ages), now_ms=NOW_MS + round(now_s * 1_000))

    def _bundle(self, bundle: str, owner: str, rank: int) -> Bundle:
        if rank < 0:
            return Bundle(bundle, owner)
        rates = self.traffic[bundle]
        averages = BundleAverages(MessageAverage(*rates, samples=10), MessageAverage(*rates, samples=1_000))
        return Bundle(bundle, owner, stats=BundleStats(*rates, topics=1), averages=averages, rank=rank)

    def _report(self, broker: str, now_s: float) -> BrokerLoad:
        owned, use, limits = self.owned(broker), self.use(broker), self.limits[broker]
        rates = [sum(self.traffic[bundle][place] for bundle in owned) for place in range(4)]
        at_ms = NOW_MS + round(now_s * 1_000)
        cpu, _, inwards, outwards = (ResourceUsage(*pair) for pair in zip(use, limits, strict=True))
        return BrokerLoad(
            cpu=cpu,
            bandwidth_in=inwards,
            bandwidth_out=outwards,
            msg_rate_in=rates[0],
            msg_rate_out=rates[1],
            msg_throughput_in=rates[2],
            msg_throughput_out=rates[3],
            bundles=len(owned),
            topics=len(owned),
            updated_at_ms=at_ms - 1_000,
            reported_at_ms=at_ms - 1_000,
        )


class Balanced(NamedTuple):
    """What the strategy has done.

    Attributes:
        load: Bytes a second of all moves.
    """

    before: float
    after: float
    load: float
    moves: int


class Judged(NamedTuple):
    """A balanced cluster beside the optimum.

    Attributes:
        best: The least largest use for the same load; `least`: the least load for the same largest use.
        bound, any_load_bound: Of the relaxation, for the same load and for any.
    """

    balanced: Balanced
    best: Optimum
    least: Optimum
    bound: float
    any_load_bound: float

    @property
    def gap_percent(self) -> float:
        return 100 * (self.balanced.after / self.best.proven - 1)

    @property
    def bound_gap_percent(self) -> float:
        """How far the recorded bound is below what is proven for whole bundles."""
        return 100 * max(0.0, 1 - self.bound / self.best.proven)

    @property
    def load_ratio(self) -> float:
        return self.balanced.load / self.least.proven if self.least.proven > 0 else 1.0


def run(clusters: int = CLUSTERS, kinds: Sequence[str] = KINDS) -> list[Figure]:
    """Median and 95th percentile over the clusters of each kind."""
    figures: list[Figure] = []
    for kind in kinds:
        load = Load()
        judged = [judge(kind, seed) for seed in range(clusters)]
        moved = [each for each in judged if each.balanced.moves]
        gaps = [each.gap_percent for each in judged]
        ratios = [each.load_ratio for each in moved]
        lower = [each.bound_gap_percent for each in judged]
        notes: dict[str, Any] = {
            "clusters": clusters,
            "moved nothing": clusters - len(moved),
            "largest use before, after": [[round(use, 4) for use in each.balanced[:2]] for each in judged],
            "moves": [[each.balanced.moves, len(each.best.moved)] for each in judged],
        }
        name = f"evenness.{kind}"
        figures += [
            Figure(
                f"{name}.gap.median",
                median(gaps),
                "%",
                aim=f"<= {GAP_MEDIAN_PERCENT:g} %",
                rounds=gaps,
                load=str(load),
                notes=notes,
            ),
            Figure(f"{name}.gap.p95", percentile(gaps, 0.95), "%", aim=f"<= {GAP_P95_PERCENT:g} %", load=str(load)),
            Figure(f"{name}.bound-below-best.median", median(lower), "%", rounds=lower, load=str(load)),
            Figure(f"{name}.bound-below-best.p95", percentile(lower, 0.95), "%", load=str(load)),
        ]
        if ratios:
            figures += [
                Figure(f"{name}.load-by-least.median", median(ratios), "x", rounds=ratios, load=str(load)),
                Figure(f"{name}.load-by-least.p95", percentile(ratios, 0.95), "x", load=str(load)),
            ]
    return figures


def judge(kind: str, seed: int) -> Judged:
    """Balance one cluster, and solve it."""
    still = make(kind, seed)
    brokers, bundles = still.problem()
    balanced = balance(still)
    relaxed = RelaxedBound(brokers, bundles.__getitem__)
    return Judged(
        balanced,
        least_use(brokers, bundles, balanced.load, time_limit_s=SOLVER_S, gap=SOLVER_GAP),
        least_load(brokers, bundles, balanced.after, time_limit_s=SOLVER_S, gap=SOLVER_GAP),
        relaxed.within(balanced.load),
        relaxed.any_load,
    )


def balance(still: Still) -> Balanced:
    """Let the strategy decide until nothing moves any more; `still` is left as it is then."""
    settings = WeightedMoveSettings()
    maker, pipeline = shedding_maker(WeightedMove, settings), Pipeline(WeightedMove(settings), FilterSettings())
    memory: Mapping[str, Any] = {}
    before, load, moves, quiet = still.largest_use(), 0.0, 0, 0
    for cycle in range(CYCLES_MAX):
        now_s = cycle * EVERY_S
        decision = decide(still.seen(now_s), maker, memory, pipeline)
        memory = decision.memory
        for move in decision.moves:
            if move.destination is not None:
                still.owners[move.bundle] = move.destination
                still.moved_s[move.bundle] = now_s
                load += still.use_of(move.bundle)[1]
                moves += 1
        quiet = 0 if decision.moves else quiet + 1
        if quiet >= QUIET:
            break
    return Balanced(before, still.largest_use(), load, moves)


def make(kind: str, seed: int) -> Still:
    """One cluster of a kind (`one`, `three`)."""
    chance = Random(f"{kind} {seed}")
    names = [f"b{number:02}" for number in range(chance.randint(5, 10))]
    count = len(names) * chance.randint(12, 30)
    sent = [1e6 * chance.paretovariate(1.6) for _ in range(count)]
    most = sum(sent) / len(names) / 4
    traffic = {}
    for number, size in enumerate(sent):
        outwards = min(size, most)
        inwards, message = outwards / chance.uniform(1, 8), 1_024 * chance.lognormvariate(0, 1.2)
        rates = inwards / message, outwards / message, inwards, outwards
        traffic[f"t/n/0x{number:08x}_0x{number + 1:08x}"] = rates
    messages = sum(rates[0] + rates[1] for rates in traffic.values())
    size = sum(rates[2] + rates[3] for rates in traffic.values())
    capacity = 800.0 * len(names)  # percent of a core
    cpu = 0.5 * capacity / messages, 0.5 * capacity / size
    weights = [chance.uniform(1, 6) for _ in names]
    owners = {bundle: chance.choices(names, weights)[0] for bundle in traffic}
    still = Still(traffic, dict.fromkeys(names, (0.0,) * 4), owners, cpu)
    whole = [sum(column) for column in zip(*(still.use_of(bundle)[0] for bundle in traffic), strict=True)]
    types = [_machine(chance, kind) for _ in range(chance.randint(1, 3))]
    sizes = {name: list(chance.choice(types)) for name in names}
    for place in range(4):
        room = sum(parts[place] for parts in sizes.values())
        used = chance.uniform(0.5, 0.65)
        for parts in sizes.values():
            parts[place] *= whole[place] / (used * room) if room else 0.0
    still.limits = {name: (parts[0], parts[1], parts[2], parts[3]) for name, parts in sizes.items()}
    return still


def _machine(chance: Random, kind: str) -> list[float]:
    """Relative limits of one type of machine."""
    if kind == "one":
        return [0.0, 0.0, 0.0, chance.choice(RATIOS)]
    return [0.0 if place == 1 else chance.choice(RATIOS) for place in range(4)]
