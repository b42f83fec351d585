"""Estimate of Kafka's clock, from records received as they were written."""

from __future__ import annotations

from collections import deque

from statechannel.cli.kit.live_log import now_ms

_KEPT = 60


class LogClock:
    """The log's current time, estimated from records that were received as they were written.

    The least delay of the last sixty is taken as the transport delay plus the clocks' difference.
    """

    def __init__(self) -> None:
        self._ahead_ms: deque[int] = deque(maxlen=_KEPT)

    def heard(self, timestamp_ms: int) -> None:
        """Note that a record has just arrived."""
        self._ahead_ms.append(now_ms() - timestamp_ms)

    @property
    def ahead_ms(self) -> int | None:
        """How far this machine's clock is ahead of the log's; negative: behind; None before the first record."""
        return min(self._ahead_ms, default=None)

    def now_ms(self) -> int:
        """The log's current time; this machine's before the first record."""
        return now_ms() - (self.ahead_ms or 0)
