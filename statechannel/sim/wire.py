"""The client of one simulated process: a producer and consumers over a network with faults, and lanes of what arrives.

Legal here: an append that is written although its report was an error, one that is not, one that lands after its
report; a report that does not say where the record lies; a process that reads late, or in odd portions. Not legal:
records of one producer session out of order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Protocol

from statechannel.engine.inputs import (
    AppendFailed,
    CommandReceived,
    LeadershipChanged,
    PartitionOpened,
    PositionReached,
    delivery_report,
)
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.replica import Phase
from statechannel.sim.options import DELIVERY_TIMEOUT_S

if TYPE_CHECKING:
    from statechannel.engine.effects import Append
    from statechannel.engine.engine import Engine
    from statechannel.engine.inputs import Input
    from statechannel.sim.log import SimLog
    from statechannel.sim.stage import SimStage

_REFUSED, _LOST, _IN_FLIGHT, _LANDS_LATE, _NEW_SESSION = 0.01, 0.04, 0.5, 0.2, 0.3
_WITHOUT_OFFSET = 0.4
_PREFETCH_MAX = 40


COST_S = 0.001
"""Time that a process takes for an input while it is flooded."""
PORTION = 40


class WireProcess(Protocol):
    """What the client needs of its process."""

    name: str
    alive: bool
    paused: bool
    cut: bool
    lag_s: dict[Topic, float]

    @property
    def stage(self) -> SimStage: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def halted(self) -> bool:
        """Whether no input is taken in: what arrives waits."""
        ...

    @property
    def mono_s(self) -> float: ...

    def reaches(self, way: str, topic: Topic, partition: int) -> bool: ...

    def latency_s(self) -> float: ...

    def take(self, event: Input) -> None: ...

    def take_now(self, event: Input) -> None: ...

    def take_when_reachable(self, event: Input) -> None: ...


@dataclass(slots=True)
class _Item:
    append: Append
    session: int
    in_flight: bool
    report_lost: bool
    answered: bool = False
    landed: bool = False
    dropped: bool = False
    severed: bool = False  # held up by the connection to its own partition only


class Producer:
    def __init__(self, process: WireProcess, rng: Random) -> None:
        self._process = process
        self._events = process.stage.events
        self._rng = rng
        self._session = 1
        self._last_arrival: dict[tuple[Topic, int, int], float] = {}
        self._last_report_s = 0.0
        self._stuck: deque[_Item] = deque()
        self._open: list[_Item] = []
        self._offsets = Random(f"{process.stage.seed}/{process.name}/offsets")

    def append(self, append: Append) -> None:
        rng, events = self._rng, self._events
        faulty = self._process.stage.faulty and self._process.stage.options.lost_reports
        if faulty and rng.random() < _REFUSED:
            self._process.stage.trace.count("appends refused")
            self._report(AppendFailed(append.token, "queue full", self._session, never_written=True))
            return
        item = _Item(append, self._session, rng.random() < _IN_FLIGHT, faulty and rng.random() < _LOST)
        place = (append.topic, append.partition, self._session)
        arrival_s = max(self._last_arrival.get(place, 0.0), events.now_s + self._process.latency_s())
        if faulty and rng.random() < _LOST:
            arrival_s += rng.uniform(0.5, 2 * DELIVERY_TIMEOUT_S)
        self._last_arrival[place] = arrival_s
        self._open.append(item)
        events.at(arrival_s, lambda: self._arrive(item))
        events.after(DELIVERY_TIMEOUT_S, lambda: self._expire(item))

    def flush(self) -> None:
        """The network, or the process, is back: what was stuck goes out in order."""
        stuck, self._stuck = self._stuck, deque()
        for item in stuck:
            self._arrive(item)

    def land(self) -> bool:
        """Write what is under way now, in order; False if some of it cannot be written."""
        for item in list(self._open):
            self._arrive(item)
        return not self.unanswered

    @property
    def unanswered(self) -> int:
        """Records that are neither written nor given up."""
        return sum(not item.landed and not item.dropped for item in self._open)

    @property
    def delayed_until_s(self) -> float:
        """When the last of the records that are under way arrives; what is written from now on may have to wait behind it."""
        return max(self._last_arrival.values(), default=0.0)

    def crash(self) -> None:
        """The process is gone: of what was under way, a beginning may still land."""
        self._open = [item for item in self._open if not item.landed and not item.dropped]
        survivors = self._rng.randint(0, len(self._open))
        for item in self._open[survivors:]:
            item.dropped = True
        for item in self._open:
            item.answered = True
            item.in_flight = True
        self.flush()

    def _arrive(self, item: _Item) -> None:
        process = self._process
        if item.dropped or item.landed:
            return
        place = (item.append.topic, item.append.partition)
        item.severed = not process.cut and not process.reaches("write", *place)
        held_up = process.cut or item.severed or (process.paused and not item.in_flight)
        if held_up or any(
            other.session == item.session
            and (not other.severed or (other.append.topic, other.append.partition) == place)
            for other in self._stuck
        ):
            self._stuck.append(item)
            return
        item.landed = True
        append = item.append
        offset = process.stage.append(process.name, append.topic, append.partition, append.key, append.value)
        if item.answered:
            process.stage.trace.count("landed after the report")
            return
        if item.report_lost:
            process.stage.trace.count("reports lost")
            return
        item.answered = True
        self._report(delivery_report(append.token, self._reported(offset), item.session))

    def _reported(self, offset: int) -> int | None:
        """What the report says of the record's place: a retry that found it in the log already says nothing."""
        stage = self._process.stage
        if not stage.faulty or not stage.options.nameless_reports or self._offsets.random() >= _WITHOUT_OFFSET:
            return offset
        stage.trace.count("reports without an offset")
        return None

    def _report(self, report: Input) -> None:
        when_s = max(self._last_report_s, self._events.now_s + self._process.latency_s())
        self._last_report_s = when_s
        self._events.at(when_s, lambda: self._process.take_when_reachable(report))

    def _expire(self, item: _Item) -> None:
        self._open = [other for other in self._open if not other.answered or not (other.landed or other.dropped)]
        if item.answered or not self._process.alive:
            return
        if self._process.paused:
            self._events.after(0.5, lambda: self._expire(item))
            return
        item.answered = True
        if not item.landed and self._rng.random() >= _LANDS_LATE:
            item.dropped = True
        self._process.stage.trace.count("unknown outcomes")
        report = AppendFailed(item.append.token, "timed out", item.session, never_written=False)
        if self._rng.random() < _NEW_SESSION:
            self._session += 1
        self._process.take(report)


