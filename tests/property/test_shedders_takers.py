"""Whatever a strategy plans, what is shed goes only where load is known; left open, only to a broker with less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.balancer.active_strategies import choose
from shedders.balancer.settings import BalancerSettings
from shedders.decision.dry_run import run_cycles
from shedders.model.cluster import Broker, Bundle, Cluster
from tests.support.live_balancer import key, load, stats

SHEDDERS = ["transfer", "threshold", "overload", "uniform", "deviation", "avg", "range-threshold"]
OLD_S = 1_801.0
rates = st.sampled_from([0.0, 10.0, 500.0, 5_000.0, 50_000.0])


@st.composite
def brokers(draw: st.DrawFn, name: str) -> Broker:
    rate = draw(rates)
    report = replace(load(draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.2])), rate), msg_throughput_in=rate * 1_024)
    return Broker(
        name,
        draw(st.sampled_from([report, report, report, None])),
        load_age_s=draw(st.sampled_from([1.0, 1.0, 1.0, OLD_S])),
        load_lapsed=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = [f"b{number}" for number in range(draw(st.integers(2, 5)))]
    bundles = {}
    for number in range(12):
        bundle = Bundle(key(number), draw(st.sampled_from(names)), rank=number, stats=stats(draw(rates)))
        averages = replace(bundle.averages, short=replace(bundle.averages.short, msg_rate_in=draw(rates), samples=10))
        secondhand = draw(st.sampled_from([False, False, True]))
        if secondhand:
            bundle = replace(bundle, stats=None, rank=None, secondhand=True)
        bundles[bundle.name] = replace(bundle, averages=averages)
    return Cluster({name: draw(brokers(name)) for name in names}, bundles, now_ms=1_000_000)


@settings(max_examples=150, deadline=None)
@given(clusters(), st.sampled_from(SHEDDERS), st.booleans(), st.booleans())
def test_no_move_goes_where_load_is_not_known_to_be_less(
    cluster: Cluster, shedding: str, transfer: bool, upstream: bool
) -> None:
    own: dict[str, Any] = {"upstream": upstream, "transfer": transfer}
    if shedding == "transfer":
        own |= {"hit_threshold": 0}
    chosen = choose(BalancerSettings(shedding=shedding, strategies={"shedding": {shedding: own}}))
    for decision in run_cycles(cluster, chosen.shedding, {}, chosen.pipeline, cycles=2):
        planned = {check.move.bundle: check.planned for check in decision.checked}
        for move in decision.moves:
            taker = decision.cluster.brokers[move.destination or ""]
            assert taker.load is not None
            assert not taker.load_lapsed
            assert taker.load_age_s < OLD_S
            assert move.destination != move.source
            scores = decision.plan.scores
            if planned[move.bundle] is None and {move.source, move.destination} <= scores.keys():
                assert scores[taker.name] < scores[move.source]
            if not upstream:
                assert not decision.cluster.bundles[move.bundle].secondhand
