"""What a view counts beside the states, made anew from the states after each record: load, in flight, ring, debts' keys."""

from collections import Counter
from typing import Any

import orjson
import pytest

from statechannel.protocol.bundle import range_name
from statechannel.protocol.keys import Writer
from statechannel.protocol.states import IN_FLIGHT, State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.support.view_log import ViewLog

TOP, HALF, QUARTER = 0xFFFFFFFF, 0x80000000, 0x40000000
LOW, HIGH = f"t/n/{range_name(0, HALF)}", f"t/n/{range_name(HALF, TOP)}"
LOWER, UPPER = f"t/n/{range_name(0, QUARTER)}", f"t/n/{range_name(QUARTER, HALF)}"
RANGES = [range_name(0, HALF), range_name(HALF, TOP)]


class Log(ViewLog):
    """Its view is counted anew after each record."""

    def put(self, key: bytes | None, value: bytes | None) -> Verdict:
        verdict = super().put(key, value)
        counted(self.view)
        return verdict

    def split(self, key: str, *children: str, broker: str = "b1") -> None:
        self.move(key, "Splitting", from_=broker, writer=broker)
        self.move(key, "Deleted", from_=broker, writer=broker, children=list(children))


def counted(view: View) -> None:
    """Every count is what the states say."""
    bundles = [key for key in view.existing() if not key.is_namespace]
    load = Counter(key.bound_for for key in bundles if key.bound_for is not None)
    assert view.load == dict(load)
    assert {key.bound for key in bundles} == {key.bound_for for key in bundles}
    assert set(view.in_flight) == {key for key in bundles if key.state in IN_FLIGHT}
    for space in (key for key in view.existing() if key.is_namespace and key.state is State.ACTIVE):
        mine = [key for key in bundles if key.namespace == space.namespace]
        live = [key for key in mine if key.state is not State.DELETED]
        ring = space.ring
        assert sorted(key.lower for key in live) == list(ring.live)
        assert all(ring.live[key.lower] is key and key.ring is ring for key in live)
        assert set(ring.parents) == set(mine) - set(live)
        assert ring.owned == sum(key.state is not State.UNASSIGNED for key in live)
        assert ring.highest == max(key.version for key in (space, *mine))
    for name, key in view.keys.items():
        assert key.key == name


@pytest.fixture
def log() -> Log:
    log = Log()
    log.create(children=RANGES)
    return log


def test_a_life_with_every_move(log):
    log.own(LOW, "b1")
    log.own(HIGH, "b2")
    log.move(LOW, "Releasing", "b1", "b2")
    log.move(LOW, "Assigning", "b1", "b2")
    log.move(LOW, "Assigned", "b1", "b2", writer="b2")
    log.move(LOW, "Releasing", "b2", None)
    log.move(LOW, "Assigned", None, "b2", writer="b2")
    log.move(LOW, "Releasing", "b2", None)
    log.move(LOW, "Unassigned", "b2", None)
    log.own(LOW, "b3")
    log.split(LOW, range_name(0, QUARTER), range_name(QUARTER, HALF), broker="b3")
    assert log.view.load == {"b2": 1, "b3": 2}
    log.move(LOWER, "Releasing", "b3", None)
    log.move(LOWER, "Unassigned", "b3", None)
    log.move(UPPER, "Unassigned", "b3", None, forced=True)
    log.move(HIGH, "Unassigned", "b2", None, forced=True)
    assert (log.view.load, list(log.view.in_flight)) == ({}, [])
    highest = log.view.get("t/n").ring.highest
    assert log.write("t/n", id="end", version=highest + 1, base="ns", state="Deleted") is Verdict.ACCEPTED
    assert [key.name for key in log.view.existing()] == ["t/n"]
    log.create(highest + 2, "end", id_="ns2", children=RANGES)
    expected = {LOW: (State.UNASSIGNED, highest + 2), HIGH: (State.UNASSIGNED, highest + 2)}
    assert {key.name: (key.state, key.version) for key in log.view.live()} == expected
    began_anew = log.view.get(HIGH)
    assert (began_anew.forced, began_anew.bounds, began_anew.intent, began_anew.more) == (False, None, None, None)
    log.own(LOW, "b1")


def test_keys_of_an_ended_ring_are_forgotten_unless_something_settled_them_or_they_are_in_debt(log):
    other = Log()
    other.create(children=RANGES)
    assert other.write("t/n", id="end", version=2, base="ns", state="Deleted") is Verdict.ACCEPTED
    assert list(other.view.keys) == [b"t/n"], "nothing was ever written on the bundles"
    log.own(LOW)
    log.move(LOW, "Unassigned", "b1", None, forced=True)
    log.put(HIGH.encode(), b"junk")
    highest = log.view.get("t/n").ring.highest
    assert log.write("t/n", id="end", version=highest + 1, base="ns", state="Deleted") is Verdict.ACCEPTED
    assert set(log.view.keys) == {b"t/n", LOW.encode(), HIGH.encode()}
    assert log.view.keys[LOW.encode()].settled == 3
    assert [key.name for key in log.view.ledger.open] == [HIGH]
    assert log.view.get(LOW) is log.view.get(HIGH) is None


