"""Which operations there were: those of requests, and those that brokers began."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from statechannel.audit.moments import AsOf, LogWindow
from statechannel.audit.origins import OperationsSeen
from statechannel.clocks import now_ms
from statechannel.engine.operation_fold import Operation
from statechannel.queries.channel_view import read_channel
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import read_requests
from statechannel.queries.query import TIME_MAX_MS, Query, RequestModel
from statechannel.stories.requests import RequestStory


class OperationsQuery(RequestModel):
    """Which operations."""

    since_ms: int = Field(0, ge=0, le=TIME_MAX_MS, description="Only what changed from this log time on.")
    by: str | None = Field(None, max_length=256, description="Only what this broker began, or this person asked for.")
    limit: int = Field(50, ge=1, le=1_000, description="Number of newest operations.")


class OperationsDocument(TypedDict):
    """Operations, the oldest first; the keys of `operation list`."""

    operations: list[dict[str, Any]]
    left_out: int
    lookups_left_out: int
    tentative: bool
    notes: list[str]


def operations(connection: Connection, asked: OperationsQuery) -> dict[str, Any]:
    """The newest operations of a live channel."""
    seen = OperationsSeen(connection.settings.limits.operations_max)
    views = read_channel(connection, [seen.observe])
    window = LogWindow(AsOf(time_ms=asked.since_ms)) if asked.since_ms else LogWindow()
    newest = newest_rows(merged(seen, read_requests(connection)), window, asked.by, asked.limit)
    return newest.document(tentative=views.tentative)


class NewestRows(NamedTuple):
    """The newest operations, in order.

    Attributes:
        left_out: How many older ones the limit leaves out.
        lookups_left_out: How many of these are lookups and their assignments.
    """

    rows: list[dict[str, Any]]
    left_out: int = 0
    lookups_left_out: int = 0

    def document(self, *, tentative: bool) -> dict[str, Any]:
        """The rows, and what the limit leaves out."""
        left_out = {"left_out": self.left_out, "lookups_left_out": self.lookups_left_out}
        return {"operations": self.rows, **left_out, "tentative": tentative}


_OF_LOOKUPS = frozenset({"lookup", "assignment"})
"""Clients ask for these, thousands at a time; the rest is what operators look for."""


def newest_rows(
    every: Sequence[dict[str, Any]], window: LogWindow, by: str | None, limit: int, kinds: Collection[str] = ()
) -> NewestRows:
    """The newest operations of a window, a broker or person, and kinds; without kinds, lookups give way first."""
    rows = [
        row
        for row in every
        if window.meets((0, row["began_ms"]), (0, row["changed_ms"]))
        and by in (None, row["by"], row["executed_by"])
        and (not kinds or not kinds_of(row).isdisjoint(kinds))
    ]
    lookups = [] if kinds else [number for number, row in enumerate(rows) if row["flow"] in _OF_LOOKUPS]
    dropped = set(lookups[: max(0, len(rows) - limit)])
    kept = [row for number, row in enumerate(rows) if number not in dropped]
    return NewestRows(kept[-limit:], max(0, len(rows) - limit), len(dropped))


def kinds_of(row: Mapping[str, Any]) -> set[str]:
    """The kind, as it is in JSON and in the table."""
    return {row["flow"] or "", shown_kind(row["flow"])}


def shown_kind(flow: str | None) -> str:
    return (flow or "").removesuffix("-namespace")


def merged(seen: OperationsSeen, requests: Mapping[str, RequestStory]) -> list[dict[str, Any]]:
    """Operations from log and requests; for the result the log takes precedence over the reply."""
    every = {name: _requested(story) for name, story in requests.items()}
    for operation in seen.known.values():
        every[operation.id] = _from_log(seen, operation, every.get(operation.id))
    return sorted(every.values(), key=lambda row: (row["began_ms"], row["operation"]))


def _requested(story: RequestStory) -> dict[str, Any]:
    return {
        "operation": story.id,
        "flow": story.flow,
        "name": story.bundle or story.subject,
        "status": story.status(now_ms()),
        "result": story.result,
        "message": story.problem or None if story.outcome is None else story.message,
        "began_ms": story.asked_ms,
        "changed_ms": story.changed_ms,
        "by": story.by,
        "executed_by": story.executed_by,
        "destination": story.destination,
        "reason": story.reason,
    }


def _from_log(seen: OperationsSeen, operation: Operation, asked: dict[str, Any] | None) -> dict[str, Any]:
    times = seen.times[operation.id]
    return {
        "operation": operation.id,
        "flow": operation.flow,
        "name": operation.name,
        "status": operation.status,
        "result": operation.result or None,
        "message": None if asked is None else asked["message"],
        "began_ms": times.began_ms if asked is None else asked["began_ms"],
        "changed_ms": times.changed_ms,
        "by": times.by if asked is None else asked["by"],
        "executed_by": times.by if asked is None else asked["executed_by"],
        "destination": operation.destination,
        "reason": None if asked is None else asked["reason"],
    }


QUERIES: Final = (
    Query(
        "list-operations",
        "List operations: those of requests, and those that brokers began",
        "/v1/operations",
        operations,
        OperationsDocument,
        OperationsQuery,
    ),
)
