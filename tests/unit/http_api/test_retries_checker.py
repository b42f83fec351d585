"""The checker of retried calls sees each rule broken, and nothing where none is."""

from __future__ import annotations

import pytest

from statechannel.engine.operation_fold import FAILED, Operation
from statechannel.protocol.states import State
from tests.http_retries.calls import Answer, RetriedCall, answer_of
from tests.http_retries.checker import LogStory, violations

DONE, BUSY = (200, "transferred"), (409, "superseded")
ACTED = {("op", State.RELEASING): 1}


def call(*answers: Answer) -> RetriedCall:
    return RetriedCall(7, "transfer", "/", {}, list(answers))


def answer(end: tuple[int, str] | None = DONE, operation: str | None = "op") -> Answer:
    return Answer("b1", operation, end)


@pytest.mark.parametrize(
    ("answers", "acts", "broken"),
    [
        ([answer(), answer()], ACTED, []),
        ([answer(None), answer()], ACTED, []),
        ([answer(BUSY)], {}, []),
        ([answer(BUSY)], ACTED, []),
        ([answer((409, "filtered"), None)], {}, []),
        ([answer((503, "timed-out"))], ACTED, []),
        ([answer()], {("op", State.RELEASING): 2}, ["acted 2 times"]),
        ([answer(), answer(operation="other")], ACTED, ["has answers of the operations op, other"]),
        ([answer(), answer(None, "other")], {**ACTED, ("other", State.RELEASING): 1}, ["operations", "acted 2 times"]),
        ([answer(), answer((200, "unloaded"))], ACTED, ["has answers that disagree"]),
        ([answer()], {}, ["was answered with success, and the log has no record of it"]),
        ([answer((409, "filtered"))], ACTED, ["was refused (filtered), and acted"]),
    ],
)
def test_each_rule(answers, acts, broken):
    story = LogStory(acts, {"op": Operation("op", "transfer", "b", 0, 0, status=FAILED, result="superseded")})
    sentences = violations([call(*answers)], story)
    assert len(sentences) == len(broken)
    for sentence, part in zip(sentences, broken, strict=True):
        assert sentence.startswith("call-7 (transfer) ")
        assert part in sentence


@pytest.mark.parametrize(
    ("status", "document", "end"),
    [
        (202, {"operation": "op", "answer": "pending"}, None),
        (503, {"reason": "too-busy", "retryable": True}, None),
        (503, {"reason": "timed-out", "retryable": True, "operation": "op"}, (503, "timed-out")),
        (200, {"operation": "op", "outcome": "done", "result": "transferred"}, DONE),
        (200, {"operation": "op", "outcome": "owned"}, (200, "owned")),
        (409, {"operation": None, "reason": "filtered", "retryable": False}, (409, "filtered")),
    ],
)
def test_what_an_answer_says(status, document, end):
    assert answer_of("b1", status, document).end == end
