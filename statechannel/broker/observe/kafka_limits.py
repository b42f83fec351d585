"""Kafka's limits as a member meets them: throttling by quotas and refused records as events, metrics, and for heartbeats."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from statechannel import clocks
from statechannel.conditions.kinds import LATELY_MS
from statechannel.engine.inputs import KafkaLimited
from statechannel.engine.kafka_limits import QUOTAS, RefusedRecords, ThrottledClient
from statechannel.protocol.bounded import remember

if TYPE_CHECKING:
    from collections.abc import Callable

    from statechannel.broker.observe.metrics import Metrics
    from statechannel.engine.kafka_limits import AppendRefusal, ClientKind
    from statechannel.kafka.client_settings import ClientNotes

WINDOW_S = 10.0
NOTABLE_S = 1.0
"""Throttling of a smaller part of the window is only counted: quotas of a shared cluster delay single requests all the time."""
SAID_AGAIN_S = 60.0
_REFUSALS_MAX = 16


class _Throttling:
    """Intervals during which Kafka delays the requests of one client, within the window."""

    def __init__(self) -> None:
        self.intervals: deque[tuple[float, float]] = deque()
        self.since_ms: int | None = None
        self.said_s = float("-inf")

    def add(self, begin_s: float, end_s: float) -> float:
        """Note an interval; by how much all of them together grow."""
        if self.intervals:
            begin_s = max(begin_s, self.intervals[-1][1])
        if end_s > begin_s:
            self.intervals.append((begin_s, end_s))
        return max(0.0, end_s - begin_s)

    def recent_s(self, now_s: float) -> float:
        while self.intervals and self.intervals[0][1] <= now_s - WINDOW_S:
            self.intervals.popleft()
        return sum(min(end_s, now_s) - max(begin_s, now_s - WINDOW_S) for begin_s, end_s in self.intervals)


class _Refused:
    """Refusals with one topic and code."""

    def __init__(self, records: RefusedRecords) -> None:
        self.records = records
        self.said_s = float("-inf")


class KafkaLimits:
    """Turns what the clients note into events, metrics, and inputs for the engine. In the loop's thread.

    Args:
        feed: Takes inputs of the engine.
    """

    def __init__(
        self,
        notes: ClientNotes,
        metrics: Metrics,
        feed: Callable[[KafkaLimited], None],
        *,
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notes = notes
        self._metrics = metrics
        self._feed = feed
        self._mono_s = mono_s
        self._throttling: dict[tuple[str, ClientKind], _Throttling] = {}
        self._refused: dict[tuple[str, str], _Refused] = {}
        self._fed = KafkaLimited(None, None)

    def look(self) -> None:
        """Take in what was noted since; called about once a second."""
        now_s, now_ms = self._mono_s(), clocks.now_ms()
        while self._notes.throttles:
            client, kind, at_s, throttle_s = self._notes.throttles.popleft()
            more_s = self._throttling.setdefault((client, kind), _Throttling()).add(at_s, at_s + throttle_s)
            self._metrics.counted("kafka_throttle_seconds", kind.value, by=more_s)
        while self._notes.refusals:
            self._note(self._notes.refusals.popleft(), now_s, now_ms)
        limited = KafkaLimited(self._worst(now_s, now_ms), self._newest(now_ms))
        if limited != self._fed:
            self._fed = limited
            self._feed(limited)

    def _worst(self, now_s: float, now_ms: int) -> ThrottledClient | None:
        worst: ThrottledClient | None = None
        for (client, kind), throttling in list(self._throttling.items()):
            recent_s = throttling.recent_s(now_s)
            if recent_s >= NOTABLE_S and throttling.since_ms is None:
                throttling.since_ms = now_ms
            if throttling.since_ms is not None:
                self._say(client, kind, throttling, now_s, recent_s)
            if not throttling.intervals:
                del self._throttling[client, kind]
            elif throttling.since_ms is not None:
                throttled_ms, window_ms = round(recent_s * 1_000), round(WINDOW_S * 1_000)
                throttled = ThrottledClient(client, kind, throttled_ms, window_ms, throttling.since_ms, now_ms)
                worst = throttled if worst is None or throttled_ms > worst.throttled_ms else worst
        return worst

    def _say(self, client: str, kind: ClientKind, throttling: _Throttling, now_s: float, recent_s: float) -> None:
        if not throttling.intervals:
            self._metrics.log.emit("kafka.unthrottled", client=client, kind=kind)
        elif recent_s >= NOTABLE_S and now_s - throttling.said_s >= SAID_AGAIN_S:
            throttling.said_s = now_s
            seconds = round(recent_s, 1)
            self._metrics.log.emit(
                "kafka.throttled", client=client, kind=kind, seconds=seconds, limit_s=WINDOW_S, why=QUOTAS[kind]
            )

    def _note(self, refusal: AppendRefusal, now_s: float, now_ms: int) -> None:
        kind = refusal.topic, refusal.code
        refused = self._refused.pop(kind, None) or _Refused(RefusedRecords(refusal, 0, now_ms, now_ms))
        times = refused.records.times + 1
        refused.records = RefusedRecords(refusal, times, refused.records.since_ms, now_ms)
        remember(self._refused, kind, refused, _REFUSALS_MAX)
        if now_s - refused.said_s >= SAID_AGAIN_S:
            refused.said_s = now_s
            self._metrics.log.emit(
                "append.refused", topic=refusal.topic, code=refusal.code, why=refusal.message, count=times
            )

    def _newest(self, now_ms: int) -> RefusedRecords | None:
        for kind, refused in list(self._refused.items()):
            if now_ms - refused.records.at_ms > LATELY_MS:
                del self._refused[kind]
        return next((refused.records for refused in reversed(self._refused.values())), None)
