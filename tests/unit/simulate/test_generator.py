"""Scenarios drawn by a seed: the same for the same seed, all of them usable, and every trouble among them."""

import pytest

from shedders.contest.generator import NOISE_HOURS, TROUBLES, generated
from shedders.contest.scenario import parse_scenario
from shedders.contest.sources import scenario_source
from shedders.contest.workload import scenario_trace

SEEDS = (5, 17)
NUMBERS = range(1, 13)


def drawn(seed):
    return [parse_scenario(generated(seed, number)) for number in NUMBERS]


def test_the_same_seed_gives_the_same_files_and_another_one_others():
    once = [generated(5, number) for number in NUMBERS]
    assert [generated(5, number) for number in reversed(NUMBERS)][::-1] == once
    other = [generated(17, number) for number in NUMBERS]
    assert len({*once, *other}) == 24


@pytest.mark.parametrize("seed", SEEDS)
def test_each_makes_a_trace_with_any_seed(seed):
    for number, scenario in zip(NUMBERS, drawn(seed), strict=True):
        assert scenario.name == f"generated-{seed}-{number:02d}"
        assert scenario.generated_by_seed == seed
        for trace_seed in (1, 2):
            trace = scenario_trace(scenario, trace_seed)
            assert trace.demand(trace.steps - 1).cpu.sum() > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_every_trouble_is_the_main_one_of_two_in_twelve(seed):
    scenarios = drawn(seed)
    by_trouble = {trouble: scenarios[place :: len(TROUBLES)] for place, trouble in enumerate(TROUBLES)}
    assert {len(some) for some in by_trouble.values()} == {2}
    wrong = {"lying", "slow", "lossy", "silent"}
    assert all(wrong & {event.what for event in scenario.events} for scenario in by_trouble["wrong-figures"])
    assert all(scenario.changes for scenario in by_trouble["bursts"])
    assert all(scenario.hours in NOISE_HOURS and scenario.spikes for scenario in by_trouble["noise"])
    assert all(len(scenario.kinds) >= 3 for scenario in by_trouble["resources"])
    assert all({"join", "lost", "leave"} & {event.what for event in each.events} for each in by_trouble["members"])
    assert all(scenario.policies.anti_affinity for scenario in by_trouble["policies"])


def test_over_many_draws_everything_stated_occurs():
    scenarios = [parse_scenario(generated(seed, number)) for seed in range(8) for number in NUMBERS]
    events = {(event.what, bool(event.resources)) for scenario in scenarios for event in scenario.events}
    assert {("slow", True), ("slow", False), ("lying", False), ("lossy", False), ("silent", False)} <= events
    assert {("join", False), ("lost", False), ("leave", False)} <= events
    assert any(scenario.policies.isolation for scenario in scenarios)
    assert any(scenario.policies.pins for scenario in scenarios)
    assert any(kind.cache_s > 10 for scenario in scenarios for kind in scenario.kinds)
    assert any(scenario.wave for scenario in scenarios)
    assert {len(scenario.fleet) for scenario in scenarios} >= {1, 2, 3}


def test_results_have_them_as_a_group_of_their_own(tmp_path):
    path = tmp_path / "generated-5-01.toml"
    path.write_bytes(generated(5, 1))
    assert scenario_source(str(path)).generated
    assert not scenario_source("held-out/thirteen").generated
