"""A seed is a plan, the same one each time; kinds fit the cluster; the report adds up."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from shedders.balancer.extension import BalancerExtension
from statechannel.api.extensions import make_installed
from statechannel.settings import load
from tests.faults import report
from tests.faults.broker_process import set_offset
from tests.faults.brokers import ROOT
from tests.faults.plan import KINDS, SETTINGS, make_plan


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_is_always_the_same_plan(seed):
    first, second = make_plan(seed), make_plan(seed)
    assert first.facts() == second.facts()
    assert len(first.steps) == 6
    assert first.steps[-1].calm
    assert all(KINDS[fault.kind].nodes in (0, first.nodes) for step in first.steps for fault in step.faults)


def test_every_kind_is_drawn_and_says_what_it_is():
    drawn = {fault.kind for seed in range(300) for step in make_plan(seed).steps for fault in step.faults}
    assert drawn >= {kind for kind, fault in KINDS.items() if not fault.by_name_only}
    assert [kind for kind, fault in KINDS.items() if not fault.__doc__] == []


def test_both_clusters_and_both_leases_are_drawn():
    plans = [make_plan(seed) for seed in range(40)]
    assert {plan.nodes for plan in plans} == {1, 3}
    assert {plan.lease_s is None for plan in plans} == {True, False}
    assert {plan.compacting for plan in plans} == {True, False}
    assert {plan.partitions for plan in plans} == {1, 2, 5}
    assert {plan.balancing for plan in plans} == {True, False}


def test_only_what_is_asked_for_is_drawn():
    plan = make_plan(3, steps=20, only=("kill", "node-kill"))
    assert {fault.kind for step in plan.steps for fault in step.faults} == {"kill", "node-kill"}
    assert plan.nodes == 3


def test_what_promises_something_only_alone_is_drawn_by_name_and_alone():
    by_name = sorted(kind for kind, fault in KINDS.items() if fault.by_name_only)
    assert by_name == ["kill-all-in-debt"]
    assert not any(fault.by_name_only for seed in range(50) for step in make_plan(seed).steps for fault in step.faults)
    plan = make_plan(3, steps=20, only=("kill-all-in-debt",))
    assert [[fault.kind for fault in step.faults] for step in plan.steps] == [["kill-all-in-debt"]] * 20
    assert all(step.calm for step in plan.steps)
    assert (plan.in_debt, plan.compacting) == (True, True)
    assert (plan.partitions, plan.balancing) == (1, False)
    flags = [f"{name}={value}" for name, value in plan.settings().items()]
    assert load(flags=flags).channel.min_compaction_lag_ms == 90_000


def test_what_needs_a_cluster_that_is_well_strikes_alone_and_after_a_calm_round():
    for seed in range(60):
        steps = make_plan(seed).steps
        for before, step in zip([None, *steps], steps, strict=False):
            if any(fault.alone for fault in step.faults):
                assert len(step.faults) == 1
                assert step.calm
                assert before is None or before.calm


def test_brokers_read_from_followers_in_some_runs_with_three_nodes_and_in_no_other():
    plans = [make_plan(seed) for seed in range(60)]
    assert {plan.nodes for plan in plans if plan.racks} == {3}
    assert any(plan.nodes == 3 and not plan.racks for plan in plans)


def test_an_unclean_election_needs_three_nodes_and_a_cluster_that_is_well():
    assert "election-unclean" not in {
        f.kind for seed in range(200) for s in make_plan(seed, nodes=1).steps for f in s.faults
    }
    plan = make_plan(3, steps=5, only=("election-unclean",))
    assert plan.nodes == 3
    assert [len(step.faults) for step in plan.steps] == [1] * 5


def test_the_settings_are_in_the_relations_that_are_checked_at_start():
    for seed in range(10):
        flags = [f"{name}={value}" for name, value in make_plan(seed, lease=True).settings().items()]
        assert load(flags=flags).membership.expiry_s == SETTINGS["membership.expiry_s"]


def test_the_balancer_is_set_as_it_understands_it():
    plan = next(plan for plan in map(make_plan, range(40)) if plan.balancing)
    settings = load(flags=[f"{name}={value}" for name, value in plan.settings().items()])
    (balancer,) = [extension for extension in make_installed(settings) if extension.name == "balancer"]
    assert isinstance(balancer, BalancerExtension)
    assert (balancer.settings.source, balancer.settings.shedding) == ("simulated", "transfer")
    assert settings.channel.partitions == plan.partitions


def test_the_report_adds_up_and_names_the_seed():
    figures = {
        "faults": {"kill": 2},
        "operations": {"transfer done": 3},
        "ends": {"0": 3},
        "gaps_ms": [["transfer", 10], ["transfer", 30], ["owner-lost", 7_000]],
        "outages_ms": [20],
        "outages_by_fault_ms": [["kill", 20], ["several", 9]],
        "healthy_s": [1.5, None],
        "served_s": [0.25],
        "stale_lookups_ms": {"count": 1, "max": 12},
        "stale_writes": 0,
        "calls": {"write ok": 40, "write fenced": 2, "read ok": 9, "read unknown": 3},
        "moves_by_brokers": 1,
        "stored": 41,
        "fenced_writes": 2,
        "fenced_opens": 0,
        "services": 6,
        "overlaps": 0,
        "old_reads": 0,
        "writes": 100,
        "records": 500,
        "records_cleaned": 20,
        "lookups": 50,
        "floor": {"p99_ms": 3.0, "max_ms": 20.0},
    }
    plan = make_plan(7).facts()
    good = {"plan": plan, "violations": {}, "figures": figures, "seconds": 60.0}
    bad = {"plan": plan | {"seed": 8}, "violations": {"one-digest": ["differ"]}, "figures": figures, "seconds": 60.0}
    summary = report.summarise([good, bad])
    assert (summary["runs"], summary["minutes"], summary["faults"], summary["violations"]) == (2, 2.0, 4, 1)
    assert summary["gaps_ms_by_cause"]["transfer"] == {"count": 4, "p50": 30, "p99": 30, "max": 30}
    assert summary["client_outages_ms_by_fault"]["kill"] == {"count": 2, "p50": 20, "p99": 20, "max": 20}
    assert summary["seeds_with_violations"] == [8]
    assert summary["calls"] == {"read ok": 18, "read unknown": 6, "write fenced": 4, "write ok": 80}
    assert summary["calls_answered"] == 102
    assert "registers: 102 calls answered, 82 writes stored, 4 refused" in report.as_text(summary)
    assert "violations: 1" in report.as_text(summary)
    assert "seeds: [8]" in report.as_text(summary)


def test_a_broker_reads_the_clock_that_is_set_for_it_also_while_it_runs(tmp_path: Path):
    clock = tmp_path / "b1.clock"
    set_offset(clock, 3_600)
    code = (
        "import pathlib, sys, time\n"
        "from tests.faults.broker_process import follow_clock\n"
        "follow_clock(pathlib.Path(sys.argv[1]))\n"
        "while sys.stdin.readline(): print(time.time(), time.time_ns() / 1e9, time.monotonic(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(clock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as reader:
        for offset_s in (3_600, -45):
            set_offset(clock, offset_s)
            reader.stdin.write("now\n")
            reader.stdin.flush()
            clocks = [float(word) for word in reader.stdout.readline().split()]
            assert [round((wall_s - time.time() - offset_s) / 5) for wall_s in clocks[:2]] == [0, 0]
            assert abs(clocks[2] - time.monotonic()) < 60
