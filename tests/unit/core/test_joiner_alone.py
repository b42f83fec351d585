"""What a lenient reader takes and skips, and the view that it makes of it, beside whoever has read the whole log."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from statechannel.protocol.bundle import partition_of, range_name
from statechannel.protocol.joiner import HeldRecord, Joiner
from statechannel.protocol.keys import KeyState, Writer
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import KeyRow, dump

HALF, QUARTER, TOP = 0x80000000, 0x40000000, 0xFFFFFFFF
ROOT = "t/n"
LOW, HIGH = f"{ROOT}/{range_name(0, HALF)}", f"{ROOT}/{range_name(HALF, TOP)}"
FIRST, SECOND = f"{ROOT}/{range_name(0, QUARTER)}", f"{ROOT}/{range_name(QUARTER, HALF)}"
NEWER = b'{"format":2}'
JUNK = {"version": 9, "base": "zz", "state": "Assigning", "from": None, "to": "y"}


def value(kind: str = "proposal", *, writer: str = "b1", **fields: Any) -> bytes:
    by = {"broker": writer, "incarnation": f"{writer}-1"}
    return orjson.dumps({"format": 1, "kind": kind, "id": "j1", "covers": -1, "by": by} | fields)


class Story:
    """One log, read by somebody who was there all the time."""

    def __init__(self) -> None:
        self.view = View(0, 1)
        self.log: list[tuple[bytes, bytes]] = []
        self.write(ROOT, version=1, base=None, state="Active", children=[range_name(0, HALF), range_name(HALF, TOP)])

    def write(self, key: str, **fields: Any) -> None:
        offset = len(self.log)
        record = value(**{"id": f"r{offset}", "covers": offset - 1, "operation": f"op{offset}", "flow": "f"} | fields)
        assert self.view.read(offset, key.encode(), record).verdict in (Verdict.ACCEPTED, Verdict.ASSERT_EQUAL)
        self.log.append((key.encode(), record))

    def move(self, key: str, state: str, from_: str | None = None, to: str | None = None, **more: Any) -> None:
        held = self.held(key)
        fields = {"version": held.version + 1, "base": held.accepted_id, "state": state, "from": from_, "to": to}
        self.write(key, **fields | more)

    def restate(self, key: str, **more: Any) -> None:
        held = self.held(key)
        fields = {"kind": "assert", "version": held.version, "asserts": held.accepted_id, "state": held.state}
        if not held.is_namespace:
            fields |= {"from": held.from_, "to": held.to}
        if held.bounds is not None:
            fields["children"] = held.children
        self.write(key, **fields | more)

    def held(self, key: str) -> KeyState:
        held = self.view.get(key)
        assert held is not None
        return held

    def joined(self) -> View:
        return joined(*self.log)


def tree() -> Story:
    """A bundle on its way, another one that was split, and one of its children on its way to somebody else."""
    story = Story()
    story.move(HIGH, "Assigning", to="b2")
    story.move(LOW, "Assigning", to="b1")
    story.move(LOW, "Assigned", to="b1")
    children = [range_name(0, QUARTER), range_name(QUARTER, HALF)]
    story.move(LOW, "Splitting", "b1", children=children)
    story.move(LOW, "Deleted", "b1", children=children)
    story.move(SECOND, "Releasing", "b1", "b3", writer="b3")
    return story


def reader(*log: tuple[bytes | None, bytes | None]) -> Joiner:
    joiner = Joiner(0, 1)
    for offset, (key, record) in enumerate(log):
        joiner.read(offset, key, record)
    return joiner


def joined(*log: tuple[bytes | None, bytes | None]) -> View:
    return reader(*log).view()


def rows(view: View, *but: str) -> dict[str, KeyRow]:
    """Every key with all that is held of it; but for what only that one knows who saw the record before."""
    return {row.key: row._replace(was=None, **dict.fromkeys(but)) for row in dump(view)}


# --- the view ------------------------------------------------------------------------------------------------------


def test_nothing_read_is_nothing_held() -> None:
    joiner = Joiner(0, 1)
    assert (joiner.applied, joiner.stopped) == (-1, 0)
    assert joiner.view().applied == -1
    assert list(joiner.view().keys) == []


def test_of_proposals_it_holds_what_a_full_reader_holds() -> None:
    story = tree()
    view = story.joined()
    assert rows(view) == rows(story.view)
    assert view.applied == story.view.applied
    assert (view.load, set(view.in_flight)) == (story.view.load, {view.get(HIGH), view.get(SECOND)})


def test_of_asserts_it_holds_the_same_but_for_who_wrote_what() -> None:
    """The walk has them at their own offset, and takes none for a repair that it may have been."""
    story = tree()
    for key in (ROOT, LOW, FIRST, SECOND, HIGH):
        story.restate(key, operation=story.held(key).operation, flow=story.held(key).flow)
    asserted = joined(*[(key, record) for key, record in story.log if b'"assert"' in record])
    unknown = ("offset", "settled", "writer", "writer_incarnation", "server", "server_incarnation", "forced", "intent")
    assert rows(asserted, *unknown) == rows(story.view, *unknown)
    assert all(key.writer is None and key.forced for key in asserted.existing())
    derived = [key.name for key in asserted.existing() if key.derived]
    assert derived == [FIRST]


def test_a_bundle_that_was_never_moved_is_still_derived_by_its_assert() -> None:
    story = Story()
    for key in (LOW, HIGH):
        story.restate(key)
    view = story.joined()
    for key in (LOW, HIGH):
        held = view.get(key)
        assert held is not None
        assert (held.derived, held.record_id, held.accepted_id) == (True, "r0", story.held(key).accepted_id)


def test_nobody_knows_what_a_derived_bundle_was_before() -> None:
    view = Story().joined()
    assert [key.was for key in view.live()] == [None, None]


@pytest.mark.parametrize(
    ("base", "record_id", "derived"),
    [
        (f"p1/{range_name(0, HALF)}", "p1", True),
        (f"p1/{range_name(HALF, TOP)}", f"p1/{range_name(HALF, TOP)}", False),
        ("p1", "p1", False),
        (None, None, False),
    ],
)
def test_the_id_of_a_derived_state_names_its_own_range(base: str | None, record_id: str | None, derived: bool) -> None:
    fields = {"version": 5, "asserts": base, "state": "Assigned", "from": None, "to": "b2"}
    held = joined(*Story().log, (LOW.encode(), value("assert", **fields))).get(LOW)
    assert held is not None
    assert (held.accepted_id, held.record_id, held.derived) == (base, record_id, derived)


@pytest.mark.parametrize("offset", [1, 4])
def test_a_record_of_the_derived_version_stands_and_an_older_one_does_not(offset: int) -> None:
    """The ring was made anew at version 5; what the bundle's own key says is of that time, or of one before."""
    children = [range_name(0, HALF), range_name(HALF, TOP)]
    ring = value(id="ns2", version=5, base="zz", state="Active", children=children)
    own = value(version=offset + 1, base="zz", state="Assigned", **{"from": None, "to": "b9"})
    held = joined((ROOT.encode(), ring), (LOW.encode(), own)).get(LOW)
    assert held is not None
    assert (held.version, held.to) == ((5, "b9") if offset == 4 else (5, None))


