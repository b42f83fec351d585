"""Further topics of the stream `/v1/changes`: packages bring them by entry points, as they bring paths."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from statechannel.errors import StateChannelError
from statechannel.kafka.errors import TopicMissingError
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from statechannel.kafka.tail import PartitionTail, Span
    from statechannel.protocol.log import RecordRead
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


class SourceFollower:
    """Follows one source in a thread, from its end on, until it is closed.

    Args:
        began: Called in the loop with the offset of the first record that will be delivered.
        deliver: Called in the loop with events, and the offset after the last record that was read.
        failed: Called in the loop with the reason where the topic cannot be read; it is tried again.
    """

    def __init__(
        self,
        source: ChangeSource,
        began: Callable[[str, int], None],
        deliver: Callable[[str, Sequence[SourceEvent], int], None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._source = source
        self._began, self._deliver, self._failed = began, deliver, failed
        self._ends = threading.Event()
        self._position: int | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._follow, name=f"statechannel-http-{source.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon, without waiting."""
        self._ends.set()

    async def close(self) -> None:
        """End the thread."""
        self.stop()
        await asyncio.to_thread(self._thread.join, _CLOSE_S)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._call_here, function, *args)

    def _call_here(self, function: Callable[..., None], *args: Any) -> None:
        # Stopped in the loop, too: what waited for its turn then is not taken for that of the next follower.
        if not self._ends.is_set():
            function(*args)

    def _follow(self) -> None:
        while not self._ends.is_set():
            try:
                with self._source.open_tail() as tail:
                    self._read(tail)
            except TopicMissingError:
                if self._position is None:  # what is written once it exists is new
                    self._position = 0
                    self._call(self._began, self._source.name, 0)
            except StateChannelError as error:
                _log.warning("http-changes-source-interrupted", source=self._source.name, why=str(error))
                self._call(self._failed, self._source.name, str(error))
            except Exception as error:
                _log.exception("http-changes-source-failed", source=self._source.name)
                self._call(self._failed, self._source.name, type(error).__name__)
            self._ends.wait(_RESUME_S)

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
