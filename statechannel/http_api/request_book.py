"""Requests of the requests topic, as the admin API writes and follows them: what was asked, who executes it, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from statechannel.broker.request_writer import write_request
from statechannel.clocks import now_ms
from statechannel.http_api.change_sources import TailThread
from statechannel.http_api.problems import ProblemError
from statechannel.kafka.tail import PartitionTail, channel_tail
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.stories.requests import RequestFold

if TYPE_CHECKING:
    from statechannel.broker.assembly import Access
    from statechannel.operations.request_record import Request
    from statechannel.stories.requests import RequestStory


SHOWN_MAX: Final = 30
_LOOKED_AT_MAX: Final = 500
_OF_PROGRAMS: Final = (RequestCommand.LOOKUP, RequestCommand.EXTENSION, RequestCommand.SHUTDOWN)


def requests_shown(fold: RequestFold, at_ms: int) -> list[dict[str, Any]]:
    """The newest requests without what programs ask all the time: what, who asked, and how far it is."""
    newest = islice(reversed(fold.stories.values()), _LOOKED_AT_MAX)
    stories = [story for story in newest if story.command not in _OF_PROGRAMS][:SHOWN_MAX]
    plain = ("id", "command", "by", "asked_ms", "executed_by", "result", "message")
    return [
        {name: getattr(story, name) for name in plain} | {"name": story.subject, "status": story.status(at_ms)}
        for story in stories
    ]


class RequestBook(TailThread):
    """The requests of a live channel; a thread follows the topic.

    Args:
        remembered_max: Requests that are remembered; the `Idempotency-Key` of an older one is not recognised.
    """

    def __init__(self, access: Access, *, timeout_s: float, remembered_max: int) -> None:
        super().__init__("requests", self._tail)
        self._access = access
        self._timeout_s = timeout_s
        self.fold = RequestFold(remembered_max, keeps_args=False)
        self._updated = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._start = 0
        self._position = 0
        self._end_tail: PartitionTail | None = None
        self._end_lock = threading.Lock()

    async def close(self) -> None:
        """End the thread."""
        await super().close()
        await asyncio.to_thread(self._close_end)

    def _read(self, tail: PartitionTail) -> None:
        span = tail.span(start=self._start)
        for record in tail.records(span):
            self._call(self._take, [record], False)
            self._start = record.offset + 1
        self._start = max(self._start, span.end)
        self._call(self._take, [], True, self._start)
        for batch in tail.follow(self._start, stop=self._ends.is_set):
            if batch:
                self._call(self._take, batch, True)
                self._start = batch[-1].offset + 1

    def _tail(self) -> PartitionTail:
        return channel_tail(*self._access, Topic.REQUESTS, timeout_s=self._timeout_s)

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

    def _take(self, records: list[RecordRead], caught_up: bool, position: int = 0) -> None:
        self.fold.take(records)
        read_to = records[-1].offset + 1 if records else 0
        self._position = max(self._position, read_to, position)
        if caught_up:
            self._caught_up.set()
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()

    def find(self, identifier: str) -> RequestStory | None:
        """A request that was read from the log."""
        return self.fold.stories.get(identifier)

    def is_expired(self, story: RequestStory) -> bool:
        """Whether brokers need not reply any more, by the log's clock."""
        # By this machine's clock: a time of the log may be from the future, and who is called expired too early is asked twice.
        return now_ms() > story.deadline_ms

    async def wait_caught_up(self) -> None:
        """Wait until the log was read to its end once."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._caught_up.wait()
        except TimeoutError:
            raise ProblemError("not-current", "the requests topic was not read to its end yet") from None

    def newest(self) -> list[dict[str, Any]]:
        """The newest requests that persons made, for the page."""
        return requests_shown(self.fold, now_ms())

    async def wait_current(self) -> None:
        """Wait until all was read that the log has now, so that a request that another process wrote is known.

        Raises:
            StateChannelError: Kafka is out of reach, or it takes too long.
        """
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
        """Write a request, and wait until the log has one of its id: its own, or an earlier one.

        Raises:
            StateChannelError: Kafka is out of reach, refuses it, or whether it was written is unknown.
        """
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
        """Wait for the reply to a request; the story without an outcome where the time is up."""

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
