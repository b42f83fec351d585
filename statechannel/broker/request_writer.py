"""Writing a request to the requests topic, by a process that is not a broker (design/requests-topic.md)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from statechannel.broker import request_record
from statechannel.kafka.tail import append_and_wait
from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from statechannel.broker.request_record import Request
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import ChannelTopics


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
        value=request_record.encode(request, timeout_s=answer_within_s, at_ms=time.time_ns() // 1_000_000),
        timeout_s=timeout_s,
        repeatable=True,  # readers of requests deduplicate them by id
    )
