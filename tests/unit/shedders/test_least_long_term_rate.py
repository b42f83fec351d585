"""LeastLongTermMessageRate: tables computed by hand, ours and upstream's."""

from dataclasses import replace

import pytest

from loaddata.model.bundle_load import BundleAverages
from shedders.model.cluster import Bundle
from shedders.placement.least_long_term_rate import LeastLongTermMessageRate, LeastLongTermRateSettings
from tests.support.loads import broker, bundle, cluster

NEW = bundle(99, None)
BOOKED = bundle(50, None, long_msg_per_s=50)
EXAMPLE = cluster(
    [broker("a", 0.5), broker("b", 0.5), broker("c", 0.9)],
    [
        bundle(1, "a", msg_per_s=9_999, long_msg_per_s=300),
        bundle(2, "a", long_msg_per_s=200),
        bundle(3, "b", long_msg_per_s=400),
        bundle(4, "c", long_msg_per_s=10),
        BOOKED,
    ],
)
ALL = ["a", "b", "c"]


def place(base, candidates=ALL, booked=None, **settings):
    strategy = LeastLongTermMessageRate(LeastLongTermRateSettings(**settings))
    return strategy.place(base, NEW, candidates, booked or {}, {})


def test_worked_example():
    for upstream in (False, True):
        answer = place(EXAMPLE, booked={"b": [BOOKED.name]}, upstream=upstream)
        assert (answer.broker, list(answer.best)) == ("b", ["b"])
        assert answer.scores == {"a": 500.0, "b": 450.0}


def test_all_overloaded():
    changed = replace(
        EXAMPLE, brokers={name: broker(name, usage) for name, usage in zip("abc", (0.9, 0.88, 0.95), strict=True)}
    )
    assert list(place(changed).best) == ["b"]
    assert list(place(changed, upstream=True).best) == ALL


@pytest.mark.parametrize(("limit", "broker_"), [(87.5, "c"), (87.4, "b")])
@pytest.mark.parametrize("upstream", [False, True])
def test_more_than_the_limit(limit: float, broker_: str, upstream: bool):
    changed = replace(EXAMPLE, brokers={**EXAMPLE.brokers, "c": broker("c", 0.875)})
    assert place(changed, upstream=upstream, overloaded_percent=limit).broker == broker_


def test_equal_ones():
    base = cluster(
        [broker(name, 0.5) for name in ALL], [bundle(n, name, long_msg_per_s=7) for n, name in enumerate(ALL)]
    )
    for upstream in (False, True):
        answer = place(base, upstream=upstream)
        assert list(answer.best) == ALL
        assert answer.broker in ALL


def test_bundles_that_nobody_measured_count_upstreams_default():
    base = cluster([broker("a", 0.5), broker("b", 0.5)], [Bundle("t/n/0x00000000_0xffffffff", "a")])
    for upstream in (False, True):
        assert place(base, ["a", "b"], upstream=upstream).scores == {"a": 100.0, "b": 0.0}
        # So does one on its way that nobody knows.
        assert place(base, ["a", "b"], {"b": ["t/n/x"]}, upstream=upstream).scores["b"] == 100.0
    assert base.bundles["t/n/0x00000000_0xffffffff"].averages == BundleAverages()


def test_idle_bundles_spread():
    """They weigh nothing upstream: as many as there are go where the fewest messages are."""
    base = cluster(
        [broker("a", 0.5), broker("b", 0.5)],
        [bundle(1, "a", long_msg_per_s=1), *(bundle(n, None) for n in range(10, 20))],
    )
    for upstream, spread in ((False, {"a": 4, "b": 6}), (True, {"a": 0, "b": 10})):
        strategy = LeastLongTermMessageRate(LeastLongTermRateSettings(upstream=upstream))
        booked = {"a": [], "b": []}
        for number in range(10, 20):
            answer = strategy.place(base, bundle(number, None), ["a", "b"], booked, {})
            booked[answer.broker].append(answer.bundle)
        if upstream:
            assert {name: len(bundles) for name, bundles in booked.items()} == spread
        else:
            assert abs(len(booked["a"]) - len(booked["b"])) <= 2


def test_what_is_on_its_way_may_overload():
    base = cluster(
        [broker("a", 0.8, bytes_per_s=800), broker("b", 0.5, bytes_per_s=500)],
        [bundle(1, "a", long_msg_per_s=10), bundle(2, "b", long_msg_per_s=500), bundle(9, None, bytes_per_s=100)],
    )
    booked = {"a": [bundle(9, None).name]}
    assert place(base, ["a", "b"], booked).broker == "b"
    assert place(base, ["a", "b"], booked, upstream=True).broker == "a"


def test_missing_data():
    changed = replace(EXAMPLE, brokers={**EXAMPLE.brokers, "b": replace(EXAMPLE.brokers["b"], load=None)})
    for upstream in (False, True):
        answer = place(changed, upstream=upstream)
        assert (answer.broker, set(answer.removed)) == ("a", {"b"})
    nobody = replace(EXAMPLE, brokers={name: replace(broker, load=None) for name, broker in EXAMPLE.brokers.items()})
    assert place(nobody, ["a", "b"]).broker == "b"
    assert list(place(nobody, upstream=True).best) == ALL
    assert place(EXAMPLE, []).broker is None
