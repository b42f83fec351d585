"""A seed is a plan, the same one each time; kinds fit the cluster; the report adds up."""

import subprocess
import sys
import time

import pytest

from statechannel.settings import load
from tests.faults import report
from tests.faults.brokers import shifted_clock
from tests.faults.plan import KINDS, SETTINGS, make_plan


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_is_always_the_same_plan(seed):
    first, second = make_plan(seed), make_plan(seed)
    assert first.facts() == second.facts()
    assert len(first.steps) == 6
    assert first.steps[-1].calm
    assert all(KINDS[one.kind].nodes in (0, first.nodes) for step in first.steps for one in step.faults)


def test_every_kind_is_drawn_and_says_what_it_is():
    drawn = {one.kind for seed in range(300) for step in make_plan(seed).steps for one in step.faults}
    assert drawn >= {kind for kind, made in KINDS.items() if not made.by_name_only}
    assert [kind for kind, made in KINDS.items() if not made.__doc__] == []


def test_both_clusters_and_both_leases_are_drawn():
    plans = [make_plan(seed) for seed in range(40)]
    assert {plan.nodes for plan in plans} == {1, 3}
    assert {plan.lease_s is None for plan in plans} == {True, False}
    assert {plan.compacting for plan in plans} == {True, False}


def test_only_what_is_asked_for_is_drawn():
    plan = make_plan(3, steps=20, only=("kill", "node-kill"))
    assert {one.kind for step in plan.steps for one in step.faults} == {"kill", "node-kill"}
    assert plan.nodes == 3


def test_what_promises_something_only_alone_is_drawn_by_name_and_alone():
    by_name = sorted(kind for kind, made in KINDS.items() if made.by_name_only)
    assert by_name == ["kill-all-in-debt"]
    assert not any(one.by_name_only for seed in range(50) for step in make_plan(seed).steps for one in step.faults)
    plan = make_plan(3, steps=20, only=("kill-all-in-debt",))
    assert [[one.kind for one in step.faults] for step in plan.steps] == [["kill-all-in-debt"]] * 20
    assert all(step.calm for step in plan.steps)
    assert (plan.in_debt, plan.compacting) == (True, True)
    flags = [f"{name}={value}" for name, value in plan.settings().items()]
    assert load(flags=flags).channel.min_compaction_lag_ms == 90_000


def test_the_settings_are_in_the_relations_that_are_checked_at_start():
    for seed in range(10):
        flags = [f"{name}={value}" for name, value in make_plan(seed, lease=True).settings().items()]
        assert load(flags=flags).membership.expiry_s == SETTINGS["membership.expiry_s"]


def test_the_report_adds_up_and_names_the_seed():
    figures = {
        "faults": {"kill": 2},
        "operations": {"transfer done": 3},
        "ends": {"0": 3},
        "gaps_ms": [["transfer", 10], ["transfer", 30], ["owner-lost", 7_000]],
        "outages_ms": [20],
        "healthy_s": [1.5, None],
        "served_s": [0.25],
        "stale_lookups_ms": {"count": 1, "max": 12},
        "stale_writes": 0,
        "writes": 100,
        "records": 500,
        "records_cleaned": 20,
        "lookups": 50,
        "floor": {"p99_ms": 3.0, "max_ms": 20.0},
    }
    plan = make_plan(7).facts()
    good = {"plan": plan, "violations": {}, "figures": figures, "seconds": 60.0}
    bad = {"plan": plan | {"seed": 8}, "violations": {"one-digest": ["differ"]}, "figures": figures, "seconds": 60.0}
    found = report.summarise([good, bad])
    assert (found["runs"], found["minutes"], found["faults"], found["violations"]) == (2, 2.0, 4, 1)
    assert found["gaps_ms_by_cause"]["transfer"] == {"count": 4, "p50": 30, "p99": 30, "max": 30}
    assert found["seeds_with_violations"] == [8]
    assert "violations: 1" in report.as_text(found)
    assert "seeds: [8]" in report.as_text(found)


def test_a_broker_with_a_clock_apart_reads_that_clock_and_no_other():
    code = shifted_clock(3_600)[2].partition("from statechannel")[0]
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            code + "print(time.time() - real(), (time.time_ns() - real_ns()) / 1e9, time.monotonic())",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [round(float(one)) for one in told[:2]] == [3_600, 3_600]
    assert abs(float(told[2]) - time.monotonic()) < 60
