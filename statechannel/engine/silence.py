"""How long ago the last heartbeat of each channel partition was written."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.presence import Presence


class Silence:
    """Whether a cold start may be under way somewhere, by the heartbeats that were read of each partition."""

    def __init__(self, context: Context, presence: Presence) -> None:
        self._context = context
        self._presence = presence
        self._heard_ms = [-1] * context.config.partitions
        self._spoke_s = [-inf] * context.config.partitions

    def heard(self, partition: int, timestamp_ms: int) -> None:
        """A heartbeat was read, written at this log time."""
        self._heard_ms[partition] = timestamp_ms

    def spoke(self, partition: int, sent_at_s: float) -> None:
        """A heartbeat of this process was read back, sent at this time by its own clock."""
        self._spoke_s[partition] = max(self._spoke_s[partition], sent_at_s)

    def is_silent(self, partition: int) -> bool:
        """Whether the newest heartbeat that was read is so old that another member may be starting cold.

        By Kafka's clock: a process that was paused reads old heartbeats late. One that does so writes a heartbeat and reads it
        back before it writes anything else to the partition, or what it writes could lie between a view that is taken for the
        truth and its mark, without a heartbeat that makes the mark void. An own one counts from when it was sent, by the own
        clock: a process that does not hear the registry any more may take Kafka's clock for later than it is.
        """
        context = self._context
        ahead_ms = self._presence.clock_ahead_ms
        if ahead_ms is None or partition in context.cold_starting:
            return False
        now_s, bound_s = context.now.mono_s, context.config.cold_start_after_s
        if now_s - self._spoke_s[partition] <= bound_s:
            return False
        return now_s * 1000 + ahead_ms - self._heard_ms[partition] > bound_s * 1000
