"""Traces made from scenarios: figures reckoned by hand, any order of asking, and what happens when."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shedders.contest.demand_noise import LoadSwell, NamespaceWave, NoiseLayer
from shedders.contest.scenario import ScenarioError, parse_scenario
from shedders.contest.topics import TotalCapacity, topics_of
from shedders.contest.trace import TraceEvent, TraceEventKind
from shedders.contest.workload import scenario_trace
from statechannel.protocol.bundle import topic_hash

BASE = """
name = "tiny"
about = "Two brokers."
source = "this test"
hours = 2

[[fleet]]
group = "b"
count = 2
"""
APP = """
[[namespaces]]
group = "app"
bundles = 4
topics = 40
"""


def trace_of(extra=APP, seed=1, base=BASE):
    return scenario_trace(parse_scenario((base + extra).encode()), seed)


def equal(workload, other):
    return all(np.array_equal(a, b) for a, b in zip(workload, other, strict=True))


# --- figures ---------------------------------------------------------------------------------------------------------


def test_one_topic_by_hand():
    """A message of 1,000 bytes is sent twice: 3 x (10 us + 1,000 x 1 ns) = 33 us of CPU."""
    trace = trace_of("""
        [[kinds]]
        name = "k"
        msg_bytes = 1_000
        fan_out = 2
        cpu_us = 10
        cpu_ns_per_byte = 1
        cache_s = 2
        sessions = 7
        [[namespaces]]
        group = "app"
        bundles = 1
        topics = 1
        topic_max = 1.0
        """)
    demand = trace.demand(0)
    # Two machines of 8 cores: half of 1,600 % is 800 %, and 3 % of 1,600 % are used by idle machines; 752 % are left.
    assert demand.cpu[0] == pytest.approx(752)
    rate = 752 / 100 / 33e-6
    assert demand.msg_rate_in[0] == pytest.approx(rate)
    assert demand.msg_rate_out[0] == pytest.approx(2 * rate)
    assert demand.msg_throughput_in[0] == pytest.approx(1_000 * rate)
    assert demand.msg_throughput_out[0] == pytest.approx(2_000 * rate)
    assert demand.direct_memory_mib[0] == pytest.approx(2_000 * rate / 2**20)
    assert trace.units.position[0] == topic_hash("persistent://sim/app-1/t-0")
    assert trace.units.sessions[0] == 7


def test_large_messages_fill_the_network():
    trace = trace_of('[[kinds]]\nname = "k"\nmsg_bytes = 1e6\nfan_out = 4\ncpu_us = 1\ncpu_ns_per_byte = 0.1\n' + APP)
    demand = trace.demand(0)
    # Two machines, 10 Gbit each: half of both together go out.
    assert demand.msg_throughput_out.sum() == pytest.approx(10e9 / 8)
    assert demand.msg_throughput_in.sum() == pytest.approx(10e9 / 8 / 4)


def test_what_is_cached_for_long_fills_direct_memory():
    trace = trace_of('[[kinds]]\nname = "k"\nmsg_bytes = 1e4\nfan_out = 1\ncache_s = 60\n' + APP)
    # Half of the 16,384 MiB of both machines, while CPU and network are far from it.
    assert trace.demand(0).direct_memory_mib.sum() == pytest.approx(8_192)
    assert trace.demand(0).cpu.sum() < 0.2 * 1_600
    # A topic's part of a machine is of direct memory then: none has more than 15 % of 8,192 MiB.
    assert trace.demand(0).direct_memory_mib.max() <= 0.15 * 8_192 + 1e-6


def test_owners_are_balanced_by_direct_memory_where_it_is_scarce():
    cached = '[[kinds]]\nname = "k"\nmsg_bytes = 1e4\nfan_out = 1\ncache_s = 60\n'
    trace = trace_of(cached + APP.replace("bundles = 4", "bundles = 16") + 'owners = "balanced"\n')
    lowers = [(item << 28) for item in range(16)]
    place = np.searchsorted(np.array(lowers), trace.units.position, side="right") - 1
    memory = np.bincount(place, weights=trace.demand(0).direct_memory_mib, minlength=16)
    halves = [
        sum(memory[number] for number, owner in enumerate(trace.namespaces[0].owners) if owner == name)
        for name in ("b-1", "b-2")
    ]
    assert halves[0] == pytest.approx(halves[1], rel=0.1)


POLICIES = """
[[fleet]]
group = "far"
count = 12
[[namespaces]]
group = "app"
count = 2
bundles = 4
topics = 40
[[namespaces]]
group = "bank"
bundles = 4
topics = 40
owners_in = ["far"]
[[policies.isolation]]
name = "bank"
namespaces = ["bank"]
primary = ["far"]
secondary = ["b-2"]
min_available = 3
[[policies.anti_affinity]]
name = "apart"
namespaces = ["app"]
[[policies.pins]]
group = "app"
namespace = 2
bundles = [2]
broker = "b-1"
[[policies.pins]]
group = "bank"
broker = "far-07"
"""


def test_policies_name_groups_of_machines_and_namespaces():
    policies = trace_of(POLICIES).policies
    (isolation,) = policies.isolation
    assert (isolation.name, isolation.min_available) == ("bank", 3)
    matched = [
        re.fullmatch(isolation.primary[0], name) is not None for name in ("far-07", "far-12", "b-1", "farther-1")
    ]
    assert matched == [True, True, False, False]
    assert isolation.secondary == ("b-2",)
    assert re.fullmatch(isolation.namespaces[0], "sim/bank-1")
    assert policies.anti_affinity == {"sim/app-1": "apart", "sim/app-2": "apart"}
    assert policies.pins == {"sim/app-2/0x40000000_0x80000000": "b-1", "sim/bank-1": "far-07"}


def test_what_is_pinned_begins_there():
    owners = {namespace.name: namespace.owners for namespace in trace_of(POLICIES).namespaces}
    assert owners["sim/app-2"][1] == "b-1"
    assert set(owners["sim/bank-1"]) == {"far-07"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            'primary = ["far"]',
            'primary = ["fra"]',
            "policies.isolation[0].primary: unknown name fra; did you mean far?",
        ),
        ('namespaces = ["app"]', 'namespaces = ["ap"]', "policies.anti_affinity[0].namespaces: unknown name ap"),
        ("bundles = [2]", "bundles = [5]", "policies.pins[0]: app has 2 namespaces of 4 bundles"),
        ('broker = "far-07"', 'broker = "far-7"', "policies.pins[1].broker: unknown name far-7"),
    ],
)
def test_policies_that_name_what_is_not_there_are_refused(old, new, problem):
    with pytest.raises(ScenarioError) as caught:
        trace_of(POLICIES.replace(old, new, 1))
    assert any(line.startswith(problem) for line in caught.value.problems), caught.value.problems


def test_wrong_limits_from_the_start_are_slow_machines():
    slow = '[[events]]\nwhat = "slow"\ngroup = "b"\nnumbers = [2]\nat_min = 0\nfactor = 0.4\nresources = ["bandwidth-in"]\n'
    assert trace_of(APP + slow + "for_min = 30\n").events == [
        TraceEvent(0.0, TraceEventKind.SLOW, "b-2", 0.4, resources=("bandwidth-in",)),
        TraceEvent(1_800.0, TraceEventKind.SLOW, "b-2", 1.0, resources=("bandwidth-in",)),
    ]


def test_loads_follow_zipf_and_none_is_above_its_top():
    scenario = parse_scenario((BASE + APP + "zipf = 1.0\ntopic_max = 0.1\n").encode())
    topics = topics_of(scenario, 1, scenario_trace(scenario, 1).machines)
    loads = np.sort(topics.dominant)[::-1]
    assert loads[0] == 0.1
    free = np.flatnonzero(loads < 0.1)
    ranks = free + 1
    assert loads[free] * ranks == pytest.approx(np.full(len(free), loads[free[0]] * ranks[0]))


def test_shares_of_groups_and_kinds():
    trace = trace_of(
        '[[kinds]]\nname = "a"\nmsg_bytes = 100\n[[kinds]]\nname = "b"\nmsg_bytes = 200\n'
        + APP.replace('"app"', '"one"')
        + 'share = 3.0\nkinds = ["a"]\ntopic_max = 1.0\n'
        + APP.replace('"app"', '"two"')
        + 'share = 1.0\nkinds = ["b"]\ntopic_max = 1.0\n'
    )
    demand, first = trace.demand(0), trace.units.namespace == 0
    assert demand.cpu[first].sum() == pytest.approx(3 * demand.cpu[~first].sum())
    assert (demand.msg_throughput_in / demand.msg_rate_in)[first] == pytest.approx(100)
    assert (demand.msg_throughput_in / demand.msg_rate_in)[~first] == pytest.approx(200)


@given(
    utilisation=st.floats(0.1, 1.2),
    zipf=st.floats(0, 1.5),
    spread=st.floats(1, 10),
    fan_out=st.floats(0, 20),
    size=st.floats(10, 1e6),
)
@settings(max_examples=40, deadline=None)
def test_the_tightest_resource_is_used_as_far_as_is_wanted(utilisation, zipf, spread, fan_out, size):
    base = BASE.replace("hours", f"utilisation = {utilisation}\nhours")
    kind = f'[[kinds]]\nname = "k"\nspread = {spread}\nfan_out = {fan_out}\nmsg_bytes = {size}\n'
    trace = trace_of(kind + APP + f"zipf = {zipf}\ntopic_max = 1.0\n", base=base)
    demand, there = trace.demand(0), TotalCapacity.of(trace.machines)
    used = (
        (demand.cpu.sum() + there.idle) / there.cpu,
        demand.msg_throughput_in.sum() / 125 / there.bandwidth_in,
        demand.msg_throughput_out.sum() / 125 / there.bandwidth_out,
    )
    assert max(used) == pytest.approx(utilisation, rel=1e-6)


# --- order, and seeds ------------------------------------------------------------------------------------------------

DYNAMIC = (
    APP
    + """
