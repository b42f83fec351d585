"""The cluster: its bundles by owner and by namespace; and the collector at rest while large ones are made."""

import gc

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
    return [one.name for one in bundles]  # type: ignore[attr-defined]


def test_bundles_of_a_broker_are_sorted_and_owners_that_are_gone_are_among_them() -> None:
    found = MADE.bundles_of
    assert names(found["b1"]) == ["t/n/0x00000000_0x40000000", "t/n/0x80000000_0xffffffff"]
    assert names(found["lost"]) == ["t/n/0x40000000_0x80000000"]
    assert (list(found["b2"]), list(found), len(found)) == ([], ["b1", "b2", "b3", "lost"], 4)
    assert found["b1"] is found["b1"]


def test_a_group_can_be_counted_and_walked_without_being_sorted() -> None:
    found = MADE.bundles_of
    assert [found.count(name) for name in ("b1", "b2", "lost", "nobody")] == [2, 0, 1, 0]
    assert sorted(names(found.unsorted("b1"))) == names(found["b1"])
    assert list(found.unsorted("nobody")) == []


def test_there_is_no_group_of_nobody() -> None:
    found = MADE.bundles_of
    assert "nobody" not in found
    assert found.get("nobody", ()) == ()
    with pytest.raises(KeyError):
        found["nobody"]


def test_bundles_in_a_namespace_are_sorted() -> None:
    found = MADE.bundles_in
    assert list(found) == ["t/m", "t/n"]
    assert names(found["t/n"]) == sorted(name for name in MADE.bundles if name.startswith("t/n/"))
    assert found.count("t/m") == 1


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


def test_what_was_made_meanwhile_is_old_afterwards_and_what_others_froze_stays_frozen() -> None:
    gc.collect()
    with uncollected():
        made = [[number] for number in range(100_000)]
    # As many would be young else, and the next search would begin with them.
    assert len(gc.get_objects(generation=0)) < 10_000 < len(made)
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count() == frozen > len(made)
    finally:
        gc.unfreeze()