def test_a_key_settled_by_the_first_record_of_a_log_is_kept_too():
    view = View(0, 1)
    assert view.read(0, LOW.encode(), None).verdict is Verdict.PURGED
    log = Log()
    log.view = view
    log.create(children=RANGES)
    assert log.write("t/n", id="end", version=2, base="ns", state="Deleted") is Verdict.ACCEPTED
    assert view.keys[LOW.encode()].settled == 0


def test_who_serves_follows_the_records_and_not_the_words(log):
    b1, b2 = Writer("b1", "b1-1"), Writer("b2", "b2-1")

    def seen() -> tuple[Any, ...]:
        key = log.view.get(LOW)
        return key.server, key.writer, key.owner, key.generation

    log.move(LOW, "Assigning", to="b2", writer="b1")
    assert seen() == (None, b1, None, None)
    log.move(LOW, "Assigned", to="b2", writer="b2")
    assert seen() == (b2, b2, "b2", 3)
    log.move(LOW, "Releasing", "b2", "b1", writer="b1")
    assert seen() == (b2, b1, "b2", 3)
    log.move(LOW, "Assigned", None, "b2", writer="b2")
    assert seen() == (b2, b2, "b2", 5)
    log.move(LOW, "Splitting", "b2", writer="b2", children=[range_name(0, 9), range_name(9, HALF)])
    assert seen() == (b2, b2, "b2", 5)
    assert log.view.get(LOW).intent == (range_name(0, 9), range_name(9, HALF))
    log.move(LOW, "Assigned", None, "b2", writer="b2")
    assert (seen()[0], log.view.get(LOW).intent) == (b2, None)
    log.move(LOW, "Unassigned", "b2", writer="b1", forced=True)
    assert seen() == (None, b1, None, None)
    assert log.view.get(LOW).forced
    log.move(LOW, "Assigning", to="b2", writer="b1")
    assert not log.view.get(LOW).forced


def test_children_of_a_split_begin_as_their_parent_ended(log):
    log.own(LOW)
    log.move(LOW, "Splitting", "b1", operation="op7", flow="split")
    children = [range_name(0, QUARTER), range_name(QUARTER, HALF)]
    log.move(LOW, "Deleted", "b1", children=children, operation="op7", flow="split")
    parent = log.view.get(LOW)
    assert (parent.state, parent.children, parent.was) == (State.DELETED, children, State.SPLITTING)
    for name in (LOWER, UPPER):
        child = log.view.get(name)
        assert (child.operation, child.flow, child.offset) == ("op7", "split", parent.offset)
        assert (child.writer, child.server, child.to, child.from_) == (parent.writer, parent.writer, "b1", None)
        assert child.accepted_id == f"{parent.record_id}/{child.name.rpartition('/')[2]}"
        assert (child.forced, child.bounds, child.intent, child.more, child.settled) == (False, None, None, None, -1)


def test_a_child_that_was_written_on_before_it_existed_begins_clean(log):
    log.put(LOWER.encode(), b"junk")
    assert log.write(UPPER, id="u", version=9, base=None, state="Assigning", to="b1") is Verdict.UNKNOWN_BUNDLE
    log.own(LOW)
    log.split(LOW, range_name(0, QUARTER), range_name(QUARTER, HALF))
    assert {key.name for key in log.view.ledger.open} == {LOWER, UPPER}, "derivation pays nothing"
    assert log.view.load == {"b1": 2}


@pytest.mark.parametrize(("operation", "flow"), [(None, None), (7, []), ("op", "transfer"), ("op", "a flow of later")])
def test_operation_and_flow_are_texts_or_nothing(log, operation, flow):
    log.move(LOW, "Assigning", to="b1", operation=operation, flow=flow)
    key = log.view.get(LOW)
    wanted = tuple(item if isinstance(item, str) else None for item in (operation, flow))
    assert (key.operation, key.flow) == wanted


def test_a_writer_is_one_object_until_its_broker_is_another(log):
    log.own(LOW)
    log.own(HIGH)
    assert log.view.get(LOW).writer is log.view.get(HIGH).writer
    held = log.view.get(HIGH)
    by = {"broker": "b7", "incarnation": "b1-1"}
    fields = {"id": "odd", "version": held.version + 1, "base": held.accepted_id, "state": "Assigned", "to": "b1"}
    assert log.write(HIGH, **fields | {"by": by}) is Verdict.ACCEPTED
    assert log.view.get(HIGH).writer == ("b7", "b1-1")
    assert log.view.get(LOW).writer == ("b1", "b1-1")


