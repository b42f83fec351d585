"""What `operation list` selects, and what it says of what it leaves out."""

from typing import Any

import pytest

from statechannel.audit.moments import WHOLE_LOG
from statechannel.cli import operation
from statechannel.cli.operation import NewestRows, newest_rows


def rows(*authors: str, flow: str = "transfer") -> list[dict[str, Any]]:
    return [
        {"operation": str(at), "began_ms": at, "changed_ms": at, "by": author, "executed_by": "b1", "flow": flow}
        for at, author in enumerate(authors)
    ]


def test_what_the_limit_leaves_out_is_counted() -> None:
    every = rows("b1", "ann@desk", "b2", "b1")
    assert newest_rows(every, WHOLE_LOG, None, 3) == (every[1:], 1, 0)
    assert newest_rows(every, WHOLE_LOG, None, 4) == (every, 0, 0)
    assert newest_rows(every, WHOLE_LOG, "ann@desk", 1) == ([every[1]], 0, 0)
    assert newest_rows(every, WHOLE_LOG, "b1", 2) == (every[2:], 2, 0)


def flows(found: NewestRows) -> list[str]:
    return [row["flow"] for row in found.rows]


def test_lookups_give_way_before_what_operators_look_for() -> None:
    drain, *lookups = [*rows("ann@desk", flow="drain"), *rows(*["app"] * 30, flow="lookup")]
    every = [drain, *lookups[:20], *rows("b1", flow="assignment"), *rows("b1", flow="create-namespace"), *lookups[20:]]
    found = newest_rows(every, WHOLE_LOG, None, 4)
    assert flows(found) == ["drain", "create-namespace", "lookup", "lookup"]
    assert (found.left_out, found.lookups_left_out) == (29, 29)
    assert newest_rows(every, WHOLE_LOG, None, 1) == NewestRows([every[22]], 32, 31)
    assert flows(newest_rows(every, WHOLE_LOG, None, 3, ["lookup"])) == ["lookup"] * 3
    assert flows(newest_rows(every, WHOLE_LOG, None, 3, ["create", "drain"])) == ["drain", "create-namespace"]
    assert newest_rows(every, WHOLE_LOG, "ann@desk", 3, ["lookup"]) == NewestRows([])


def test_a_kind_that_is_not_there_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(operation, "say", lines.append)
    operation.remark(rows("b1", flow="create-namespace"), NewestRows([], 9, 7), None, ["drian", "create"])
    assert lines == [
        "note: 9 older ones left out (--limit), 7 of them lookups (--kind lookup)",
        "note: no operation is of the kind drian; there are: create, create-namespace",
    ]


@pytest.mark.parametrize(
    ("left_out", "by", "expected"),
    [
        (44, None, ["note: 44 older ones left out (--limit)"]),
        (0, None, []),
        (0, "ann", ["note: no operation is by ann. Known: ann@desk. "]),
        (0, "b7", ["note: no operation is by b7. "]),
        (0, "b1", []),
        (0, "ann@desk", ["note: policies are in `statechannel audit actions --by ann@desk`, with the reasons"]),
    ],
)
def test_remarks(left_out: int, by: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(operation, "say", lines.append)
    operation.remark(rows("b2", "ann@desk"), NewestRows([], left_out), by)
    assert [line.rstrip() for line in lines] == [line.rstrip() for line in expected]


def test_a_question_that_no_balancer_answers_is_no_refusal() -> None:
    assert operation.result_text({"result": "no-extension"}) == "not asked: no balancer runs"
    assert operation.result_text({"result": "filtered"}) == "filtered"
