"""Past requests of commands, from the requests topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statechannel.broker import outcomes, request_record
from statechannel.broker.request_record import Progress, Reply, Request, RequestCommand
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import now_ms, open_tail
from statechannel.protocol.log import Topic


def requests_seen(connection: Connection) -> dict[str, dict[str, Any]]:
    """Requests in the requests topic, by operation: a JSON-able object for each."""
    rows: dict[str, dict[str, Any]] = {}
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        for record in tail.records(tail.span()):
            item = request_record.decode(record.value, record.timestamp_ms)
            if isinstance(item, Request):
                rows.setdefault(item.id, _asked(item, record.timestamp_ms))
            elif item is not None and item.id in rows:
                _follow(rows[item.id], item, record.timestamp_ms)
    return rows


def _asked(request: Request, at_ms: int) -> dict[str, Any]:
    return {
        "operation": request.id,
        "flow": _flow(request),
        "name": request.name,
        "status": "asked" if request.deadline_ms >= now_ms() else "expired",
        "result": None,
        "message": request.problem or None,
        "began_ms": at_ms,
        "changed_ms": at_ms,
        "by": request.by,
        "executed_by": None,
        "destination": request.args.get("destination"),
    }


def _flow(request: Request) -> str:
    """The command; for an extension the extension's own command, as `extension` alone says nothing."""
    ask = request.args.get("ask")
    return ask if request.asked == RequestCommand.EXTENSION.value and isinstance(ask, str) and ask else request.asked


def _follow(row: dict[str, Any], item: Progress | Reply, at_ms: int) -> None:
    if row["status"] in ("ended", "failed"):
        return
    row["executed_by"] = item.broker
    row["changed_ms"] = at_ms
    if isinstance(item, Progress):
        row["status"] = "running"
        return
    outcome: Mapping[str, Any] = item.outcome
    accepted = outcome.get("answer") == "accepted"
    row["status"] = "ended" if accepted else "failed" if outcome.get("answer") == "rejected" else "unknown"
    row["result"] = outcome.get("result") or outcome.get("reason") or outcome.get("outcome")
    row["message"] = _message(outcome)


def _message(outcome: Mapping[str, Any]) -> str | None:
    try:
        return getattr(outcomes.from_json(outcome), "message", None)
    except ValueError:  # anybody may write a reply
        return None
