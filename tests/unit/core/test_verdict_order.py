"""The order of the verdicts: records with many faults, of which each row mends one; the first that applies is the verdict."""

import json
from typing import Any

import pytest

from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View

BY = {"broker": "A", "incarnation": "i"}
RING = "0x00000000_0xffffffff"
HALVES = ["0x00000000_0x80000000", "0x80000000_0xffffffff"]
NS, HERE, GONE, ELSEWHERE = "t/ns", f"t/ns/{RING}", f"t/ns/{HALVES[0]}", f"t/other/{RING}"
PARTITIONS = 8


def value(**fields: Any) -> bytes:
    return json.dumps({"format": 1, "kind": "proposal", "covers": 0, "by": BY} | fields).encode()


def ready(*, splitting: bool = True) -> View:
    """A namespace with one bundle: Splitting at version 4 by A (record `r4`), or still Unassigned (`r1/<range>`)."""
    home = next(
        n for n in range(PARTITIONS) if View(n, PARTITIONS).read(0, NS.encode(), b"x").verdict != "wrong-partition"
    )
    view = View(home, PARTITIONS)
    steps = [
        (NS, {"state": "Active", "children": [RING], "base": None}),
        (HERE, {"state": "Assigning", "from": None, "to": "A", "base": f"r1/{RING}"}),
        (HERE, {"state": "Assigned", "from": None, "to": "A", "base": "r2"}),
        (HERE, {"state": "Splitting", "from": "A", "to": None, "base": "r3"}),
    ]
    for number, (key, fields) in enumerate(steps[: 4 if splitting else 1], 1):
        record = value(id=f"r{number}", version=number, **(fields | {"covers": number - 2}))
        assert view.read(number - 1, key.encode(), record).verdict is Verdict.ACCEPTED
    return view


# Each row leaves out one more fault of the record (`x`: the fault is there, `.`: it is mended).
SPLIT_FAULTS = ("control", "format 2", "elsewhere", "covers 1.5", "no such key", "id r4", "version 2", "version 9",
                "base r0", "to Assigned", "from B", "children")  # fmt: skip
SPLIT = """
x x x x x x x x x x x x | control
. x x x x x x x x x x x | unsupported-format
. . x x x x x x x x x x | wrong-partition
. . . x x x x x x x x x | undecodable
. . . . x x x x x x x x | unknown-bundle
. . . . . x x x x x x x | duplicate
. . . . . . x x x x x x | stale-version
. . . . . . . x x x x x | version-gap
. . . . . . . . x x x x | wrong-base
. . . . . . . . . x x x | illegal-move
. . . . . . . . . . x x | wrong-broker
. . . . . . . . . . . x | bad-children
. . . . . . . . . . . . | accepted
"""


def rows(table: str) -> list[tuple[list[bool], str]]:
    results = []
    for row in table.strip().splitlines():
        marks, verdict = row.split("|")
        results.append(([mark == "x" for mark in marks.split()], verdict.strip()))
    return results


def bent_split(marks: list[bool]) -> tuple[str, bytes]:
    """The commit of a split with the marked faults; where two are about one field the first wins."""
    fault = dict(zip(SPLIT_FAULTS, marks, strict=True))
    version = 2 if fault["version 2"] else 9 if fault["version 9"] else 5
    fields: dict[str, Any] = {
        "format": 2 if fault["format 2"] else 1,
        "covers": 1.5 if fault["covers 1.5"] else 3,
        "id": "r4" if fault["id r4"] else "new",
        "version": version,
        "base": "r0" if fault["base r0"] else "r4",
        "state": "Assigning" if fault["to Assigned"] else "Deleted",
        "from": "B" if fault["from B"] else "A",
        "to": None,
        "children": HALVES[:1] if fault["children"] else HALVES,
    }
    key = GONE if fault["no such key"] else HERE
    key = ELSEWHERE if fault["elsewhere"] else key
    return ("!" if fault["control"] else "") + key, value(**fields)


@pytest.mark.parametrize(("marks", "verdict"), rows(SPLIT))
def test_the_faults_of_a_split(marks: list[bool], verdict: str) -> None:
    key, record = bent_split(marks)
    assert ready().read(4, key.encode(), record).verdict == verdict


def test_every_fault_alone_has_its_verdict() -> None:
    """So that no row above passes for the fault of another row."""
    for index, (_, verdict) in enumerate(rows(SPLIT)[:-1]):
        key, record = bent_split([index == at for at in range(len(SPLIT_FAULTS))])
        assert ready().read(4, key.encode(), record).verdict == verdict


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in range(12) for b in range(a + 1, 12)])
def test_of_any_two_faults_the_earlier_counts(first: int, second: int) -> None:
    key, record = bent_split([at in (first, second) for at in range(len(SPLIT_FAULTS))])
    assert ready().read(4, key.encode(), record).verdict == rows(SPLIT)[first][1]


