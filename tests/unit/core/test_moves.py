"""The table of moves, row by row: every accepted state against every proposed one, forced and not, every broker."""

from itertools import product

import pytest

from statechannel.protocol.bundle import bounds_of
from statechannel.protocol.keys import KeyState, Ring
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.resolver import judge
from statechannel.protocol.states import BUNDLE_STATES, State
from statechannel.protocol.verdict import Verdict

CHILDREN = ["0x00000000_0x40000000", "0x40000000_0x80000000"]
BROKERS = ("-", "A", "B", "C")

# A row: accepted state, its `from` and `to`; a cell: the pairs `from to` of the proposal that are accepted (`+`: any broker,
# `*`: any or none). All other pairs are wrong-broker; a dot: whatever the brokers, illegal-move.
NOT_FORCED = """
accepted        | Unassigned | Assigning | Assigned | Releasing           | Splitting | Deleted
Unassigned - -  | .          | - +       | .        | .                   | .         | .
Unassigned A -  | .          | - +       | .        | .                   | .         | .
Assigning  - A  | A -        | .         | - A      | .                   | .         | .
Assigning  A B  | B -        | .         | A B      | .                   | .         | .
Assigned   - A  | .          | .         | - A      | A -, A B, A C       | A -       | .
Assigned   B A  | .          | .         | - A      | A -, A B, A C       | A -       | .
Releasing  A -  | A -        | .         | - A      | .                   | .         | .
Releasing  A B  | .          | A B       | - A      | .                   | .         | .
Splitting  A -  | .          | .         | - A      | .                   | .         | A -
Deleted    A -  | .          | .         | .        | .                   | .         | .
"""
FORCED = """
accepted        | Unassigned | Assigning | Assigned | Releasing           | Splitting | Deleted
Unassigned - -  | * -        | * +       | .        | .                   | .         | .
Unassigned A -  | * -        | * +       | .        | .                   | .         | .
Assigning  - A  | * -        | * +       | .        | .                   | .         | .
Assigning  A B  | * -        | * +       | .        | .                   | .         | .
Assigned   - A  | * -        | * +       | .        | .                   | .         | .
Releasing  A -  | * -        | * +       | .        | .                   | .         | .
Releasing  A B  | * -        | * +       | .        | .                   | .         | .
Splitting  A -  | * -        | * +       | .        | .                   | .         | .
Deleted    A -  | .          | .         | .        | .                   | .         | .
"""
NAMESPACES = """
accepted        | Active       | Deleted
nothing         | accepted     | unknown-bundle
Active, idle    | illegal-move | accepted
Active, in use  | illegal-move | namespace-in-use
Deleted         | accepted     | illegal-move
"""
NAMESPACES_FORCED = """
accepted        | Active       | Deleted
nothing         | illegal-move | unknown-bundle
Active, idle    | illegal-move | illegal-move
Active, in use  | illegal-move | illegal-move
Deleted         | illegal-move | illegal-move
"""


def cells(table: str) -> list[tuple[str, str, str]]:
    """Row name, column name and cell, for each cell."""
    head, *rows = ([cell.strip() for cell in row.split("|")] for row in table.strip().splitlines())
    return [(row[0], column, cell) for row in rows for column, cell in zip(head[1:], row[1:], strict=True)]


def broker(letter: str) -> str | None:
    return None if letter == "-" else letter


def proposal(state: State, version: int, base: str | None, *, forced: bool) -> Record:
    record = Record(Kind.PROPOSAL, "new", 0, "A", "i", {})
    record.state, record.version, record.base, record.forced = state, version, base, forced
    return record


def fits(cell: str, from_: str, to: str) -> bool:
    patterns = [pattern.split() for pattern in cell.split(",")]
    return any(
        all(
            rule in ("*", letter) or (rule == "+" and letter != "-")
            for rule, letter in zip(pair, (from_, to), strict=True)
        )
        for pair in patterns
    )


@pytest.mark.parametrize(("row", "column", "cell"), cells(NOT_FORCED))
def test_moves_of_bundles(row: str, column: str, cell: str) -> None:
    check_cell(row, column, cell, forced=False)


@pytest.mark.parametrize(("row", "column", "cell"), cells(FORCED))
def test_forced_moves_of_bundles(row: str, column: str, cell: str) -> None:
    check_cell(row, column, cell, forced=True)


