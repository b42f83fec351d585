"""Writing a request to the requests topic (design/reference/requests-topic.md), and when to repeat it: for those that ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from statechannel.clocks import now_ms
from statechannel.engine.commands import Outcome, Rejected, Undetermined, Unknown
from statechannel.kafka.tail import append_and_wait
from statechannel.operations import request_record
from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import ChannelTopics
    from statechannel.operations.request_record import Request
    from statechannel.operations.table import Addressee

BALANCER: Final = "balancer"
"""The extension of brokers that places, moves and splits bundles."""
NO_EXTENSION: Final = "no-extension"
_AGAIN = frozenset(
    {"not-leader", "busy", "joining", "starting-mode", "safe-mode", "settling-mode", "draining", "policies-unread"}
)
"""Reasons to retry a request, with another broker or the same."""


def balancer_args(ask: str, to: Addressee, args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a request to the balancer of the leader or of a bundle's owner."""
    return {"extension": BALANCER, "ask": ask, "to": to.value, **args}


def may_be_asked_again(outcome: Outcome | None) -> bool:
    """Whether a request ended without a result, so that a retry is safe."""
    if isinstance(outcome, Rejected):
        return str(outcome.reason) in _AGAIN
    return outcome is None or isinstance(outcome, Unknown | Undetermined)


def write_request(
    client: ClientSettings, topics: ChannelTopics, request: Request, *, answer_within_s: float, timeout_s: float
) -> int:
    """Write a request and wait until it is in the log; its offset.

    Args:
        answer_within_s: Answers are useless after this time, by the log's clock.
        timeout_s: Longest wait for Kafka.

    Raises:
        KafkaAdapterError: Kafka is out of reach, refuses the request, or the result is unknown.
    """
    return append_and_wait(
        client,
        topics.names[Topic.REQUESTS],
        0,
        key=request.id.encode(),
        value=request_record.encode(request, timeout_s=answer_within_s, at_ms=now_ms()),
        timeout_s=timeout_s,
        repeatable=True,  # readers of requests deduplicate them by id
    )