def test_a_bundle_that_is_said_to_be_absent_is_derived() -> None:
    gone = value("assert", version=7, asserts=None, state="Absent", **{"from": None, "to": None})
    held = joined(*Story().log, (LOW.encode(), gone)).get(LOW)
    assert held is not None
    assert (held.state, held.version) == ("Unassigned", 1)


def test_a_namespace_that_is_said_to_be_absent_is_not_there() -> None:
    gone = value("assert", version=7, asserts=None, state="Absent")
    assert joined((ROOT.encode(), gone)).get(ROOT) is None


def test_a_namespace_that_was_deleted_has_no_ring() -> None:
    story = Story()
    story.write(ROOT, version=2, base="r0", state="Deleted")
    view = story.joined()
    assert rows(view) == {key: row for key, row in rows(story.view).items() if key in view.keys or row.state}
    (root,) = view.existing()
    assert (root.name, root.state, root.ring) == (ROOT, "Deleted", None)


def test_bundles_without_their_namespace_do_not_exist_and_are_remembered_as_settled() -> None:
    view = joined((LOW.encode(), value(**JUNK)), (HIGH.encode(), value(**JUNK)), (HIGH.encode(), None))
    assert list(view.existing()) == []
    settled = {key.name: (key.settled, key.purged, key.lower, key.upper) for key in view.keys.values()}
    assert settled == {LOW: (0, False, 0, HALF), HIGH: (2, True, HALF, TOP)}


