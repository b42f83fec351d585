"""Asks Kafka where one partition ends while its reader gets nothing, and says when the reader's client is to be replaced."""

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
    """Never blocks its reader, and asks by a client of its own: the reader's may be the one that fell silent.

    That client is made at the first question; whose records come at once asks none.

    Args:
        patience_s: See `Stall`. Half of it passes in vain before the first question and between two of them.
    """

    def __init__(self, settings: ClientSettings, place: Place, patience_s: float) -> None:
        self._settings = settings
        self._place = place
        self._stall = Stall(patience_s)
        self._pause_s = patience_s / 2
        self._position, self._since_s = -1, 0.0
        self._watch: TopicWatch | None = None

    def stalled(self, polled_s: float, position: int, known_end: int | None = None) -> bool:
        """Whether the client is to be replaced; to be asked after each poll.

        Args:
            polled_s: What the reader's `PollClock` shows.
            position: Next offset of the reader.
            known_end: Where the partition ended when Kafka said it before the reading began.
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
        """Wait for the question under way."""
        if self._watch is not None:
            self._watch.close()
