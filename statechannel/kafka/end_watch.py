"""Watch on a partition's end offset while its reader receives nothing, to detect when the client must be replaced."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from statechannel.kafka.stall import Stall
from statechannel.kafka.topic_watch import TopicWatch

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_watch import Place

_ANSWER_S = 2.0


class EndWatch:
    """Never blocks its reader, and uses its own client: the reader's may be the stuck one.

    That client is created at the first query; a reader that receives records makes none.

    Args:
        patience_s: See `Stall`. Half of it passes before the first query and between two.
    """

    def __init__(self, settings: ClientSettings, place: Place, patience_s: float) -> None:
        self._settings = settings
        self._place = place
        self._stall = Stall(patience_s)
        self._pause_s = patience_s / 2
        self._position, self._since_s = -1, 0.0
        self._watch: TopicWatch | None = None

    def stalled(self, polled_s: float, position: int, known_end: int | None = None) -> bool:
        """Whether the client must be replaced; to be called after each poll.

        Args:
            polled_s: Reading of the reader's `PollClock`.
            position: Next offset of the reader.
            known_end: End offset of the partition before the reading began.
        """
        if position != self._position:
            self._position, self._since_s = position, polled_s
            self._stall.look(polled_s, position, known_end)
        if polled_s - self._since_s < self._pause_s:
            return False
        if self._watch is None:
            self._watch = TopicWatch(self._settings, (), interval_s=self._pause_s, timeout_s=_ANSWER_S)
        findings = self._watch.poll(time.monotonic(), {self._place: position})
        return findings is not None and self._stall.look(polled_s, position, findings.ends.get(self._place))

    def close(self) -> None:
        """Wait for the running query."""
        if self._watch is not None:
            self._watch.close()
