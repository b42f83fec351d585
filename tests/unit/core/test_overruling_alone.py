"""The view behind a cold start alone: what its asserts change, and all that they leave as it was (protocol.md section 5)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from statechannel.protocol import codec
from statechannel.protocol.bundle import range_name
from statechannel.protocol.digest import line
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.keys import KeyState, Writer
from statechannel.protocol.overruling import LateAssert, OverruledState, overrule
from statechannel.protocol.record import Record
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import KeyRow, dump

HALF, QUARTER, TOP = 0x80000000, 0x40000000, 0xFFFFFFFF
ROOT, OTHER = "t/n", "t/m"
LOW, HIGH = f"{ROOT}/{range_name(0, HALF)}", f"{ROOT}/{range_name(HALF, TOP)}"
HALVES = [range_name(0, HALF), range_name(HALF, TOP)]
QUARTERS = [range_name(0, QUARTER), range_name(QUARTER, HALF)]
THERE = f"{OTHER}/{range_name(0, HALF)}"


def value(kind: str, **fields: Any) -> bytes:
    by = {"broker": "b1", "incarnation": "b1-1"}
    return orjson.dumps({"format": 1, "kind": kind, "id": "j1", "covers": -1, "by": by} | fields)


class Story:
    """What a strict reader has read: two namespaces of two bundles, one of each with an owner."""

    def __init__(self) -> None:
        self.view = View(0, 1)
        for root in (ROOT, OTHER):
            self.write(root, version=1, base=None, state="Active", children=HALVES)
        for bundle in (LOW, THERE):
            self.move(bundle, "Assigning", to="b1")
            self.move(bundle, "Assigned", to="b1", colour="red")

    def read(self, key: str, record: bytes | None) -> Verdict:
        return self.view.read(self.view.applied + 1, key.encode(), record).verdict

    def write(self, key: str, **fields: Any) -> None:
        offset = self.view.applied + 1
        record = value("proposal", **{"id": f"r{offset}", "covers": offset - 1, "operation": f"op{offset}"} | fields)
        assert self.read(key, record) is Verdict.ACCEPTED

    def move(self, key: str, state: str, from_: str | None = None, to: str | None = None, **more: Any) -> None:
        held = self.held(key)
        fields = {"version": held.version + 1, "base": held.accepted_id, "state": state, "from": from_, "to": to}
        self.write(key, **fields | more)

    def held(self, key: str) -> KeyState:
        return held_in(self.view, key)

    def overruled(self, *asserts: LateAssert) -> tuple[View, list[OverruledState]]:
        return overrule(self.view, asserts)


def held_in(view: View, key: str) -> KeyState:
    held = view.get(key)
    assert held is not None
    return held


def restated(offset: int, key: str, *, version: int, state: str, settles: bool = True, **fields: Any) -> LateAssert:
    """An assert that was read at an offset."""
    results = {"version": version, "state": state, "asserts": "c1", "covers": offset - 1}
    if "/0x" in key:
        results |= {"from": None, "to": None}
    record = codec.decode(value("assert", **results | fields), namespace="/0x" not in key)
    assert isinstance(record, Record)
    return LateAssert(offset, key.encode(), record, settles)


def assigned(offset: int = 100, key: str = LOW, version: int = 9, **fields: Any) -> LateAssert:
    return restated(offset, key, version=version, state="Assigned", **{"to": "b2"} | fields)


def rows(view: View) -> dict[str, KeyRow]:
    return {row.key: row for row in dump(view)}


@pytest.fixture
def story() -> Story:
    return Story()


def test_what_is_asserted_is_what_a_lenient_reader_holds(story):
    result, differences = story.overruled(assigned(server={"broker": "b2", "incarnation": "b2-1"}))
    key = held_in(result, LOW)
    assert (key.version, key.to, key.accepted_id, key.offset) == (9, "b2", "c1", 100)
    assert key.server == Writer("b2", "b2-1")
    lines = line(story.held(LOW)).decode(), line(key).decode()
    assert differences == [OverruledState(LOW, *lines)]


def test_all_other_keys_are_left_as_they_were(story):
    story.read(HIGH, b"junk")
    story.read(f"{ROOT}/{range_name(0, 1)}", b"junk")
    story.read("t/never", b"junk")
    before = rows(story.view)
    result, _ = story.overruled(assigned())
    after = rows(result)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {LOW}
    assert result.load == {"b1": 1, "b2": 1}
    assert held_in(result, THERE).more == {"colour": "red"}
    assert [key.name for key in result.ledger.open] == [HIGH, f"{ROOT}/{range_name(0, 1)}", "t/never"]


def test_an_equal_assert_changes_nothing_but_what_settles_its_key(story):
    held = story.held(LOW)
    before = rows(story.view)
    result, differences = story.overruled(assigned(version=3, asserts=held.accepted_id, to="b1"))
    assert differences == []
    assert rows(result) == before | {LOW: before[LOW]._replace(settled=100)}
    assert held_in(result, LOW).more == {"colour": "red"}


def test_what_is_older_than_what_was_seen_is_not_taken(story):
    before = rows(story.view)
    result, differences = story.overruled(assigned(version=2, covers=0))
    assert differences == []
    assert rows(result) == before


@pytest.mark.parametrize(("newest", "owes"), [(99, False), (100, False), (101, True)])
def test_it_pays_what_its_writer_has_seen(story, newest, owes):
    key = story.held(LOW)
    story.view.ledger.unclean(key, 50, 4)
    story.view.ledger.unclean(key, newest, 4)
    result, _ = story.overruled(assigned())
    assert held_in(result, LOW).settled == 100
    assert [(debt.since_offset, debt.newest_offset) for debt in result.ledger.open.values()] == [(50, newest)] * owes


def test_an_assert_that_settles_nothing_leaves_the_debt(story):
    key = story.held(LOW)
    story.view.ledger.unclean(key, 50, 12)
    story.view.ledger.unclean(key, 100, 9)
    before = rows(story.view)[LOW]
    found, _ = story.overruled(assigned(covers=49, settles=False))
    after = rows(found)[LOW]
    assert (after.version, after.to) == (9, "b2")
    assert (after.settled, after.debt_since, after.debt_newest, after.debt_highest) == (before.settled, 50, 100, 12)


@pytest.mark.parametrize(
    ("covers", "version", "settles"), [(50, 9, True), (49, 9, False), (49, 13, True), (3, 13, True), (2, 13, False)]
)
def test_a_stale_assert_says_whether_it_would_have_settled_its_key(story, covers, version, settles):
    key = story.held(LOW)
    key.settled = 3
    story.view.ledger.unclean(key, 50, 12)
    fields = {"version": version, "state": "Assigned", "asserts": "c1", "covers": covers, "from": None, "to": "b2"}
    judgement = story.view.read(100, LOW.encode(), value("assert", **fields))
    assert (judgement.verdict, judgement.settles) == (Verdict.ASSERT_STALE, settles)


@pytest.mark.parametrize("derived", [False, True])
def test_whose_children_do_not_cover_it_could_nobody_accept(story, derived):
    key, children = (HIGH, QUARTERS) if derived else (LOW, HALVES)
    before = rows(story.view)
    result, differences = story.overruled(
        restated(100, key, version=9, state="Deleted", children=children, **{"from": "b1"})
    )
    assert differences == []
    assert rows(result) == before


def test_a_split_that_is_asserted_brings_its_children(story):
    result, differences = story.overruled(
        restated(100, LOW, version=5, state="Deleted", children=QUARTERS, **{"from": "b1"})
    )
    assert [difference.key for difference in differences] == [f"{ROOT}/{QUARTERS[0]}", LOW, f"{ROOT}/{QUARTERS[1]}"]
    assert [difference.held is None for difference in differences] == [True, False, True]
    assert [(key.name, key.version, key.owner) for key in result.live() if key.namespace == ROOT] == [
        (HIGH, 1, None),
        (f"{ROOT}/{QUARTERS[0]}", 6, "b1"),
        (f"{ROOT}/{QUARTERS[1]}", 6, "b1"),
    ], "in an order that does not hang on the hash seed"
    assert result.load == {"b1": 3}


def test_what_is_asserted_away_is_remembered_for_what_settled_it(story):
    story.move(LOW, "Splitting", "b1", children=QUARTERS)
    story.move(LOW, "Deleted", "b1", children=QUARTERS)
    child = f"{ROOT}/{QUARTERS[0]}"
    story.move(child, "Releasing", "b1", flow="f")
    settled = story.held(child).settled
    story.read(child, b"junk")
    debt = story.view.ledger.open[story.held(child)]
    result, differences = story.overruled(assigned())
    assert [(difference.key, difference.asserted is None) for difference in differences] == [
        (child, True),
        (LOW, False),
        (f"{ROOT}/{QUARTERS[1]}", True),
    ]
    gone = KeyState(ROOT, 0, QUARTER)
    gone.settled = settled
    blank = View(0, 1)
    blank.keys[child.encode()] = gone
    blank.ledger.open[gone] = debt
    assert rows(result)[child] == rows(blank)[child]
    assert result.load == {"b1": 1, "b2": 1}
    assert not result.in_flight


def test_children_follow_the_namespace_that_is_asserted(story):
    """They are derived from it, whatever version the reader held them in."""
    result, _ = story.overruled(restated(100, ROOT, version=1, state="Active", children=HALVES, asserts="other"))
    assert held_in(result, HIGH).accepted_id == f"other/{HALVES[1]}"
    assert held_in(result, LOW).accepted_id == story.held(LOW).accepted_id


def test_unknown_fields_of_what_is_asserted_are_held_as_a_lenient_reader_holds_them(story):
    asserts = assigned(colour="blue", shade=3)
    result, _ = story.overruled(asserts)
    joiner = Joiner(0, 1)
    namespace = restated(0, ROOT, version=1, state="Active", children=HALVES)
    for offset, name, record, _ in (namespace, asserts):
        joiner.take(offset, name, record)
    assert held_in(result, LOW).more == held_in(joiner.view(), LOW).more == {"colour": "blue", "shade": 3}


def test_so_are_those_of_an_equal_assert_that_tells_more_than_was_read(story):
    story.move(HIGH, "Assigning", to="b1")
    held = story.held(HIGH)
    asserts = restated(100, HIGH, version=2, state="Assigning", asserts=held.accepted_id, to="b1", colour="blue")
    result, differences = story.overruled(asserts)
    assert differences == []
    assert held_in(result, HIGH).more == {"colour": "blue"}


def test_a_name_that_is_no_key_is_left_alone(story):
    before = rows(story.view)
    result, differences = story.overruled(assigned()._replace(key=b"junk"))
    assert differences == []
    assert rows(result) == before