def test_nulls_and_unknown_keys(log):
    none = f"t/n/{range_name(1, 2)}".encode()
    assert log.put(none, None) is Verdict.PURGED
    assert (log.view.keys[none].purged, log.view.keys[none].settled) == (True, log.view.applied)
    assert log.put(none, b"junk") is Verdict.UNDECODABLE
    assert log.view.keys[none].purged is False
    assert log.put(none, None) is Verdict.UNDECODABLE, "it is in debt"
    assert log.put(LOW.encode(), None) is Verdict.UNDECODABLE, "it exists"
    assert log.put(b"nonsense", None) is Verdict.PURGED
    assert log.put(b"nonsense", b"{}") is Verdict.UNDECODABLE
    assert log.put(None, None) is Verdict.PURGED
    assert log.put(None, b"{}") is Verdict.UNDECODABLE
    assert log.put(b"!x", None) is log.put(b"!x", b"{}") is Verdict.CONTROL
    assert log.view.applied == 10
    assert set(log.view.keys) == {b"t/n", LOW.encode(), HIGH.encode(), none}


def test_a_null_on_a_key_that_exists_is_a_debt_of_no_version(log):
    log.put(LOW.encode(), None)
    log.put(HIGH.encode(), b"junk")
    results = {key.name: debt.highest_version for key, debt in log.view.ledger.open.items()}
    assert results == {LOW: -1, HIGH: -1}


@pytest.mark.parametrize("purged", [False, True])
@pytest.mark.parametrize(
    ("kind", "fields", "verdict"),
    [
        ("proposal", {"state": "Assigning", "to": "b1", "version": 9}, Verdict.UNKNOWN_BUNDLE),
        ("assert", {"state": "Absent", "version": 0}, Verdict.ASSERT_EQUAL),
    ],
)
def test_what_is_written_on_a_key_that_does_not_exist_is_held(log, kind, fields, verdict, purged):
    before = -1
    if purged:
        log.put(LOWER.encode(), None)
        before = log.view.applied
    assert log.write(LOWER, id="x", kind=kind, base=None, asserts=None, **fields) is verdict
    key = log.view.keys[LOWER.encode()]
    rejected = kind == "proposal"
    assert (key.state, key.purged, key in log.view.ledger.open) == (None, False, rejected)
    assert key.settled == (before if rejected else log.view.applied)


def test_what_is_said_of_an_accepted_record(log):
    results = {"format": 1, "kind": "proposal", "id": "x", "covers": -1, "by": {"broker": "b", "incarnation": "b-1"}}
    results |= {"version": 2, "base": f"ns/{RANGES[0]}", "state": "Assigning", "from": None, "to": "b1"}
    result = log.view.read(1, LOW.encode(), orjson.dumps(results))
    assert (result.verdict, result.key, result.why, result.format) == (Verdict.ACCEPTED, log.view.get(LOW), "", 0)
    assert result.record is not None


@pytest.mark.parametrize("children", [None, "x", [1, 2], [range_name(0, 9), 1], {}], ids=str)
def test_a_plan_that_holds_more_than_texts_is_none(log, children):
    log.own(LOW)
    log.move(LOW, "Splitting", "b1", children=children)
    assert log.view.get(LOW).intent is None


def test_a_newer_format_stops_before_its_record(log):
    applied = log.view.applied
    for key in (LOW.encode(), b"t/n", b"t/new", b"nonsense", None):
        result = log.view.read(applied + 1, key, b'{"format":2,"kind":"proposal"}')
        assert (result.verdict, result.format) == (Verdict.UNSUPPORTED_FORMAT, 2), key
        assert log.view.applied == applied


def test_a_record_in_another_partition_is_read_over_and_held_by_nobody():
    views = [View(number, 4) for number in range(4)]
    verdicts = []
    for view in views:
        results = {
            "format": 1,
            "kind": "proposal",
            "id": "n",
            "covers": -1,
            "by": {"broker": "b", "incarnation": "b-1"},
        }
        results |= {"version": 1, "base": None, "state": "Active", "children": [range_name(0, TOP)]}
        verdicts.append(view.read(0, b"t/n", orjson.dumps(results)).verdict)
        assert view.read(1, b"t/n", b'{"format":2}').verdict is Verdict.UNSUPPORTED_FORMAT
    assert sorted(verdicts) == [Verdict.ACCEPTED, *[Verdict.WRONG_PARTITION] * 3]
    assert sum(bool(view.keys) for view in views) == 1
    assert {view.applied for view in views} == {0}
