"""LeastResourceUsageWithWeight of both generations: tables computed by hand, ours and upstream's."""

from dataclasses import replace

import pytest

from loaddata.model.bundle_load import BundleAverages
from shedders.model.candidates import pick
from shedders.model.cluster import Cluster
from shedders.placement.least_resource_usage import (
    LeastResourceUsage,
    LeastResourceUsageSettings,
    ModularLeastResourceUsage,
    ModularLeastResourceUsageSettings,
)
from tests.support.loads import NOW_MS, broker, bundle, by_messages, cluster

NEW = bundle(99, None, msg_per_s=100)


def extensible(**settings) -> LeastResourceUsage:
    return LeastResourceUsage(LeastResourceUsageSettings(**settings))


def modular(**settings) -> ModularLeastResourceUsage:
    return ModularLeastResourceUsage(ModularLeastResourceUsageSettings(**settings))


def brokers(*usages: float, **more) -> Cluster:
    return by_messages(dict(zip("abcdef", usages, strict=False)), more)


def test_worked_example():
    for upstream in (False, True):
        answer = extensible(upstream=upstream).place(brokers(0.8, 0.5, 0.2), NEW, ["a", "b", "c"], {}, {})
        assert (answer.broker, list(answer.best)) == ("c", ["c"])
        assert answer.scores == {"a": 0.8, "b": 0.5, "c": 0.2}
    close = brokers(0.55, 0.5, 0.45)
    answer = extensible().place(close, NEW, ["a", "b", "c"], {}, {})
    assert (answer.broker, list(answer.best)) == ("c", ["c"])
    theirs = extensible(upstream=True).place(close, NEW, ["a", "b", "c"], {}, {})
    assert (theirs.broker, list(theirs.best)) == (pick(NEW.name, ["a", "b", "c"]), ["a", "b", "c"])


@pytest.mark.parametrize(("difference", "best"), [(25, ["b"]), (25.1, ["a", "b"])])
def test_exactly_the_difference_counts(difference: float, best: list[str]):
    # 0.75 and 0.25: mean 0.5, all exact.
    answer = extensible(upstream=True, difference_percent=difference).place(
        brokers(0.75, 0.25), NEW, ["a", "b"], {}, {}
    )
    assert list(answer.best) == best


def test_several_preferred_ones():
    cluster = brokers(0.9, 0.9, 0.2, 0.1)
    for upstream in (False, True):
        strategy = extensible(upstream=upstream)
        answers = {strategy.place(cluster, bundle(n, None), list("abcd"), {}, {}).broker for n in range(40)}
        assert answers == {"c", "d"}
        assert list(strategy.place(cluster, NEW, list("abcd"), {}, {}).best) == ["c", "d"]


def test_the_average_is_that_of_the_candidates():
    cluster = brokers(0.9, 0.5, 0.3, 0.1)
    answer = extensible(upstream=True).place(cluster, NEW, ["b", "c"], {}, {})
    # 0.3 + 0.1 <= 0.4.
    assert list(answer.best) == ["c"]


def test_bundles_on_their_way_count():
    """1,024 bundles at once, nobody reports meanwhile: upstream sends all of them to the broker that was idle."""
    cluster = brokers(0.20, 0.21, 0.02)
    for upstream, spread in ((False, 300), (True, 0)):
        strategy, booked = extensible(upstream=upstream), {"a": [], "b": [], "c": []}
        for number in range(1024):
            answer = strategy.place(cluster, bundle(number, None), ["a", "b", "c"], booked, {})
            booked[answer.broker].append(answer.bundle)
        assert min(len(bundles) for bundles in booked.values()) >= spread - 100
        if upstream:
            assert len(booked["c"]) == 1024


def test_what_a_bundle_on_its_way_weighs():
    """Of 100 bytes/s in all, with usages that add up to 0.4, a bundle of 25 is a tenth; one nobody measured an average one."""
    base = cluster(
        [broker("a", 0.3, bytes_per_s=75), broker("b", 0.1, bytes_per_s=25)],
        [
            *(bundle(n, "a") for n in range(6)),
            *(bundle(n, "b") for n in range(6, 8)),
            bundle(20, None, bytes_per_s=25),
            replace(bundle(21, None), averages=BundleAverages()),
        ],
    )
    measured, unseen = (f"t/n/0x{n:08x}_0x{n + 1:08x}" for n in (20, 21))
    for booked, usage in (([measured], 0.2), ([unseen], 0.15), (["t/n/nobody"], 0.15), ([measured, unseen], 0.25)):
        answer = extensible().place(base, NEW, ["a", "b"], {"b": booked}, {})
        assert answer.scores == pytest.approx({"a": 0.3, "b": usage})
    # At least a thousandth.
    idle = next(iter(base.bundles))
    assert extensible().place(base, NEW, ["a", "b"], {"b": [idle]}, {}).scores["b"] == pytest.approx(0.101)


