"""Kafka parts of one member: writer, readers and election, with restarts of failed threads."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from statechannel.broker.inbox import InboxLane
from statechannel.broker.supervision import Restarts
from statechannel.clocks import engine_s
from statechannel.engine.inputs import Appended
from statechannel.kafka.client_settings import once_per_kind
from statechannel.kafka.election import LeaderElection, LoopProgress
from statechannel.kafka.reader import LogReader, ReaderTuning
from statechannel.kafka.writer import LogWriter
from statechannel.logger import SafeLogger
from statechannel.protocol.log import Topic
from statechannel.settings.groups_engine import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from statechannel.broker.inbox import Inbox
    from statechannel.engine.effects import Append
    from statechannel.engine.inputs import Input
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import ChannelTopics, TopicPolicy
    from statechannel.kafka.topic_watch import TopicFindings
    from statechannel.kafka.topics import TopicInfo

_log = SafeLogger(__name__)

WRITER, READER, REGISTRY_READER, ELECTION = "writer", "reader", "registry-reader", "election"
_LANES = {READER: InboxLane.LOG, REGISTRY_READER: InboxLane.MEMBERSHIP}


class KafkaParts(Protocol):
    """Port through which a host performs an engine's effects."""

    def start(
        self, inbox: Inbox, on_end: Callable[[str, str], None], last_progress_s: Callable[[], float] | None = None
    ) -> None:
        """Start to read and write; `on_end` is called, in the loop's thread, with a part that failed finally, and why.

        Args:
            last_progress_s: When the loop last made progress (monotonic); called in other threads.
        """

    def append(self, effect: Append) -> None: ...

    def restart_reading(self, topic: Topic, partition: int) -> None: ...

    def stand(self, *, stand: bool) -> None:
        """Enter or leave the election; in any thread."""

    def close(self, timeout_s: float) -> bool:
        """Resign, flush, stop; blocks. False if records remain unanswered."""

    @property
    def unanswered(self) -> int: ...

    @property
    def registered(self) -> bool:
        """Whether the newest record for the registry is known to be in the log."""


