"""By which rule an operation has its origin: table of rows and causes; and how rows of several parts are merged."""

from typing import Any

import pytest

from statechannel.audit.moments import AsOf, LogWindow
from statechannel.audit.origins import (
    BEGUN_MAX,
    OperationCause,
    OperationsSeen,
    Origin,
    Origins,
    as_rows,
    concerns,
    origins_document,
    persons_of,
    put_together,
    select_operations,
    without_origin,
)
from statechannel.protocol.states import State
from statechannel.protocol.view import View
from tests.support.report_logs import START_MS, LogMaker

LOWER, UPPER = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"
ROW: dict[str, Any] = {
    "operation": "op", "name": LOWER, "partition": 0, "offset": 5, "began_ms": 1_000, "whole": True, "by": "b1",
    "incarnation": "b1-1", "state": "Releasing", "from": "b1", "to": "b2", "forced": False, "flow": None, "reason": None,
    "records": 3, "follows": None,
}  # fmt: skip


class Source:
    """A topic that has these causes for every operation."""

    def __init__(self, cause: OperationCause | None = None, since_ms: int = 0) -> None:
        self.name, self.since_ms, self._cause = "source", since_ms, cause

    def asker(self, begun: Any) -> OperationCause | None:
        return self._cause


def cause(origin: Origin = Origin.REQUEST, **fields: Any) -> OperationCause:
    return OperationCause(origin, "id", "ann", 7, "transfer", **fields)


def found(row: dict[str, Any], *sources: Source, imports: tuple[str, ...] = ()) -> tuple[str, str | None, int]:
    answer = {"rows": [ROW | row], "left_out": 0, "imports": list(imports)}
    (operation,) = origins_document(answer, sources)["operations"]
    return operation["origin"], operation["asked"] and operation["asked"]["by"], len(operation["doubts"])


RELEASING = frozenset({State.RELEASING})


@pytest.mark.parametrize(
    ("row", "sources", "expected"),
    [
        ({}, [], ("unknown", None, 0)),
        ({}, [Source()], ("none", None, 0)),
        ({}, [Source(since_ms=1_000)], ("none", None, 0)),
        ({}, [Source(since_ms=1_001)], ("unknown", None, 0)),
        ({}, [Source(), Source(since_ms=1_001)], ("unknown", None, 0)),
        ({"whole": False}, [Source()], ("unknown", None, 0)),
        ({"forced": True}, [Source()], ("repair", None, 0)),
        ({"state": "Assigning", "from": None}, [Source()], ("lookup", None, 0)),
        ({"state": "Assigning"}, [Source()], ("none", None, 0)),
        ({"from": None}, [Source()], ("none", None, 0)),
        ({}, [Source(cause())], ("request", "ann", 0)),
        ({}, [Source(), Source(cause(Origin.DECISION)), Source(cause())], ("decision", "ann", 0)),
        ({}, [Source(cause(states=RELEASING))], ("request", "ann", 0)),
        ({"state": "Splitting"}, [Source(cause(states=RELEASING))], ("none", None, 1)),
        ({"state": "Splitting", "whole": False}, [Source(cause(states=RELEASING))], ("request", "ann", 0)),
        ({}, [Source(cause(name=LOWER))], ("request", "ann", 0)),
        ({}, [Source(cause(name=UPPER))], ("none", None, 1)),
        ({}, [Source(cause(name=UPPER)), Source(cause())], ("request", "ann", 1)),
        ({}, [Source(cause(destination="b2"))], ("request", "ann", 0)),
        ({}, [Source(cause(destination="b3"))], ("none", None, 1)),
        ({"to": None}, [Source(cause(destination="b3"))], ("request", "ann", 0)),
        ({"forced": True}, [Source(cause(destination="b3"))], ("none", None, 1)),
        ({"follows": "other"}, [Source()], ("none", None, 1)),
        # A broker that shuts down has its bundles placed by a decision, and begins with its own Releasing.
        (
            {},
            [Source(cause(Origin.SHUTDOWN)), Source(cause(Origin.DECISION, states=frozenset({State.ASSIGNING})))],
            ("shutdown", "ann", 0),
        ),
        (
            {},
            [Source(cause(Origin.SHUTDOWN)), Source(cause(Origin.DECISION, destination="b3"))],
            ("shutdown", "ann", 1),
        ),
        (
            {},
            [Source(cause(Origin.SHUTDOWN)), Source(cause(states=frozenset({State.ASSIGNING})))],
            ("shutdown", "ann", 1),
        ),
        (
            {},
            [Source(cause()), Source(cause(Origin.DECISION, states=frozenset({State.ASSIGNING})))],
            ("request", "ann", 1),
        ),
    ],
)
def test_the_origin_of_an_operation(row: dict[str, Any], sources: list[Source], expected: tuple[Any, ...]) -> None:
    assert found(row, *sources) == expected


