"""The purge alone: which keys go when, portion by portion (R6)."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.protocol.keys import KeyState
from tests.support.duties_bench import DutiesBench, namespaces


@pytest.fixture
def bench() -> DutiesBench:
    return DutiesBench()


# --- purge ----------------------------------------------------------------------------------------------------------


def purging(**config: Any) -> DutiesBench:
    """One that goes over the keys in every tick."""
    return DutiesBench(purge_interval_s=0.0, **config)


def quiet(bench: DutiesBench, name: str) -> KeyState:
    """A key that does not exist and owes nothing."""
    key = bench.read(name)
    bench.settle(key)
    return key


def purged(bench: DutiesBench, after_ms: int = 0) -> list[bytes]:
    """What a tick purges so much later."""
    bench.later(after_ms / 1_000)
    bench.written.nulls.clear()
    bench.duties.tick()
    return [key for _, key in bench.written.nulls]


def test_junk_is_purged_when_it_was_quiet_for_longer_than_the_lag():
    bench = purging()
    quiet(bench, "t/x")
    assert purged(bench) == []
    assert purged(bench, 40_000) == []
    assert bench.facts_of("purge.wrote") == []
    assert purged(bench, 1) == [b"t/x"]
    assert bench.facts_of("purge.wrote") == [{"partition": 0, "keys": 1}]


def test_a_leap_of_kafkas_clock_purges_nothing():
    bench = purging()
    quiet(bench, "t/x")
    assert purged(bench) == []
    bench.context.replicas[0].timestamp_ms += 10**9
    assert purged(bench) == []


def test_all_that_were_purged_are_told_together():
    bench = purging()
    for number in range(3):
        quiet(bench, f"t/x{number}")
    purged(bench)
    assert len(purged(bench, 40_001)) == 3
    assert bench.facts_of("purge.wrote") == [{"partition": 0, "keys": 3}]


def test_so_many_are_purged_in_a_round():
    bench = purging(debt_batch_max=2)
    for number in range(3):
        quiet(bench, f"t/x{number}")
    purged(bench)
    assert purged(bench, 40_001) == [b"t/x0", b"t/x1"]


@pytest.mark.parametrize("state", ["leads not", "may not write"])
def test_nothing_is_purged_by_who(state):
    bench = purging()
    quiet(bench, "t/x")
    purged(bench)
    if state == "leads not":
        bench.follow()
    else:
        bench.context.may_write = False
    assert purged(bench, 40_001) == []
    assert bench.facts_of("purge.wrote") == []


WHOLE = "0x00000000_0xffffffff"
NAMESPACE, BUNDLE = "t/n", f"t/n/{WHOLE}"


def create(bench: DutiesBench) -> KeyState:
    return bench.write(NAMESPACE, id="n1", version=1, base=None, state="Active", children=[WHOLE])


def test_what_exists_is_never_purged():
    bench = purging()
    create(bench)
    fields = {"id": "b1", "version": 2, "base": f"n1/{WHOLE}", "state": "Assigning", "from": None, "to": "a"}
    assert bench.write(BUNDLE, **fields).to == "a"
    assert len(bench.context.replicas[0].view.keys) == 2
    assert purged(bench) == []
    assert purged(bench, 10**9) == []


def test_what_owes_or_was_purged_is_left_alone():
    bench = purging()
    owing, gone = bench.read("t/owing"), quiet(bench, "t/gone")
    purged(bench)
    gone.purged = True
    assert purged(bench, 40_001) == []
    gone.purged = False
    bench.settle(owing)
    assert purged(bench, 40_001) == [], "it is quiet from now on"
    assert purged(bench, 40_001) == [b"t/owing", b"t/gone"]


def test_what_is_settled_again_is_quiet_from_then_on():
    bench = purging()
    key = quiet(bench, "t/x")
    purged(bench)
    key.settled += 1
    assert purged(bench, 40_001) == []
    assert purged(bench, 40_000) == []
    assert purged(bench, 1) == [b"t/x"]


def test_junk_in_a_namespace_that_exists_waits_no_longer_than_other_junk():
    bench = purging()
    create(bench)
    quiet(bench, f"{NAMESPACE}/0x00000000_0x00000001")
    purged(bench)
    assert purged(bench, 40_000) == []
    assert purged(bench, 1) == [b"t/n/0x00000000_0x00000001"]


@pytest.mark.parametrize(("lag_s", "wait_ms"), [(40.0, 50_000), (60.0, 60_000)])
def test_bundles_of_a_deleted_namespace_wait_for_days(lag_s, wait_ms):
    bench = purging(compaction_lag_s=lag_s)
    create(bench)
    deleted = bench.write(NAMESPACE, id="n2", version=2, base="n1", state="Deleted")
    assert str(deleted.state) == "Deleted"
    quiet(bench, f"{NAMESPACE}/0x00000000_0x00000001")
    purged(bench)
    assert purged(bench, wait_ms) == []
    assert purged(bench, 1) == [b"t/n/0x00000000_0x00000001"]


# --- purge, portion by portion --------------------------------------------------------------------------------------


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statechannel.engine.maintenance.LOOKED_AT_A_TICK", 2)


@pytest.mark.usefixtures("portions")
@pytest.mark.parametrize(("keys", "ticks"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_a_round_takes_a_portion_a_tick(keys, ticks):
    bench = DutiesBench(purge_interval_s=10.0)
    for number in range(keys):
        quiet(bench, f"t/x{number}")
    for tick in range(1, ticks + 1):
        bench.duties.tick()
        assert len(bench.duties._quiet) == min(keys, 2 * tick)
        assert bool(bench.duties._purging) == (tick < ticks)


@pytest.mark.parametrize(("after_s", "expected"), [(9.75, 1), (10.0, 2)])
def test_the_next_round_begins_after_the_interval(after_s, expected):
    bench = DutiesBench(at_s=0.0, purge_interval_s=10.0)
    quiet(bench, "t/x")
    bench.duties.tick()
    quiet(bench, "t/y")
    bench.later(after_s)
    bench.duties.tick()
    assert len(bench.duties._quiet) == expected


@pytest.mark.usefixtures("portions")
def test_the_bound_is_for_the_round_and_not_for_the_tick():
    bench = DutiesBench(purge_interval_s=10.0, debt_batch_max=3)
    for number in range(5):
        quiet(bench, f"t/x{number}")
    for _ in range(3):
        purged(bench)
    bench.later(10)
    assert purged(bench, 40_001) == [b"t/x0", b"t/x1"]
    assert purged(bench) == [b"t/x2"]
    assert purged(bench) == []
    bench.later(10)
    assert purged(bench) == [b"t/x0", b"t/x1"]


def test_partitions_that_are_not_judged_are_not_in_the_round():
    bench = DutiesBench(partitions=2)
    for name in (*namespaces(0, 1), *namespaces(1, 1)):
        quiet(bench, name)
    bench.context.not_judged = {0}
    bench.duties.tick()
    assert [key.name for key in bench.duties._quiet] == namespaces(1, 1)


@pytest.mark.usefixtures("portions")
def test_what_a_round_does_not_meet_is_forgotten_in_its_own_partition():
    bench = DutiesBench(partitions=2, purge_interval_s=10.0)
    few, many = namespaces(0, 2), namespaces(1, 3)
    for name in (*few[:1], *many):
        quiet(bench, name)
    for _ in range(2):
        bench.duties.tick()
    assert {key.name for key in bench.duties._quiet} == {*few[:1], *many}
    del bench.context.replicas[0].view.keys[few[0].encode()]
    del bench.context.replicas[1].view.keys[many[1].encode()]
    bench.later(10)
    bench.duties.tick()
    assert {key.name for key in bench.duties._quiet} == {*many}, "the other partition's round goes on"
    bench.duties.tick()
    assert {key.name for key in bench.duties._quiet} == {many[0], many[2]}