CREATE = """
stale-version    | version 0, base "x", forced, children of half the ring
wrong-base       | version 5, base "x", forced, children of half the ring
illegal-move     | version 5, base null, forced, children of half the ring
bad-children     | version 5, base null, not forced, children of half the ring
accepted         | version 5, base null, not forced, children of the ring
"""
DELETE = """
duplicate        | id r1, version 1, base "x", forced, in use
stale-version    | id new, version 1, base "x", forced, in use
stale-version    | id new, version 2, base "x", forced, in use
version-gap      | id new, version 6, base "x", forced, in use
wrong-base       | id new, version 5, base "x", forced, in use
illegal-move     | id new, version 5, base "r1", forced, in use
namespace-in-use | id new, version 5, base "r1", not forced, in use
accepted         | id new, version 2, base "r1", not forced, idle
version-gap      | id new, version 5, base "r1", not forced, idle
"""


def parsed(row: str) -> tuple[str, dict[str, Any]]:
    verdict, faults = (part.strip() for part in row.split("|"))
    fields: dict[str, Any] = {"id": "new", "forced": "not forced" not in faults}
    for fault in faults.split(", "):
        name, _, rest = fault.partition(" ")
        if name in ("version", "base"):
            fields[name] = json.loads(rest)
        elif name == "id":
            fields["id"] = rest
    return verdict, fields | {"children": HALVES[:1] if "half" in faults else HALVES}


@pytest.mark.parametrize("row", CREATE.strip().splitlines())
def test_the_faults_of_a_creation(row: str) -> None:
    verdict, fields = parsed(row)
    view = ready()
    other = next(f"t/n{n}" for n in range(99) if view.read(4, f"t/n{n}".encode(), b"x").verdict == "undecodable")
    assert view.read(5, other.encode(), value(state="Active", **fields)).verdict == verdict


@pytest.mark.parametrize("row", DELETE.strip().splitlines())
def test_the_faults_of_a_deletion(row: str) -> None:
    verdict, fields = parsed(row)
    view = ready(splitting="in use" in row)
    assert view.read(view.applied + 1, NS.encode(), value(state="Deleted", **fields)).verdict == verdict


ASSERTS = """
assert-stale | HERE | version 9
assert-stale | HERE | asserts "r3"
assert-stale | HERE | asserts null
assert-stale | HERE | state "Assigned"
assert-stale | HERE | from "B"
assert-stale | HERE | to "A"
assert-stale | HERE | state "Absent"
assert-stale | HERE | state "Absent", version 0, asserts null
assert-stale | GONE | version 0
assert-stale | GONE | state "Absent", version 0
assert-stale | GONE | state "Absent", asserts null
assert-equal | GONE | state "Absent", version 0, asserts null
assert-equal | GONE | state "Absent", version 0, asserts null, from "B", to "B"
assert-equal | HERE | id "r4"
assert-equal | HERE | id "new"
"""


@pytest.mark.parametrize("row", ASSERTS.strip().splitlines())
def test_asserts_are_equal_or_stale_and_nothing_else(row: str) -> None:
    verdict, key, faults = (part.strip() for part in row.split("|"))
    fields: dict[str, Any] = {"id": "a", "version": 4, "asserts": "r4", "state": "Splitting", "from": "A", "to": None}
    fields |= {name: json.loads(text) for name, _, text in (fault.partition(" ") for fault in faults.split(", "))}
    judgement = ready().read(4, {"HERE": HERE, "GONE": GONE}[key].encode(), value(kind="assert", **fields))
    assert judgement.verdict == verdict


NULLS = """
control         | !anything
wrong-partition | t/other/0x00000000_0xffffffff
purged          | of no known form
purged          | t/ns/0x00000000_0x80000000
undecodable     | t/ns/0x00000000_0xffffffff
undecodable     | t/ns
"""


@pytest.mark.parametrize("row", NULLS.strip().splitlines())
def test_nulls(row: str) -> None:
    verdict, key = (part.strip() for part in row.split("|"))
    assert ready().read(4, key.encode(), None).verdict == verdict


def test_a_null_on_a_key_in_debt_purges_nothing() -> None:
    view = ready()
    for offset, (record, verdict) in enumerate(((b"x", "undecodable"), (None, "undecodable")), 4):
        assert view.read(offset, GONE.encode(), record).verdict == verdict
    absent = value(
        kind="assert", id="a", covers=5, version=0, asserts=None, state="Absent", **{"from": None, "to": None}
    )
    assert view.read(6, GONE.encode(), absent).verdict is Verdict.ASSERT_EQUAL
    assert view.read(7, GONE.encode(), None).verdict is Verdict.PURGED
    assert not view.ledger.open


def test_a_record_in_the_wrong_partition_is_decoded_all_the_same() -> None:
    """The audit's verdicts show version and state of whatever decodes (formats page, OUT.jsonl)."""
    fields: dict[str, Any] = {"id": "x", "version": 3, "base": "y", "state": "Assigning", "from": None, "to": "A"}
    judgement = ready().read(4, ELSEWHERE.encode(), value(**fields))
    assert judgement.verdict is Verdict.WRONG_PARTITION
    assert judgement.key is None
    assert (judgement.record.version, judgement.record.state) == (3, "Assigning")
    assert ready().read(4, ELSEWHERE.encode(), value(**fields | {"to": 5})).record is None
