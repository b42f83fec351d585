"""What a leader asks the topic of decisions: how the one before it decided, and what was moved in a drain before it led."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from shedders.live.decision_topic import DecisionTopics, newest_decision
from shedders.live.drain_past import moved_before

if TYPE_CHECKING:
    from shedders.live.decision_recall import RecallBounds
    from shedders.live.decision_record import DecisionRecord
    from statechannel.api import StateChannel


class LookingBack:
    """Reads in a thread, so that the loop is free meanwhile.

    Args:
        bounds: How far back and how much is read.
        now_s: Monotonic.
    """

    def __init__(self, channel: StateChannel, bounds: Callable[[], RecallBounds], now_s: Callable[[], float]) -> None:
        self._client, topics = channel.access
        self._topics = DecisionTopics(topics.channel)
        self._timeout_s = channel.settings.kafka.command_timeout_s
        self._bounds = bounds
        self._now_s = now_s

    async def newest(self) -> DecisionRecord | None:
        """The newest decision of a cycle; None if there is none within the bounds."""
        return await asyncio.to_thread(newest_decision, self._client, self._topics, self._timeout_s, self._bounds())

    async def moved(self, drain: str, broker: str, own: Collection[str]) -> Collection[str] | None:
        """Bundles that other leaders of a drain moved (`drain_past.moved_before`); None: nobody knows."""
        return await asyncio.to_thread(
            moved_before,
            self._client,
            self._topics,
            drain,
            broker,
            own,
            self._bounds(),
            self._timeout_s,
            self._now_s,
        )