[[noise]]
sd = 0.2
every_s = 70
[[noise]]
sd = 0.1
every_s = 20
[wave]
height = 0.4
spread_h = 6
[[changes]]
topics = 3
times = 3.0
at_min = 20
rising_min = 10
[[spikes]]
per_h = 20
machine_part = 0.3
"""
)


@given(st.lists(st.integers(0, 359), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_the_order_of_asking_means_nothing(steps):
    asked = trace_of(DYNAMIC)
    for step in steps:
        assert equal(asked.demand(step), trace_of(DYNAMIC).demand(step))


def test_seeds_differ_and_repeat():
    assert equal(trace_of(DYNAMIC, 7).demand(33), trace_of(DYNAMIC, 7).demand(33))
    assert not equal(trace_of(DYNAMIC, 7).demand(33), trace_of(DYNAMIC, 8).demand(33))


# --- what wavers -----------------------------------------------------------------------------------------------------


def test_noise_is_as_wide_at_every_moment():
    layer = NoiseLayer(1, 0, 0.2, 60.0, 20_000)
    for time_s in (0, 20, 30, 45, 600, 615):
        values = layer.at(time_s)
        assert values.std() == pytest.approx(0.2, rel=0.03)
        assert values.mean() == pytest.approx(0, abs=0.006)


def test_noise_changes_slowly_and_forgets():
    layer = NoiseLayer(1, 0, 0.2, 60.0, 20_000)
    alike = [np.corrcoef(layer.at(600), layer.at(600 + after_s))[0, 1] for after_s in (10, 60)]
    assert alike[0] > 0.9
    assert abs(alike[1]) < 0.03


def test_noise_never_takes_more_than_there_is():
    trace = trace_of(APP + "[[noise]]\nsd = 1.0\nevery_s = 20\n")
    assert min(trace.rows(step).min() for step in range(trace.steps)) == 0.05


def test_a_wave_by_hand():
    wave = NamespaceWave(0.5, 86_400.0, (0.0, 21_600.0), np.array([0, 0, 1]))
    assert wave.at(0.0).tolist() == [1, 1, 1.5]
    assert wave.at(64_800.0) == pytest.approx([0.5, 0.5, 1])


def test_a_swell_by_hand():
    swell = LoadSwell(np.array([0]), np.array([3.0]), 100.0, 200.0, 300.0)
    assert [swell.height(at_s) for at_s in (0, 100, 150, 200, 299, 300)] == [0, 0, 0.5, 1, 1, 0]


def test_a_change_to_a_part_of_a_machine():
    trace = trace_of(APP + "[[changes]]\ntopics = 2\nmachine_part = 0.5\nat_min = 30\nfor_min = 10\n")
    before, hot, after = (trace.demand(step).cpu for step in (89, 90, 120))
    risen = np.flatnonzero(hot != before)
    assert len(risen) == 2
    assert hot[risen] == pytest.approx(0.5 * 800)
    assert np.array_equal(before, after)
    assert trace.disturbances == [0, 2_400]
    assert trace.judged == [(900, 1_800), (3_300, 7_200)]


def test_a_change_that_comes_again_takes_other_topics():
    trace = trace_of(APP + "[[changes]]\ntopics = 1\ntimes = 9.0\nat_min = 10\nfor_min = 5\nevery_min = 20\n")
    quiet = trace.demand(0).cpu
    risen = [np.flatnonzero(trace.demand(step).cpu != quiet).tolist() for step in (30, 90, 150, 45)]
    assert [len(item) for item in risen] == [1, 1, 1, 0]
    assert len({item[0] for item in risen[:3]}) == 3


def test_the_heaviest_of_one_namespace():
    trace = trace_of(
        APP
        + "count = 3\n"
        + '[[changes]]\ngroup = "app"\nnamespace = 2\ntopics_share = 0.05\nheaviest = true\ntimes = 2.0\nat_min = 1\n'
    )
    before = trace.demand(0).cpu
    risen = np.flatnonzero(trace.demand(3).cpu == 2 * before)
    own = np.flatnonzero(trace.units.namespace == 1)
    assert set(risen) == set(own[np.argsort(-before[own])[:2]])


def test_spikes_last_as_long_as_they_say():
    trace = trace_of(APP + "[[spikes]]\nper_h = 3\nminutes = 5\nmachine_part = 0.4\n")
    quiet = trace.base.cpu
    risen = np.array([(trace.demand(step).cpu > quiet * 1.001).sum() for step in range(trace.steps)])
    assert risen.sum() == pytest.approx(6 * 15, abs=16)
    assert trace.disturbances == [0]


def test_a_namespace_wants_nothing_before_it_is_created():
    trace = trace_of(APP + 'count = 2\nowners = "placed"\ncreated_at_min = 30\ncreated_every_s = 40\n')
    for step, there in ((0, [0, 0]), (90, [1, 0]), (91, [1, 0]), (92, [1, 1])):
        cpu = trace.demand(step).cpu
        assert [int(cpu[trace.units.namespace == item].sum() > 0) for item in (0, 1)] == there
    assert trace.events == [
        TraceEvent(1_800, TraceEventKind.CREATE, namespace="sim/app-1"),
        TraceEvent(1_840, TraceEventKind.CREATE, namespace="sim/app-2"),
    ]


# --- events ----------------------------------------------------------------------------------------------------------


def test_a_rolling_restart():
    trace = trace_of(APP + '[[events]]\nwhat = "leave"\ngroup = "b"\nat_min = 30\nevery_s = 300\nfor_min = 2\n')
    assert [(event.at_s, event.what, event.broker) for event in trace.events] == [
        (1_800, "leave", "b-1"),
        (1_920, "join", "b-1"),
        (2_100, "leave", "b-2"),
        (2_220, "join", "b-2"),
    ]
    # Nothing can settle between its parts: it is one disturbance, and judged from after its end.
    assert trace.disturbances == [0, 2_220]
    assert trace.judged == [(900, 1_800), (3_120, 7_200)]


@pytest.mark.parametrize(
    ("what", "factor", "expected"),
    [
        ("lost", None, [("lost", 1), ("join", 1)]),
        ("silent", None, [("silent", 0), ("silent", 1)]),
        ("slow", 0.4, [("slow", 0.4), ("slow", 1)]),
        ("lossy", 0.7, [("lossy", 0.7), ("lossy", 0)]),
        ("lying", 0.3, [("lying", 0.3), ("lying", 1)]),
    ],
)
def test_what_ends_after_a_while(what, factor, expected):
    result = "" if factor is None else f"factor = {factor}\n"
    trace = trace_of(APP + f'[[events]]\nwhat = "{what}"\ngroup = "b"\npick = 1\nat_min = 10\nfor_min = 30\n{result}')
    assert [(event.what, event.factor) for event in trace.events] == expected
    assert len({event.broker for event in trace.events}) == 1


def test_those_that_join_are_not_there_at_first():
    trace = trace_of(
        '[[fleet]]\ngroup = "new"\ncount = 12\n' + APP + '[[events]]\nwhat = "join"\ngroup = "new"\nat_min = 5\n'
    )
    assert [machine.name for machine in trace.machines] == sorted(machine.name for machine in trace.machines)
    assert {"new-01", "new-12"} <= {machine.name for machine in trace.machines}
    assert {owner for namespace in trace.namespaces for owner in namespace.owners} == {"b-1", "b-2"}
    # Utilisation is of those that are there.
    assert trace.demand(0).cpu.sum() == pytest.approx(752)


# --- first owners ----------------------------------------------------------------------------------------------------


def loads_of(trace):
    """Load of each broker by the first owners, and number of bundles."""
    bounds = np.linspace(0, 2**32, 65)
    bundle = np.searchsorted(bounds, trace.units.position, side="right") - 1
    loads, counts = {}, {}
    for index, namespace in enumerate(trace.namespaces):
        own = trace.units.namespace == index
        each = np.bincount(bundle[own], weights=trace.base.cpu[own], minlength=64)
        for owner, load in zip(namespace.owners, each, strict=True):
            loads[owner] = loads.get(owner, 0) + load
            counts[owner] = counts.get(owner, 0) + 1
    return loads, counts


WIDE = APP.replace("bundles = 4", "bundles = 64").replace("topics = 40", "topics = 400") + "zipf = 0.6\n"


@pytest.mark.parametrize(
    ("owners", "parts"), [('owners = "balanced"', [0.5, 0.5]), ('owners = "parts"\nparts = [9, 1]', [0.9, 0.1])]
)
def test_owners_by_load(owners, parts):
    loads, _ = loads_of(trace_of(WIDE + owners + "\n"))
    whole = sum(loads.values())
    assert [loads["b-1"] / whole, loads["b-2"] / whole] == pytest.approx(parts, abs=0.01)


def test_owners_by_number_by_chance_or_none():
    _, counts = loads_of(trace_of(WIDE + 'owners = "even"\n'))
    assert counts == {"b-1": 32, "b-2": 32}
    _, counts = loads_of(trace_of(WIDE + 'owners = "one-broker"\n'))
    assert counts == {"b-1": 64}
    _, counts = loads_of(trace_of(WIDE + 'owners = "placed"\n'))
    assert counts == {None: 64}
    _, counts = loads_of(trace_of(WIDE + 'owners = "random"\n'))
    assert counts["b-1"] + counts["b-2"] == 64
    assert counts["b-1"] != 32


def test_idle_bundles_are_dealt_out_by_number():
    few = APP.replace("bundles = 4", "bundles = 64").replace("topics = 40", "topics = 2") + "topic_max = 0.9\n"
    _, counts = loads_of(trace_of(few + 'owners = "parts"\nparts = [1, 1]\n'))
    assert counts == {"b-1": 32, "b-2": 32}