class KafkaLog:
    """Writers, readers and election on Kafka; readers and election are restarted when their threads fail.

    The registry has its own reader and writer, including their connections: however much is written to the channel, and however
    far this process falls behind, it reads the heartbeats of all members, including its own. Where a quota throttles the
    writer of the channel, Kafka delays what follows on that connection; the writer of the registry has a `client.id` of its
    own, and so a quota of its own where quotas are set for client ids.

    A failed writer is not restarted: it would be unknown which of its records are in the log.

    Args:
        infos: The topics as verified, by role.
        on_restart: Called with the name of a restarted part.
        on_availability: Called, in any thread, when the availability of Kafka changes.
        on_findings: Called with what a look at the channel's topics has found, in the reader's thread.
        policies: Of the topics that are looked at; may change, in any thread.
        progress_limit_s: A loop that halts for this time may not keep leadership; None: no limit.
        reads_only: Of an observer: no writer, and no election.
        gather_s: Longest wait of a heartbeat for others that are fetched with it, where there are many members.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topics: ChannelTopics,
        infos: Mapping[Topic, TopicInfo],
        *,
        runtime: RuntimeSettings | None = None,
        reader_tuning: ReaderTuning | None = None,
        on_restart: Callable[[str], None] | None = None,
        on_availability: Callable[[bool], None] | None = None,
        on_findings: Callable[[TopicFindings], None] | None = None,
        policies: Mapping[str, TopicPolicy] = MappingProxyType({}),
        progress_limit_s: float | None = None,
        gather_s: float = 0.0,
        broker: str = "",
        reads_only: bool = False,
    ) -> None:
        self._log = _log.bound(broker=broker)
        self._settings = settings
        self._topics = topics
        self._infos = dict(infos)
        tuning = reader_tuning or ReaderTuning()
        self._tunings = {READER: tuning, REGISTRY_READER: replace(tuning, gather_ms=round(gather_s * 1_000))}
        self._on_restart = on_restart
        self._availability = ReadersAvailability(on_availability)
        self._on_findings = on_findings
        self._policies = policies
        self._progress_limit_s = progress_limit_s
        self._progress: LoopProgress | None = None
        self._restarts = {part: Restarts(runtime or RuntimeSettings()) for part in (*_LANES, ELECTION)}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: Inbox | None = None
        self._on_end: Callable[[str, str], None] | None = None
        self._writes_by = {
            READER: settings,
            REGISTRY_READER: replace(settings, client_id=f"{settings.client_id}-registry"),
        }
        self._writers: dict[str, LogWriter] = {}
        self._readers: dict[str, LogReader] = {}
        self._election: LeaderElection | None = None
        self._candidate = False
        self._reads_only = reads_only
        self._closing = False
        self._registry_token = 0
        self._registered_token = 0

    def start(
        self, inbox: Inbox, on_end: Callable[[str, str], None], last_progress_s: Callable[[], float] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        if last_progress_s is not None and self._progress_limit_s is not None:
            self._progress = LoopProgress(last_progress_s, self._progress_limit_s)
        self._inbox, self._on_end = inbox, on_end
        self._note_closing(closes=False)
        if not self._reads_only:
            for part, settings in self._writes_by.items():
                names = self._topics.names
                self._writers[part] = LogWriter(settings, names, self._answered, on_failure=self._failed(WRITER))
            self._election = self._make_election(inbox)
        for part in _LANES:
            self._start_reader(part, inbox)

    def _start_reader(self, part: str, inbox: Inbox) -> None:
        lane = _LANES[part]
        infos = {topic: info for topic, info in self._infos.items() if _part_of(topic) == part}
        reader = LogReader(
            self._settings,
            infos,
            partial(inbox.offer, lane=lane),
            group_id=self._topics.reader_group,
            tuning=self._tunings[part],
            on_availability=lambda available: self._availability.changed(part, available=available),
            on_findings=self._on_findings if part == READER else None,
            policies=self._policies if part == READER else MappingProxyType({}),
            on_failure=self._failed(part),
            clock=engine_s,
            thread_name=f"log-{part}",
        )
        self._readers[part] = reader
        reader.start()

    def _make_election(self, inbox: Inbox) -> LeaderElection:
        topics = self._topics
        failed = self._failed(ELECTION)
        return LeaderElection(
            self._settings,
            topics.leader_topic,
            topics.leader_group,
            lambda item: inbox.push(item, InboxLane.MEMBERSHIP),
            on_failure=failed,
            progress=self._progress,
        )

    def _failed(self, part: str) -> Callable[[BaseException], None]:
        """The callback of a part's thread: pass the failure to the loop."""

        def report(error: BaseException) -> None:
            loop = self._loop
            if loop is not None and not self._closing and not loop.is_closed():
                loop.call_soon_threadsafe(self._part_failed, part, error)

        return report

    def _part_failed(self, part: str, error: BaseException) -> None:
        restarts = self._restarts.get(part)
        wait_s = None if restarts is None else restarts.failed(time.monotonic())
        if self._closing or self._loop is None or self._on_end is None:
            return
        if wait_s is None:
            self._on_end(part, f"the {part}'s thread ended with {type(error).__name__}: {error}")
            return
        self._log.error("part-failed", part=part, error=repr(error), restart_in_s=wait_s)
        if self._on_restart is not None:
            self._on_restart(part)
        self._loop.call_later(wait_s, self._revive, part)

    def _revive(self, part: str) -> None:
        inbox = self._inbox
        if self._closing or inbox is None or self._on_end is None:
            return
        try:
            if part in _LANES:
                self._start_reader(part, inbox)
            else:
                self._election = self._make_election(inbox)
                self._election.stand(self._candidate)
        except Exception as error:
            self._part_failed(part, error)

    def append(self, effect: Append) -> None:
        if effect.topic is Topic.REGISTRY:
            self._registry_token = effect.token
        writer = self._writers.get(_part_of(effect.topic))
        if writer is not None:
            writer.append(effect)

    def _answered(self, item: Input) -> None:
        """In a writer's thread."""
        if isinstance(item, Appended) and item.token == self._registry_token:
            self._registered_token = item.token
        if self._inbox is not None:
            self._inbox.push(item, InboxLane.REPORTS)

    @property
    def unanswered(self) -> int:
        return sum(writer.unanswered for writer in self._writers.values())

    @property
    def registered(self) -> bool:
        return self._registered_token == self._registry_token > 0

    def restart_reading(self, topic: Topic, partition: int) -> None:
        reader = self._readers.get(_part_of(topic))
        if reader is not None:
            reader.restart(topic, partition)

    def stand(self, *, stand: bool) -> None:
        self._candidate = stand
        if self._election is not None:
            self._election.stand(stand)

    def _note_closing(self, *, closes: bool) -> None:
        for settings in self._writes_by.values():
            once_per_kind.closing(settings.client_id, closes=closes)

    def close(self, timeout_s: float) -> bool:
        self._closing = True
        self._note_closing(closes=True)
        until_s = time.monotonic() + timeout_s
        flushed = True
        for writer in self._writers.values():
            flushed &= writer.close(max(0.1, (until_s - time.monotonic()) / 2))
        if self._election is not None:
            self._election.close(max(0.5, until_s - time.monotonic()))
        for reader in self._readers.values():
            reader.close(max(0.5, until_s - time.monotonic()))
        return flushed


def _part_of(topic: Topic) -> str:
    return REGISTRY_READER if topic is Topic.REGISTRY else READER


class ReadersAvailability:
    """Kafka is available while every reader reports it as available.

    Args:
        on_change: Called on each change, in the thread of the reader that caused it.
    """

    def __init__(self, on_change: Callable[[bool], None] | None) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._by_part: dict[str, bool] = {}
        self._available: bool | None = None

    def changed(self, part: str, *, available: bool) -> None:
        with self._lock:
            self._by_part[part] = available
            everywhere = all(self._by_part.values())
            if everywhere is not self._available:
                self._available = everywhere
                if self._on_change is not None:
                    self._on_change(everywhere)
