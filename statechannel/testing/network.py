"""The log of a test kit and the clients that read and write it: the simulator's, on the clock of an event loop.

The network belongs to no process: what was sent to a paused broker arrives, and waits there, as with a real one.
"""

from __future__ import annotations

from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING

from statechannel.broker.changes import PastReader
from statechannel.broker.inbox import InboxLane
from statechannel.engine.inputs import Appended, AppendFailed, LeadershipChanged, Now
from statechannel.kafka.tail import Span
from statechannel.operations.request_record import encode
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.sim.election import Election
from statechannel.sim.log import CleanerSettings, SimLog
from statechannel.sim.options import EngineOptions
from statechannel.sim.stage import Events, SimStage
from statechannel.sim.trace import SimTrace
from statechannel.sim.wire import Cursor, Producer
from statechannel.testing.loop import ProcessLife

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from statechannel.broker.host import Host
    from statechannel.broker.host_platform import HostPlatform
    from statechannel.broker.inbox import Inbox
    from statechannel.engine.effects import Append
    from statechannel.engine.engine import Engine
    from statechannel.engine.inputs import Input
    from statechannel.operations.request_record import Request
    from statechannel.sim.stage import Action

LATENCY_S = 0.002
"""Of each way between a broker and the log, while the log is not slow."""
POLL_S = 2.0
_SEGMENT_MS = 1_000
_TOMBSTONE_MS = 7 * 86_400_000
_REGISTRY_KEPT_MS = 3_600_000
_EPOCH_MS = 1_800_000_000_000


class LoopEvents(Events):
    """The simulator's queue of actions as timers of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._began_s = loop.time()
        self._network = copy_context()

    @property
    def now_s(self) -> float:  # type: ignore[override]
        return self._loop.time() - self._began_s

    def at(self, when_s: float, action: Action) -> None:
        self._loop.call_at(self._began_s + when_s, action, context=self._network)


class KitStage(SimStage):
    """The logs of one channel, the election, and the processes that use them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, *, partitions: int, lag_ms: int) -> None:
        super().__init__(seed, EngineOptions(partitions=partitions), SimTrace())
        self.events = LoopEvents(loop)
        self.faulty = False
        settings = CleanerSettings(lag_ms, _TOMBSTONE_MS, _SEGMENT_MS)
        self.logs = [SimLog(Topic.CHANNEL, number, settings) for number in range(partitions)]
        self.requests = SimLog(Topic.REQUESTS, 0, CleanerSettings(segment_ms=10_000))
        self.processes: list[KitProcess] = []
        self.election: Election[KitProcess] = Election(self, Random(f"{seed}/election"))
        self.delay_s = 0.0
        self.events.after(POLL_S, self._poll)

    @property
    def now_ms(self) -> int:
        return _EPOCH_MS + int(self.events.now_s * 1000)

    def log_s(self, timestamp_ms: int) -> float:
        return (timestamp_ms - _EPOCH_MS) / 1000

    def all_logs(self) -> list[SimLog]:
        return [*self.logs, self.registry, self.requests]

    def log(self, topic: Topic, partition: int) -> SimLog:
        return self.requests if topic is Topic.REQUESTS else super().log(topic, partition)

    def append(self, who: str, topic: Topic, partition: int, key: bytes, value: bytes | None) -> int:
        offset = self.log(topic, partition).append(self.now_ms, key, value)
        for process in self.processes:
            process.arrived(who, topic, partition, value)
        return offset

    def _poll(self) -> None:
        """Readers learn that there is nothing new, and retention removes what is old."""
        self.events.after(POLL_S, self._poll)
        for log in (self.registry, self.requests):
            log.expire(self.now_ms, _REGISTRY_KEPT_MS)
        for process in self.processes:
            process.poll()

    def compact(self) -> int:
        before = sum(log.cleaned for log in self.logs)
        for log in self.logs:
            log.clean_all(self.now_ms, self.rng)
        return sum(log.cleaned for log in self.logs) - before

    def past(self, partition: int, *, partitions: int, lag_s: float, platform: HostPlatform) -> PastReader:
        tail = _KitTail(self.logs[partition])
        return PastReader(tail, partition, partitions=partitions, compaction_lag_s=lag_s, platform=platform)


class _KitTail:
    """What a partition has, read at once; a `PastTail`."""

    def __init__(self, log: SimLog) -> None:
        self._log = log

    def span(self) -> Span:
        return Span(self._log.first_offset, self._log.first_offset, self._log.end)

    def records(self, span: Span) -> Iterator[RecordRead]:
        return (record for record in self._log.left() if span.start <= record.offset < span.end)

    def close(self) -> None:
        """Nothing was opened."""


