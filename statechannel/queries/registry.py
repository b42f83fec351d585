"""Readers of the registry, for those that do not join; Kafka's clock, and what Kafka says of the channel's topics now."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from statechannel.clocks import now_ms
from statechannel.engine.membership import Member
from statechannel.engine.proven_positions import ProvenPositions
from statechannel.errors import StateChannelError
from statechannel.kafka.admin import BoundsAsker, OffsetBounds
from statechannel.kafka.tail import PartitionTail
from statechannel.kafka.topic_policy import TopicPolicy
from statechannel.kafka.topics import TopicAdmin, differences_of, missing_topic
from statechannel.protocol.log import Topic
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import describe_topic, notify_if_slow, open_tail
from statechannel.stories.registry import Observe, Registry, RegistryFold

if TYPE_CHECKING:  # lookups need neither audit nor conditions
    from statechannel.conditions.facts import TopicFacts
    from statechannel.stories.processes import WritersHeard

_KEPT = 60


class LogClock:
    """The log's current time, estimated from records that were received as they were written.

    The least delay of the last sixty is taken as the transport delay plus the clocks' difference; of those since Kafka's clock
    was last set back.
    """

    def __init__(self) -> None:
        self._ahead_ms: deque[int] = deque(maxlen=_KEPT)
        self._last_ms = 0

    def heard(self, timestamp_ms: int) -> None:
        if timestamp_ms < self._last_ms:
            self._ahead_ms.clear()
        self._last_ms = timestamp_ms
        self._ahead_ms.append(now_ms() - timestamp_ms)

    @property
    def ahead_ms(self) -> int | None:
        """How far this machine's clock is ahead of the log's; negative: behind; None before the first record."""
        return min(self._ahead_ms, default=None)

    def now_ms(self) -> int:
        """The log's current time; this machine's before the first record."""
        return now_ms() - (self.ahead_ms or 0)


def read_registry(
    connection: Connection,
    *,
    listen: bool = True,
    observe: Observe | None = None,
    all_lost: bool = False,
    awaited: str = "",
) -> Registry:
    """Fold the heartbeats of the topic: those of the last minute if they show a live broker, else all.

    Args:
        connection: Where.
        listen: False: trust our clock, and be quick.
        observe: Called with every heartbeat of the topic; without it the last minute is enough if a broker is alive.
        all_lost: Read the whole topic, for all brokers that were lost within `membership.lost_shown_s`.
        awaited: A broker of which no time of a record proves that it is lost (`RegistryReader.read`).
    """
    with open_registry(connection, observe=observe, all_lost=all_lost) as reader:
        return reader.read(listen=listen, awaited=awaited)


@contextmanager
def open_registry(
    connection: Connection, *, observe: Observe | None = None, all_lost: bool = False
) -> Iterator[RegistryReader]:
    """The registry, for a command that reads something else before it; arguments as of `read_registry`."""
    positions = None
    if observe is not None:  # read before the channel: a client that only reads is told less of a password or of rights
        channel = describe_topic(connection, Topic.CHANNEL)
        positions = ProvenPositions(channel.topic_id, channel.partitions)
    with open_tail(connection, Topic.REGISTRY, 0) as tail:
        yield RegistryReader(connection, tail, observe, whole=all_lost or observe is not None, positions=positions)


class RegistryReader:
    """Folds the heartbeats of the topic, each once: further readings take what has come since.

    If our clock is ahead of Kafka's, every broker looks lost. So before a reading says that no broker is
    alive, the whole topic is read (an hour), and a broker that ended without a goodbye gets two intervals for a
    heartbeat; with it comes Kafka's own time. So does each broker of which no time says whether it is alive, as Kafka's clock was
    wrong (`RegistryFold.unsure`).

    Args:
        observe: Called with every heartbeat.
        positions: Given every heartbeat, too.
        whole: The whole topic, not only its last minute where that shows a live broker.
    """

    def __init__(
        self,
        connection: Connection,
        tail: PartitionTail,
        observe: Observe | None,
        *,
        whole: bool,
        positions: ProvenPositions | None = None,
    ) -> None:
        self._connection = connection
        self._tail = tail
        self._whole = whole
        membership = connection.settings.membership
        self._interval_s, self._expiry_s = membership.interval_s, membership.expiry_s
        self._as_of_ms = 0
        self._fold = RegistryFold(
            self._expiry_s,
            observe=observe,
            clock=lambda: self._as_of_ms,
            lost_shown_s=membership.lost_shown_s if whole else None,
            positions=positions,
        )
        self._read_to: int | None = None

    def read(self, *, listen: bool = True, awaited: str = "") -> Registry:
        """The members as of now.

        Args:
            listen: False: trust our clock, and be quick.
            awaited: A broker that is not called lost by the time of its last record: unless it said goodbye, or the topic has
                no heartbeat of it, its next one is awaited.
        """
        self.take()
        fold = self._fold
        if not (fold.anybody and (not awaited or fold.is_fresh(awaited))):
            if not self._whole:
                self._whole, self._read_to = True, None
                self._fold = fold = RegistryFold(self._expiry_s, clock=lambda: self._as_of_ms)
                self.take()
            if awaited and not fold.is_fresh(awaited):
                fold.doubt(awaited)
        if listen and (fold.unsure or (fold.silent and not fold.anybody)):
            self._listen(2 * self._interval_s)
        registry = fold.registry()
        if registry.future is not None:
            self._connection.reporter.note(f"note: {registry.future.sentence}", once=True)
        return registry

    def _listen(self, listen_s: float) -> None:
        """Wait for a heartbeat, of each broker that is `unsure`: the log time of what is written now is Kafka's time now."""
        fold, ends_s = self._fold, time.monotonic() + listen_s
        with self._connection.reporter.waiting("listening for heartbeats", listen_s) as tick:
            for batch in self._tail.follow(self._read_to or 0, stop=lambda: time.monotonic() > ends_s):
                tick("")
                self._as_of_ms = now_ms()
                if batch:
                    self._read_to = batch[-1].offset + 1
                if fold.hear(batch) and not fold.unsure:
                    break
        fold.listened()

    def take(self) -> None:
        """Apply what has come since the last reading, and conclude nothing of who is silent."""
        self._as_of_ms = now_ms()  # nobody is silent for the time that it takes to read an hour of heartbeats
        with notify_if_slow(self._connection):
            if self._read_to is not None:
                span = self._tail.span(start=self._read_to)
            else:
                span = self._tail.span(from_time_ms=None if self._whole else now_ms() - self._fold.window_ms)
        self._fold.take(self._tail.records(span))
        self._read_to = max(span.end, self._read_to or 0)


