"""Whether each call acted once, by the channel's log, and whether its answers agree with each other and with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx

from statechannel.engine.operation_fold import Operation, OperationFold
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import View
from tests.http_retries.calls import FIRST_STATE, RetriedCall


class LogStory(NamedTuple):
    """What the channel's log says of operations.

    Attributes:
        acts: Number of accepted records by operation and state.
        operations: How each began and ended.
    """

    acts: Mapping[tuple[str, State], int]
    operations: Mapping[str, Operation]


def read_story(records: Sequence[RecordRead]) -> LogStory:
    """Judge a log from its beginning.

    Raises:
        ValueError: Records at the beginning are missing, so that nothing can be said.
    """
    if records and records[0].offset != 0:
        raise ValueError(f"the log begins at offset {records[0].offset}")
    view, fold = View(0, 1), OperationFold(len(records))
    acts: defaultdict[tuple[str, State], int] = defaultdict(int)
    for record in records:
        judgement = view.read(record.offset, record.key, record.value)
        accepted, key = judgement.record, judgement.key
        if judgement.verdict is Verdict.ACCEPTED and accepted is not None and key is not None:
            fold.accepted(accepted, key, 0, record.offset)
            if key.operation is not None:
                acts[key.operation, accepted.state] += 1
    return LogStory(acts, fold.known)


def violations(calls: Sequence[RetriedCall], story: LogStory) -> list[str]:
    """Rules that calls break, a sentence each."""
    return [f"{call.key} ({call.kind}) {broken}" for call in calls for broken in _broken(call, story)]


def _broken(call: RetriedCall, story: LogStory) -> Iterator[str]:
    operations = sorted({answer.operation for answer in call.answers if answer.operation is not None})
    ends = sorted({answer.end for answer in call.ends if answer.end is not None})
    if len(operations) > 1:
        yield f"has answers of the operations {', '.join(operations)}"
    if len(ends) > 1:
        yield f"has answers that disagree: {ends}"
    first = FIRST_STATE.get(call.kind)
    if first is None:
        return
    acted = sum(story.acts.get((operation, first), 0) for operation in operations)
    if acted > 1:
        yield f"acted {acted} times"
    for status, code in ends:
        if status == httpx.codes.OK and acted == 0:
            yield "was answered with success, and the log has no record of it"
        # One that began may fail later: its source takes the bundle back, or another operation comes first.
        failed = {story.operations[known].result for known in operations if known in story.operations}
        if status in (httpx.codes.CONFLICT, httpx.codes.NOT_FOUND) and acted and code not in failed:
            yield f"was refused ({code}), and acted"