def test_a_null_forgets_until_the_next_record() -> None:
    story = Story()
    name, record = story.log[0]
    assert joined((name, record), (name, None)).get(ROOT) is None
    again = joined((name, None), (name, record))
    assert again.get(ROOT) is not None
    assert [key.purged for key in again.keys.values() if key.is_namespace] == [False]


# --- who serves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "known"),
    [
        ({"broker": "b2", "incarnation": "b2-7"}, Writer("b2", "b2-7")),
        ({"broker": "b2", "incarnation": " "}, None),
        ({"broker": " ", "incarnation": "b2-7"}, None),
        ({"broker": "b2"}, None),
        ({"incarnation": "b2-7"}, None),
        ({}, None),
        ("b2", None),
        (None, None),
    ],
)
def test_an_assert_may_tell_who_serves(server: Any, known: Writer | None) -> None:
    fields = {"version": 5, "asserts": "p1", "state": "Assigned", "from": None, "to": "b2", "server": server}
    held = joined(*Story().log, (LOW.encode(), value("assert", **fields))).get(LOW)
    assert held is not None
    assert held.server == known


@pytest.mark.parametrize(("kept", "server"), [(range(7), Writer("b1", "b1-1")), ((0, 5, 6), Writer("b1", "b1-1"))])
def test_a_move_that_builds_on_the_split_is_served_by_the_splitter(kept: Any, server: Writer) -> None:
    held = joined(*[tree().log[offset] for offset in kept]).get(SECOND)
    assert held is not None
    assert (held.state, held.server) == ("Releasing", server)


def test_the_children_of_a_split_that_is_only_asserted_are_served_by_the_splitter() -> None:
    story = tree()
    server = story.held(LOW).server
    assert server == Writer("b1", "b1-1")
    story.restate(LOW, server={"broker": server.broker, "incarnation": server.incarnation})
    view = joined(story.log[0], story.log[-1])
    for name in (FIRST, SECOND):
        held = view.get(name)
        assert held is not None
        assert (held.state, held.owner, held.server) == ("Assigned", "b1", server)


def test_where_records_between_are_gone_nobody_knows_who_serves() -> None:
    story = tree()
    story.move(SECOND, "Assigned", to="b1", writer="b1")
    story.move(SECOND, "Releasing", "b1", "b3", writer="b3")
    held = joined(*[story.log[offset] for offset in (0, 5, 8)]).get(SECOND)
    assert held is not None
    assert (held.state, held.server) == ("Releasing", None)


# --- which record of a key is taken --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "version", "covers", "taken"),
    [
        ("proposal", 4, 2, False),
        ("proposal", 5, 2, False),
        ("proposal", 6, 2, True),
        ("proposal", 1, 3, True),
        ("proposal", 1, 4, True),
        ("assert", 4, 2, False),
        ("assert", 5, 2, True),
        ("assert", 1, 3, True),
    ],
)
def test_a_record_is_taken_that_is_newer_or_has_seen_the_one_held(
    kind: str, version: int, covers: int, taken: bool
) -> None:
    joiner = Joiner(0, 1)
    at_rest = {"state": "Unassigned", "from": None, "to": None}
    joiner.read(3, LOW.encode(), value(id="held", version=5, base="p1", **at_rest))
    joiner.read(9, LOW.encode(), value(kind, version=version, covers=covers, base="p2", asserts="p2", **at_rest))
    assert joiner.held[LOW.encode()].offset == (9 if taken else 3)
    assert joiner.last[LOW.encode()] == 9