def check_cell(row: str, column: str, cell: str, *, forced: bool) -> None:
    name, held_from, held_to = row.split()
    accepted = KeyState("t/ns", 0, 0x80000000)
    accepted.state, accepted.version, accepted.record_id = State(name), 7, "old"
    accepted.from_, accepted.to = broker(held_from), broker(held_to)
    for from_, to in product(BROKERS, BROKERS):
        record = proposal(State(column), 8, "old", forced=forced)
        record.from_, record.to = broker(from_), broker(to)
        if record.state is State.DELETED:
            record.children = CHILDREN
        expected = Verdict.ILLEGAL_MOVE
        if cell != ".":
            expected = Verdict.ACCEPTED if fits(cell, from_, to) else Verdict.WRONG_BROKER
        assert judge(record, accepted) is expected, (row, column, from_, to)


def namespace_in(state: str) -> KeyState:
    key = KeyState("t/ns", -1, -1)
    if state == "nothing":
        return key
    key.state, key.version, key.record_id = State(state.split(",", maxsplit=1)[0]), 7, "old"
    if key.state is State.ACTIVE:
        key.bounds = bounds_of(["0x00000000_0xffffffff"])
        key.ring = Ring("t/ns", 7)
        key.ring.owned = 1 if "in use" in state else 0
    return key


@pytest.mark.parametrize(("row", "column", "cell"), cells(NAMESPACES))
def test_moves_of_namespaces(row: str, column: str, cell: str) -> None:
    record = proposal(State(column), 8, None if row == "nothing" else "old", forced=False)
    record.children = ["0x00000000_0xffffffff"] if column == "Active" else None
    assert judge(record, namespace_in(row)) == cell


@pytest.mark.parametrize(("row", "column", "cell"), cells(NAMESPACES_FORCED))
def test_nothing_of_a_namespace_is_forced(row: str, column: str, cell: str) -> None:
    record = proposal(State(column), 8, None if row == "nothing" else "old", forced=True)
    record.children = ["0x00000000_0xffffffff"] if column == "Active" else None
    assert judge(record, namespace_in(row)) == cell


def test_the_tables_leave_nothing_out() -> None:
    for table in (NOT_FORCED, FORCED):
        results = {(row.split()[0], column) for row, column, _ in cells(table)}
        assert results == {(str(a), str(b)) for a in BUNDLE_STATES for b in BUNDLE_STATES}
        assert {"Releasing  A -", "Releasing  A B"} <= {row for row, _, _ in cells(table)}


CUTS = """
0x00000000_0x40000000 0x40000000_0x80000000                        | accepted
0x00000000_0x00000001 0x00000001_0x00000002 0x00000002_0x80000000  | accepted
0x00000000_0x80000000                                              | bad-children
                                                                   | bad-children
0x00000000_0x40000000 0x40000000_0x7fffffff                        | bad-children
0x00000001_0x40000000 0x40000000_0x80000000                        | bad-children
0x00000000_0x40000000 0x40000001_0x80000000                        | bad-children
0x00000000_0x40000000 0x3fffffff_0x80000000                        | bad-children
0x40000000_0x80000000 0x00000000_0x40000000                        | bad-children
0x00000000_0x40000000 0x40000000_0x40000000 0x40000000_0x80000000  | bad-children
0x00000000_0x40000000 0x40000000_0x80000000 0x80000000_0x80000000  | bad-children
0x00000000_0x40000000 0x40000000_0x80000000 0x80000000_0xffffffff  | bad-children
0x00000000_0x80000000 0x80000000_0x40000000 0x40000000_0x80000000  | bad-children
"""


@pytest.mark.parametrize("row", CUTS.strip("\n").splitlines())
def test_children_of_a_split_cover_the_bundle_once(row: str) -> None:
    children, expected = row.split("|")
    accepted = KeyState("t/ns", 0, 0x80000000)
    accepted.state, accepted.version, accepted.record_id, accepted.from_ = State.SPLITTING, 7, "old", "A"
    record = proposal(State.DELETED, 8, "old", forced=False)
    record.from_, record.children = "A", children.split()
    assert judge(record, accepted) == expected.strip()
    record.to = "B"
    assert judge(record, accepted) is Verdict.WRONG_BROKER
