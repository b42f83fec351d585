"""The resolver's conditions one by one, with both sides of each bound (protocol.md section 3)."""

import itertools
from typing import Any

import orjson
import pytest

from statechannel.protocol import codec
from statechannel.protocol.bundle import range_name
from statechannel.protocol.record import Record
from statechannel.protocol.resolver import ROWS, _row, children_fit, judge
from statechannel.protocol.states import MOVES, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.support.view_log import ViewLog

TOP = 0xFFFFFFFF
HALF = 0x80000000
BUNDLE = f"t/n/{range_name(0, TOP)}"
BY = {"broker": "b1", "incarnation": "b1-1"}


def record(*, bundle: bool = True, **fields: Any) -> Record:
    results: dict[str, Any] = {"format": 1, "kind": "proposal", "id": "new", "covers": -1, "by": BY, "base": None}
    if bundle:
        results |= {"from": None, "to": None}
    record = codec.decode(orjson.dumps(results | fields), namespace=not bundle)
    assert isinstance(record, Record), record
    return record


def ranges(*bounds: int) -> list[str]:
    return [range_name(lower, upper) for lower, upper in itertools.pairwise(bounds)]


@pytest.fixture
def log() -> ViewLog:
    return ViewLog(range_name(0, TOP), version=4)


@pytest.mark.parametrize(
    ("version", "verdict"), [(4, Verdict.STALE_VERSION), (5, Verdict.ACCEPTED), (6, Verdict.VERSION_GAP)]
)
def test_a_bundles_version_is_the_accepted_one_plus_one(log, version, verdict):
    base = log.key(BUNDLE).accepted_id
    assert log.write(BUNDLE, id="a", version=version, base=base, state="Assigning", to="b1") is verdict


def test_a_derived_state_is_built_on_by_its_own_id_and_not_by_its_parents(log):
    assert log.write(BUNDLE, id="a", version=5, base="ns", state="Assigning", to="b1") is Verdict.WRONG_BASE
    # The parent's id is no duplicate of the bundle's state: it lies on another key.
    assert log.write(BUNDLE, id="ns", version=5, base="x", state="Assigning", to="b1") is Verdict.WRONG_BASE
    assert log.propose(BUNDLE, "Assigning", to="b1") is Verdict.ACCEPTED
    assert log.write(BUNDLE, id="b", version=6, base="x", state="Assigned", to="b1") is Verdict.WRONG_BASE


def test_a_duplicate_is_told_before_its_version_and_base_are_looked_at(log):
    assert log.propose(BUNDLE, "Assigning", to="b1", id="one") is Verdict.ACCEPTED
    assert log.write(BUNDLE, id="one", version=99, base="x", state="Assigning", to="b1") is Verdict.DUPLICATE


@pytest.mark.parametrize(
    ("version", "verdict"), [(0, Verdict.STALE_VERSION), (1, Verdict.ACCEPTED), (7, Verdict.ACCEPTED)]
)
def test_a_namespace_begins_at_any_version_from_one(version, verdict):
    view = View(0, 1)
    results = {"format": 1, "kind": "proposal", "id": "n", "covers": -1, "by": BY, "version": version, "base": None}
    results |= {"state": "Active", "children": ranges(0, TOP)}
    assert view.read(0, b"t/n", orjson.dumps(results)).verdict is verdict


@pytest.mark.parametrize(
    ("key", "fields", "verdict"),
    [
        ("t/m", {"state": "Deleted"}, Verdict.UNKNOWN_BUNDLE),
        (f"t/m/{range_name(0, TOP)}", {"state": "Assigning", "to": "b1"}, Verdict.UNKNOWN_BUNDLE),
        ("t/m", {"state": "Active", "base": "x", "children": ranges(0, TOP)}, Verdict.WRONG_BASE),
        ("t/m", {"state": "Active", "forced": True, "children": ranges(0, TOP)}, Verdict.ILLEGAL_MOVE),
        ("t/m", {"state": "Active", "children": ranges(0, HALF)}, Verdict.BAD_CHILDREN),
    ],
)
def test_what_cannot_begin(log, key, fields, verdict):
    assert log.write(key, **{"id": "a", "version": 1, "base": None} | fields) is verdict