def test_an_unmeasured_bundle_is_no_whole_broker():
    base = cluster([broker("a", 0.5), broker("b", 0.5)], [replace(bundle(1, "a"), averages=BundleAverages())])
    assert extensible().place(base, NEW, ["a", "b"], {"b": ["t/n/x"]}, {}).scores["b"] == pytest.approx(0.55)


def test_brokers_without_data_wait_until_nobody_has_any():
    cluster = brokers(0.9, 0.89, 0.88)
    cluster = replace(cluster, brokers={**cluster.brokers, "c": replace(cluster.brokers["c"], load=None)})
    answer = extensible().place(cluster, NEW, ["a", "b", "c", "x"], {}, {})
    assert (answer.broker, set(answer.removed)) == ("b", {"c", "x"})
    assert answer.removed["c"] == ("load-data", "no-load-data: it has reported no load")
    # Upstream takes them in where nobody is preferred.
    assert list(extensible(upstream=True).place(cluster, NEW, ["a", "b", "c"], {}, {}).best) == ["a", "b", "c"]


def test_nobody_has_data():
    cluster = by_messages({"a": 0.5, "b": 0.5}, {"a": [1, 1], "b": [1]})
    cluster = replace(
        cluster, brokers={name: replace(broker, load_age_s=7200) for name, broker in cluster.brokers.items()}
    )
    for strategy in (extensible(), modular()):
        assert strategy.place(cluster, NEW, ["a", "b"], {}, {}).broker == "b"
        assert strategy.place(cluster, NEW, ["a", "b"], {"b": ["t/n/1", "t/n/2"]}, {}).broker == "a"
    assert extensible(upstream=True).place(cluster, NEW, ["a", "b"], {}, {}).scores == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("strategy", [extensible(), extensible(upstream=True), modular(), modular(upstream=True)])
def test_no_candidates(strategy):
    answer = strategy.place(brokers(0.5), NEW, [], {}, {})
    assert (answer.broker, answer.why) == (None, "no broker may take it")


def test_a_new_state_of_the_cluster_is_looked_at():
    strategy = extensible()
    assert strategy.place(brokers(0.1, 0.9), NEW, ["a", "b"], {}, {}).broker == "a"
    assert strategy.place(brokers(0.9, 0.1), NEW, ["a", "b"], {}, {}).broker == "b"


BEFORE = {"usage": {"a": 0.8, "b": 0.2}, "measured_at_ms": {"a": NOW_MS - 60_000.0, "b": NOW_MS - 60_000.0}}
NOW = by_messages({"a": 0.4, "b": 0.6}, {"a": [100], "b": [100]})


def test_modular_worked_example():
    for upstream in (False, True):
        answer = modular(upstream=upstream).place(NOW, NEW, ["a", "b"], {}, BEFORE)
        assert answer.broker == "b"
        assert answer.scores == pytest.approx({"a": 0.76, "b": 0.24})
    without = by_messages({"a": 0.4, "b": 0.6}, {"a": [100], "b": []})
    ours = modular().place(without, NEW, ["a", "b"], {}, BEFORE)
    assert (ours.broker, list(ours.best)) == ("b", ["b"])
    theirs = modular(upstream=True).place(without, NEW, ["a", "b"], {}, BEFORE)
    assert list(theirs.best) == ["a", "b"]
    for answer in (ours, theirs):
        assert answer.scores == pytest.approx({"a": 0.76, "b": 0.6})


def test_modular_restart_by_no_messages():
    """Bundles, but no messages: the average starts anew."""
    silent = by_messages({"a": 0.4, "b": 0.6}, {"a": [100], "b": [0]})
    for upstream in (False, True):
        assert modular(upstream=upstream).place(silent, NEW, ["a", "b"], {}, BEFORE).scores["b"] == pytest.approx(0.6)


def test_modular_average_advances_by_measurements_not_by_placements():
    for upstream, usage in ((False, 0.76), (True, 0.8 * 0.9**3 + 0.4 * (1 - 0.9**3))):
        strategy, memory = modular(upstream=upstream), BEFORE
        for _ in range(3):
            answer = strategy.place(NOW, NEW, ["a", "b"], {}, memory)
            memory = dict(answer.memory)
        assert answer.scores["a"] == pytest.approx(usage)
        assert modular(upstream=upstream).place(NOW, NEW, ["a", "b"], {}, BEFORE).scores["a"] == pytest.approx(0.76)


def test_modular_remembers_only_those_asked_about_as_upstream():
    assert set(modular(upstream=True).place(NOW, NEW, ["a"], {}, {}).memory["usage"]) == {"a"}
    assert set(modular().place(NOW, NEW, ["a"], {}, {}).memory["usage"]) == {"a", "b"}
