"""From names and files to traces: which scenarios are steady and which are too large."""

import dataclasses

from shedders.cli.contest.options import contender_names
from shedders.contest.scenario import load_scenario, scenarios
from shedders.contest.snapshot_trace import AS_IT_IS, present
from shedders.contest.sources import chosen_scenarios, is_steady, name_apart, scenario_source, usual_scenarios
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
