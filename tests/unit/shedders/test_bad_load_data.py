"""Every shedder and placement of the modular manager on data that cannot be: a recorded reason, never a move, never an error."""

import json
from dataclasses import replace
from math import inf, nan

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, MessageAverage
from shedders.model.cluster import Cluster, Policies, RecentMoves
from shedders.model.plan import Label, Reason
from shedders.model.strategy import Placing, Shedding
from shedders.placement.least_long_term_rate import LeastLongTermMessageRate
from shedders.placement.least_resource_usage import LeastResourceUsage, ModularLeastResourceUsage
from shedders.placement.round_robin import RoundRobin
from shedders.shedding.avg import AvgSettings, AvgShedder
from shedders.shedding.deviation import DeviationSettings, DeviationShedder
from shedders.shedding.overload import OverloadSettings, OverloadShedder
from shedders.shedding.threshold import (
    RangeThresholdSettings,
    RangeThresholdShedder,
    ThresholdSettings,
    ThresholdShedder,
)
from shedders.shedding.uniform import UniformLoadShedder, UniformSettings
from tests.support.loads import MIB, bundle, by_bytes, left

SHEDDERS = {
    "threshold": lambda upstream: ThresholdShedder(ThresholdSettings(upstream=upstream)),
    "range-threshold": lambda upstream: RangeThresholdShedder(RangeThresholdSettings(upstream=upstream)),
    "overload": lambda upstream: OverloadShedder(OverloadSettings(upstream=upstream)),
    "uniform": lambda upstream: UniformLoadShedder(UniformSettings(upstream=upstream)),
    "deviation": lambda upstream: DeviationShedder(DeviationSettings(upstream=upstream)),
    "avg": lambda upstream: AvgShedder(AvgSettings(upstream=upstream, hit_count_high=1)),
}
PLACEMENTS = {
    cls.name: cls
    for cls in (LeastResourceUsage, ModularLeastResourceUsage, LeastLongTermMessageRate, RoundRobin, AvgShedder)
}
UNEVEN = by_bytes({"a": 0.95, "b": 0.3, "c": 0.1}, {"a": [200, 150, 60, 50, 30, 20, 10, 10], "b": [20], "c": [10]}, MIB)
FIRST = UNEVEN.bundles_of["a"][0].name

each_shedder = pytest.mark.parametrize("name", sorted(SHEDDERS))
each_side = pytest.mark.parametrize("upstream", [False, True])


def loaded(cluster: Cluster, name: str, **changes) -> Cluster:
    return replace(
        cluster,
        brokers={
            **cluster.brokers,
            name: replace(cluster.brokers[name], load=replace(cluster.brokers[name].load, **changes)),
        },
    )


def all_brokers(cluster: Cluster, **changes) -> Cluster:
    return replace(cluster, brokers={name: replace(broker, **changes) for name, broker in cluster.brokers.items()})


def no_move(plan) -> None:
    assert (plan.label, list(plan.moves)) == (Label.SKIP, [])
    assert plan.why
    json.dumps(dict(plan.memory), allow_nan=False)
    json.dumps([plan.scores, plan.stats], allow_nan=False)


@each_shedder
@each_side
def test_it_moves_something_where_nothing_is_wrong(name: str, upstream: bool):
    plan = SHEDDERS[name](upstream).plan(UNEVEN, {})
    assert plan.label == Label.SUCCESS
    assert {move.source for move in plan.moves} == {"a"}
    assert isinstance(SHEDDERS[name](upstream), Shedding)
    assert plan.strategy == name


@each_shedder
@each_side
@pytest.mark.parametrize("count", [0, 1])
def test_one_broker_or_none(name: str, upstream: bool, count: int):
    brokers = {broker: item for broker, item in UNEVEN.brokers.items() if broker in ["a"][:count]}
    plan = SHEDDERS[name](upstream).plan(replace(UNEVEN, brokers=brokers), {})
    no_move(plan)
    assert plan.reason == Reason.NO_BROKERS


@each_shedder
@each_side
def test_no_bundles(name: str, upstream: bool):
    no_move(SHEDDERS[name](upstream).plan(Cluster(UNEVEN.brokers, {}), {}))


