"""The history of a bundle: every record that concerned it, as lines. Pure functions over what an audit observes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statechannel.audit.story import repair_reason
from statechannel.core.bundle import parse_key, range_name
from statechannel.core.inputs import RecordRead
from statechannel.core.verdict import MEANING, REJECTIONS, Verdict
from statechannel.core.view import Judgement


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """What one record meant for a bundle: its own, its parents', or its namespace's."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    verdict: Verdict
    kind: str
    version: int | None
    state: str | None
    from_: str | None
    to: str | None
    by: str | None
    action: str | None
    operation: str | None
    reason: str | None
    note: str


class History:
    """Collects the lines of one bundle: records on its own key, on ranges that hold it or lie in it, on its namespace."""

    def __init__(self, bundle: str) -> None:
        parts = parse_key(bundle.encode())
        if parts is None:
            raise ValueError(f"{bundle!r} is neither a bundle nor a namespace")
        self._parts = parts
        self.lines: list[HistoryLine] = []

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Take in one judged record."""
        parts = None if record.key is None else parse_key(record.key)
        if parts is None or parts.namespace != self._parts.namespace:
            return
        wanted = self._parts
        if not (parts.is_namespace or wanted.is_namespace):
            if parts.upper <= wanted.lower or parts.lower >= wanted.upper:
                return
        self.lines.append(history_line(record, judgement))


def history_line(record: RecordRead, judgement: Judgement) -> HistoryLine:
    """One record as a line of history."""
    decoded = judgement.record
    note = judgement.why
    if decoded is None:
        empty = (None,) * 7
        version, state, from_, to, by, action, operation = empty
        reason, kind = None, "null" if record.value is None else "-"
    else:
        version, state, from_, to = decoded.version, decoded.state.value, decoded.from_, decoded.to
        by, action, operation = decoded.broker, decoded.text("action"), decoded.text("operation")
        reason, kind = decoded.text("reason"), decoded.kind.value
        if judgement.verdict is Verdict.ACCEPTED and decoded.children is not None:
            note = f"{len(decoded.children)} children"
        if decoded.forced:
            note = ", ".join(filter(None, [note, "forced", repair_reason(decoded)]))
    if not note and judgement.verdict in REJECTIONS:
        note = MEANING[judgement.verdict]
    name = (record.key or b"").decode(errors="replace")
    return HistoryLine(
        record.partition,
        record.offset,
        record.timestamp_ms,
        name,
        judgement.verdict,
        kind,
        version,
        state,
        from_,
        to,
        by,
        action,
        operation,
        reason,
        note,
    )


def history_fields(line: HistoryLine) -> dict[str, Any]:
    """A line of history as the JSON output has it."""
    return {
        "partition": line.partition,
        "offset": line.offset,
        "timestamp_ms": line.timestamp_ms,
        "key": line.key,
        "verdict": line.verdict.value,
        "kind": line.kind,
        "version": line.version,
        "state": line.state,
        "from": line.from_,
        "to": line.to,
        "by": line.by,
        "action": line.action,
        "operation": line.operation,
        "reason": line.reason,
        "note": line.note,
    }


def short_range(key: str) -> str:
    """The range of a bundle's key, or the key where it is a namespace's."""
    parts = parse_key(key.encode())
    return key if parts is None or parts.is_namespace else range_name(parts.lower, parts.upper)
