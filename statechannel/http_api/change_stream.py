"""The stream `/v1/changes`: one follower of each topic for all readers, who take from a bounded memory at their own pace."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from statechannel.errors import StateChannelError
from statechannel.http_api.change_sources import ChangeSource, SourceEvent, SourceFollower, past_of
from statechannel.http_api.problems import ProblemError
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from statechannel.broker.changes import Change
    from statechannel.http_api.cluster import ApiCluster
    from statechannel.router import ChangesGap
    from statechannel.settings.groups_cluster import HttpSettings

_log = SafeLogger(__name__)

CHANGE: Final = "change"
GAP: Final = "gap"
CUT_OFF: Final = "cut-off"
UNAVAILABLE: Final = "unavailable"
_RESUME_S: Final = 1.0
_CHUNK_MAX_BYTES: Final = 65_536
_SHARED_MAX: Final = 16
_LANE_OFFSET: Final = r"(?:[0-9]{1,4}|[a-z]{1,32}):[0-9]{1,15}"
_POSITION: Final = re.compile(rf"{_LANE_OFFSET}(?:,{_LANE_OFFSET}){{0,999}}", re.ASCII)
_SINGLE_OFFSET: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_QUIET: Final = b": quiet\n\n"

Lane = int | str
"""What a position has an offset of: a partition of the channel, or a further source by its name."""


class KeptEvent(NamedTuple):
    """A change, an event of a source, or a gap, as readers are sent it.

    Attributes:
        offset: Of its record; of a gap the last one that is missing.
        kind: What readers choose by: `change`, or the name of the source.
        event: Name of the event.
        data: JSON of it.
        identifier: Position of the follower after it: that of every reader that has read all before it.
        wire: As it is sent to these.
    """

    lane: Lane
    offset: int
    kind: str
    event: str
    data: bytes
    identifier: bytes = b""
    wire: bytes = b""


def parse_position(text: str, partitions: Sequence[int], sources: Collection[str] = ()) -> dict[Lane, int]:
    """The first offset wanted of each lane: `OFFSET` of all partitions, or `PARTITION:OFFSET,...,SOURCE:OFFSET`.

    Partitions that it leaves out begin at 0; sources that it leaves out are not in the answer.

    Raises:
        ProblemError: It is neither, or names a partition or a source that is not there.
    """
    if _SINGLE_OFFSET.fullmatch(text):
        return dict.fromkeys(partitions, int(text))
    if _POSITION.fullmatch(text) is None:
        raise ProblemError(
            "bad-request", f"{text[:100]!r} is not OFFSET or PARTITION:OFFSET,...", hint="Send back the last id."
        )
    wanted: dict[Lane, int] = dict.fromkeys(partitions, 0)
    for name, offset in (pair.split(":") for pair in text.split(",")):
        lane: Lane = int(name) if name.isdigit() else name
        if lane not in partitions and lane not in sources:
            what = f"partition {lane}" if isinstance(lane, int) else f"source {lane} of changes"
            raise ProblemError("bad-request", f"the channel has no {what}")
        wanted[lane] = int(offset)
    return wanted


def position_text(wanted: Mapping[Lane, int]) -> str:
    """Partitions by number, then sources by name."""
    ordered = sorted(wanted.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    return ",".join(f"{lane}:{offset}" for lane, offset in ordered)


def change_document(change: Change) -> dict[str, Any]:
    """The keys of `statechannel watch`, as far as a member knows them, and those of `Change`."""
    fields = change.to_json()
    return {"key": fields.pop("bundle"), "verdict": "accepted", **fields}


def encode_event(item: Change | ChangesGap | SourceEvent) -> KeptEvent:
    """Encode an item of a follower."""
    if isinstance(item, SourceEvent):
        return KeptEvent(item.source, item.offset, item.source, GAP if item.is_gap else item.source, item.data)
    # By their fields: a gap is a named tuple of the router's, and has no state.
    if isinstance(item, tuple):
        return KeptEvent(item.partition, item.next_offset - 1, CHANGE, GAP, orjson.dumps(item._asdict()))
    return KeptEvent(item.partition, item.offset, CHANGE, CHANGE, orjson.dumps(change_document(item)))


@dataclass(slots=True)
class _Subscription:
    """One reader of the stream, and how far it has read.

    Attributes:
        kinds: What it wants.
        wanted: First offset wanted of each lane, while it is not `caught_up`.
        caught_up: It has read all that the follower has read, so that it is sent the same bytes as others that have.
        identifier: If it has caught up: the id of the last event that it was sent, or its position when it caught up.
        place: Number of the next event in memory.
    """

    kinds: frozenset[str]
    wanted: dict[Lane, int]
    caught_up: bool = False
    identifier: bytes = b""
    place: int = -1

    def takes(self, item: KeptEvent) -> bool:
        return item.kind in self.kinds and item.offset >= self.wanted.get(item.lane, 0)

    def event(self, item: KeptEvent) -> bytes:
        """An event with the reader's own position."""
        self.wanted[item.lane] = item.offset + 1
        return _event(item.event, item.data, self.position())

    def position(self) -> bytes:
        """The id from which it may resume."""
        return self.identifier if self.caught_up else position_text(self.wanted).encode()


