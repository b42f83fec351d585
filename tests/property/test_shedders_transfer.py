"""TransferShedder on arbitrary clusters: what no plan may do, whatever the numbers."""

import json
import math
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleStats
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies, RecentMoves
from shedders.shedding.transfer import TransferShedder
from shedders.shedding.transfer_pairs import TransferSettings

NOW_MS = 1_700_000_000_000
LIKELY = st.floats(0.0, 1.5) | st.sampled_from([0.0, 0.1, 0.3, 0.9])
ANY = LIKELY | st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.5, 1e300, 5e-324])
TRAFFIC = st.floats(0.0, 1e7) | st.sampled_from([0.0, 1e6, 2e6, 5e6])
ANY_TRAFFIC = TRAFFIC | st.floats() | st.sampled_from([math.nan, math.inf, -1.0])
AGE_S = st.floats(0.0, 4000.0) | st.none()
NAMESPACES = ("acme/a", "acme/b", "beta/c")


@st.composite
def clusters(draw, *, wild=False):
    load, traffic = (ANY, ANY_TRAFFIC) if wild else (LIKELY, TRAFFIC)
    names = [f"b{place}" for place in range(draw(st.integers(0, 7)))]
    brokers, bundles = {}, {}
    for name in names:
        part = []
        for place in range(draw(st.integers(0, 7))):
            namespace = draw(st.sampled_from(NAMESPACES))
            bundle = f"{namespace}/0x{len(bundles):08x}_0x{len(bundles) + 1:08x}"
            inward, outward = draw(traffic), draw(traffic)
            part.append(inward + outward)
            bundles[bundle] = Bundle(
                bundle,
                owner=name,
                in_flight=draw(st.integers(0, 9)) == 0,
                stats=draw(st.none() | st.just(BundleStats(1.0, 1.0, inward, outward)))
                if wild or place % 5 == 4
                else BundleStats(1.0, 1.0, inward, outward),
                rank=place,
            )
        ema, total = draw(load), math.fsum(item for item in part if math.isfinite(item))
        moving = draw(st.sampled_from([total, 0.0]) | traffic)
        report = BrokerLoad(
            cpu=ResourceUsage(ema * 100, 100.0) if not wild else ResourceUsage(draw(ANY), draw(ANY)),
            msg_throughput_in=total if not wild else draw(st.just(total) | ANY_TRAFFIC),
            weighted_max_ema=ema,
            msg_throughput_ema=moving,
            updated_at_ms=NOW_MS - draw(st.integers(0, 100_000)),
        )
        present = draw(st.integers(0, 9)) > 0 if wild else True
        brokers[name] = Broker(
            name,
            report if present else None,
            load_age_s=draw(st.sampled_from([1.0, 1.0, 5000.0, math.nan])) if wild else 1.0,
            load_lapsed=draw(st.integers(0, 9)) == 0,
            accepting=draw(st.integers(0, 9)) > 0,
        )
    ages = st.dictionaries(st.sampled_from(names), st.floats(0.0, 400.0), max_size=2) if names else st.just({})
    moved = st.dictionaries(st.sampled_from(sorted(bundles)), st.floats(0.0, 4000.0), max_size=3)
    policies = Policies(
        isolation=draw(
            st.sampled_from([(), (IsolationPolicy("p", ["beta/.*"], ["b1"]),), (IsolationPolicy("q", ["("], []),)])
        ),
        anti_affinity=draw(st.sampled_from([{}, {"acme/b": "racks"}])),
        pins=draw(st.sampled_from([{}, {"acme/a": "b1"}])),
        cordons=draw(st.sampled_from([{}, {"b0": "disk"}])),
        excluded=draw(st.sampled_from([frozenset(), frozenset({"beta/c"})])),
    )
    recent = RecentMoves(bundles=draw(moved) if bundles else {}, brokers=draw(ages))
    return Cluster(brokers, bundles, policies, recent, NOW_MS)


SETTINGS = st.builds(
    TransferSettings,
    upstream=st.booleans(),
    hit_threshold=st.integers(0, 1),
    target_std=st.sampled_from([0.25, 0.05, 0.0]),
    transfer=st.booleans(),
    shed_with_policies=st.booleans(),
    max_pairs_per_cycle=st.integers(0, 4),
    enough_share=st.sampled_from([0.5, 0.05, 1.0]),
)
MENDED = SETTINGS.map(lambda settings: settings.model_copy(update={"upstream": False}))


def refusing(seed):
    """A filter that refuses by name, the same whenever it is asked."""
    return lambda bundle, broker: "no" if seed and sum(map(ord, bundle.name + broker)) % seed == 0 else None


@limits(deadline=None)
@given(clusters() | clusters(wild=True), SETTINGS, st.integers(0, 4))
def test_any_plan_is_sane(cluster, settings, seed):
    can_take = refusing(seed)
    plan = TransferShedder(settings, can_take).plan(cluster, {"hits": 5})
    json.dumps(dict(plan.memory), allow_nan=False)
    assert all(map(math.isfinite, (*plan.scores.values(), *plan.stats.values())))
    assert plan.why
    assert all(left.reason and left.why for left in plan.left)
    assert (plan.label == "Success") == bool(plan.moves)
    assert max(Counter(move.bundle for move in plan.moves).values(), default=1) == 1
    for move in plan.moves:
        bundle = cluster.bundles[move.bundle]
        assert bundle.owner == move.source != move.destination
        assert move.destination is None or move.destination in cluster.brokers
        assert move.destination is None or can_take(bundle, move.destination) is None