class KitProcess:
    """One process at the log: what its host sees of Kafka (`KafkaParts`), and what the simulator's clients see of the process.

    Attributes:
        cut: The log and the election are out of its reach.
    """

    def __init__(self, stage: KitStage, name: str, *, observes: bool = False) -> None:
        self.stage = stage
        self.name = name
        self.life = ProcessLife()
        self.cut = False
        self.lag_s: dict[Topic, float] = {}
        self.ended = False
        self._host: Host | None = None
        self._inbox: Inbox | None = None
        self._observes = observes
        rng = Random(f"{stage.seed}/{name}")
        self._mono_s = rng.uniform(0.0, 1000.0)
        self._producer = Producer(self, rng)
        read = [log for log in stage.all_logs() if not (observes and log.topic is Topic.REQUESTS)]
        self._cursors = {(log.topic, log.partition): Cursor(self, log, rng) for log in read}
        self._registration: bytes | None = None
        self.registered = False
        self._late: list[Input] = []
        stage.processes.append(self)

    def serve(self, host: Host) -> None:
        """Be the log of this host from now on."""
        self._host = host

    @property
    def now(self) -> Now:
        now_s = self.stage.events.now_s  # asked for at each step of an engine, so once for both
        return Now(now_s + self._mono_s, _EPOCH_MS + int(now_s * 1_000))

    # --- for the simulator's clients --------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        if self._host is None:
            raise RuntimeError("a process reads nothing before it has a host")
        return self._host.engine

    @property
    def alive(self) -> bool:
        return not self.ended

    @alive.setter
    def alive(self, alive: bool) -> None:
        self.ended = not alive

    @property
    def paused(self) -> bool:
        return self.life.paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self.life.paused = paused

    @property
    def halted(self) -> bool:
        return self.life.paused

    @property
    def at_coordinator(self) -> bool:
        """Whether the election's thread reaches the group."""
        return not (self.ended or self.cut or self.life.paused)

    @property
    def halts_election(self) -> bool:
        """A loop is never stuck here without its process being paused."""
        return False

    @property
    def mono_s(self) -> float:
        """The engine's clock; it differs between processes, as in reality."""
        return self.stage.events.now_s + self._mono_s

    def reaches(self, way: str, topic: Topic, partition: int) -> bool:  # noqa: ARG002 - all ways are cut together
        return not self.cut

    def latency_s(self) -> float:
        return LATENCY_S + self.stage.delay_s

    def take(self, event: Input) -> None:
        if self.ended or self._inbox is None:
            return
        self._inbox.push(event, _lane_of(event))

    take_now = take

    def take_when_reachable(self, event: Input) -> None:
        """A report arrives, or waits for the connection."""
        if self.cut:
            self._late.append(event)
        else:
            self.take(event)

    # --- for the stage ----------------------------------------------------------------------------------------------

    def arrived(self, who: str, topic: Topic, partition: int, value: bytes | None) -> None:
        if who == self.name and topic is Topic.REGISTRY and value is self._registration:
            self.registered = True
        cursor = self._cursors.get((topic, partition))
        if cursor is not None and self._inbox is not None:
            cursor.notify()

    def poll(self) -> None:
        if self._inbox is not None and not self.ended:
            for (topic, _), cursor in self._cursors.items():
                if topic is Topic.CHANNEL or (topic is Topic.REGISTRY and self.stage.delay_s):
                    cursor.notify()

    def heal_if_reachable(self) -> None:
        """Go on after a pause."""
        if not self.cut:
            self.heal()

    def heal(self) -> None:
        self.cut = False
        if self.ended or self.life.paused:
            return
        self._producer.flush()
        late, self._late = self._late, []
        for event in late:
            self.take(event)
        self.poll()

    def end(self) -> None:
        """The process is gone: of what was under way a beginning may still be written."""
        if not self.ended:
            self.ended = True
            self._producer.crash()
            self.stage.processes.remove(self)

    # --- for the host -----------------------------------------------------------------------------------------------

    def start(
        self,
        inbox: Inbox,
        on_end: Callable[[str, str], None],  # noqa: ARG002 - no part of it fails
        last_progress_s: Callable[[], float] | None = None,  # noqa: ARG002
    ) -> None:
        self._inbox = inbox
        for cursor in self._cursors.values():
            cursor.open()

    def append(self, effect: Append) -> None:
        if self._observes:
            return
        if effect.topic is Topic.REGISTRY:
            self._registration, self.registered = effect.value, False
        self._producer.append(effect)

    def restart_reading(self, topic: Topic, partition: int) -> None:
        self._cursors[topic, partition].open()

    def stand(self, *, stand: bool) -> None:
        if not self._observes:
            self.stage.election.stand(self, stand=stand)

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002 - nothing blocks
        """What is under way is written now, if the log is in reach."""
        flushed = self._producer.land()
        self.stage.election.stand(self, stand=False)
        self.ended = True
        if self in self.stage.processes:
            self.stage.processes.remove(self)
        return flushed

    @property
    def unanswered(self) -> int:
        return self._producer.unanswered

    # --- for the api ------------------------------------------------------------------------------------------------

    def write_request(self, request: Request, answer_within_s: float) -> None:
        """Write to the requests topic, as a process that is not a broker."""
        value = encode(request, timeout_s=answer_within_s, at_ms=self.stage.now_ms)
        self.stage.append(self.name, Topic.REQUESTS, 0, request.id.encode(), value)


def _lane_of(event: Input) -> InboxLane:
    match event:
        case Appended() | AppendFailed():
            return InboxLane.REPORTS
        case LeadershipChanged():
            return InboxLane.MEMBERSHIP
        case RecordsRead():
            topic: Topic | None = event.records[0].topic
        case _:
            topic = getattr(event, "topic", None)
    return InboxLane.MEMBERSHIP if topic is Topic.REGISTRY else InboxLane.LOG
