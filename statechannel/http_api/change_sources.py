"""Further topics of the stream `/v1/changes`: packages bring them by entry points, as they bring paths."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from statechannel.errors import StateChannelError
from statechannel.kafka.client_settings import to_client, to_topics
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.tail import PartitionTail, channel_tail
from statechannel.logger import SafeLogger
from statechannel.protocol.log import RecordRead, Topic
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import heartbeats

if TYPE_CHECKING:
    from statechannel.kafka.tail import Span
    from statechannel.settings import Settings


_log = SafeLogger(__name__)

GROUP: Final = "statechannel.change_sources"
"""Entry points of sources: a function that takes the settings and returns a `ChangeSource`."""
_RESUME_S: Final = 1.0
_PORTION: Final = 500
_CLOSE_S: Final = 5.0

Fold = Callable[["RecordRead"], Mapping[str, Any] | None]


class ChangeSource(NamedTuple):
    """A topic of one partition whose records are events of the stream.

    Attributes:
        name: Of the events, and of the position in their ids; lower-case letters.
        open_tail: Opens a reader of the topic.
        fold: Makes a function that takes the records in order and returns the document of each that is an event.
        lead_in_max: Records before the first one wanted that the fold is given, so that it knows what changed.
    """

    name: str
    open_tail: Callable[[], PartitionTail]
    fold: Callable[[], Fold]
    lead_in_max: int = 0


class SourceEvent(NamedTuple):
    """What a source says of one record; of a gap `data` has its bounds, and `offset` is the last one that is missing."""

    source: str
    offset: int
    data: bytes
    is_gap: bool = False


def installed_sources(settings: Settings) -> list[ChangeSource]:
    """Sources of installed packages, by the name of their entry points."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return [point.load()(settings) for point in points]


def source_gap(source: str, first: int, following: int) -> SourceEvent:
    """The event for records that retention has removed."""
    message = f"retention has removed the records {first} to {following - 1}"
    data = {"source": source, "first_offset": first, "next_offset": following, "message": message}
    return SourceEvent(source, following - 1, orjson.dumps(data), is_gap=True)


def _start(source: ChangeSource, span: Span, since: int) -> tuple[int, SourceEvent | None]:
    """Where reading begins, and the gap before it."""
    gap = source_gap(source.name, since, span.low) if since < span.low else None
    return max(span.low, since - source.lead_in_max), gap


def _events_of(source: ChangeSource, fold: Fold, records: Iterable[RecordRead], since: int) -> Iterator[SourceEvent]:
    for record in records:
        document = fold(record)
        if document is not None and record.offset >= since:
            yield SourceEvent(source.name, record.offset, orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))


async def past_of(source: ChangeSource, since: int, until: int) -> AsyncGenerator[Sequence[SourceEvent], None]:
    """Events of the offsets `since <= offset < until`, in portions, read in a thread."""
    tail = await asyncio.to_thread(source.open_tail)
    try:
        span = await asyncio.to_thread(tail.span)
        start, gap = _start(source, span, since)
        if gap is not None:
            yield [gap]
        records = tail.records(replace(span, start=start, end=min(span.end, until)))
        events = _events_of(source, source.fold(), records, since)
        while portion := await asyncio.to_thread(lambda: list(islice(events, _PORTION))):
            yield portion
    finally:
        await asyncio.to_thread(tail.close)


