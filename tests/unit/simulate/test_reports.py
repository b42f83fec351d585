"""What simulated brokers tell is what real ones would: the same averages, the same choice, the same moments."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loaddata.model.bundle_load import BundleStats, LocalBundle, TimedAverages, TopRules, top_bundles
from loaddata.settings import LoadSettings
from shedders.contest.bundles import BundleTable, ContestChannel, bounds_of
from shedders.contest.reports import Reports, ReportSettings
from shedders.contest.trace import TraceMachine, Units

RATES = st.floats(0, 5e6)
READINGS = st.lists(st.lists(RATES, min_size=12, max_size=12), min_size=1, max_size=35)
SLOW = LoadSettings(measure_interval_s=60.0, stale_s=120.0)
MACHINES = [TraceMachine("b0"), TraceMachine("b1")]


def _table(owners: list[int]) -> BundleTable:
    table = BundleTable(Units(np.zeros(3, dtype=np.int64), np.array([5, 2**30, 2**31]), np.array([3, 600, 9])))
    table.add_namespace(0, ContestChannel().create("t/n", bounds_of(len(owners), ())))
    table.owner[:] = owners
    return table


def _use(rates: np.ndarray, table: BundleTable) -> np.ndarray:
    use = np.zeros((6, len(MACHINES)))
    use[:4] = table.by_broker(rates, len(MACHINES))
    return use


@settings(max_examples=40)
@given(READINGS, st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
def test_averages_and_choice_are_those_of_a_live_broker(
    readings: list[list[float]], most: int, by_resource: int, recent: int
) -> None:
    table = _table([0, 0, 0])
    rules = TopRules(count_max=most, by_resource_max=by_resource, recent_max=recent)
    reports = Reports(
        MACHINES,
        table,
        ReportSettings(
            LoadSettings(
                top_bundles_max=most, top_by_resource_max=by_resource, top_recent_max=recent, top_interval_s=5.0
            )
        ),
    )
    clock = LoadSettings().sample_clock()
    timed = {name: TimedAverages() for name in table.names}
    stats: dict[str, BundleStats] = {}
    for turn, reading in enumerate(readings):
        now_s = 20.0 * turn
        rates = np.array(reading).reshape(4, 3)
        assert reports.read(now_s, 0, rates, _use(rates, table), [0, 1], {})
        for number, name in enumerate(table.names):
            result = reports.owner_knowledge(number)
            stats[name] = result.stats
            timed[name] = timed[name].advanced(result.stats, now_s, clock)
            assert result.averages == timed[name].averages
    local = {name: LocalBundle(stats[name], timed[name]) for name in table.names}
    seen = reports.tops([0, 1], ["b0", "b1"], now_s)
    assert seen["b0"].bundles == top_bundles(local, rules)
    assert seen["b1"].bundles == []


def test_a_report_is_older_than_what_came_since() -> None:
    table = _table([0, 0, 1])
    reports = Reports(MACHINES, table, ReportSettings(LoadSettings(top_interval_s=5.0)))
    rates = np.full((4, 3), 1e6)
    reports.read(0.0, 0, rates, _use(rates, table), [0, 1], {})
    table.owner[0] = 1
    reports.record_owner_change(0, [0, 1], 7, 10.0)
    seen = reports.loads([0, 1], ["b0", "b1"], 10.0)
    assert [entry.lapsed for entry in seen.values()] == [True, True]
    assert reports.tops([0], ["b0"], 10.0)["b0"].owned_as_of == {0: 0}
    reports.read(20.0, 7, rates, _use(rates, table), [0, 1], {})
    seen = reports.loads([0, 1], ["b0", "b1"], 20.0)
    assert [(entry.lapsed, entry.load.bundles) for entry in seen.values()] == [(False, 1), (False, 2)]
    assert reports.owner_knowledge(0).averages.short.samples == 4, (
        "its new owner has measured it once, for four samples"
    )
    assert reports.owner_knowledge(1).averages.short.samples == 5


def test_pulsar_tells_nobody_that_a_report_is_old() -> None:
    table = _table([0, 0, 1])
    reports = Reports(MACHINES, table, ReportSettings(SLOW, on_ownership=False, keep_averages=True))
    rates = np.full((4, 3), 1e6)
    assert reports.read(0.0, 0, rates, _use(rates, table), [0, 1], {})
    assert not reports.read(20.0, 7, rates, _use(rates, table), [0, 1], {})
    reports.record_owner_change(0, [0, 1], 7, 20.0)
    assert not any(load.lapsed for load in reports.loads([0, 1], ["b0", "b1"], 20.0).values())


def test_silence_and_lies() -> None:
    table = _table([0, 0, 1])
    reports = Reports(MACHINES, table, ReportSettings(LoadSettings(top_interval_s=5.0)))
    rates = np.full((4, 3), 1e6)
    reports.distort(1, 0.5)
    reports.read(0.0, 0, rates, _use(rates, table), [0, 1], {0: False})
    assert list(reports.loads([0, 1], ["b0", "b1"], 0.0)) == ["b1"]
    seen = reports.loads([1], ["b0", "b1"], 0.0)["b1"].load
    assert (seen.msg_throughput_in, seen.bundles) == (5e5, 1)
    assert reports.tops([1], ["b0", "b1"], 0.0)["b1"].bundles[0].stats.msg_throughput_in == 5e5