class _CutOffError(Exception):
    """A stream ends; its reader may resume.

    Args:
        reason: Stable code, as the event `cut-off` has it.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _SharedPart(NamedTuple):
    """Bytes that several readers are sent, and their place and id afterwards."""

    part: bytes
    place: int
    identifier: bytes


def _event(name: str, data: bytes, identifier: bytes) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (identifier, name.encode(), data)


class ChangesHub:
    """Follows the changes once for all readers, keeps the newest, and serves readers from these.

    The channel is followed without readers, too, so that a reader that reconnects finds what it missed. A further source is
    followed only while a reader wants it.

    Args:
        sources: Further topics whose records are events.
    """

    def __init__(self, cluster: ApiCluster, settings: HttpSettings, sources: Sequence[ChangeSource] = ()) -> None:
        self._cluster = cluster
        self._settings = settings
        self._sources = {source.name: source for source in sources}
        self._events: deque[KeptEvent] = deque()
        self._events_bytes = 0
        self._first_number = 0  # number of the oldest event in memory; events are numbered as they come
        self._complete_from: dict[Lane, int] = {}
        self._followed: dict[Lane, int] = {}
        self._partitions: tuple[int, ...] = ()
        self._shared: dict[tuple[int, frozenset[str]], _SharedPart] = {}
        self._updated = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._followers: dict[str, SourceFollower] = {}
        self._demand: Counter[str] = Counter()
        self._failed: dict[str, str] = {}
        self._catch_up_slots = asyncio.Semaphore(settings.catch_ups_max)
        self._slot_waiters = 0
        self.readers = 0
        self.cut_off = 0

    @property
    def kinds(self) -> frozenset[str]:
        """What a reader may want."""
        return frozenset({CHANGE, *self._sources})

    def start(self) -> None:
        """Begin to follow, in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="http-changes")

    async def close(self) -> None:
        """End the followers and, by that, the streams."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._wake_readers()
        for follower in list(self._followers.values()):
            await follower.close()
        self._followers.clear()

    # --- following --------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Follow until the task is cancelled; after a failure following resumes at the same offset."""
        while True:
            try:
                if not self._partitions:
                    position = await self._cluster.position()
                    begins: dict[Lane, int] = {partition: offset + 1 for partition, offset in position.items()}
                    self._followed |= begins
                    self._complete_from |= begins
                    self._partitions = tuple(sorted(position))
                    self._started.set()
                since = {partition: self._followed[partition] for partition in self._partitions}
                async with contextlib.aclosing(self._cluster.changes(since)) as batches:
                    async for batch in batches:
                        self._add_events(batch)
            except StateChannelError as error:
                _log.warning("http-changes-interrupted", why=str(error))
            except Exception:
                _log.exception("http-changes-failed")
            await asyncio.sleep(_RESUME_S)

    def _add_events(self, batch: Sequence[Change | ChangesGap | SourceEvent]) -> None:
        for change in batch:
            item = encode_event(change)
            if item.offset < self._followed.get(item.lane, 0):
                continue
            self._followed[item.lane] = item.offset + 1
            # Once for all readers: it has the offsets of all partitions.
            identifier = position_text(self._followed).encode()
            item = item._replace(identifier=identifier, wire=_event(item.event, item.data, identifier))
            self._events.append(item)
            self._events_bytes += _size_bytes(item)
        limit_bytes = self._settings.changes_max_mib * 2**20
        while len(self._events) > self._settings.changes_max or (
            self._events_bytes > limit_bytes and len(self._events) > 1
        ):
            dropped = self._events.popleft()
            self._events_bytes -= _size_bytes(dropped)
            if dropped.lane in self._complete_from:
                self._complete_from[dropped.lane] = max(self._complete_from[dropped.lane], dropped.offset + 1)
            self._first_number += 1
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._shared.clear()
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()

    def _source_began(self, name: str, offset: int) -> None:
        if name in self._followers:
            self._followed[name] = self._complete_from[name] = offset
            self._failed.pop(name, None)
            self._wake_readers()

    def _source_failed(self, name: str, message: str) -> None:
        if name not in self._followed:
            self._failed[name] = message
            self._wake_readers()

    def _source_delivered(self, name: str, events: Sequence[SourceEvent], position: int) -> None:
        if name not in self._followers:
            return
        if events:
            self._add_events(events)
        self._followed[name] = max(self._followed.get(name, 0), position)

    @contextlib.contextmanager
    def _follow_sources(self, names: Collection[str]) -> Any:
        """Follow these sources while the context is open."""
        for name in names:
            self._demand[name] += 1
            if name not in self._followers:
                self._followers[name] = SourceFollower(
                    self._sources[name], self._source_began, self._source_delivered, self._source_failed
                )
        try:
            yield
        finally:
            for name in names:
                self._demand[name] -= 1
                if not self._demand[name] and (follower := self._followers.pop(name, None)) is not None:
                    follower.stop()
                    self._followed.pop(name, None)
                    self._complete_from.pop(name, None)

    # --- readers ----------------------------------------------------------------------------------------------------

    async def stream(self, since: str | None, only: frozenset[str] | None = None) -> AsyncGenerator[bytes, None]:
        """What one reader is sent.

        Args:
            only: Kinds of events; None: all.

        Raises:
            ProblemError: Before the first part: too many readers, `since` is malformed, or a source that `only` names cannot be
                read.
        """
        kinds = self.kinds if only is None else only
        if unknown := sorted(kinds - self.kinds):
            raise ProblemError("bad-request", f"there are no events {unknown[0]!r}; there are {sorted(self.kinds)}")
        if self.readers >= self._settings.readers_max:
            raise ProblemError("too-busy", f"{self.readers} readers follow the changes already")
        self.readers += 1
        try:
            with self._follow_sources(kinds - {CHANGE}):
                async for part in self._parts(since, kinds, named=only is not None):
                    yield part
        finally:
            self.readers -= 1

    async def _parts(self, since: str | None, kinds: frozenset[str], *, named: bool) -> AsyncIterator[bytes]:
        missing = await self._wait_followed(kinds - {CHANGE})
        if missing and named:
            why = self._failed.get(missing[0], "no answer in time")
            raise ProblemError("not-current", f"the topic of the events {missing[0]!r} cannot be read now: {why}")
        reader = _Subscription(kinds - set(missing), dict(self._followed))
        if since is not None:
            reader.wanted |= parse_position(since, self._partitions, self._sources)
        yield b": statechannel changes\n\n"
        for name in missing:
            why = self._failed.get(name, "no answer in time")
            message = f"this stream has no events {name!r}: their topic cannot be read now: {why}"
            yield _event(UNAVAILABLE, orjson.dumps({"source": name, "message": message}), reader.position())
        try:
            while not self._covers(reader):
                async for part in self._catch_up(reader):
                    yield part
            reader.place = self._first_number
            async for part in self._newest(reader):
                yield part
        except _CutOffError as error:
            position = reader.position()
            data = {"reason": error.reason, "message": str(error), "since": position.decode()}
            yield _event(CUT_OFF, orjson.dumps(data), position)

    async def _wait_followed(self, names: Collection[str]) -> list[str]:
        """Wait until the channel and these sources are followed; returns those of which it is not known in time.

        Raises:
            ProblemError: The channel is not followed in time.
        """
        try:
            async with asyncio.timeout(self._settings.answer_timeout_s):
                await self._started.wait()
                while any(name not in self._followed and name not in self._failed for name in names):
                    await self._updated.wait()
        except TimeoutError:
            if not self._started.is_set():
                raise ProblemError("not-current", "this process does not follow the channel yet") from None
        return sorted(name for name in names if name not in self._followed)

    def _lanes_of(self, reader: _Subscription) -> list[Lane]:
        """What a reader's position is compared by."""
        return [lane for lane in self._complete_from if (CHANGE if isinstance(lane, int) else lane) in reader.kinds]

    def _covers(self, reader: _Subscription) -> bool:
        """Whether memory has all that a reader wants."""
        return all(reader.wanted.get(lane, 0) >= self._complete_from[lane] for lane in self._lanes_of(reader))

    async def _catch_up(self, reader: _Subscription) -> AsyncIterator[bytes]:
        """Older events, read from Kafka up to where the followers are now; raises as `_past`."""
        ends = {lane: self._followed[lane] for lane in self._lanes_of(reader)}
        batches = self._past(dict(reader.wanted), ends)
        waiting: asyncio.Future[Sequence[KeptEvent] | None] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(batches, None))
                done, _ = await asyncio.wait({waiting}, timeout=self._settings.heartbeat_s)
                if not done:
                    yield _QUIET
                    continue
                batch, waiting = waiting.result(), None
                if batch is None:
                    break
                if part := b"".join(reader.event(item) for item in batch if reader.takes(item)):
                    yield part
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.wait({waiting})
            await batches.aclose()
        for lane, end in ends.items():  # records that are no events come to no reader
            reader.wanted[lane] = max(reader.wanted.get(lane, 0), end)

    async def _past(
        self, wanted: Mapping[Lane, int], ends: Mapping[Lane, int]
    ) -> AsyncGenerator[Sequence[KeptEvent], None]:
        """Older events in batches, in one of `http.catch_ups_max` turns, which are given in the order of arrival.

        Raises:
            _CutOffError: There was no turn in time; the reader has made others wait for `http.receive_timeout_s`; or they cannot
                be read.
        """
        self._slot_waiters += 1
        try:
            async with asyncio.timeout(self._settings.answer_timeout_s):
                await self._catch_up_slots.acquire()
        except TimeoutError:
            message = "other readers read older changes from Kafka now; resume in a moment"
            raise _CutOffError("too-busy", message) from None
        finally:
            self._slot_waiters -= 1
        slow_s = 0.0
        try:
            async with contextlib.aclosing(self._read_past(wanted, ends)) as batches:
                async for batch in batches:
                    began_s = time.monotonic()
                    yield [encode_event(item) for item in batch]
                    slow_s += time.monotonic() - began_s
                    self._require_pace(slow_s)
        except StateChannelError as error:
            _log.warning("http-changes-past-failed", why=str(error))
            raise _CutOffError("interrupted", f"older changes cannot be read now: {error}") from error
        except _CutOffError:
            raise
        except Exception as error:
            _log.exception("http-changes-past-failed")
            raise _CutOffError("interrupted", "older changes cannot be read now") from error
        finally:
            self._catch_up_slots.release()

    def _require_pace(self, slow_s: float) -> None:
        """Take the turn from a reader that is slow while others wait."""
        if self._slot_waiters and slow_s > self._settings.receive_timeout_s:
            self.cut_off += 1
            message = "you take older changes more slowly than they are read; resume from this id"
            raise _CutOffError("too-slow", message)

    async def _read_past(
        self, wanted: Mapping[Lane, int], ends: Mapping[Lane, int]
    ) -> AsyncGenerator[Sequence[Change | ChangesGap | SourceEvent], None]:
        channel = {lane: end for lane, end in ends.items() if isinstance(lane, int)}
        since = {lane: offset for lane, offset in wanted.items() if isinstance(lane, int)}
        logs: list[AsyncGenerator[Sequence[Any], None]] = []
        if any(since.get(lane, 0) < end for lane, end in channel.items()):
            logs.append(self._cluster.past(since, channel))
        for lane, end in ends.items():
            if isinstance(lane, str) and wanted.get(lane, 0) < end:
                logs.append(past_of(self._sources[lane], wanted.get(lane, 0), end))
        for log in logs:
            async with contextlib.aclosing(log) as batches:
                async for batch in batches:
                    yield batch

    async def _newest(self, reader: _Subscription) -> AsyncIterator[bytes]:
        while self._task is not None and not self._task.done():
            updated = self._updated
            if reader.place < self._first_number:
                self.cut_off += 1
                message = (
                    "you read more slowly than changes come, and memory has forgotten the next one; resume from this id"
                )
                raise _CutOffError("too-slow", message)
            if part := self._next_part(reader):
                yield part
                continue
            if reader.place < self._first_number + len(self._events):
                continue
            try:
                async with asyncio.timeout(self._settings.heartbeat_s):
                    await updated.wait()
            except TimeoutError:
                yield _QUIET
        raise _CutOffError("stopped", "this process stops; resume at another one from this id")

    def _next_part(self, reader: _Subscription) -> bytes:
        """What a reader is sent next; empty if nothing of it is for the reader."""
        if reader.caught_up:
            return self._shared_part(reader)
        parts: list[bytes] = []
        size_bytes, number = 0, self._first_number + len(self._events)
        while reader.place < number and size_bytes < _CHUNK_MAX_BYTES:
            item = self._events[reader.place - self._first_number]
            reader.place += 1
            if reader.takes(item):
                parts.append(reader.event(item))
                size_bytes += len(parts[-1])
        ahead = any(reader.wanted.get(lane, 0) > self._followed[lane] for lane in self._lanes_of(reader))
        if reader.place == number and not ahead:
            reader.caught_up = True
            reader.identifier = position_text(reader.wanted).encode()
        return b"".join(parts)

    def _shared_part(self, reader: _Subscription) -> bytes:
        """The next part of all readers that have caught up and are at the same place, joined once."""
        key = (reader.place, reader.kinds)
        shared = self._shared.get(key)
        if shared is None:
            parts: list[bytes] = []
            place, size_bytes, number, identifier = reader.place, 0, self._first_number + len(self._events), b""
            while place < number and size_bytes < _CHUNK_MAX_BYTES:
                item = self._events[place - self._first_number]
                place += 1
                if item.kind in reader.kinds:
                    parts.append(item.wire)
                    size_bytes += len(item.wire)
                    identifier = item.identifier
            shared = _SharedPart(b"".join(parts), place, identifier)
            if len(self._shared) >= _SHARED_MAX:
                self._shared.pop(next(iter(self._shared)))
            self._shared[key] = shared
        reader.place = shared.place
        reader.identifier = shared.identifier or reader.identifier
        return shared.part


def _size_bytes(item: KeptEvent) -> int:
    return len(item.wire) + len(item.data) + len(item.identifier)
