"""Requests to the balancing extension of the leader, followed to their answer across changes of leadership."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ulid import ULID

from shedders.cli.policy.write import who
from statechannel.broker import outcomes, request_record
from statechannel.broker.request_record import TIMEOUT_MAX_S, Progress, Reply, Request, RequestCommand
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.kafka_wait import naming_address
from statechannel.cli.kit.live_log import now_ms, open_tail
from statechannel.engine.commands import Outcome, Rejected, Undetermined, Unknown
from statechannel.kafka.tail import append_and_wait
from statechannel.protocol.log import Topic

EXTENSION: Final = "balancer"
NO_EXTENSION: Final = "no-extension"
_GRACE_S = 3.0
_AGAIN = frozenset(
    {"not-leader", "busy", "joining", "starting-mode", "safe-mode", "settling-mode", "draining", "policies-unread"}
)
"""Reasons to retry a request, with another broker or the same."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """Request in the log, at `offset`."""

    id: str
    offset: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class LeaderAnswer:
    """Answer to a request.

    Attributes:
        outcome: None: no broker answered in time.
        broker: Executor of the request, finished or not.
    """

    outcome: Outcome | None
    broker: str | None


def send(
    connection: Connection, ask: str, args: Mapping[str, Any], wait_s: float, *, identifier: str | None = None
) -> SentRequest:
    """Write a request for the leader.

    Raises:
        KafkaAdapterError: Kafka is out of reach, refuses the request, or the result is unknown.
    """
    every = {"extension": EXTENSION, "ask": ask, "to": "leader", **args}
    filled = {name: value for name, value in every.items() if value is not None}
    request = Request(identifier or str(ULID()), RequestCommand.EXTENSION.value, 0, filled, who())
    within_s = min(TIMEOUT_MAX_S, max(1.0, wait_s))
    with naming_address(connection):
        offset = append_and_wait(
            connection.client,
            connection.topics.names[Topic.REQUESTS],
            0,
            key=request.id.encode(),
            value=request_record.encode(request, timeout_s=within_s, at_ms=now_ms()),
            timeout_s=connection.timeout_s,
            repeatable=True,  # readers identify requests by their ids
        )
    return SentRequest(request.id, offset, within_s)


def follow(
    connection: Connection, sent: SentRequest, progress: Callable[[str | None], None] = lambda _: None
) -> LeaderAnswer:
    """Wait for the reply to a request.

    Args:
        progress: Called repeatedly with the broker that executes it.
    """
    broker: str | None = None
    ends_s = time.monotonic() + sent.wait_s + _GRACE_S
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        for batch in tail.follow(sent.offset + 1, stop=lambda: time.monotonic() > ends_s):
            for record in batch:
                if record.key != sent.id.encode():
                    continue
                item = request_record.decode(record.value, record.timestamp_ms)
                if isinstance(item, Progress):
                    broker = item.broker
                elif isinstance(item, Reply):
                    return LeaderAnswer(outcomes.from_json(item.outcome), item.broker)
            progress(broker)
    return LeaderAnswer(None, broker)


def may_be_asked_again(outcome: Outcome | None) -> bool:
    """Whether a request ended without a result, so that a retry is safe."""
    if isinstance(outcome, Rejected):
        return str(outcome.reason) in _AGAIN
    return outcome is None or isinstance(outcome, Unknown | Undetermined)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """Request to the extension, read from the log.

    Attributes:
        reply: None: there is none; `open`: a broker may still answer.
    """

    request: Request
    offset: int
    reply: Reply | None
    open: bool

    @property
    def sent(self) -> SentRequest:
        """The request, to follow it."""
        return SentRequest(self.request.id, self.offset, max(1.0, (self.request.deadline_ms - now_ms()) / 1_000))


def requests(connection: Connection, ask: str) -> Iterator[LoggedRequest]:
    """Requests of one kind to the extension, the oldest first."""
    asked: dict[str, tuple[Request, int]] = {}
    replies: dict[str, Reply] = {}
    newest_ms = 0
    with open_tail(connection, Topic.REQUESTS, 0) as tail:
        for record in tail.records(tail.span()):
            newest_ms = max(newest_ms, record.timestamp_ms)
            item = request_record.decode(record.value, record.timestamp_ms)
            if isinstance(item, Request):
                if item.args.get("extension") == EXTENSION and item.args.get("ask") == ask:
                    asked.setdefault(item.id, (item, record.offset))
            elif isinstance(item, Reply):
                replies.setdefault(item.id, item)
    at_ms = max(newest_ms, now_ms())
    for identifier, (request, offset) in asked.items():
        reply = replies.get(identifier)
        yield LoggedRequest(request, offset, reply, open=reply is None and at_ms < request.deadline_ms)
