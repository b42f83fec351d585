"""From names and files to traces: which scenarios are steady, which are too large, and recorded traces with noise."""

import dataclasses

import numpy as np
import pytest

from shedders.cli.contest.options import contender_names
from shedders.contest.outcome import SourceKind
from shedders.contest.recorded import AS_RECORDED, save
from shedders.contest.scenario import load_scenario, scenarios
from shedders.contest.snapshot_trace import AS_IT_IS, present
from shedders.contest.sources import (
    chosen_scenarios,
    file_source,
    is_steady,
    make_trace,
    name_apart,
    scenario_source,
    usual_scenarios,
)
from shedders.contest.workload import scenario_trace
from shedders.snapshots.cluster import snapshot_of
from tests.support.snapshots import Shape, cluster


def test_steady_scenarios_are_those_in_which_nothing_calls_for_moves():
    steady = {name for name in scenarios() if is_steady(load_scenario(name))}
    assert {"calm", "jitter", "spikes"} <= steady
    assert not steady & {
        "scale-out",
        "hot-topic",
        "daily-wave",
        "broker-loss",
        "slow-broker",
        "growing",
        "lookup-storm",
    }
    assert is_steady(load_scenario("held-out/steady-mixture"))


def test_a_scenario_says_what_its_aims_need():
    out = scenario_source("scale-out")
    assert (out.scale_out, out.steady, out.held_out) == (True, False, False)
    assert scenario_source("held-out/thirteen").held_out
    assert not scenario_source("calm").scale_out


def test_the_largest_scenarios_run_only_when_they_are_named():
    usual, large = usual_scenarios(held_out=False)
    assert {"day", "huge"} <= set(large)
    assert sorted(usual + large) == scenarios()
    assert [source.name for source in chosen_scenarios(["huge", "calm", "huge"])] == ["huge", "calm"]
    held_out = usual_scenarios(held_out=True)[0]
    assert held_out[: len(usual)] == usual
    assert all(name.startswith("held-out/") for name in held_out[len(usual) :])


def test_sources_of_one_name_are_told_apart():
    calm = scenario_source("calm")
    mine = dataclasses.replace(calm, where="./calm.toml")
    assert [source.name for source in name_apart([calm, mine])] == ["calm", "./calm.toml"]


def test_the_digest_is_of_the_content():
    assert scenario_source("calm").digest == scenario_source("calm").digest != scenario_source("jitter").digest


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "t.npz"
    save(scenario_trace(load_scenario("swap-trap"), 3), path)
    return file_source(SourceKind.TRACE, path)


def test_seed_1_is_what_was_recorded(saved):
    recorded = scenario_trace(load_scenario("swap-trap"), 3)
    same = make_trace(saved, AS_RECORDED)
    for step in (0, 7, recorded.steps - 1):
        for item, other in zip(same.demand(step), recorded.demand(step), strict=True):
            assert np.array_equal(item, other)


def test_other_seeds_waver_a_little_and_repeat_in_any_order(saved):
    same, first, again, other = (make_trace(saved, seed) for seed in (AS_RECORDED, 2, 2, 3))
    assert (first.seed, first.steps, first.machines) == (2, same.steps, same.machines)
    steps = list(range(0, same.steps, 9))
    backwards = {step: again.demand(step) for step in reversed(steps)}
    ratios = []
    for step in steps:
        mine, plain = first.demand(step), same.demand(step)
        assert all(np.array_equal(bundle, two) for bundle, two in zip(mine, backwards[step], strict=True))
        assert not np.array_equal(mine.cpu, other.demand(step).cpu)
        there = plain.cpu > 0
        factors = mine.cpu[there] / plain.cpu[there]
        # All that a topic wants goes up and down together.
        assert np.allclose(mine.msg_rate_in[there], plain.msg_rate_in[there] * factors)
        ratios.append(factors)
    every = np.concatenate(ratios)
    assert abs(float(every.mean()) - 1) < 0.01
    assert 0.08 < float(every.std()) < 0.15


def test_what_a_snapshots_cluster_does_is_a_contender():
    snapshot = snapshot_of(cluster(7, Shape(brokers=3, bundles_each=2)))
    modular = snapshot.model_copy(update={"profile": "upstream-defaults"})
    contender = present(modular)
    assert (contender.name, contender.manager, contender.shedding, contender.upstream) == (
        AS_IT_IS,
        "modular",
        "threshold",
        True,
    )
    strategies = snapshot.strategies.model_copy(update={"shedding": "uniform"})
    settings = snapshot.settings.model_copy(update={"shedding": {"uniform": {"max_unload_share": 0.3}}})
    other = present(snapshot.model_copy(update={"strategies": strategies, "settings": settings}))
    assert (other.shedding, other.placement) == ("uniform", present(snapshot).placement)
    assert other.overrides["shedding.uniform.max_unload_share"] == 0.3


def test_contenders_may_have_commas_between_them_and_within():
    given = ["ours,modular/avg+avg@upstream,shedding.avg.upstream=false,profile/production", "default;all"]
    assert contender_names(given) == (
        "ours modular/avg+avg@upstream,shedding.avg.upstream=false profile/production default;all"
    )
    assert contender_names(["ours,x.y=[1,2],ours"]) == "ours,x.y=[1,2] ours"
    assert contender_names([]) == "default"
    assert contender_names(["ours,nobody"]) == "ours nobody"  # a name that means nothing is told as a name
