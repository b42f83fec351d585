"""The processes of the admin API's measurements: a broker that serves it, and its clients.

`python -m tests.bench.http_process NAME BOOTSTRAP CHANNEL` is a broker, with lines as those of `tests.bench.broker_process`.
`... clients COMMAND ARGUMENT...` prints one line of JSON: clients are in a process of their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from statechannel.http_api.extension import make
from statechannel.settings import Settings
from tests.bench import broker_process
from tests.bench.measure import percentile

HTTP = {
    "port": 0,
    "open_role": "force",
    "requests_per_s": 100_000,
    "connections_max": 1_000,
}
LATE_EVERY_S = 0.002
READ_BYTES = 65_536


class HttpBroker(broker_process.Broker):
    """A broker with the admin API, and a page beside it that says the same without asking anything."""

    async def api(self) -> str:
        return str(self._channel.status()["extensions"]["http"]["url"])

    async def floor(self, body: str) -> str:
        """Serve a fixed body by the same libraries, from a thread of its own as the API is; the address."""
        content = body.encode()

        async def answer(_: Request) -> Response:
            return Response(content, media_type="application/json")

        app = Starlette(routes=[Route("/", answer)])
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
        self._floor = asyncio.create_task(asyncio.to_thread(server.run))
        while not server.started:  # noqa: ASYNC110 - it lives in another thread
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"

    async def late(self, seconds: float) -> dict[str, float]:
        """How late the loop of the broker runs what is due, and the processor time of the process meanwhile."""
        late_ms, began_s, used_s = list[float](), time.monotonic(), time.process_time()
        while time.monotonic() - began_s < seconds:
            due_s = time.monotonic() + LATE_EVERY_S
            await asyncio.sleep(LATE_EVERY_S)
            late_ms.append(1e3 * max(0.0, time.monotonic() - due_s))
        share = (time.process_time() - used_s) / (time.monotonic() - began_s)
        return {"p50_ms": percentile(late_ms, 0.5), "p99_ms": percentile(late_ms, 0.99), "share": share}


def _extensions(settings: Settings) -> Sequence[Any]:
    extension = make(settings, {})
    return [] if extension is None else [extension]


class Connection:
    """One connection of HTTP/1.1 that stays open; the least that a client can do, so that it is the server that is measured."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = (
            parts.hostname,
            parts.port,
            parts.path + (parts.query and f"?{parts.query}"),
        )

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, head: str = "", body: bytes = b"", method: str = "GET") -> bytes:
        """The body of the answer.

        Raises:
            RuntimeError: The status is another than 200.
        """
        sized = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n" if body else ""
        request = f"{method} {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{sized}{head}\r\n".encode()
        self._writer.write(request + body)
        header = await self._reader.readuntil(b"\r\n\r\n")
        fields = header.lower()
        at = fields.index(b"content-length:")
        size = int(fields[at + 15 : fields.index(b"\r\n", at)])
        content = await self._reader.readexactly(size)
        if header.split(b" ", 2)[1] != b"200":
            raise RuntimeError(f"{method} {self._path}: {header[:40]!r} {content[:300]!r}")
        return content

    async def follow(self, until_s: float) -> int:
        """Number of changes that came until then."""
        self._writer.write(f"GET {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n\r\n".encode())
        changes, rest = 0, b""
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                part = await asyncio.wait_for(self._reader.read(READ_BYTES), left_s)
            except TimeoutError:
                break
            if not part:
                raise RuntimeError("the stream ended")
            text = rest + part
            lines = text.split(b"\n")
            rest = lines.pop()
            changes += lines.count(b"event: change")
        return changes


async def reads(url: str, connections: int, seconds: float) -> dict[str, float]:
    """Answers a second of several connections, and the time of each answer."""
    taken_ms, ends_s = list[float](), time.monotonic() + seconds

    async def ask_again() -> None:
        async with Connection(url) as connection:
            while time.monotonic() < ends_s:
                began_ns = time.perf_counter_ns()
                await connection.ask()
                taken_ms.append((time.perf_counter_ns() - began_ns) / 1e6)

    began_s = time.monotonic()
    await asyncio.gather(*(ask_again() for _ in range(connections)))
    took_s = time.monotonic() - began_s
    return {
        "rate": len(taken_ms) / took_s,
        "p50_ms": percentile(taken_ms, 0.5),
        "p99_ms": percentile(taken_ms, 0.99),
    }


async def moves(url: str, bundle: str, brokers: Sequence[str], count: int) -> list[float]:
    """Milliseconds of transfers, one after the other, each awaited."""
    taken_ms = []
    head = "Statechannel-Client: bench\r\nPrefer: wait=30\r\n"
    async with Connection(f"{url}/v1/bundles/{bundle}/transfer") as connection:
        for number in range(count):
            body = json.dumps({"destination": brokers[number % len(brokers)], "force": True}).encode()
            began_ns = time.perf_counter_ns()
            await connection.ask(f"{head}Idempotency-Key: move-{number}\r\n", body, "POST")
            taken_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return taken_ms


async def readers(url: str, count: int, seconds: float) -> dict[str, float]:
    """Readers of the changes for a while: the least and the largest number of changes that one of them got."""
    until_s = time.monotonic() + seconds

    async def read() -> int:
        async with Connection(f"{url}/v1/changes") as connection:
            return await connection.follow(until_s)

    got = await asyncio.gather(*(read() for _ in range(count)))
    return {"least": min(got), "most": max(got)}


def clients(command: str, *arguments: str) -> None:
    """Run one of the three above."""
    url, *rest = arguments
    match command:
        case "reads":
            result: Any = asyncio.run(reads(url, int(rest[0]), float(rest[1])))
        case "moves":
            result = asyncio.run(moves(url, rest[0], rest[1].split(","), int(rest[2])))
        case _:
            result = asyncio.run(readers(url, int(rest[0]), float(rest[1])))
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1] == "clients":
        clients(*sys.argv[2:])
    else:
        main = broker_process.main(*sys.argv[1:], made_with=HttpBroker, more={"http": HTTP}, extensions=_extensions)
        asyncio.run(main)
