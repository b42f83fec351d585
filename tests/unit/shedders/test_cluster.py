"""The cluster: its bundles by owner and by namespace; and the collector at rest while large ones are made."""

import gc
import weakref

import pytest

from loaddata.bulk import uncollected
from shedders.model.cluster import Broker, Bundle, Cluster

MADE = Cluster(
    {name: Broker(name) for name in ("b2", "b1", "b3")},
    {
        name: Bundle(name, owner)
        for name, owner in (
            ("t/n/0x80000000_0xffffffff", "b1"),
            ("t/m/0x00000000_0xffffffff", None),
            ("t/n/0x00000000_0x40000000", "b1"),
            ("t/n/0x40000000_0x80000000", "lost"),
        )
    },
)


def names(bundles: object) -> list[str]:
    return [bundle.name for bundle in bundles]  # type: ignore[attr-defined]


def test_bundles_of_a_broker_are_sorted_and_owners_that_are_gone_are_among_them() -> None:
    groups = MADE.bundles_of
    assert names(groups["b1"]) == ["t/n/0x00000000_0x40000000", "t/n/0x80000000_0xffffffff"]
    assert names(groups["lost"]) == ["t/n/0x40000000_0x80000000"]
    assert (list(groups["b2"]), list(groups), len(groups)) == ([], ["b1", "b2", "b3", "lost"], 4)
    assert groups["b1"] is groups["b1"]


def test_a_group_can_be_counted_and_walked_without_being_sorted() -> None:
    groups = MADE.bundles_of
    assert [groups.count(name) for name in ("b1", "b2", "lost", "nobody")] == [2, 0, 1, 0]
    assert sorted(names(groups.unsorted("b1"))) == names(groups["b1"])
    assert list(groups.unsorted("nobody")) == []


def test_there_is_no_group_of_nobody() -> None:
    groups = MADE.bundles_of
    assert "nobody" not in groups
    assert groups.get("nobody", ()) == ()
    with pytest.raises(KeyError):
        groups["nobody"]


def test_bundles_in_a_namespace_are_sorted() -> None:
    bundles_in = MADE.bundles_in
    assert list(bundles_in) == ["t/m", "t/n"]
    assert names(bundles_in["t/n"]) == sorted(name for name in MADE.bundles if name.startswith("t/n/"))
    assert bundles_in.count("t/m") == 1


def failing_in_the_midst() -> None:
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise LookupError


def test_the_collector_runs_again_afterwards_and_not_if_it_did_not_before() -> None:
    assert gc.isenabled()
    with pytest.raises(LookupError):
        failing_in_the_midst()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_runs_again_after_the_last_of_several_threads() -> None:
    first, second = uncollected(lasting=False), uncollected(lasting=False)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_what_is_done_again_and_again_does_not_keep_the_collector_from_searching() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    gc.collect()
    alive = {id(cycle): weakref.ref(cycle) for cycle in (Cycle() for _ in range(100))}
    young = gc.get_count()[0]
    with uncollected(lasting=False):
        pass
    assert gc.get_count()[0] >= young
    gc.collect(0)
    assert not any(cycle() for cycle in alive.values())


def test_what_was_made_meanwhile_is_old_afterwards_and_what_others_froze_stays_frozen() -> None:
    gc.collect()
    with uncollected():
        results = [[number] for number in range(100_000)]
    # As many would be young else, and the next search would begin with them.
    assert len(gc.get_objects(generation=0)) < 10_000 < len(results)
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count() == frozen > len(results)
    finally:
        gc.unfreeze()