def test_a_namespace_ends_only_when_nothing_is_owned_and_above_all_its_bundles(log):
    for _ in range(3):  # owned and let go again: its bundle is far above it
        assert log.propose(BUNDLE, "Assigning", to="b1") is Verdict.ACCEPTED
        assert log.propose(BUNDLE, "Unassigned", from_="b1") is Verdict.ACCEPTED
    assert (log.key("t/n").version, log.key(BUNDLE).version) == (4, 10)

    active = {"id": "n1", "base": "ns", "state": "Active", "children": ranges(0, TOP)}
    assert log.write("t/n", version=5, **active) is Verdict.ILLEGAL_MOVE, "only an end counts from its bundles"
    assert log.write("t/n", version=11, **active) is Verdict.VERSION_GAP

    def end(version: int, **more: Any) -> Verdict:
        return log.write("t/n", id=f"d{version}", version=version, base="ns", state="Deleted", **more)

    assert end(5) is Verdict.STALE_VERSION
    assert end(10) is Verdict.STALE_VERSION
    assert end(12) is Verdict.VERSION_GAP
    assert end(11, forced=True) is Verdict.ILLEGAL_MOVE
    assert log.propose(BUNDLE, "Assigning", to="b1") is Verdict.ACCEPTED
    assert end(12) is Verdict.NAMESPACE_IN_USE
    assert log.propose(BUNDLE, "Unassigned", from_="b1") is Verdict.ACCEPTED
    assert end(13) is Verdict.ACCEPTED
    again = {"id": "n2", "base": "d13", "state": "Active", "children": ranges(0, TOP)}
    assert log.write("t/n", version=15, **again) is Verdict.VERSION_GAP
    assert log.write("t/n", version=13, **again) is Verdict.STALE_VERSION
    assert log.write("t/n", version=14, **again | {"forced": True}) is Verdict.ILLEGAL_MOVE
    assert log.write("t/n", version=14, **again | {"state": "Deleted", "children": None}) in (
        Verdict.ILLEGAL_MOVE, Verdict.UNDECODABLE,
    )  # fmt: skip
    assert log.write("t/n", version=14, **again) is Verdict.ACCEPTED
    active = {"id": "n3", "version": 15, "base": "n2", "state": "Active", "children": ranges(0, TOP)}
    assert log.write("t/n", **active) is Verdict.ILLEGAL_MOVE


@pytest.mark.parametrize(
    ("bounds", "namespace", "bundle"),
    [
        ((0, TOP), True, False),
        ((0, HALF, TOP), True, True),
        ((0, 1, HALF, TOP), True, True),
        ((0, HALF), False, False),
        ((1, HALF, TOP), False, False),
        ((0, HALF, TOP - 1), False, False),
        ((1, TOP), False, False),
    ],
)
def test_children_cover_the_range_one_of_a_namespace_two_of_a_bundle(bounds, namespace, bundle):
    entry = record(bundle=False, version=1, state="Active", children=ranges(*bounds))
    assert children_fit(entry, is_namespace=True) is namespace
    assert children_fit(entry) is bundle
    assert children_fit(entry, 0, TOP) is bundle


def test_children_of_a_part_cover_that_part():
    entry = record(bundle=False, version=1, state="Active", children=ranges(16, 32, 48))
    assert children_fit(entry, 16, 48)
    assert not children_fit(entry, 15, 48)
    assert not children_fit(entry, 16, 49)
    assert not children_fit(record(version=1, state="Assigning", to="b1"), 16, 48)
    gap = record(bundle=False, version=1, state="Active", children=[*ranges(16, 32), *ranges(33, 48)])
    assert not children_fit(gap, 16, 48)


def asserted(log: ViewLog, key: str, **changed: Any) -> Verdict:
    held = log.view.get(key)
    results: dict[str, Any] = {"format": 1, "kind": "assert", "id": "as", "covers": log.view.applied, "by": BY}
    if held is None:
        results |= {"version": 0, "asserts": None, "state": "Absent"}
    else:
        results |= {"version": held.version, "asserts": held.accepted_id, "state": held.state}
        if held.children is not None:
            results["children"] = held.children
    if "/0x" in key:
        results |= {"from": None, "to": None} if held is None else {"from": held.from_, "to": held.to}
    value = orjson.dumps({name: item for name, item in (results | changed).items() if item != "LEFT OUT"})
    return log.view.read(log.view.applied + 1, key.encode(), value).verdict


def test_an_assert_is_equal_only_if_it_says_all_of_the_state(log):
    assert log.propose(BUNDLE, "Assigning", to="b1") is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Assigned", to="b1") is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Releasing", from_="b1", to="b2") is Verdict.ACCEPTED
    assert asserted(log, BUNDLE) is Verdict.ASSERT_EQUAL
    for changed in (
        {"version": 6}, {"version": 8}, {"asserts": "x"}, {"from": "b3"}, {"from": None}, {"to": "b3"}, {"to": None},
        {"state": "Assigning"},
    ):  # fmt: skip
        assert asserted(log, BUNDLE, **changed) in (Verdict.ASSERT_STALE, Verdict.UNDECODABLE), changed


def test_an_assert_of_children_names_each(log):
    assert asserted(log, "t/n") is Verdict.ASSERT_EQUAL
    assert asserted(log, "t/n", children=ranges(0, HALF, TOP)) is Verdict.ASSERT_STALE
    assert asserted(log, "t/n", asserts="x") is Verdict.ASSERT_STALE
    assert asserted(log, "t/n", version=5) is Verdict.ASSERT_STALE
    assert asserted(log, "t/n", state="Deleted", children="LEFT OUT") is Verdict.ASSERT_STALE