@each_shedder
@each_side
def test_no_reports(name: str, upstream: bool):
    plan = SHEDDERS[name](upstream).plan(all_brokers(UNEVEN, load=None), {})
    no_move(plan)
    assert (plan.reason, left(plan)) == (Reason.NO_LOAD_DATA, dict.fromkeys("abc", "no-load-data"))


@each_shedder
@pytest.mark.parametrize(("change", "word"), [({"load_age_s": 1801.0}, "outdated"), ({"load_lapsed": True}, "lapsed")])
def test_old_reports(name: str, change, word: str):
    plan = SHEDDERS[name](False).plan(all_brokers(UNEVEN, **change), {})
    no_move(plan)
    assert (plan.reason, left(plan)) == (Reason.OUTDATED_DATA, dict.fromkeys("abc", word))
    # The older manager of upstream knows no such limit.
    assert SHEDDERS[name](True).plan(all_brokers(UNEVEN, **change), {}).moves


@each_shedder
def test_an_age_that_is_no_number_is_old(name: str):
    no_move(SHEDDERS[name](False).plan(all_brokers(UNEVEN, load_age_s=nan), {}))


@each_shedder
@each_side
@pytest.mark.parametrize("figure", [nan, inf, -1.0, 1e31])
@pytest.mark.parametrize("where", ["cpu", "limit", "msg_rate_in", "msg_throughput_out", "weighted_max_ema"])
def test_a_broker_that_reports_nonsense_is_left_out(name: str, upstream: bool, figure: float, where: str):
    changes = {"cpu": ResourceUsage(figure, 100.0)} if where == "cpu" else {where: figure}
    if where == "limit":
        changes = {"cpu": ResourceUsage(10.0, figure)}
    cluster = loaded(UNEVEN, "a", **changes)
    plan = SHEDDERS[name](upstream).plan(cluster, {})
    assert left(plan)["a"] == "bad-load"
    assert "a" not in {broker for move in plan.moves for broker in (move.source, move.destination)}
    json.dumps([dict(plan.memory), plan.scores, plan.stats], allow_nan=False)


@each_shedder
@each_side
@pytest.mark.parametrize("limit", [1e-320, 1e-46, 1e-38])
def test_a_limit_next_to_nothing(name: str, upstream: bool, limit: float):
    plan = SHEDDERS[name](upstream).plan(loaded(UNEVEN, "b", cpu=ResourceUsage(10.0, limit)), {})
    assert left(plan)["b"] == "bad-load"


@pytest.mark.parametrize("name", ["threshold", "range-threshold", "overload", "avg"])
def test_no_limits(name: str):
    """A usage of 0 because nothing is known of any limit is not idleness."""
    cluster = loaded(UNEVEN, "c", cpu=ResourceUsage(90.0, 0.0))
    plan = SHEDDERS[name](False).plan(cluster, {})
    assert left(plan)["c"] == "no-limits"
    assert "c" not in {move.destination for move in plan.moves}
    assert "no-limits" not in left(SHEDDERS[name](True).plan(cluster, {})).values()


@each_shedder
@each_side
@pytest.mark.parametrize("figure", [nan, inf, -1.0])
def test_a_bundle_with_nonsense_stays(name: str, upstream: bool, figure: float):
    bad = replace(UNEVEN.bundles[FIRST], averages=BundleAverages(MessageAverage(0.0, 0.0, figure, 0.0, 10)))
    plan = SHEDDERS[name](upstream).plan(replace(UNEVEN, bundles={**UNEVEN.bundles, FIRST: bad}), {})
    assert FIRST not in {move.bundle for move in plan.moves}
    if plan.moves:
        assert left(plan)[FIRST] == "bad-load"


@each_shedder
@each_side
def test_all_bundles_in_flight(name: str, upstream: bool):
    bundles = {key: replace(bundle, in_flight=True) for key, bundle in UNEVEN.bundles.items()}
    plan = SHEDDERS[name](upstream).plan(replace(UNEVEN, bundles=bundles), {})
    no_move(plan)


@each_shedder
@each_side
def test_pinned_bundles_stay(name: str, upstream: bool):
    plan = SHEDDERS[name](upstream).plan(replace(UNEVEN, policies=Policies(pins={"t/n": "a"})), {})
    no_move(plan)
    assert left(plan)[FIRST] == "pinned"


