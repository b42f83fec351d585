"""Drains of the last hour as incidents: requests to the leader, and its replies."""

from __future__ import annotations

from collections.abc import Iterable

from statechannel.audit.incidents import Incident, IncidentKind, seconds
from statechannel.broker import request_record
from statechannel.broker.request_record import Reply, Request, RequestCommand
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import now_ms, open_tail
from statechannel.errors import StateChannelError
from statechannel.protocol.log import RecordRead, Topic

_BACK_MS = 3_600_000


def drains_seen(connection: Connection) -> list[Incident]:
    """Drains in the requests topic; empty if it cannot be read, which `doctor` reports."""
    try:
        with open_tail(connection, Topic.REQUESTS, 0) as tail:
            return drains_of(tail.records(tail.span(from_time_ms=now_ms() - _BACK_MS)))
    except StateChannelError:
        return []


def drains_of(records: Iterable[RecordRead]) -> list[Incident]:
    """Drains among requests and their replies, by the time of the request."""
    drains: dict[str, tuple[str, Incident]] = {}
    for record in records:
        item = request_record.decode(record.value, record.timestamp_ms)
        if (
            isinstance(item, Request)
            and item.asked == RequestCommand.EXTENSION.value
            and item.args.get("ask") == "drain"
        ):
            broker = str(item.args.get("broker"))
            by = f", by {item.by}" if item.by else ""
            message = f"{broker} is being drained{by}"
            drains.setdefault(item.id, (broker, Incident(record.timestamp_ms, IncidentKind.DRAIN, message)))
        elif isinstance(item, Reply) and item.id in drains:
            broker, asked = drains[item.id]
            took = seconds(record.timestamp_ms - asked.at_ms)
            ended = item.outcome.get("result") or item.outcome.get("reason") or item.outcome.get("why")
            message = f"the drain of {broker} ended after {took}: {ended or item.outcome.get('outcome')}"
            drains[item.id] = (broker, asked._replace(message=message))
    return [incident for _, incident in drains.values()]
