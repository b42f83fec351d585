"""Kafka's clock beside ours: from records whose coming was waited for."""

from __future__ import annotations

from collections import deque

from statechannel.cli.kit.live_log import now_ms

_KEPT = 60


class LogClock:
    """What the log's time is now, as far as records tell that were read the moment they came.

    The least delay of the last sixty of them is taken for the way from Kafka to here and the clocks' difference together.
    """

    def __init__(self) -> None:
        self._ahead_ms: deque[int] = deque(maxlen=_KEPT)

    def heard(self, timestamp_ms: int) -> None:
        """A record came just now."""
        self._ahead_ms.append(now_ms() - timestamp_ms)

    @property
    def ahead_ms(self) -> int | None:
        """By how much our clock is ahead of the log's, negative: behind; None while nothing was heard."""
        return min(self._ahead_ms, default=None)

    def now_ms(self) -> int:
        """The log's time now; ours while nothing was heard."""
        return now_ms() - (self.ahead_ms or 0)
