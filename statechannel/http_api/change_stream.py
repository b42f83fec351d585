"""The stream `/v1/changes`: one follower for all readers, who take from a bounded memory at their own pace."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from statechannel.errors import StateChannelError
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
_RESUME_S: Final = 1.0
_CHUNK_MAX_BYTES: Final = 65_536
_POSITION: Final = re.compile(r"[0-9]{1,4}:[0-9]{1,15}(?:,[0-9]{1,4}:[0-9]{1,15}){0,999}", re.ASCII)
_ONE_OFFSET: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


class KeptChange(NamedTuple):
    """A change, or a gap, as readers are sent it.

    Attributes:
        offset: Of the change; of a gap the last one that is missing.
        event: Name of the event.
        data: JSON of it.
    """

    partition: int
    offset: int
    event: str
    data: bytes


def parse_position(text: str, partitions: Sequence[int]) -> dict[int, int]:
    """The first offset wanted of each partition: `OFFSET` of all, or `PARTITION:OFFSET,...`.

    Raises:
        ProblemError: It is neither, or names a partition that is not there.
    """
    if _ONE_OFFSET.fullmatch(text):
        return dict.fromkeys(partitions, int(text))
    if _POSITION.fullmatch(text) is None:
        raise ProblemError(
            "bad-request", f"{text[:100]!r} is not OFFSET or PARTITION:OFFSET,...", hint="Send back the last id."
        )
    wanted = {int(partition): int(offset) for partition, offset in (pair.split(":") for pair in text.split(","))}
    unknown = sorted(set(wanted) - set(partitions))
    if unknown:
        raise ProblemError("bad-request", f"the channel has no partition {unknown[0]}")
    return dict.fromkeys(partitions, 0) | wanted


def position_text(wanted: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(wanted.items()))


def change_document(change: Change) -> dict[str, Any]:
    """The keys of `statechannel watch`, as far as a member knows them, and those of `Change`."""
    fields = change.to_json()
    return {"key": fields.pop("bundle"), "verdict": "accepted", **fields}


def kept(item: Change | ChangesGap) -> KeptChange:
    # By their fields: a gap is a named tuple of the router's, and has no state.
    if isinstance(item, tuple):
        return KeptChange(item.partition, item.next_offset - 1, GAP, orjson.dumps(item._asdict()))
    return KeptChange(item.partition, item.offset, CHANGE, orjson.dumps(change_document(item)))


class _Subscription:
    """One reader: how far it has read."""

    def __init__(self, wanted: dict[int, int]) -> None:
        self.wanted = wanted
        self.place = -1

    def takes(self, item: KeptChange) -> bool:
        return item.offset >= self.wanted.get(item.partition, 0)

    def took(self, item: KeptChange) -> None:
        self.wanted[item.partition] = item.offset + 1

    def event(self, item: KeptChange) -> bytes:
        self.took(item)
        return _event(item.event, item.data, self.wanted)


def _event(name: str, data: bytes, wanted: Mapping[int, int]) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (position_text(wanted).encode(), name.encode(), data)


class ChangesHub:
    """Follows the changes once, keeps the newest, and serves readers from them.

    Without readers it follows, too: one that has lost its connection finds what came meanwhile.
    """

    def __init__(self, cluster: ApiCluster, settings: HttpSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._kept: deque[KeptChange] = deque()
        self._kept_bytes = 0
        self._first = 0  # number of the first one that is kept; they are numbered as they come
        self._whole_from: dict[int, int] = {}
        self._followed: dict[int, int] = {}
        self._turn = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._catching_up = 0
        self.readers = 0
        self.cut_off = 0

    def start(self) -> None:
        """Begin to follow, in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="http-changes")

    async def close(self) -> None:
        """End the follower and, by that, the streams."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._announce()

    async def _follow(self) -> None:
        """Follow until the end; what ends the follower begins it again where it was."""
        while True:
            try:
                if not self._followed:
                    position = await self._cluster.position()
                    self._followed = {partition: offset + 1 for partition, offset in position.items()}
                    self._whole_from = dict(self._followed)
                    self._started.set()
                async with contextlib.aclosing(self._cluster.changes(self._followed)) as batches:
                    async for batch in batches:
                        self._take(batch)
            except StateChannelError as error:
                _log.warning("http-changes-interrupted", why=str(error))
            except Exception:
                _log.exception("http-changes-failed")
            await asyncio.sleep(_RESUME_S)

    def _take(self, batch: Sequence[Change | ChangesGap]) -> None:
        for change in batch:
            item = kept(change)
            if item.offset < self._followed.get(item.partition, 0):
                continue
            self._followed[item.partition] = item.offset + 1
            self._kept.append(item)
            self._kept_bytes += len(item.data)
        most_bytes = self._settings.changes_max_mib * 2**20
        while len(self._kept) > self._settings.changes_max or (self._kept_bytes > most_bytes and len(self._kept) > 1):
            gone = self._kept.popleft()
            self._kept_bytes -= len(gone.data)
            self._whole_from[gone.partition] = gone.offset + 1
            self._first += 1
        self._announce()

    def _announce(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    async def stream(self, since: str | None) -> AsyncGenerator[bytes, None]:
        """What one reader is sent.

        Raises:
            ProblemError: Before the first part: too many readers, or `since` is malformed.
        """
        if self.readers >= self._settings.readers_max:
            raise ProblemError("too-busy", f"{self.readers} readers follow the changes already")
        self.readers += 1
        try:
            try:
                async with asyncio.timeout(self._settings.answer_timeout_s):
                    await self._started.wait()
            except TimeoutError:
                raise ProblemError("not-current", "this process does not follow the channel yet") from None
            reader = _Subscription(dict(self._followed))
            if since is not None:
                reader.wanted = parse_position(since, sorted(self._followed))
            yield b": statechannel changes\n\n"
            while not self._covers(reader):
                if self._catching_up >= self._settings.catch_ups_max:
                    message = "other readers read older changes from Kafka now; resume in a moment"
                    yield self._end(reader, "too-busy", message)
                    return
                async for part in self._catch_up(reader):
                    yield part
            reader.place = self._first
            async for part in self._newest(reader):
                yield part
        finally:
            self.readers -= 1

    def _covers(self, reader: _Subscription) -> bool:
        """Whether memory has all that a reader wants."""
        return all(reader.wanted.get(partition, 0) >= first for partition, first in self._whole_from.items())

    async def _catch_up(self, reader: _Subscription) -> AsyncIterator[bytes]:
        """Older changes, read from Kafka up to where the follower is now."""
        self._catching_up += 1
        ends = dict(self._followed)
        try:
            async with contextlib.aclosing(self._cluster.past(dict(reader.wanted), ends)) as batches:
                async for batch in batches:
                    yield b"".join(reader.event(item) for item in map(kept, batch) if reader.takes(item))
        finally:
            self._catching_up -= 1
        for partition, end in ends.items():  # records that are no changes come to no reader
            reader.wanted[partition] = max(reader.wanted.get(partition, 0), end)

    async def _newest(self, reader: _Subscription) -> AsyncIterator[bytes]:
        while self._task is not None and not self._task.done():
            turn = self._turn
            if reader.place < self._first:
                self.cut_off += 1
                message = (
                    "you read more slowly than changes come, and memory has forgotten the next one; resume from this id"
                )
                yield self._end(reader, "too-slow", message)
                return
            parts: list[bytes] = []
            size_bytes = 0
            number = self._first + len(self._kept)
            while reader.place < number and size_bytes < _CHUNK_MAX_BYTES:
                item = self._kept[reader.place - self._first]
                reader.place += 1
                if reader.takes(item):
                    parts.append(reader.event(item))
                    size_bytes += len(parts[-1])
            if parts:
                yield b"".join(parts)
                continue
            try:
                async with asyncio.timeout(self._settings.heartbeat_s):
                    await turn.wait()
            except TimeoutError:
                yield b": quiet\n\n"
        yield self._end(reader, "stopped", "this process stops; resume at another one from this id")

    @staticmethod
    def _end(reader: _Subscription, reason: str, message: str) -> bytes:
        data = orjson.dumps({"reason": reason, "message": message, "since": position_text(reader.wanted)})
        return _event(CUT_OFF, data, reader.wanted)
