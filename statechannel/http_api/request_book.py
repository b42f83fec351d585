"""Requests of the requests topic, as the admin API writes and follows them: what was asked, who executes it, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from statechannel.broker import request_record
from statechannel.broker.request_record import Progress, Reply, Request
from statechannel.broker.request_writer import write_request
from statechannel.clocks import now_ms
from statechannel.errors import StateChannelError
from statechannel.http_api.problems import ProblemError
from statechannel.kafka.tail import PartitionTail
from statechannel.logger import SafeLogger
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:
    from statechannel.broker.assembly import Access

_log = SafeLogger(__name__)
_RESUME_S: Final = 1.0
_CLOSE_S: Final = 5.0


@dataclass(slots=True)
class RequestStory:
    """One request of the log.

    Attributes:
        digest: Of command and arguments: two requests of one id are the same if they have the same.
        deadline_ms: Log time after which brokers need not reply.
        executed_by: Broker that has claimed it.
        outcome: Of the first reply.
    """

    id: str
    command: str
    name: str
    by: str
    digest: str
    asked_ms: int
    deadline_ms: int
    executed_by: str | None = None
    outcome: Mapping[str, Any] | None = None


DEFAULTS: Final = "defaults"
"""Argument with the names of those that the caller left open: another process may have filled them in from other settings."""


def request_digest(command: str, args: Mapping[str, Any]) -> str:
    """Digest of what the caller asked for."""
    filled = args.get(DEFAULTS)
    left_open = filled if isinstance(filled, list) else []
    content = orjson.dumps(
        [command, {name: value for name, value in args.items() if name not in left_open}], option=orjson.OPT_SORT_KEYS
    )
    return hashlib.sha256(content).hexdigest()


class RequestFold:
    """Stories of the newest requests, by id.

    Args:
        remembered_max: How many.
    """

    def __init__(self, remembered_max: int) -> None:
        self._most = remembered_max
        self.stories: OrderedDict[str, RequestStory] = OrderedDict()

    def take(self, records: Iterable[RecordRead]) -> None:
        """Apply records of the topic, in order; the first request and the first reply of an id count."""
        for record in records:
            item = request_record.decode(record.value, record.timestamp_ms)
            match item:
                case Request():
                    self._begin(item, record.timestamp_ms)
                case Progress() if (story := self.stories.get(item.id)) is not None:
                    story.executed_by = item.broker
                case Reply() if (story := self.stories.get(item.id)) is not None and story.outcome is None:
                    story.executed_by, story.outcome = item.broker, item.outcome
                case _:
                    continue

    def _begin(self, request: Request, at_ms: int) -> None:
        if request.id in self.stories:
            return
        digest = request_digest(request.asked, request.args)
        self.stories[request.id] = RequestStory(
            request.id, request.asked, request.name, request.by, digest, at_ms, request.deadline_ms
        )
        if len(self.stories) > self._most:
            self.stories.popitem(last=False)


class RequestBook(Protocol):
    """Requests, as handlers need them."""

    def find(self, identifier: str) -> RequestStory | None:
        """A request that was read from the log."""
        ...

    def is_expired(self, story: RequestStory) -> bool:
        """Whether brokers need not reply any more, by the log's clock."""
        ...

    async def wait_caught_up(self) -> None:
        """Wait until the log was read to its end once."""
        ...

    async def wait_current(self) -> None:
        """Wait until all was read that the log has now, so that a request that another process wrote is known.

        Raises:
            StateChannelError: Kafka is out of reach, or it takes too long.
        """
        ...

    async def write(self, request: Request, *, answer_within_s: float) -> RequestStory:
        """Write a request, and wait until the log has one of its id: its own, or an earlier one.

        Raises:
            StateChannelError: Kafka is out of reach, refuses it, or whether it was written is unknown.
        """
        ...

    async def wait_ended(self, identifier: str, wait_s: float) -> RequestStory:
        """Wait for the reply to a request; the story without an outcome where the time is up."""
        ...