def test_an_import_comes_before_all_other_rules() -> None:
    assert found({"forced": True, "follows": "x"}, Source(), imports=("op",)) == ("import", None, 1)
    assert found({"operation": None}, Source(), imports=("op",)) == ("none", None, 0)


def document() -> dict[str, Any]:
    rows = [
        ROW,
        ROW | {"offset": 6, "began_ms": 2_000, "forced": True},
        ROW | {"offset": 7, "began_ms": 3_000, "follows": "x"},
    ]
    answer = {"rows": rows, "left_out": 2, "imports": []}
    whole = origins_document(answer, [Source()])
    asked = origins_document(answer | {"rows": [ROW | {"by": "b9"}]}, [Source(cause())])
    return {**whole, "operations": [*whole["operations"], *asked["operations"]]}


@pytest.mark.parametrize(
    ("window", "by", "offsets", "counts"),
    [
        (LogWindow(), None, [5, 6, 7, 5], {"request": 1, "repair": 1, "none": 2}),
        (LogWindow(AsOf(offset=6)), None, [6, 7], {"repair": 1, "none": 1}),
        (LogWindow(None, AsOf(time_ms=2_000)), "b1", [5, 6], {"repair": 1, "none": 1}),
        (LogWindow(), "ann", [5], {"request": 1}),
        (LogWindow(), "b9", [5], {"request": 1}),
    ],
)
def test_operations_in_a_window_or_of_somebody(
    window: LogWindow, by: str | None, offsets: list[int], counts: dict[str, int]
) -> None:
    selected = select_operations(document(), window, by)
    assert [row["offset"] for row in selected["operations"]] == offsets
    assert selected["counts"] == counts
    assert selected["left_out"] == 2


def test_who_asked_and_what_has_no_origin() -> None:
    assert persons_of(document()) == ["ann"]
    assert [row["offset"] for row in without_origin(document())] == [5, 7]


def part(*rows: dict[str, Any], left_out: int = 0) -> dict[str, Any]:
    return {"rows": [ROW | row for row in rows], "left_out": left_out, "imports": []}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part({}), part({"partition": 1})], [(0, 5, 6)]),
        ([part({"partition": 1}), part({})], [(0, 5, 6)]),
        ([part({"partition": 1, "began_ms": 999}), part({})], [(1, 5, 6)]),
        ([part({"offset": 9}), part({})], [(0, 5, 6)]),
        ([part({}), part({"partition": 1, "records": 4})], [(0, 5, 7)]),
        ([part({"operation": None}), part({"operation": None, "partition": 1})], [(0, 5, 3), (1, 5, 3)]),
        ([part({"operation": "later", "began_ms": 2_000}, {})], [(0, 5, 3), (0, 5, 3)]),
    ],
)
def test_an_operation_of_several_partitions_is_one(parts: list[dict[str, Any]], expected: list[tuple[int, ...]]):
    rows = put_together(parts)["rows"]
    assert [(row["partition"], row["offset"], row["records"]) for row in rows] == expected
    assert [row["began_ms"] for row in rows] == sorted(row["began_ms"] for row in rows)


