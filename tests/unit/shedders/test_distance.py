"""Bounds on the largest use, and the distance of decisions from the best: by hand."""

from dataclasses import replace
from math import inf

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage, ResourceWeights
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.decision.distance import DistanceReader, DistanceToBest, distances_of, uses_of
from shedders.decision.dry_run import Decision, decide
from shedders.decision.placing import Pipeline
from shedders.decision.relaxed_bound import BrokerUse, BundleUse, RelaxedBound
from shedders.filters.rules import FilterSettings
from shedders.model.cluster import Broker, Bundle, Cluster, Policies
from shedders.model.moved_cluster import cargo_of
from shedders.model.plan import BundleMove, Label, Plan, Reason
from shedders.model.strategy import StrategySettings, shedding_maker
from shedders.weighted_move.strategy import WeightedMove, WeightedMoveSettings
from tests.support.snapshots import Shape, cluster

MB = 1e6


def bounds(rows: list[tuple[list[float], list[BundleUse]]], *, takes: bool = True, **more: int) -> RelaxedBound:
    """Brokers with these limits that use nothing but their bundles."""
    brokers = []
    for limits, own in rows:
        use = tuple(sum(bundle[place] for bundle, _ in own) for place in range(len(limits)))
        brokers.append(BrokerUse(use, tuple(limits), (inf,) * len(limits), len(own), takes))
    return RelaxedBound(brokers, lambda place: rows[place][1], **more)


def bundle(*use: float, load: float | None = None) -> BundleUse:
    return use, use[0] if load is None else load


def test_all_brokers_are_equally_full_at_best():
    small = [bundle(1.0) for _ in range(8)]
    bound = bounds([([10.0], small), ([10.0], [])])
    assert bound.levels == [0.8, 0.0]
    assert bound.any_load == pytest.approx(0.4)
    assert bound.within(4.0) == pytest.approx(0.4)
    assert bound.within(2.0) == pytest.approx(0.6)
    assert bound.within(0.0) == pytest.approx(0.8)


def test_larger_brokers_hold_more():
    bound = bounds([([10.0], [bundle(1.0) for _ in range(8)]), ([30.0], [])])
    assert bound.any_load == pytest.approx(0.2)
    assert bound.within(6.0) == pytest.approx(0.2)


def test_the_largest_bundle_is_somewhere():
    rows = [([10.0], [bundle(6.0), bundle(1.0)]), ([20.0], []), ([10.0], [])]
    assert bounds(rows).any_load == pytest.approx(0.3)  # on the broker of 20
    # It has more load than may be moved, so it stays, and only the other one goes.
    assert bounds(rows).within(5.0) == pytest.approx(0.6)
    assert bounds([rows[0], rows[2]]).any_load == pytest.approx(0.6)


def test_what_is_not_of_a_bundle_stays():
    broker = BrokerUse((9.0,), (10.0,), (inf,), 1)
    idle = BrokerUse((0.0,), (10.0,), (inf,), 0)
    bound = RelaxedBound([broker, idle], lambda place: [bundle(2.0)] if place == 0 else [])
    assert bound.any_load == pytest.approx(0.7)


def test_the_cheapest_bundles_go_first():
    own = [bundle(2.0, load=4.0), bundle(2.0, load=1.0), bundle(2.0, load=2.0)]
    bound = bounds([([10.0], own), ([10.0], [])])
    assert bound.within(1.0) == pytest.approx(0.4)
    assert bound.within(2.0) == pytest.approx(0.3)  # and half of the next: a relaxation cuts bundles


def test_resources_share_one_load():
    """Two brokers that are full in different resources: each alone could use all of the load."""
    one = [bundle(1.0, 0.0, load=1.0) for _ in range(8)]
    other = [bundle(0.0, 1.0, load=1.0) for _ in range(8)]
    both = bounds([([10.0, 10.0], one), ([10.0, 10.0], other)])
    alone = bounds([([10.0, 10.0], one), ([10.0, 10.0], [])])
    assert alone.within(2.0) == pytest.approx(0.6)
    assert both.within(2.0) == pytest.approx(0.7)


def test_what_goes_of_both_resources_of_one_broker_costs_both():
    own = [bundle(1.0, 0.0, load=1.0) for _ in range(8)] + [bundle(0.0, 1.0, load=3.0) for _ in range(8)]
    bound = bounds([([10.0, 10.0], own), ([10.0, 10.0], [])])
    assert bound.within(6.0) == pytest.approx(0.65, abs=0.01)  # a tenth of both costs 4


