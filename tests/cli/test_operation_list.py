"""What `operation list` selects, and what it says of what it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.audit.moments import WHOLE_LOG
from statechannel.cli import operation
from statechannel.cli.operation import newest_rows


def rows(*authors: str) -> list[dict[str, Any]]:
    return [
        {"operation": str(at), "began_ms": at, "changed_ms": at, "by": author, "executed_by": "b1"}
        for at, author in enumerate(authors)
    ]


def test_what_the_limit_leaves_out_is_counted() -> None:
    every = rows("b1", "ann@desk", "b2", "b1")
    assert newest_rows(every, WHOLE_LOG, None, 3) == (every[1:], 1)
    assert newest_rows(every, WHOLE_LOG, None, 4) == (every, 0)
    assert newest_rows(every, WHOLE_LOG, "ann@desk", 1) == ([every[1]], 0)
    assert newest_rows(every, WHOLE_LOG, "b1", 2) == (every[2:], 2)


@pytest.mark.parametrize(
    ("left_out", "by", "expected"),
    [
        (44, None, ["note: 44 older ones left out (--limit)"]),
        (0, None, []),
        (0, "ann", ["note: no operation is by ann. Known: ann@desk. "]),
        (0, "b7", ["note: no operation is by b7. "]),
        (0, "b1", []),
        (
            0,
            "ann@desk",
            ["note: policies and acknowledgements are in `statechannel audit actions --by ann@desk`, with the reasons"],
        ),
    ],
)
def test_remarks(left_out: int, by: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(operation, "say", lines.append)
    operation.remark(rows("b2", "ann@desk"), left_out, by)
    assert [line.rstrip() for line in lines] == [line.rstrip() for line in expected]


def test_a_question_that_no_balancer_answers_is_no_refusal() -> None:
    assert operation.result_text({"result": "no-extension"}) == "not asked: no balancer runs"
    assert operation.result_text({"result": "no-extension", "forged": [3]}) == (
        "not asked: no balancer runs; forged at offset 3"
    )
    assert operation.result_text({"result": "filtered"}) == "filtered"
