"""Looks a topic up again and again in one broker, and notes how long an answer took and who was named when."""

import asyncio
import time
from typing import Any

from statechannel.api import Owned, StateChannel

PAUSE_S = 0.001
ANSWER_S = 10.0


class LookupWatch:
    """Runs until `end`."""

    def __init__(self, channel: StateChannel, topic: str) -> None:
        self._channel = channel
        self._topic = topic
        self._longest_ns = 0
        self._answers = 0
        self._unanswered = 0
        self._first_ns: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        self._running = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._running:
            began_ns = time.monotonic_ns()
            answer = await self._channel.lookup(self._topic, ANSWER_S)
            now_ns = time.monotonic_ns()
            self._longest_ns = max(self._longest_ns, now_ns - began_ns)
            self._answers += 1
            if isinstance(answer, Owned):
                self._first_ns.setdefault(answer.broker, now_ns)
                self._last_ns[answer.broker] = now_ns
            else:
                self._unanswered += 1
            await asyncio.sleep(PAUSE_S)

    async def end(self) -> dict[str, Any]:
        """What was seen; times by broker are those of the first and the last answer that named it (CLOCK_MONOTONIC)."""
        self._running = False
        await self._task
        return {
            "longest_ms": self._longest_ns / 1e6,
            "answers": self._answers,
            "unanswered": self._unanswered,
            "first_ns": self._first_ns,
            "last_ns": self._last_ns,
        }