def test_brokers_that_take_nothing_hold_what_they_have():
    full = BrokerUse((8.0,), (10.0,), (inf,), 8)
    closed = BrokerUse((1.0,), (10.0,), (inf,), 0, takes=False)
    bound = RelaxedBound([full, closed], lambda place: [bundle(1.0)] * 8 if place == 0 else [])
    assert bound.any_load == pytest.approx(0.8)
    leaving = BrokerUse((9.0,), (10.0,), (inf,), 9, takes=False)
    bound = RelaxedBound([leaving, full._replace(use=(1.0,))], lambda place: [bundle(1.0)] * 9 if place == 0 else [])
    assert bound.any_load == pytest.approx(0.5)


def test_nothing_goes_where_nobody_takes():
    bound = bounds([([10.0], [bundle(5.0)]), ([10.0], [])], takes=False)
    assert bound.any_load == pytest.approx(0.5)


def test_a_broker_without_a_limit_may_take_it_all():
    assert bounds([([10.0], [bundle(1.0)] * 5), ([0.0], [])]).any_load == 0.0


def test_without_brokers_and_without_load():
    assert RelaxedBound([], lambda _: []).within(1.0) == 0.0
    assert bounds([([10.0], []), ([10.0], [])]).within(0.0) == 0.0


def test_bundles_that_are_not_read_cost_what_the_cheapest_may():
    rows = [([10.0], [bundle(1.0, load=1.0), bundle(7.0, load=14.0)]), ([10.0], [])]
    assert bounds(rows).within(5.0) == pytest.approx(0.7)  # the large one stays
    assert bounds(rows, bundles_read=0).within(5.0) == pytest.approx(0.4)  # nothing is known: it costs nothing
    known = [BrokerUse((8.0,), (10.0,), (1.0,), 2), BrokerUse((0.0,), (10.0,), (0.0,), 0)]
    assert RelaxedBound(known, lambda _: [], bundles_read=0).within(3.0) == pytest.approx(0.5)
    stuck = [BrokerUse((8.0,), (10.0,), (0.0,), 2), BrokerUse((0.0,), (10.0,), (0.0,), 0)]
    assert RelaxedBound(stuck, lambda _: [], bundles_read=0).any_load == pytest.approx(0.8)


# --- of clusters ------------------------------------------------------------------------------------------------------


def report(cpu: float, inwards: float, outwards: float, memory: float = 0.0) -> BrokerLoad:
    """In parts of the limits; 1 MB/s in each direction for a full one."""
    return BrokerLoad(
        cpu=ResourceUsage(800.0 * cpu, 800.0),
        direct_memory=ResourceUsage(1_000.0 * memory, 1_000.0),
        bandwidth_in=ResourceUsage(8_000.0 * inwards, 8_000.0),
        bandwidth_out=ResourceUsage(8_000.0 * outwards, 8_000.0),
        msg_throughput_in=MB * inwards,
        msg_throughput_out=MB * outwards,
    )


def serving(name: str, load: BrokerLoad | None, *traffic: tuple[float, float]) -> tuple[Broker, list[Bundle]]:
    owned = [
        Bundle(
            f"t/{name}/0x{number:08x}_0x{number + 1:08x}", name, stats=BundleStats(0, 0, MB * inwards, MB * outwards)
        )
        for number, (inwards, outwards) in enumerate(traffic)
    ]
    return Broker(name, load=load, load_age_s=1.0), owned


def of(*rows: tuple[Broker, list[Bundle]]) -> Cluster:
    return Cluster(
        {broker.name: broker for broker, _ in rows}, {bundle.name: bundle for _, own in rows for bundle in own}
    )


def move(cluster: Cluster, source: str, number: int, destination: str | None) -> BundleMove:
    name = cluster.bundles_of[source][number].name
    return BundleMove(name, source, destination, Reason.OVERLOADED, 0.0, "")


BUSY = serving("a", report(0.4, 0.4, 0.8), *[(0.1, 0.2)] * 4)
IDLE = serving("b", report(0.0, 0.0, 0.0))


def test_the_distance_of_a_decision():
    base = of(BUSY, IDLE)
    distance = DistanceReader(base, 60.0).of([move(base, "a", 0, "b")])
    assert distance.largest_use == pytest.approx(0.6)
    assert (distance.broker, distance.resource) == ("a", "bandwidth_out")
    assert distance.bound == pytest.approx(0.6)
    assert distance.any_load_bound == pytest.approx(0.4)
    assert distance.load_moved == pytest.approx(0.3 * MB)
    assert distance.gap_percent == pytest.approx(0.0, abs=1e-6)


def test_direct_memory_counts_where_it_is_scarce():
    base = of(serving("a", report(0.1, 0.1, 0.1, memory=0.9), *[(0.05, 0.05)] * 2), IDLE)
    distance = DistanceReader(base, 60.0).of([])
    assert (distance.resource, distance.largest_use) == ("direct_memory", pytest.approx(0.9))
    assert distance.any_load_bound == pytest.approx(0.45)
    assert distance.bound == pytest.approx(0.9)