def test_absent_is_equal_only_where_nothing_is(log):
    assert asserted(log, "t/none") is Verdict.ASSERT_EQUAL
    assert asserted(log, f"t/n/{range_name(0, HALF)}") is Verdict.ASSERT_EQUAL
    absent = {"version": 0, "asserts": None, "state": "Absent", "children": "LEFT OUT"}
    assert asserted(log, "t/n", **absent) is Verdict.ASSERT_STALE
    assert asserted(log, BUNDLE, **absent) is Verdict.ASSERT_STALE
    assert asserted(log, "t/none", version=1) in (Verdict.ASSERT_STALE, Verdict.UNDECODABLE)
    assert asserted(log, "t/none", asserts="x") in (Verdict.ASSERT_STALE, Verdict.UNDECODABLE)


@pytest.mark.parametrize(
    ("path", "move", "verdict"),
    [
        # path: moves from Unassigned on; each (state, from, to)
        ([], ("Assigning", None, None), None),
        ([], ("Assigning", "b1", "b2"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1")], ("Assigned", None, "b2"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1")], ("Assigned", "b9", "b1"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1")], ("Unassigned", "b2", None), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1")], ("Releasing", "b1", "b1"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1")], ("Releasing", "b2", "b3"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1")], ("Releasing", "b1", None), Verdict.ACCEPTED),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1")], ("Assigned", None, "b2"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1")], ("Assigned", "b1", "b1"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1")], ("Assigned", None, "b1"), Verdict.ACCEPTED),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1")], ("Unassigned", "b1", None), Verdict.ILLEGAL_MOVE),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1"), ("Releasing", "b1", "b2")],
         ("Unassigned", "b1", None), Verdict.ILLEGAL_MOVE),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1"), ("Releasing", "b1", None)],
         ("Assigning", "b1", "b2"), Verdict.ILLEGAL_MOVE),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1"), ("Releasing", "b1", "b2")],
         ("Assigning", "b1", "b3"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1"), ("Releasing", "b1", "b2")],
         ("Assigning", "b3", "b2"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1"), ("Releasing", "b1", "b2")],
         ("Assigned", None, "b2"), Verdict.WRONG_BROKER),
        ([("Assigning", None, "b1"), ("Assigned", None, "b1"), ("Releasing", "b1", "b2")],
         ("Assigned", None, "b1"), Verdict.ACCEPTED),
    ],
)  # fmt: skip
def test_who_may_move_it(log, path, move, verdict):
    for state, from_, to in path:
        assert log.propose(BUNDLE, state, from_, to) is Verdict.ACCEPTED
    result = log.propose(BUNDLE, *move)
    assert result is verdict if verdict is not None else result is not Verdict.ACCEPTED


@pytest.mark.parametrize("forced", [False, True])
def test_a_forced_move_goes_from_any_state_but_deleted_and_needs_version_and_base(log, forced):
    assert log.propose(BUNDLE, "Assigning", to="b1") is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Assigned", to="b1") is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Splitting", from_="b1") is Verdict.ACCEPTED
    wanted = Verdict.ACCEPTED if forced else Verdict.ILLEGAL_MOVE
    more = {"forced": True} if forced else {}
    assert (
        log.propose(BUNDLE, "Unassigned", from_="b1", version=log.key(BUNDLE).version, **more) is Verdict.STALE_VERSION
    )
    assert log.propose(BUNDLE, "Unassigned", from_="b1", base="x", **more) is Verdict.WRONG_BASE
    assert log.propose(BUNDLE, "Unassigned", from_="b1", **more) is wanted


def test_a_split_needs_two_children_that_cover_it_and_ends_the_bundle(log):
    assert log.propose(BUNDLE, "Assigning", to="b1") is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Assigned", to="b1") is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Splitting", from_="b1") is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Deleted", from_="b1", children=ranges(0, TOP)) is Verdict.BAD_CHILDREN
    assert log.propose(BUNDLE, "Deleted", from_="b1", children=ranges(0, HALF)) is Verdict.BAD_CHILDREN
    assert log.propose(BUNDLE, "Deleted", from_="b2", children=ranges(0, HALF, TOP)) is Verdict.WRONG_BROKER
    assert log.propose(BUNDLE, "Deleted", from_="b1", children=ranges(0, HALF, TOP)) is Verdict.ACCEPTED
    assert log.propose(BUNDLE, "Unassigned", from_="b1", forced=True) is Verdict.ILLEGAL_MOVE
    parent = log.key(BUNDLE)
    for lower, upper in ((0, HALF), (HALF, TOP)):
        child = log.key(f"t/n/{range_name(lower, upper)}")
        assert (child.state, child.version, child.owner) == (State.ASSIGNED, parent.version + 1, "b1")
        assert (child.generation, child.server, child.derived) == (parent.version + 1, parent.writer, True)


def test_only_the_end_of_a_bundle_asks_for_children():
    for (was, to), move in MOVES.items():
        assert ROWS[was][to] == _row(move)
        assert _row(move)[-1] is (to is State.DELETED)


def test_judge_reads_nothing_but_the_record_and_the_state():
    view = View(0, 1)
    entry = record(bundle=False, version=1, state="Active", children=ranges(0, TOP))
    state = view._unheld(b"t/n", None)
    assert judge(entry, state) is Verdict.ACCEPTED  # type: ignore[arg-type]
    assert view.keys == {}
