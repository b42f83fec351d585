"""Lost brokers that an operator has dismissed, as the requests topic shows it: they will not come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from statechannel.broker import request_record
from statechannel.broker.request_record import Reply, Request, RequestCommand
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import open_tail
from statechannel.cli.kit.registry import Dismissal, Registry
from statechannel.clocks import now_ms
from statechannel.errors import StateChannelError
from statechannel.protocol.log import RecordRead, Topic

LEAST_BACK_S = 3_600.0


Dismissals = Mapping[tuple[str, str], Dismissal]
"""By broker and incarnation."""


def dismissals_in(records: Iterable[RecordRead]) -> dict[tuple[str, str], Dismissal]:
    """Those that the leader has accepted, among records of the requests topic."""
    asked: dict[str, tuple[Request, int]] = {}
    accepted: dict[tuple[str, str], Dismissal] = {}
    for record in records:
        item = request_record.decode(record.value, record.timestamp_ms)
        if isinstance(item, Request) and item.asked == RequestCommand.DISMISS_BROKER.value:
            asked.setdefault(item.id, (item, record.timestamp_ms))
        elif isinstance(item, Reply) and item.id in asked:
            request, at_ms = asked.pop(item.id)  # the first reply counts
            facts = item.outcome.get("facts")
            incarnation = facts.get("incarnation") if isinstance(facts, Mapping) else None
            if item.outcome.get("answer") != "accepted" or not isinstance(incarnation, str) or request.broker is None:
                continue
            why = request.args.get("reason")
            dismissal = Dismissal(request.broker, incarnation, at_ms, request.by, why if isinstance(why, str) else "")
            accepted.setdefault((request.broker, incarnation), dismissal)
    return accepted


def recent_requests(connection: Connection) -> list[RecordRead]:
    """Records of the requests topic as old as the lost brokers that are shown, and at least of the last hour.

    Raises:
        StateChannelError: It cannot be read.
    """
    back_s = max(LEAST_BACK_S, connection.settings.membership.lost_shown_s)
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        return list(tail.records(tail.span(from_time_ms=now_ms() - round(back_s * 1_000))))


def read_dismissals(connection: Connection) -> Dismissals:
    """Those of the requests topic; empty if it cannot be read, which `doctor` reports."""
    try:
        return dismissals_in(recent_requests(connection))
    except StateChannelError:
        return {}


def without_dismissed(registry: Registry, dismissals: Dismissals) -> Registry:
    """The registry without the lost processes that were dismissed, which it lists instead."""
    members = registry.members
    known = [dismissals.get((lost.broker, lost.incarnation)) for lost in members.lost.values()]
    dismissed = tuple(item for item in known if item is not None)
    for item in dismissed:
        del members.lost[item.broker]
    return replace(registry, dismissed=dismissed)