@each_shedder
def test_recently_moved_bundles_stay(name: str):
    for age_s, word in ((1800.0, "recently-moved"), (nan, "recently-moved"), (1800.1, None)):
        recent = RecentMoves(bundles=dict.fromkeys(UNEVEN.bundles, age_s))
        plan = SHEDDERS[name](False).plan(replace(UNEVEN, recent=recent), {})
        assert left(plan).get(FIRST) == word
        assert bool(plan.moves) is (word is None)


@each_shedder
@each_side
@pytest.mark.parametrize(
    "namespace", ["pulsar/b1:8080", "pulsar/c1/b1:8080", "sla-monitor/c1/b1:8080", "pulsar/system"]
)
def test_internal_bundles_stay(name: str, upstream: bool, namespace: str):
    bundles = {
        key: replace(bundle, name=f"{namespace}/{key.rpartition('/')[2]}") for key, bundle in UNEVEN.bundles.items()
    }
    plan = SHEDDERS[name](upstream).plan(
        replace(UNEVEN, bundles={bundle.name: bundle for bundle in bundles.values()}), {}
    )
    no_move(plan)
    assert "internal" in left(plan).values()


@each_shedder
def test_excluded_namespaces_stay(name: str):
    plan = SHEDDERS[name](False).plan(replace(UNEVEN, policies=Policies(excluded=frozenset({"t/n"}))), {})
    no_move(plan)
    assert left(plan)[FIRST] == "excluded"


@each_shedder
@each_side
def test_safe_mode(name: str, upstream: bool):
    memory = {"usage": {"a": 0.5}}
    plan = SHEDDERS[name](upstream).plan(replace(UNEVEN, safe="a third of the brokers vanished"), memory)
    no_move(plan)
    assert (plan.reason, plan.why) == (Reason.UNKNOWN, "the cluster is left alone: a third of the brokers vanished")


@each_shedder
def test_nobody_accepts(name: str):
    others = {broker: replace(item, accepting=broker == "a") for broker, item in UNEVEN.brokers.items()}
    no_move(SHEDDERS[name](False).plan(replace(UNEVEN, brokers=others), {}))
    cordoned = Policies(cordons={"b": "disk", "c": "disk"})
    no_move(SHEDDERS[name](False).plan(replace(UNEVEN, policies=cordoned), {}))


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
@each_side
@pytest.mark.parametrize("figure", [nan, inf, -1.0])
def test_placement_on_nonsense(name: str, upstream: bool, figure: float):
    cls = PLACEMENTS[name]
    strategy = cls(cls.Settings(upstream=upstream))
    assert isinstance(strategy, Placing)
    cluster = loaded(UNEVEN, "b", weighted_max_ema=figure)
    bad = replace(UNEVEN.bundles[FIRST], averages=BundleAverages(*[MessageAverage(figure, 0.0, 0.0, 0.0, 10)] * 2))
    cluster = replace(cluster, bundles={**cluster.bundles, FIRST: bad})
    answer = strategy.place(cluster, bundle(99, None), ["a", "b", "c"], {"a": [FIRST], "c": [FIRST, "t/n/nobody"]}, {})
    assert answer.broker in {"a", "b", "c"}
    assert answer.broker in answer.best
    json.dumps([dict(answer.memory), answer.scores], allow_nan=False)
    empty = strategy.place(Cluster({}, {}), bundle(99, None), ["a", "b"], {}, {})
    assert empty.broker in {"a", "b"}


def test_memory_and_settings_are_not_changed():
    memory = {"usage": {"a": 0.5}, "hits_low": {"a": 3}}
    for make in SHEDDERS.values():
        for upstream in (False, True):
            make(upstream).plan(UNEVEN, memory)
    assert memory == {"usage": {"a": 0.5}, "hits_low": {"a": 3}}


def test_a_report_before_the_first_measurement():
    """`BrokerLoad()` has no limits: nothing is known of it."""
    changed = replace(UNEVEN, brokers={**UNEVEN.brokers, "c": replace(UNEVEN.brokers["c"], load=BrokerLoad())})
    assert left(SHEDDERS["threshold"](False).plan(changed, {}))["c"] == "no-limits"