class Cursor:
    """The consumer of one partition.

    Attributes:
        lost: Offsets of records that it is not given.
    """

    def __init__(self, process: WireProcess, log: SimLog, rng: Random) -> None:
        self._process = process
        self._log = log
        self._rng = rng
        self._position = -1
        self.lost: frozenset[int] = frozenset()
        self._scheduled = False
        self._late = False
        self._prefetched = 0
        self._portions = Random(f"{process.stage.seed}/{process.name}/portions")

    @property
    def _place(self) -> tuple[Topic, int]:
        return self._log.topic, self._log.partition

    def open(self) -> None:
        self._position = -1
        self.notify()

    def notify(self) -> None:
        if not self._scheduled and self._process.alive:
            self._scheduled = True
            self._process.stage.events.after(self._process.latency_s(), self._fetch)

    def ask_end(self) -> None:
        """Ask the broker where the log ends: of a quiet log no fetch shows how fresh its reader's view is."""
        asked_s = self._process.mono_s
        self._process.stage.events.after(self._process.latency_s(), lambda: self._answered(asked_s, self._log.end))

    def _answered(self, asked_s: float, end: int) -> None:
        process = self._process
        if process.alive and not process.halted and process.reaches("read", *self._place) and end <= self._position:
            process.take(PositionReached(*self._place, self._position, asked_s))

    def _again(self, after_s: float) -> None:
        if not self._scheduled:
            self._scheduled = self._late = True
            self._process.stage.events.after(after_s, self._fetch)

    def woke(self) -> None:
        """The process goes on after a pause, or nothing comes late any more."""
        self._prefetched = 0
        if self._late:  # the next fetch is as far away as it was late
            self._scheduled = False
        self.notify()

    def _fetch(self) -> None:
        self._scheduled = self._late = False
        process, log = self._process, self._log
        now_s = process.stage.events.now_s
        if not process.alive or not process.reaches("read", *self._place):
            return
        if self._position < 0:
            self._position = log.first_offset
            process.take(PartitionOpened(*self._place, log.first_offset, log.end))
        for _ in range(self._rng.choice((1, 4, 30, 500))):
            if process.halted:
                self._prefetched += 1
                if self._prefetched > _PREFETCH_MAX:
                    return
            if not self._process.alive or self._position < 0:
                return
            if self._position < log.first_offset:  # deleted before it was read: the reader begins again
                self._position = log.first_offset
                process.take(PartitionOpened(*self._place, log.first_offset, log.end))
            record = self._next(self._position)
            if record is None:
                self._position = log.end
                process.take(PositionReached(*self._place, log.end, process.mono_s))
                return
            lag_s = process.lag_s.get(log.topic, 0.0)
            late_s = process.stage.log_s(record.timestamp_ms) + lag_s - now_s
            if lag_s and late_s > 0:
                process.take(PositionReached(*self._place, self._position, process.mono_s - lag_s))
                self._again(late_s)
                return
            records = self._portion(record)
            self._position = records[-1].offset + 1
            process.take(record if len(records) == 1 else RecordsRead(records))
        self.notify()

    def _next(self, position: int) -> RecordRead | None:
        record = self._log.next(position)
        while record is not None and record.offset in self.lost:
            record = self._log.next(record.offset + 1)
        return record

    def _portion(self, first: RecordRead) -> list[RecordRead]:
        """What a replay is handed at once; to a member that has caught up, one record at a time."""
        records = [first]
        if self._log.topic is not Topic.CHANNEL or self._process.halted or self._process.lag_s:
            return records
        if self._process.engine.replicas[self._log.partition].phase is Phase.READING:
            for _ in range(self._portions.choice((0, 1, 10, 100))):
                following = self._next(records[-1].offset + 1)
                if following is None:
                    break
                records.append(following)
        return records