@pytest.mark.parametrize(
    "of_whom",
    [
        [("a", 0, None)],  # only unloaded
        [("a", 0, "c")],  # nobody knows what c has
        [("c", 0, "b")],
        [("a", 0, "gone")],
    ],
)
def test_no_distance_where_a_load_is_not_known(of_whom: list[tuple[str, int, str | None]]):
    base = of(BUSY, IDLE, serving("c", None, (0.1, 0.1)))
    assert DistanceReader(base, 60.0).of([move(base, *each) for each in of_whom]) is None
    assert DistanceReader(of(serving("c", None)), 60.0).of([]) is None
    old = of((replace(BUSY[0], load_age_s=61.0), BUSY[1]), IDLE)
    assert DistanceReader(old, 60.0).of([]) is None  # b alone uses nothing


def test_bundles_in_flight_stay_where_they_are_counted():
    own = [replace(bundle, in_flight=True) for bundle in BUSY[1]]
    distance = DistanceReader(of((BUSY[0], own), IDLE), 60.0).of([])
    assert distance.any_load_bound == pytest.approx(0.8)


def test_cordoned_brokers_take_nothing():
    base = replace(of(BUSY, IDLE), policies=Policies(cordons={"b": "disk"}))
    distance = DistanceReader(base, 60.0).of([])
    assert distance.any_load_bound == pytest.approx(0.8)


@pytest.mark.parametrize(
    "traffic",
    [
        Bundle("k", stats=BundleStats(5, 5, 0.1 * MB, 0.3 * MB)),
        Bundle("k", stats=BundleStats(5, 5, 9 * MB, 0.3 * MB)),  # more than its broker has
        Bundle("k", averages=BundleAverages(MessageAverage(1, 1, 0.2 * MB, 0.1 * MB, samples=3))),
        Bundle("k"),
    ],
)
def test_the_use_of_a_bundle_is_what_a_dry_run_moves(traffic: Bundle):
    load = report(0.4, 0.4, 0.8, memory=0.2)
    ((use, cost),) = uses_of([traffic], load)
    cargo = cargo_of(traffic, load)
    assert use == pytest.approx((cargo.cpu, cargo.direct_memory, cargo.bandwidth_in, cargo.bandwidth_out))
    assert cost == pytest.approx(cargo.msg_throughput)


def test_bundles_without_valid_figures_count_as_nothing():
    bad = [Bundle("k", stats=BundleStats(0, 0, float("nan"), 1.0)), Bundle("l", stats=BundleStats(0, 0, 1.0, -1.0))]
    assert uses_of(bad, report(0.5, 0.5, 0.5)) == [((0.0,) * 4, 0.0)] * 2


class Weighed(StrategySettings):
    """Settings of a strategy for brokers that share their CPU."""

    @property
    def weights(self) -> ResourceWeights:
        return ResourceWeights(cpu=0.0)


def test_resources_without_weight_do_not_count():
    base = of(serving("a", report(0.95, 0.1, 0.2), (0.1, 0.2)), IDLE)
    decision = Decision(base, (), Plan("x", Label.SKIP, Reason.HIT_COUNT, ""), (), (), {}, {})
    everything = distances_of(decision, StrategySettings(), FilterSettings()).of([])
    without = distances_of(decision, Weighed(), FilterSettings()).of([])
    assert (everything.resource, without.resource) == ("cpu", "bandwidth_out")
    assert without.largest_use == pytest.approx(0.2)


def test_a_decision_of_the_strategy():
    base = cluster(3, Shape(brokers=6, bundles_each=30, hot=1))
    maker = shedding_maker(WeightedMove, WeightedMoveSettings(payback_min=0))
    pipeline = Pipeline(WeightedMove(WeightedMoveSettings()), FilterSettings())
    decision = decide(base, maker, {}, pipeline)
    assert decision.moves
    assert decision.seen is base  # nothing was in flight
    distances = distances_of(decision, WeightedMoveSettings(), pipeline.settings)
    before, after = distances.of([]), distances.of(decision.moves)
    assert after.bound <= after.largest_use < before.largest_use
    shown = decision.after(60.0).brokers[after.broker].load
    resource: ResourceUsage = getattr(shown, after.resource)
    assert after.largest_use == pytest.approx(resource.usage / resource.limit)


def test_the_gap_is_in_percent_of_the_bound():
    assert DistanceToBest(0.66, "b", "cpu", 0.6, 0.5, 1.0).gap_percent == pytest.approx(10.0)
    assert DistanceToBest(0.66, "b", "cpu", 0.0, 0.0, 1.0).gap_percent is None