def test_what_is_held_or_taken_without_reading_is_walked_like_the_rest() -> None:
    story = Story()
    whole = reader(*story.log)
    joiner = Joiner(0, 1)
    joiner.hold(ROOT.encode(), whole.held[ROOT.encode()])
    moved = reader((LOW.encode(), value(**JUNK))).held[LOW.encode()].record
    joiner.take(4, LOW.encode(), moved)
    assert joiner.held[LOW.encode()] == HeldRecord(4, moved)
    held = joiner.view().get(LOW)
    assert held is not None
    assert held.version == 9


@pytest.mark.parametrize(
    "children",
    [
        pytest.param([range_name(0, HALF)], id="not the whole range"),
        pytest.param([range_name(HALF, TOP), range_name(0, HALF)], id="not in order"),
        pytest.param([], id="none"),
    ],
)
def test_a_ring_that_covers_nothing_is_skipped(children: list[str]) -> None:
    joiner = reader((ROOT.encode(), value(version=1, base=None, state="Active", children=children)))
    assert not joiner.held
    assert joiner.last == {ROOT.encode(): 0}


@pytest.mark.parametrize(
    ("children", "held"),
    [
        ([range_name(0, QUARTER), range_name(QUARTER, HALF)], True),
        ([range_name(0, HALF), range_name(HALF, TOP)], False),
        ([range_name(0, HALF)], False),
    ],
)
def test_the_children_of_a_split_cover_their_parent(children: list[str], held: bool) -> None:
    split = value(version=5, base="p4", state="Deleted", children=children, **{"from": "b1", "to": None})
    assert bool(reader((LOW.encode(), split)).held) is held


def test_a_namespace_may_have_one_bundle() -> None:
    ring = value(version=1, base=None, state="Active", children=[range_name(0, TOP)])
    assert reader((ROOT.encode(), ring)).held


# --- what is skipped -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(None, id="no key"),
        pytest.param(b"junk", id="a key of unknown form"),
        pytest.param(b"!note", id="a control key"),
        pytest.param(b"!", id="a control key without a name"),
        pytest.param(b"t/n/0x00000000_0x8000000", id="nearly a bundle"),
    ],
)
@pytest.mark.parametrize("record", [None, b"", b"junk", b"[]", b'{"format":1}'])
def test_keys_that_no_reader_holds_leave_nothing(key: bytes | None, record: bytes | None) -> None:
    joiner = reader((key, record))
    assert (joiner.applied, joiner.stopped) == (0, 0)
    assert (joiner.held, joiner.last, joiner.nulls) == ({}, {}, set())


@pytest.mark.parametrize(
    ("key", "stops"),
    [(None, True), (b"junk", True), (LOW.encode(), True), (ROOT.encode(), True), (b"!note", False), (b"!", False)],
)
def test_a_newer_format_stops_it_but_on_a_control_key(key: bytes | None, stops: bool) -> None:
    joiner = reader((key, NEWER), (ROOT.encode(), None))
    assert joiner.stopped == (2 if stops else 0)
    assert joiner.applied == (-1 if stops else 1)
    assert joiner.last == ({} if stops else {ROOT.encode(): 1})


def test_what_lies_in_the_wrong_partition_is_skipped() -> None:
    right = partition_of(ROOT, 2)
    for partition in (0, 1):
        joiner = Joiner(partition, 2)
        joiner.read(0, *Story().log[0])
        assert bool(joiner.held) is (partition == right)
        assert joiner.applied == 0
        joiner.read(1, ROOT.encode(), NEWER)
        assert joiner.stopped == 2, "a newer format stops it wherever it lies"


def test_what_cannot_be_decoded_leaves_what_is_held() -> None:
    story = Story()
    joiner = reader(*story.log, (ROOT.encode(), b"junk"))
    assert joiner.held[ROOT.encode()].offset == 0
    assert joiner.last == {ROOT.encode(): 1}
