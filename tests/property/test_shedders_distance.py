"""The bound on the largest use, beside an integer program and every solution of tiny clusters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from math import inf
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats
from shedders.decision.distance import RESOURCES, DistanceReader, uses_of
from shedders.decision.relaxed_bound import BrokerUse, BundleUse, RelaxedBound
from shedders.model.cluster import Broker, Bundle, Cluster, Policies
from shedders.model.plan import BundleMove, Reason
from tests.twin.moves_optimum import Moved, after, least_use

BUNDLES_MAX = 14


class Case(NamedTuple):
    """A cluster and what of it is read."""

    brokers: Sequence[BrokerUse]
    bundles: Sequence[Sequence[BundleUse]]
    bundles_read: int

    def bound(self) -> RelaxedBound:
        return RelaxedBound(self.brokers, self.bundles.__getitem__, bundles_read=self.bundles_read)

    @property
    def load(self) -> float:
        return sum(load for own in self.bundles for _, load in own)


_limits = st.sampled_from([0.0, 1.0, 2.0, 5.0, 8.0, 8.0, 8.0, 20.0])
_uses = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 7.0]) | st.floats(0, 10)


@st.composite
def cases(draw: st.DrawFn, brokers_max: int = 5, bundles_max: int = BUNDLES_MAX) -> Case:
    """Brokers of several sizes, of which some take nothing, with bundles that use some resources more than others."""
    resources = draw(st.integers(1, 4))
    count = draw(st.integers(1, brokers_max))
    bundles: list[list[BundleUse]] = [[] for _ in range(count)]
    alike = draw(st.booleans())  # the load is the use of the first resource, as bytes are
    for _ in range(draw(st.integers(0, bundles_max))):
        use = tuple(draw(_uses) for _ in range(resources))
        load = use[0] if alike else draw(_uses)
        bundles[draw(st.integers(0, count - 1))].append((use, load))
    brokers = []
    for own in bundles:
        rest = tuple(draw(_uses) if draw(st.booleans()) else 0.0 for _ in range(resources))
        use = tuple(rest[place] + sum(bundle[place] for bundle, _ in own) for place in range(resources))
        limits = tuple(draw(_limits) for _ in range(resources))
        most = tuple(_most(own, place) if draw(st.booleans()) else inf for place in range(resources))
        brokers.append(BrokerUse(use, limits, most, len(own), draw(st.integers(0, 4)) > 0))
    return Case(brokers, bundles, draw(st.sampled_from([0, 1, 3, BUNDLES_MAX, BUNDLES_MAX])))


def _most(bundles: Sequence[BundleUse], place: int) -> float:
    return max((use[place] / load if load > 0 else inf for use, load in bundles if use[place] > 0), default=0.0)


@given(cases(), st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0]))
@settings(max_examples=300, deadline=None)
def test_no_whole_number_solution_is_below_the_bound(case: Case, part: float):
    """The solver only finds moves; their largest use and load are added up here, so that its tolerances play no part."""
    best = least_use(case.brokers, case.bundles, case.load * part)
    bound = case.bound()
    assert bound.within(best.load) <= best.largest_use
    assert bound.any_load <= best.largest_use


@given(cases(brokers_max=3, bundles_max=6))
@settings(max_examples=200, deadline=None)
def test_no_solution_of_a_tiny_cluster_is_below_the_bound(case: Case):
    bound = case.bound()
    takers = [place for place, broker in enumerate(case.brokers) if broker.takes]
    ways = [
        [Moved(number, source, place) for place in {*takers, source}]
        for source, own in enumerate(case.bundles)
        for number in range(len(own))
    ]
    loads: dict[float, float] = {}
    for chosen in product(*ways):
        use, load = after(case.brokers, case.bundles, [move for move in chosen if move.source != move.destination])
        loads[load] = min(use, loads.get(load, inf))
    for load, use in loads.items():
        assert bound.within(load) <= use
        assert bound.any_load <= use


@given(cases(), st.floats(0, 2))
@settings(max_examples=200, deadline=None)
def test_it_lies_between_that_for_any_load_and_what_is(case: Case, part: float):
    bound = case.bound()
    assert 0.0 <= bound.any_load <= bound.within(part * case.load) <= bound.within(0.0) <= max(bound.levels)


_rates = st.sampled_from([0.0, 1e3, 1e5, 1e6, 5e6]) | st.floats(0, 1e7)
_resource = st.builds(ResourceUsage, st.floats(0, 1e4), st.sampled_from([0.0, 100.0, 800.0, 1e4, 1e5]))
_loads = st.builds(
    BrokerLoad,
    cpu=_resource,
    direct_memory=_resource,
    bandwidth_in=_resource,
    bandwidth_out=_resource,
    msg_throughput_in=_rates,
    msg_throughput_out=_rates,
)


@st.composite
def decisions(draw: st.DrawFn) -> tuple[Cluster, list[BundleMove]]:
    """Reports that need not fit to the bundles, and moves of anything to anywhere."""
    names = [f"b{number}" for number in range(draw(st.integers(2, 5)))]
    brokers = {
        name: Broker(name, load=draw(_loads), load_age_s=1.0, accepting=draw(st.integers(0, 5)) > 0) for name in names
    }
    bundles = {}
    for number in range(draw(st.integers(0, 12))):
        stats = BundleStats(msg_throughput_in=draw(_rates), msg_throughput_out=draw(_rates))
        key = f"t/n/0x{number:08x}_0x{number + 1:08x}"
        bundles[key] = Bundle(key, draw(st.sampled_from(names)), draw(st.integers(0, 9)) == 0, stats)
    takers = [name for name in names if brokers[name].accepting]
    moves = []
    for bundle in bundles.values():
        others = [name for name in takers if name != bundle.owner]
        if others and bundle.owner is not None and not bundle.in_flight and draw(st.booleans()):
            moves.append(
                BundleMove(bundle.name, bundle.owner, draw(st.sampled_from(others)), Reason.OVERLOADED, 0.0, "")
            )
    return Cluster(brokers, bundles, Policies()), moves


@given(decisions())
@settings(max_examples=400, deadline=None)
def test_no_decision_is_below_its_bound(case: tuple[Cluster, list[BundleMove]]):
    cluster, moves = case
    distance = DistanceReader(cluster, 1800.0).of(moves)
    backwards = Cluster(dict(reversed(cluster.brokers.items())), dict(reversed(cluster.bundles.items())))
    assert DistanceReader(backwards, 1800.0).of(moves) == distance
    if distance is not None:
        assert distance.any_load_bound <= distance.bound <= distance.largest_use
        assert distance.gap_percent is None or distance.gap_percent >= 0


@given(decisions(), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_the_bound_of_a_snapshot_holds_for_whole_bundles(case: tuple[Cluster, list[BundleMove]], part: float):
    """Brokers and bundles as a decision's record sees them, direct memory among their resources."""
    cluster, _ = case
    names = sorted(cluster.brokers)
    loads = [cluster.brokers[name].load or BrokerLoad() for name in names]
    bundles = [
        uses_of([bundle for bundle in cluster.bundles_of[name] if not bundle.in_flight], load)
        for name, load in zip(names, loads, strict=True)
    ]
    brokers = []
    for name, load, own in zip(names, loads, bundles, strict=True):
        resources = [getattr(load, resource) for resource in RESOURCES]
        use = tuple(resource.usage for resource in resources)
        limits = tuple(resource.limit for resource in resources)
        brokers.append(BrokerUse(use, limits, (inf,) * len(RESOURCES), len(own), cluster.brokers[name].accepting))
    best = least_use(brokers, bundles, part * sum(load for own in bundles for _, load in own))
    moves = [
        BundleMove(
            _movable(cluster, names[move.source])[move.bundle].name,
            names[move.source],
            names[move.destination],
            Reason.OVERLOADED,
            0.0,
            "",
        )
        for move in best.moved
    ]
    distance = DistanceReader(cluster, 1800.0).of(moves)
    if distance is not None:
        assert abs(distance.largest_use - best.largest_use) <= 1e-9 * max(1.0, best.largest_use)
        assert distance.bound <= best.largest_use
        assert distance.any_load_bound <= best.largest_use