class LoggedRequests:
    """The requests of a live channel; a thread follows the topic.

    Args:
        remembered_max: Requests that are remembered; the `Idempotency-Key` of an older one is not recognised.
    """

    def __init__(self, access: Access, *, timeout_s: float, remembered_max: int) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._fold = RequestFold(remembered_max)
        self._updated = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._closing = threading.Event()
        self._position = 0
        self._end_tail: PartitionTail | None = None
        self._end_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._follow, name="statechannel-http-requests", daemon=True)

    def start(self) -> None:
        """Begin to follow, for the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _CLOSE_S)
        await asyncio.to_thread(self._close_end)

    def _follow(self) -> None:
        start = 0
        while not self._closing.is_set():
            try:
                with self._tail() as tail:
                    span = tail.span(start=start)
                    for record in tail.records(span):
                        self._hand_over([record], caught_up=False)
                        start = record.offset + 1
                    start = max(start, span.end)
                    self._hand_over([], caught_up=True, position=start)
                    for batch in tail.follow(start, stop=self._closing.is_set):
                        if batch:
                            self._hand_over(batch, caught_up=True)
                            start = batch[-1].offset + 1
            except StateChannelError as error:
                _log.warning("http-requests-interrupted", why=str(error))
            except Exception:
                _log.exception("http-requests-failed")
            self._closing.wait(_RESUME_S)

    def _tail(self) -> PartitionTail:
        client, topics = self._access
        name = topics.names[Topic.REQUESTS]
        return PartitionTail(client, Topic.REQUESTS, name, 0, group_id=topics.reader_group, timeout_s=self._timeout_s)

    def _end(self) -> int:
        """Offset after the last record of the log now."""
        with self._end_lock:
            if self._end_tail is None:
                self._end_tail = self._tail()
            return self._end_tail.span().end

    def _close_end(self) -> None:
        with self._end_lock:  # a call that has been given up may still use it
            if self._end_tail is not None:
                self._end_tail.close()
                self._end_tail = None

    def _hand_over(self, records: list[RecordRead], *, caught_up: bool, position: int = 0) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it was closed: nobody waits any more
                loop.call_soon_threadsafe(self._take, records, caught_up, position)

    def _take(self, records: list[RecordRead], caught_up: bool, position: int) -> None:
        self._fold.take(records)
        read_to = records[-1].offset + 1 if records else 0
        self._position = max(self._position, read_to, position)
        if caught_up:
            self._caught_up.set()
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()

    def find(self, identifier: str) -> RequestStory | None:
        """See `RequestBook.find`."""
        return self._fold.stories.get(identifier)

    def is_expired(self, story: RequestStory) -> bool:
        """See `RequestBook.is_expired`."""
        # By this machine's clock: a time of the log may be from the future, and who is called expired too early is asked twice.
        return now_ms() > story.deadline_ms

    async def wait_caught_up(self) -> None:
        """See `RequestBook.wait_caught_up`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._caught_up.wait()
        except TimeoutError:
            raise ProblemError("not-current", "the requests topic was not read to its end yet") from None

    async def wait_current(self) -> None:
        """See `RequestBook.wait_current`."""
        await self.wait_caught_up()
        end = await asyncio.to_thread(self._end)
        ends_s = time.monotonic() + self._timeout_s
        while self._position < end:
            if (left_s := ends_s - time.monotonic()) <= 0:
                raise ProblemError("not-current", "the requests topic was not read to its end in time")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._updated.wait()

    async def write(self, request: Request, *, answer_within_s: float) -> RequestStory:
        """See `RequestBook.write`."""
        client, topics = self._access
        await asyncio.to_thread(
            write_request, client, topics, request, answer_within_s=answer_within_s, timeout_s=self._timeout_s
        )
        story = await self._wait(lambda: self.find(request.id), self._timeout_s)
        if story is None:
            raise ProblemError(
                "not-current",
                f"the request {request.id} is in the log, and was not read back in time",
                hint="It may be executed: look at the operation, or send the same again with the same Idempotency-Key.",
                facts={"operation": request.id},
            )
        return story

    async def wait_ended(self, identifier: str, wait_s: float) -> RequestStory:
        """See `RequestBook.wait_ended`."""

        def ended() -> RequestStory | None:
            story = self.find(identifier)
            return story if story is not None and story.outcome is not None else None

        story = await self._wait(ended, wait_s) or self.find(identifier)
        if story is None:
            raise ProblemError("operation-not-found", f"there is no request {identifier[:64]}")
        return story

    async def _wait(self, find: Callable[[], RequestStory | None], wait_s: float) -> RequestStory | None:
        ends_s = time.monotonic() + wait_s
        while (story := find()) is None and (left_s := ends_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._updated.wait()
        return story
