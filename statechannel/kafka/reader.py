"""Consumer side: the log's records, in order, as inputs of the engine."""
# ruff: noqa: SLF001  (the client library's public error codes start with an underscore)

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import repeat
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from statechannel.engine.inputs import HeadLost, LeaderEpochBegan, PartitionBroken, PartitionOpened, PositionReached
from statechannel.kafka.client_settings import make_client
from statechannel.kafka.errors import describe, is_topic_missing, kafka_error_of
from statechannel.kafka.partition_consumer import LOST_POSITION, PollClock, SeenEnds, Stall, assignment, close_aside
from statechannel.kafka.topic_watch import TopicWatch
from statechannel.protocol.log import RecordRead, RecordsRead, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from statechannel.engine.inputs import Input
    from statechannel.kafka.admin import Place
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import TopicPolicy
    from statechannel.kafka.topic_watch import TopicFindings
    from statechannel.kafka.topics import TopicInfo

_log = logging.getLogger(__name__)

_WATERMARKS_S = 1.0
_ENDS_EVERY_S = 0.05
_GATHERED_FROM, _SINGLY_BELOW = 30.0, 15.0
"""Records a second; below the first, a fetch for each is cheap, and none waits."""
_LOG_TIME = itemgetter(1)
_as_record = partial(tuple.__new__, RecordRead)  # a third of the price of the named tuple's own constructor


def _records(batch: Sequence[Message], topic: Topic, partition: int) -> Iterator[RecordRead]:
    """Records of one partition. The hot path of a replay: no line of Python runs for a single record."""
    rows = zip(
        repeat(topic),
        repeat(partition),
        map(Message.offset, batch),
        map(_LOG_TIME, map(Message.timestamp, batch)),
        map(Message.key, batch),
        map(Message.value, batch),
        strict=False,
    )
    return map(_as_record, rows)


def _convert(batch: list[Message], roles: Mapping[str, Topic]) -> tuple[str, int, list[RecordRead], int] | None:
    """Records of fetched messages, with their topic and partition, and the bytes of their values.

    Returns:
        None if they are of several partitions, or if there is an event among them.
    """
    names, numbers = set(map(Message.topic, batch)), set(map(Message.partition, batch))
    if len(names) != 1 or len(numbers) != 1 or any(map(Message.error, batch)):
        return None
    name, number = names.pop(), numbers.pop()
    records = list(_records(batch, roles[name], number))  # type: ignore[index, arg-type]  # a record has them all
    return name, number, records, sum(map(len, batch))  # type: ignore[return-value]


try:  # the optional package of the folder `accelerator`
    from statechannel_accelerator import convert
except ImportError:
    convert = _convert


class _State(Enum):
    CLOSED = auto()  # to be opened, from its beginning
    OPEN = auto()
    DOUBTED = auto()  # the broker does not know the topic: is it still the same?
    LOST = auto()  # the broker refused the position: the same question first
    BROKEN = auto()  # reported; only `restart` opens it again