@limits(deadline=None)
@given(clusters() | clusters(wild=True), MENDED)
def test_who_may_not_is_left_alone(cluster, settings):
    plan = TransferShedder(settings).plan(cluster, {"hits": 5})
    policies, recent = cluster.policies, cluster.recent
    for move in plan.moves:
        bundle = cluster.bundles[move.bundle]
        assert not bundle.in_flight
        assert bundle.stats is not None
        assert 0 < move.load < math.inf
        assert bundle.namespace not in policies.excluded
        assert recent.bundles.get(move.bundle, math.inf) > settings.grace_s
        assert move.destination in (policies.pins.get(bundle.namespace, move.destination), None)
        if not settings.shed_with_policies:
            assert bundle.namespace not in policies.anti_affinity
        for name in (move.source, move.destination):
            if name is not None:
                broker = cluster.brokers[name]
                assert broker.accepting
                assert not broker.load_lapsed
                assert broker.load_age_s <= settings.max_age_s
                assert broker.load is not None
                assert 0 <= broker.load.weighted_max_ema < math.inf
                assert recent.brokers.get(name, math.inf) - broker.load_age_s >= settings.cool_down_s
        assert move.destination not in policies.cordons


@limits(deadline=None)
@given(clusters(), MENDED)
def test_load_is_conserved_and_no_destination_ends_above_its_source(cluster, settings):
    plan = TransferShedder(settings).plan(cluster, {"hits": 5})
    loads = {name: broker.load for name, broker in cluster.brokers.items() if broker.load is not None}
    pairs = {}
    for move in plan.moves:
        if move.swap:
            pairs.setdefault((move.destination, move.source), []).append(-move.load)
        elif move.destination is not None:
            pairs.setdefault((move.source, move.destination), []).append(move.load)
    busy = [name for pair in pairs for name in pair]
    assert len(busy) == len(set(busy))
    assert len(pairs) <= settings.max_pairs_per_cycle
    after = {name: load.weighted_max_ema for name, load in loads.items()}
    for (source, destination), parts in pairs.items():
        net = math.fsum(parts)
        assert net > 0
        given_away = net * loads[source].weighted_max_ema / loads[source].msg_throughput
        after[source] -= given_away
        after[destination] += given_away
        old = loads[source].weighted_max_ema
        assert after[destination] <= old
        assert after[destination] <= after[source] * (1 + 1e-6) + 1e-9
    assert math.isclose(
        math.fsum(after.values()), math.fsum(load.weighted_max_ema for load in loads.values()), abs_tol=1e-9
    )
    if plan.moves:
        assert plan.stats["std_after"] <= plan.stats["std"]


@limits(deadline=None)
@given(clusters() | clusters(wild=True), SETTINGS, st.randoms(use_true_random=False))
def test_the_order_of_dictionaries_means_nothing(cluster, settings, shuffler):
    def shuffled(mapping):
        items = list(mapping.items())
        shuffler.shuffle(items)
        return dict(items)

    other = replace(
        cluster,
        brokers=shuffled(cluster.brokers),
        bundles=shuffled(cluster.bundles),
        recent=RecentMoves(shuffled(cluster.recent.bundles), shuffled(cluster.recent.brokers)),
    )
    strategy = TransferShedder(settings)
    # By their texts: not-a-number is not equal to itself.
    assert repr(strategy.plan(other, {"hits": 5})) == repr(strategy.plan(cluster, {"hits": 5}))


@limits(deadline=None)
@given(clusters(), MENDED)
def test_deciding_again_and_again_comes_to_rest(cluster, settings):
    """Moves that are made lower the spread each time, so that there is an end to them."""
    strategy, spread = TransferShedder(settings.model_copy(update={"transfer": True})), math.inf
    # A cordoned broker takes part only while it is above the others, so the spread would be one of different brokers.
    cluster = replace(cluster, policies=replace(cluster.policies, cordons={}))
    for _ in range(4):
        plan = strategy.plan(cluster, {"hits": 5})
        if not plan.moves:
            return
        assert plan.stats["std"] <= spread * (1 + 1e-9) + 1e-12
        spread = plan.stats["std_after"]
        cluster = _moved(cluster, plan)


def _moved(cluster, plan):
    """Loads go with the bundles, as the strategy reckons: of each pair the net, in the source's load for its traffic."""
    bundles, brokers = dict(cluster.bundles), dict(cluster.brokers)
    nets = {}
    for move in plan.moves:
        pair, sign = ((move.destination, move.source), -1) if move.swap else ((move.source, move.destination), 1)
        nets.setdefault(pair, []).append(sign * move.load)
        bundles[move.bundle] = replace(bundles[move.bundle], owner=move.destination)
    for (source, destination), parts in nets.items():
        net, rich = math.fsum(parts), cluster.brokers[source].load
        part = net * rich.weighted_max_ema / rich.msg_throughput
        for name, sign in ((source, -1), (destination, 1)):
            load = brokers[name].load
            changed = replace(
                load,
                weighted_max_ema=max(0.0, load.weighted_max_ema + sign * part),
                msg_throughput_in=max(0.0, load.msg_throughput_in + sign * net),
            )
            brokers[name] = replace(brokers[name], load=changed)
    return replace(cluster, bundles=bundles, brokers=brokers)