def live_writers(connection: Connection) -> WritersHeard:
    """What the registry shows of the processes that write to the channel; read it before the log.

    Where it cannot be read, there is a note, and the log is judged alone.
    """
    from statechannel.stories.processes import WritersHeard

    writers = WritersHeard()
    try:
        registry = read_registry(connection, listen=False, observe=writers.observe)
        writers.read_ms = now_ms()
        writers.positions_lost = positions_lost(connection, registry.positions, log_bounds(connection))
    except StateChannelError as error:
        connection.reporter.note(f"note: the registry could not be read; the log is judged alone: {error}")
        return WritersHeard()
    return writers


def log_bounds(connection: Connection) -> dict[int, OffsetBounds]:
    """First and end offset of each partition that the channel uses.

    Raises:
        KafkaAdapterError: Kafka did not answer in time, or refused to; or the topic is missing, or is another one.
    """
    channel = describe_topic(connection, Topic.CHANNEL)
    places = [(channel.name, partition) for partition in range(channel.partitions)]
    bounds = BoundsAsker(connection.client, timeout_s=connection.timeout_s).ask(places)
    return {partition: bounds[name, partition] for name, partition in places}


def positions_lost(
    connection: Connection, positions: ProvenPositions | None, bounds: Mapping[int, OffsetBounds]
) -> dict[int, int]:
    """Highest offset that brokers have read and that the log does not have, by partition; without what was restated since.

    Args:
        positions: Of the registry, read before `bounds` were asked; None: they are not known.
    """
    if positions is None:
        return {}
    lost = positions.lost({partition: each.high for partition, each in bounds.items()})
    return {
        partition: known for partition, known in sorted(lost.items()) if not _restates(connection, partition, known)
    }


def _restates(connection: Connection, partition: int, known: int) -> bool:
    """Whether a mark in the log says that it was restated or given up."""
    from statechannel.protocol.cold_start_marks import Marks

    marks = Marks()
    with open_tail(connection, Topic.CHANNEL, partition) as tail:
        for record in tail.records(tail.span()):
            marks.control_read(record)
    return marks.restates(0, known)


def topic_state(
    connection: Connection,
    others: Iterable[tuple[str, TopicPolicy]],
    alive: Mapping[str, Member],
    positions: ProvenPositions | None = None,
) -> TopicFacts:
    """The key `topics` of `status`; of Kafka nothing where it does not answer, which `doctor` reports.

    Args:
        others: Names and policies of topics beside the channel's own.
        alive: The brokers that are alive.
        positions: How far brokers had read the channel, by the registry.
    """
    from statechannel.conditions.facts import NO_TOPIC_FACTS, partitions_of

    by_number: dict[int, list[str]] = {}
    for broker, member in sorted(alive.items()):
        number = partitions_of(member)
        if number is not None:
            by_number.setdefault(number, []).append(broker)
    counts = {str(number): brokers for number, brokers in sorted(by_number.items())}
    policies = {**connection.topics.policies, **dict(others)}
    admin = TopicAdmin(connection.client, timeout_s=connection.timeout_s)
    try:
        infos = admin.describe(policies.keys())
        bounds = log_bounds(connection)
        lost = positions_lost(connection, positions, bounds)
    except StateChannelError:
        return {**NO_TOPIC_FACTS, "partition_counts": counts}
    server = connection.client.bootstrap_servers
    differences = [item for name, info in infos.items() for item in differences_of(info, policies[name], server)]
    differences += [
        missing_topic(name, policy, server) for name, policy in connection.topics.policies.items() if name not in infos
    ]
    return {
        "partition_counts": counts,
        "heads_lost": {str(partition): each.low for partition, each in bounds.items() if each.low > 0},
        "positions_lost": {str(partition): known for partition, known in lost.items()},
        "differences": [asdict(item) for item in sorted(differences, key=lambda item: not item.hard)],
    }