class Pace:
    """Whether records come one by one and too fast to fetch each at once.

    Each fetch costs a tenth of a millisecond, in three threads; of a thousand brokers one writes a heartbeat every millisecond.

    Attributes:
        gathers: Records should wait for each other.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._count = 0
        self.gathers = False

    def count(self, records: int) -> None:
        """Count the records of a delivery; full ones, as in a replay, do not count."""
        self._count += records

    def review(self, now_s: float) -> bool:
        """Whether `gathers` changed, by the records since the last review."""
        rate = self._count / max(1.0, now_s - self._since_s)
        self._since_s, self._count = now_s, 0
        before, self.gathers = self.gathers, rate >= (_SINGLY_BELOW if self.gathers else _GATHERED_FROM)
        return self.gathers is not before


@dataclass(slots=True)
class _Partition:
    topic: Topic
    name: str
    number: int
    stall: Stall
    state: _State = _State.CLOSED
    position: int = 0
    leader_epoch: int = -1
    detail: str = ""
    doubted_s: float = 0.0
    missing_s: float | None = None
    ends: SeenEnds = field(default_factory=lambda: SeenEnds(0.0))

    @property
    def place(self) -> Place:
        return (self.name, self.number)

    @property
    def assignment(self) -> TopicPartition:
        return assignment(self.place, self.position, self.leader_epoch)


@dataclass(frozen=True, slots=True)
class ReaderTuning:
    """Bounds of the reader.

    Attributes:
        batch_records: Maximum number of records in one delivery; more do not fit into a core's cache.
        portion_bytes: Records of the channel or the registry that are delivered together are one `RecordsRead`, one step of
            the engine. Larger ones come one by one: a step must not last.
        poll_s: How long a quiet reader sleeps before it looks at restarts and the watch.
        watch_s: Time between two checks whether the topics are still the same.
        watch_timeout_s: Time without an answer after which Kafka counts as unavailable.
        gather_ms: While many records come one by one, of many writers, the pause between two fetches; 0: none.
        quiet_s: A partition that has not been known to be complete for this time is asked for its end; None: only every
            `watch_s`, as a broker reads its own heartbeats.
    """

    batch_records: int = 500
    portion_bytes: int = 1_000_000
    poll_s: float = 0.1
    watch_s: float = 5.0
    watch_timeout_s: float = 3.0
    gather_ms: int = 0
    quiet_s: float | None = None


class LogReader:
    """Reads partitions from their beginning, then follows them, in its own thread.

    For each partition it delivers `PartitionOpened`, then its records by offset.
    `PositionReached` comes whenever the end is reached: it speaks of positions, so that gaps that
    compaction left, also at the end, do not block. Outages are bridged; reading resumes where it
    stopped. `PartitionBroken` ends a partition.

    Args:
        topics: What to read, as the cluster described it; all partitions of each.
        sink: Takes the inputs, in the reader's thread. While it blocks nothing is fetched beyond
            `kafka.fetch_queue_kib`: that is the back-pressure.
        group_id: librdkafka wants one; nothing is ever committed to it.
        on_availability: Called with True or False, in the reader's thread, on each change.
        on_findings: Called with what each look at the topics has found, in the reader's thread.
        policies: Of topics that are looked at, too (see `TopicWatch`).
        on_failure: Called once from the reader's thread if it ends by an exception.
        clock: Seconds, for `PositionReached.as_of_s`.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topics: Mapping[Topic, TopicInfo],
        sink: Callable[[list[Input]], None],
        *,
        group_id: str,
        tuning: ReaderTuning | None = None,
        on_availability: Callable[[bool], None] | None = None,
        on_findings: Callable[[TopicFindings], None] | None = None,
        policies: Mapping[str, TopicPolicy] = MappingProxyType({}),
        on_failure: Callable[[BaseException], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        thread_name: str = "log-reader",
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._looked_s = 0.0
        self._hurried_s = 0.0
        self._polls = PollClock()
        self._sink = sink
        self._tuning = tuning or ReaderTuning()
        self._on_availability = on_availability
        self._on_findings = on_findings
        self._first_offsets: dict[Place, int] = {}
        self._on_failure = on_failure
        self._available: bool | None = None
        self._unanswered_since_s: float | None = None
        self._roles = {info.name: topic for topic, info in topics.items()}
        self._partitions = {
            (info.name, number): _Partition(topic, info.name, number, Stall(settings.tuning.stall_timeout_s))
            for topic, info in topics.items()
            for number in range(info.partitions)
        }
        self._names = {topic: info.name for topic, info in topics.items()}
        self._restarts: deque[Place] = deque()
        self._stopping = threading.Event()
        self._group_id = group_id
        self._pace = Pace(time.monotonic())
        self._consumer = self._make_consumer()
        self._watch = TopicWatch(
            settings,
            topics.values(),
            interval_s=self._tuning.watch_s,
            timeout_s=self._tuning.watch_timeout_s,
            compacted={info.name for topic, info in topics.items() if topic is Topic.CHANNEL},
            policies=policies,
        )
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def restart(self, topic: Topic, partition: int) -> None:
        """Read a partition again from its beginning: `PartitionOpened` follows."""
        place = (self._names[topic], partition)
        if place not in self._partitions:
            raise ValueError(f"{place[0]} has no partition {partition}")
        self._restarts.append(place)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Stop reading; False if the thread did not end in time (the sink blocks).

        After True no input arrives any more.
        """
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _make_consumer(self) -> Consumer:
        gather_ms = self._tuning.gather_ms if self._pace.gathers else 0
        config = {**self._settings.consumer_config(self._group_id, gather_ms), "error_cb": self._on_error}
        return make_client(Consumer, config, self._settings, "making the consumer")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except BaseException as error:  # the thread's end must not pass unseen
            _log.exception("the log reader's thread ended")
            if self._on_failure is None:
                raise
            self._on_failure(error)
        finally:
            self._consumer.close()
            self._watch.close()

    def _step(self) -> None:
        while self._restarts:
            self._leave(self._partitions[self._restarts.popleft()], _State.CLOSED)
        for partition in self._partitions.values():
            if partition.state is _State.CLOSED:
                self._open(partition)
        now_s = time.monotonic()
        if self._tuning.quiet_s is not None and now_s - self._hurried_s >= self._tuning.quiet_s:
            self._ask_if_quiet(now_s, self._tuning.quiet_s)
        if self._watch.due(now_s):  # seldom: this lies between a record's arrival and the next one's
            self._look_around(now_s)
        self._look_at_ends()
        first = self._polls.poll(self._consumer, self._tuning.poll_s)
        if first is not None:
            more = self._consumer.consume(self._tuning.batch_records - 1, 0)
            self._deliver([first, *more])

    def _ask_if_quiet(self, now_s: float, quiet_s: float) -> None:
        """Nothing comes: either the log is quiet, or Kafka cannot be reached. Its answer shows which."""
        quiet_since_s = self._clock() - quiet_s
        opened = [p.ends.newest_s for p in self._partitions.values() if p.state is _State.OPEN]
        if any(newest_s is None or newest_s < quiet_since_s for newest_s in opened):
            self._hurried_s = now_s
            self._watch.hurry()

    def _look_at_ends(self) -> None:
        """Often enough that `as_of_s` is not much older than it could be, also where nothing comes."""
        now_s = self._clock()
        if now_s - self._looked_s >= _ENDS_EVERY_S:
            self._looked_s = now_s
            for partition in self._partitions.values():
                if partition.state is _State.OPEN:
                    partition.ends.look(now_s, self._cached_end(partition.place))

    def _cached_end(self, place: Place) -> int:
        """Where a partition ended in the broker's last answer; below 0 before the first."""
        _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
        return int(high)

    # --- opening and leaving -------------------------------------------------------------------

    def _watermarks(self, partition: _Partition) -> tuple[int, int] | None:
        """First and next offset, from the broker; None when it does not answer."""
        place = TopicPartition(partition.name, partition.number)
        try:
            watermarks = self._consumer.get_watermark_offsets(place, timeout=_WATERMARKS_S)
        except KafkaException as error:
            if is_topic_missing(error):
                self._miss(partition)
                return None
            watermarks = None
            cause = kafka_error_of(error)
            if (
                cause is not None and cause.code() > 0
            ):  # a broker's own answer, such as that a new topic has no leader yet
                self._unanswered_since_s = None
            elif self._unanswered_since_s is None:
                self._unanswered_since_s = time.monotonic()
        partition.missing_s = None
        if watermarks is not None:
            self._unanswered_since_s = None
            self._set_available(available=True)
        elif self._unanswered_since_s is not None:
            # One call without an answer is no outage: a client that has just connected may not know the partition yet.
            if time.monotonic() - self._unanswered_since_s >= self._tuning.watch_timeout_s:
                self._set_available(available=False)
        if watermarks is None:
            self._stopping.wait(self._tuning.poll_s)
        return watermarks

    def _miss(self, partition: _Partition) -> None:
        """A broker does not know the topic: it may not know it yet, so the first such answer does not count."""
        now_s, self._unanswered_since_s = time.monotonic(), None  # an answer all the same
        partition.missing_s = now_s if partition.missing_s is None else partition.missing_s
        if now_s - partition.missing_s >= self._settings.tuning.topic_grace_s:
            partition.missing_s = None
            self._break(partition, f"topic {partition.name} does not exist")
        else:
            self._stopping.wait(self._tuning.poll_s)

    def _open(self, partition: _Partition) -> None:
        asked_s = self._clock()
        marks = self._watermarks(partition)
        if marks is None:
            return
        low, high = marks
        partition.ends = SeenEnds(asked_s)
        partition.ends.look(asked_s, high)
        inputs: list[Input] = [PartitionOpened(partition.topic, partition.number, low, high)]
        if low == high:
            inputs.append(self._position(partition, high))
        partition.state, partition.position, partition.leader_epoch = _State.OPEN, low, -1
        self._consumer.incremental_assign([partition.assignment])
        self._sink(inputs)
        self._watch.hurry()

    def _leave(self, partition: _Partition, state: _State) -> None:
        """Stop fetching; what was fetched already is dropped by the library."""
        if partition.state is _State.OPEN:
            self._consumer.incremental_unassign([TopicPartition(*partition.place)])
        partition.state = state

    def _break(self, partition: _Partition, detail: str) -> None:
        self._unanswered_since_s = None  # it is not asked any more, and others begin to count by themselves
        self._leave(partition, _State.BROKEN)
        self._sink([PartitionBroken(partition.topic, partition.number, detail)])

    # --- delivering ----------------------------------------------------------------------------

    def _deliver(self, batch: list[Message]) -> None:
        """Convert fetched messages into inputs; in a replay nearly every batch is of one partition and without events."""
        inputs: list[Input] = []
        ends: dict[Place, int] = {}
        converted = convert(batch, self._roles)
        if converted is not None:
            name, number, records, size_bytes = converted
            inputs += self._leaders(self._partitions[name, number], batch)
            bulk = (
                self._roles[name] is not Topic.REQUESTS
                and len(records) > 1
                and size_bytes <= self._tuning.portion_bytes
            )
            inputs += [RecordsRead(records, size_bytes)] if bulk else records
            ends[name, number] = records[-1].offset
        else:
            self._sort_out(batch, inputs, ends)
        drained = len(batch) < self._tuning.batch_records
        if drained:
            self._pace.count(len(batch))
        for place, last in ends.items():
            self._reached(place, last + 1, inputs, drained=drained)
        if inputs:
            self._set_available(available=True)
            self._sink(inputs)

    @staticmethod
    def _leaders(partition: _Partition, batch: Sequence[Message]) -> Iterator[LeaderEpochBegan]:
        """Note which leader took the last record; with its epoch Kafka tells whether what was read is still there."""
        if batch[-1].leader_epoch() in (None, partition.leader_epoch):
            return
        for message in batch:
            epoch, offset = message.leader_epoch(), message.offset()
            if epoch is not None and offset is not None and epoch != partition.leader_epoch:
                partition.leader_epoch = epoch
                if partition.topic is Topic.CHANNEL:
                    yield LeaderEpochBegan(partition.number, offset, epoch)

    def _sort_out(self, batch: Sequence[Message], inputs: list[Input], ends: dict[Place, int]) -> None:
        """Records of several partitions, and events among them, one by one."""
        for message in batch:
            if message.error() is not None:
                self._take_event(message, inputs)
                continue
            name, number = message.topic(), message.partition()
            inputs += self._leaders(self._partitions[name, number], (message,))  # type: ignore[index]
            ends[name, number] = message.offset()  # type: ignore[index, assignment]  # a record has them all
            inputs += _records((message,), self._roles[name], number)  # type: ignore[index, arg-type]

    def _reached(self, place: Place, position: int, inputs: list[Input], *, drained: bool) -> None:
        """Note the position; say so at the end of the log, and where it is as of a later moment than the last one.

        The library's own end-of-partition event comes with the next fetch, half a second late.
        """
        partition = self._partitions[place]
        partition.position = max(partition.position, position)
        now_s = self._clock()  # before the end is read: an end that comes meanwhile must not seem older than it is
        end, before_s = self._cached_end(place), partition.ends.newest_s
        partition.ends.look(now_s, end)
        reached = self._position(partition, position)
        if (drained and end == position) or reached.as_of_s != before_s:
            inputs.append(reached)

    @staticmethod
    def _position(partition: _Partition, position: int) -> PositionReached:
        return PositionReached(partition.topic, partition.number, position, partition.ends.as_of_s(position))

    def _take_event(self, message: Message, inputs: list[Input]) -> None:
        error = message.error()
        place = (message.topic() or "", message.partition() or 0)
        partition = self._partitions.get(place)
        if error is None or partition is None or partition.state is not _State.OPEN:
            return
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            partition.position = message.offset() or 0
            partition.ends.look(self._clock(), self._cached_end(place))
            inputs.append(self._position(partition, partition.position))
        elif code in LOST_POSITION:
            self._doubt(partition, _State.LOST, describe(error))
        elif is_topic_missing(error):
            self._doubt(partition, _State.DOUBTED, describe(error))
        else:
            _log.warning("reading %s-%d: %s", *place, describe(error, self._settings.secrets()))

    # --- the surroundings ----------------------------------------------------------------------

    def _look_around(self, now_s: float) -> None:
        """Whether Kafka answers, and whether the topics are still the opened ones."""
        positions = {
            p.place: p.position
            for p in self._partitions.values()
            if p.state in (_State.OPEN, _State.DOUBTED, _State.LOST)
        }
        findings = self._watch.poll(now_s, positions)
        if findings is None:
            return
        self._set_available(available=findings.answered)
        if self._on_findings is not None:
            self._on_findings(findings)
        for (name, number), first_offset in findings.first_offsets.items():
            if self._first_offsets.get((name, number)) != first_offset:
                self._first_offsets[name, number] = first_offset
                self._sink([HeadLost(number, first_offset)])
        if self._tuning.gather_ms and findings.answered and self._pace.review(now_s):
            self._renew_consumer(())
        self._confirm_ends(findings)
        for place in positions:
            partition = self._partitions[place]
            if place in findings.broken:
                self._break(partition, findings.broken[place])
            elif partition.state is not _State.OPEN and findings.clears(place, partition.doubted_s):
                self._end_doubt(partition)
        stalled = [p for p in self._partitions.values() if p.state is _State.OPEN and self._is_stalled(p, findings)]
        if stalled:
            self._renew_consumer(stalled)

    def _confirm_ends(self, findings: TopicFindings) -> None:
        asked_s = self._clock() - (time.monotonic() - findings.asked_s)
        inputs: list[Input] = []
        for place, end in findings.ends.items():
            partition = self._partitions[place]
            if partition.state is _State.OPEN and partition.ends.confirm(asked_s, end, partition.position):
                inputs.append(self._position(partition, partition.position))
        if inputs:
            self._sink(inputs)

    def _is_stalled(self, partition: _Partition, findings: TopicFindings) -> bool:
        return partition.stall.look(self._polls.polled_s, partition.position, findings.ends.get(partition.place))

    def _renew_consumer(self, stalled: Sequence[_Partition]) -> None:
        """Continue with another consumer, if nothing arrives or at another pace; delivered records are not fetched again."""
        for partition in stalled:
            _log.warning(
                "%s-%d: nothing arrives from offset %d on although the log goes on: recreating the consumer",
                *partition.place,
                partition.position,
            )
        replaced, self._consumer = self._consumer, self._make_consumer()
        read = [p.assignment for p in self._partitions.values() if p.state is _State.OPEN]
        self._consumer.incremental_assign(read)
        close_aside(replaced)

    def _doubt(self, partition: _Partition, state: _State, detail: str) -> None:
        """Deliver no more records until the watch has checked that it is still the same topic."""
        self._leave(partition, state)
        partition.detail, partition.doubted_s = detail, time.monotonic()
        self._watch.hurry()

    def _end_doubt(self, partition: _Partition) -> None:
        """It is the same topic, and it does not end before the position."""
        if partition.state is _State.DOUBTED:
            partition.state = _State.OPEN
            self._consumer.incremental_assign([partition.assignment])
            return
        marks = self._watermarks(partition)
        if marks is None:
            return
        if marks[0] <= partition.position:  # no record was deleted before it was read: others lie there now
            self._break(partition, f"{partition.name}-{partition.number} was truncated: {partition.detail}")
        else:  # retention deleted records before they were read: start over
            partition.state = _State.CLOSED

    def _on_error(self, error: KafkaError) -> None:
        """Errors wait in a queue and may be old: the watch has the current state."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._watch.hurry()

    def _set_available(self, *, available: bool) -> None:
        if available is self._available:
            return
        self._available = available
        if self._on_availability is not None:
            self._on_availability(available)
