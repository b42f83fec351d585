"""The cluster before a decision about a plan: read again where it contradicts the plan, as answers of a moment may."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from loaddata.partitions.kafka_cluster import read_layout
from shedders.partitions.execution.standing import LOST, stand_of

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from loaddata.partitions.layout import ClusterLayout
    from shedders.partitions.plan import Plan

_AGAIN_S: Final = 0.5


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


def settled_layout(
    admin: KafkaAdminClient,
    plan: Plan,
    *,
    timeout_s: float,
    settle_s: float,
    wait: Callable[[float], None] = time.sleep,
) -> ClusterLayout:
    """The layout; one that shows planned partitions as nobody has planned them is read again until that has lasted.

    Brokers learn of a reassignment's end at different times, so one answer may show it and another one not.

    Args:
        timeout_s: Bound of the tries of each call.
        settle_s: So long.
        wait: Waits so many seconds.

    Raises:
        KafkaAdapterError: Kafka is away.
    """
    ends_s = time.monotonic() + settle_s
    while True:
        layout = read_layout(admin, now_ms=now_ms(), timeout_s=timeout_s)
        lost = any(
            stand_of(move, layout.topics.get(move.topic), plan.topic_ids.get(move.topic, "")).standing in LOST
            for move in plan.moves
        )
        if not lost or layout.cluster_id != plan.cluster_id or time.monotonic() >= ends_s:
            return layout
        wait(_AGAIN_S)