def test_the_oldest_operations_are_only_counted() -> None:
    many = put_together([part(*({"operation": str(number)} for number in range(BEGUN_MAX + 2)), left_out=3)])
    assert (len(many["rows"]), many["left_out"]) == (BEGUN_MAX, 5)
    assert put_together([part() | {"imports": ["b"]}, part() | {"imports": ["a"]}])["imports"] == ["a", "b"]


@pytest.mark.parametrize(
    ("asked", "name", "expected"),
    [
        ("t/n", "t/n", True),
        ("t/n", LOWER, True),
        (LOWER, "t/n", False),
        (LOWER, LOWER, True),
        (UPPER, UPPER, True),
        (LOWER, UPPER, False),
        (UPPER, LOWER, False),
        (UPPER, "t/n/0x00000000_0xffffffff", True),
        (LOWER, "t/n/0x00000000_0xc0000000", True),
        (LOWER, "t/n/0x00000000_0x40000000", False),
        (LOWER, "t/n/0x10000000_0x80000000", False),
        (LOWER, "t/m/0x00000000_0x80000000", False),
        ("t/n", "nonsense", False),
        ("nonsense", LOWER, False),
        ("t/n/topic", "t/n/0x00000000_0xffffffff", True),
        ("t/m/topic", "t/n/0x00000000_0xffffffff", False),
    ],
)
def test_what_a_request_on_a_range_may_change(asked: str, name: str, expected: bool) -> None:
    assert concerns(asked, name) is expected


def collected(log: LogMaker, **more: Any) -> list[tuple[Any, ...]]:
    origins, view = Origins(**more), View(0, 1)
    for record in log.records:
        origins.observe(record, view.read(record.offset, record.key, record.value))
    names = ("operation", "offset", "whole", "state", "records", "follows", "forced")
    return [tuple(row[name] for name in names) for row in as_rows(origins)["rows"]]


def test_an_operation_is_all_its_records_and_a_move_without_one_goes_to_its_end() -> None:
    log = LogMaker()
    lower, upper = log.namespace("t/n", 2)
    log.assign(lower, "b1")
    log.move(upper, "Assigning", to="b1", operation="op-1")
    log.put(upper, log.proposal(upper, "Assigned", "b9", to="b9", operation="op-1") | {"version": 1})
    log.move(upper, "Assigned", "b1", to="b1")
    log.transfer(lower, "b2", operation="op-2")
    log.unload(lower)
    log.lose(upper, "b2", heard_ago_ms=5)
    assert collected(log) == [
        ("create-t/n", 0, True, "Active", 1, None, False),
        (None, 1, True, "Assigning", 2, None, False),
        ("op-1", 3, True, "Assigning", 1, None, False),
        (None, 5, True, "Assigned", 1, "op-1", False),
        ("op-2", 6, True, "Releasing", 1, None, False),
        (None, 7, True, "Assigning", 2, "op-2", False),
        (None, 9, True, "Releasing", 2, None, False),
        (None, 11, True, "Assigning", 2, None, True),
    ]
    assert len(collected(log, begun_max=8)) == 8
    assert [row[1] for row in collected(log, begun_max=3)] == [7, 9, 11]


def test_what_is_known_of_the_times_of_an_operation() -> None:
    log, seen, view = LogMaker(), OperationsSeen(), View(0, 1)
    lower, upper = log.namespace("t/n", 2)
    log.move(lower, "Assigning", "b2", to="b1", operation="op")
    log.move(upper, "Assigning", "b3", to="b1", operation="op")
    log.move(lower, "Assigned", "b1", to="b1", operation="op")
    log.records[3] = log.records[3]._replace(timestamp_ms=START_MS + 11)
    for record in log.records:
        seen.observe(record, view.read(record.offset, record.key, record.value))
    times = seen.times["op"]
    assert (times.began_ms - START_MS, times.changed_ms - START_MS, times.by, times.records) == (10, 15, "b2", 3)
    assert set(seen.times) == {"op", "create-t/n"}
