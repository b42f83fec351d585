"""Client side of the toy data plane (`tests.support.data_plane`): a link to a broker."""

import asyncio
import contextlib
import itertools
from typing import Any
from urllib.parse import urlsplit

import orjson

from tests.support.data_plane import LINE_BYTES_MAX


class LinkDownError(Exception):
    """The broker does not listen, the connection was lost, or no answer arrived in time."""


class PlaneLink:
    """A connection that is opened on demand and reopened after a failure.

    Args:
        url: `toy://127.0.0.1:PORT`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._making = asyncio.Lock()

    async def ask(self, do: str, timeout_s: float, **args: Any) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            LinkDownError: There was no answer.
        """
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                writer = await self._connected()
                self._open[number] = answer
                writer.write(orjson.dumps({"id": number, "do": do, **args}, option=orjson.OPT_APPEND_NEWLINE))
                return await answer
        except (OSError, TimeoutError) as error:
            raise LinkDownError(f"{self.url}: {type(error).__name__}") from error
        finally:
            self._open.pop(number, None)

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._making:
            if self._writer is not None:
                return self._writer
            parts = urlsplit(self.url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=LINE_BYTES_MAX)
            self._writer = writer
            self._reading = asyncio.get_running_loop().create_task(self._read(reader, writer))
            return writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = orjson.loads(line)
                waiting = self._open.get(answer.get("id"))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (OSError, ValueError):
            pass  # the same as an end: waiting callers are notified below
        finally:
            self._writer = None
            writer.close()
            for waiting in self._open.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the broker closed the connection"))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading


ANSWER_S = 2.0


async def _ask_once(url: str, do: str, timeout_s: float) -> dict[str, Any]:
    link = PlaneLink(url)
    try:
        return await link.ask(do, timeout_s)
    finally:
        await link.close()


def ask_broker(url: str, do: str, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Send one request without arguments, such as `status`, to one broker, from synchronous code.

    Raises:
        LinkDownError: It did not answer.
    """
    return asyncio.run(_ask_once(url, do, timeout_s))