def test_bundles_that_claim_more_than_their_broker_uses_leave_no_room_behind():
    """Two bundles claim all that b2 receives, each; were its use negative without them, a third would fit for nothing."""

    def load(
        incoming: tuple[float, float], outgoing: tuple[float, float], rate_in: float, rate_out: float
    ) -> BrokerLoad:
        return BrokerLoad(
            bandwidth_in=ResourceUsage(*incoming),
            bandwidth_out=ResourceUsage(*outgoing),
            msg_throughput_in=rate_in,
            msg_throughput_out=rate_out,
        )

    loads = {
        "b0": load((1.0, 0.0), (1.0, 100.0), 1e3, 1e3),
        "b1": load((0.0, 0.0), (0.0, 100.0), 0.0, 0.0),
        "b2": load((1.0, 100.0), (0.0, 800.0), 1e3, 0.0),
    }
    brokers = {name: Broker(name, load=own, load_age_s=1.0, accepting=name != "b0") for name, own in loads.items()}
    names = ["t/n/0x00000000_0x00000001", "t/n/0x00000001_0x00000002", "t/n/0x00000002_0x00000003"]
    bundles = {
        names[0]: Bundle(names[0], "b2", False, BundleStats(msg_throughput_in=1e3)),
        names[1]: Bundle(names[1], "b2", False, BundleStats(msg_throughput_in=1e3)),
        names[2]: Bundle(names[2], "b0", False, BundleStats(msg_throughput_in=1e3, msg_throughput_out=1e3)),
    }
    ways = [(names[2], "b0", "b2"), (names[0], "b2", "b1"), (names[1], "b2", "b1")]
    moves = [BundleMove(bundle, source, to, Reason.OVERLOADED, 0.0, "") for bundle, source, to in ways]
    for order in permutations(moves):
        distance = DistanceReader(Cluster(brokers, bundles, Policies()), 1800.0).of(order)
        assert distance is not None
        assert (distance.largest_use, distance.broker, distance.resource) == (0.01, "b2", "bandwidth_in")
        assert distance.bound <= distance.largest_use


def _movable(cluster: Cluster, name: str) -> list[Bundle]:
    return [bundle for bundle in cluster.bundles_of[name] if not bundle.in_flight]
