"""Where a run takes place: virtual time, the logs and what is true of them, the trace."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from statechannel.protocol.bundle import partition_of
from statechannel.protocol.digest import first_count
from statechannel.protocol.log import Topic
from statechannel.sim.log import CleanerSettings, SimLog
from statechannel.sim.options import LAG_S, TOMBSTONE_S, EngineOptions
from statechannel.sim.truth import Truth

if TYPE_CHECKING:
    from statechannel.sim.trace import SimTrace

_LOG_MS = 1_700_000_000_000
NAMESPACES = ("t/one", "u/two")

Action = Callable[[], None]


class Events:
    """A queue of actions by time; those of the same time run in the order in which they were put in.

    Attributes:
        now_s: Virtual time in seconds since the start of the run.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, when_s: float, action: Action) -> None:
        """Run an action at a time; now, if the time has passed."""
        self._count += 1
        heapq.heappush(self._queue, (max(when_s, self.now_s), self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_s + delay_s, action)

    def run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] < end_s:
            self.now_s, _, action = heapq.heappop(self._queue)
            self.steps += 1
            action()
        self.now_s = end_s


class SimStage(ABC):
    """What every part of a run needs, without the processes.

    Attributes:
        faulty: The phase with faults; ends before the liveness phase.
        unused: Partitions that Kafka's topic got since the channel began; it does not use them.
    """

    def __init__(self, seed: int, options: EngineOptions, trace: SimTrace) -> None:
        self.seed = seed
        self.options = options
        self.trace = trace
        self.faulty = True
        self.events = Events()
        self.rng = Random(f"{seed}/world")
        settings = CleanerSettings(int(LAG_S * 1000), int(TOMBSTONE_S * 1000), self.rng.choice((300, 2_000, 8_000)))
        self.logs = [SimLog(Topic.CHANNEL, p, settings, options.copies) for p in range(options.partitions)]
        self.unused: list[SimLog] = []
        self.registry = SimLog(Topic.REGISTRY, 0, CleanerSettings(segment_ms=10_000))
        self.truths = [Truth(p, options.partitions) for p in range(options.partitions)]
        self.namespaces = NAMESPACES[: options.namespaces]
        self.brokers = [f"b{index}" for index in range(options.brokers)]

    @property
    def now_ms(self) -> int:
        return _LOG_MS + int(self.events.now_s * 1000)

    def log_s(self, timestamp_ms: int) -> float:
        return (timestamp_ms - _LOG_MS) / 1000

    def logs_read(self, partitions: int) -> list[SimLog]:
        """Every partition that a process reads which distributes keys over this number of them."""
        return [*(self.logs + self.unused)[:partitions], self.registry]

    def log(self, topic: Topic, partition: int) -> SimLog:
        return self.registry if topic is Topic.REGISTRY else (self.logs + self.unused)[partition]

    def add_partition(self) -> None:
        log = self.logs[0]
        self.unused.append(SimLog(Topic.CHANNEL, len(self.logs) + len(self.unused), log.settings))

    def partitions_used(self) -> int:
        """Over how many partitions a process that starts now distributes keys (`kafka.partition_count`)."""
        return first_count(self.logs[0].left()) or len(self.logs) + len(self.unused)

    def partition_of(self, namespace: str) -> int:
        return partition_of(namespace, self.options.partitions)

    def note(self, text: str) -> None:
        self.trace.add(f"{self.events.now_s:.3f} {text}")

    @abstractmethod
    def append(self, who: str, topic: Topic, partition: int, key: bytes, value: bytes | None) -> int:
        """A record reaches a log; its offset. All processes that read it are notified."""