class TailThread(ABC):
    """A thread that reads a topic until it is closed, again after each failure; it calls back in the loop that started it.

    Args:
        name: Of the topic, for logs.
    """

    def __init__(self, name: str, open_tail: Callable[[], PartitionTail]) -> None:
        self._name, self._open_tail = name, open_tail
        self._ends = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._follow, name=f"statechannel-http-{name}", daemon=True)

    def start(self) -> None:
        """Begin, for the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon, without waiting."""
        self._ends.set()

    async def close(self) -> None:
        """End the thread."""
        self.stop()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _CLOSE_S)

    @abstractmethod
    def _read(self, tail: PartitionTail) -> None:
        """Read from where the last reading ended, in the thread."""

    def _failed(self, error: Exception) -> None:
        """The topic could not be read; it is tried again."""
        if isinstance(error, StateChannelError):
            _log.warning("http-topic-interrupted", topic=self._name, why=str(error))
        else:
            _log.exception("http-topic-failed", topic=self._name)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._call_here, function, *args)

    def _call_here(self, function: Callable[..., None], *args: Any) -> None:
        # Stopped in the loop, too: what waited for its turn then is not taken for that of the next follower.
        if not self._ends.is_set():
            function(*args)

    def _follow(self) -> None:
        while not self._ends.is_set():
            try:
                with self._open_tail() as tail:
                    self._read(tail)
            except Exception as error:
                self._failed(error)
            self._ends.wait(_RESUME_S)


class SourceFollower(TailThread):
    """Follows one source in a thread, from its end on.

    Args:
        began: Called in the loop with the offset of the first record that will be delivered.
        deliver: Called in the loop with events, and the offset after the last record that was read.
        failed: Called in the loop with the reason where the topic cannot be read.
    """

    def __init__(
        self,
        source: ChangeSource,
        began: Callable[[str, int], None],
        deliver: Callable[[str, Sequence[SourceEvent], int], None],
        failed: Callable[[str, str], None],
    ) -> None:
        super().__init__(source.name, source.open_tail)
        self._source = source
        self._began, self._deliver, self._unread = began, deliver, failed
        self._position: int | None = None
        self.start()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, TopicMissingError):
            super()._failed(error)
            why = str(error) if isinstance(error, StateChannelError) else type(error).__name__
            self._call(self._unread, self._name, why)
        elif self._position is None:  # what is written once it exists is new
            self._position = 0
            self._call(self._began, self._name, 0)

    def _read(self, tail: PartitionTail) -> None:
        source, span = self._source, tail.span()
        if self._position is None:
            self._position = span.end
            self._call(self._began, source.name, span.end)
        start, gap = _start(source, span, self._position)
        if gap is not None:
            self._position = gap.offset + 1
            self._call(self._deliver, source.name, [gap], self._position)
        fold = source.fold()
        for batch in tail.follow(start, stop=self._ends.is_set):
            if not batch:
                continue
            events = list(_events_of(source, fold, batch, self._position))
            self._position = max(self._position, batch[-1].offset + 1)
            self._call(self._deliver, source.name, events, self._position)


EVENT: Final = "event"
LEAD_IN_MAX: Final = 20_000
"""Heartbeats that are read before the first one wanted, to know who was there: ten minutes of a hundred brokers."""


class BrokerEvents:
    """Documents of the heartbeats by which something happened; the others have none.

    Args:
        expiry_s: Of processes whose heartbeats do not have their own.
    """

    def __init__(self, expiry_s: float) -> None:
        self._story = RegistryStory(expiry_s)

    def __call__(self, record: RecordRead) -> Mapping[str, Any] | None:
        """The document of a record; None: nothing happened by it."""
        broker = ""
        for _, info in heartbeats((record,)):
            self._story.observe(record, info)
            broker = info["broker"]
        events = [
            {"kind": item.kind.value, "at_ms": item.at_ms, "message": item.message, "broker": item.lost or broker}
            for item in self._story.incidents
        ]
        self._story.incidents.clear()
        if not events:
            return None
        return {"offset": record.offset, "timestamp_ms": record.timestamp_ms, "broker": broker, "events": events}


def events(settings: Settings) -> ChangeSource:
    """An entry point of `statechannel.change_sources`."""
    client, topics = to_client(settings), to_topics(settings)

    def open_tail() -> PartitionTail:
        return channel_tail(client, topics, Topic.REGISTRY, timeout_s=settings.kafka.command_timeout_s)

    def fold() -> Fold:
        return BrokerEvents(settings.membership.expiry_s)

    return ChangeSource(EVENT, open_tail, fold, LEAD_IN_MAX)