class FloodLane(Enum):
    """What an input waits behind (`broker.inbox` has the same lanes)."""

    MEMBERSHIP = "membership"
    CALLS = "calls"
    LOG = "log"


def lane_of(event: Input) -> FloodLane:
    match event:
        case LeadershipChanged():
            return FloodLane.MEMBERSHIP
        case CommandReceived():
            return FloodLane.CALLS
        case PartitionOpened() | PositionReached() | RecordRead():
            return FloodLane.MEMBERSHIP if event.topic is Topic.REGISTRY else FloodLane.LOG
        case RecordsRead():
            return FloodLane.MEMBERSHIP if event.records[0].topic is Topic.REGISTRY else FloodLane.LOG
        case _:
            return FloodLane.LOG


class FloodLanes:
    """What waits for a process that takes time for each input; the lanes take turns."""

    def __init__(self, process: WireProcess) -> None:
        self._process = process
        self._lanes: dict[FloodLane, deque[Input]] = {lane: deque() for lane in FloodLane}
        self._turns = deque(FloodLane)
        self._is_busy = False
        self.is_open = False

    def __bool__(self) -> bool:
        return self.is_open or any(self._lanes.values())

    def put(self, event: Input) -> None:
        self._lanes[lane_of(event)].append(event)
        if not self._is_busy:
            self._turn()

    def _turn(self) -> None:
        self._is_busy = False
        lane = next((lane for lane in self._turns if self._lanes[lane]), None)
        if lane is None or not self._process.alive:
            return
        self._turns.remove(lane)
        self._turns.append(lane)
        waiting = self._lanes[lane]
        taken = [waiting.popleft() for _ in range(min(PORTION, len(waiting)))]
        self._is_busy = True
        for event in taken:
            self._process.take_now(event)
        self._process.stage.events.after(COST_S * len(taken), self._turn)
