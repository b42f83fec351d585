"""A proxy on loopback between one broker and one Kafka node, whose connections can be cut, held, delayed or half-closed.

There is no kept package on PyPI that brings such a proxy as a program (toxiproxy is a Go binary that its Python client
expects to find), so this is a small one. Bytes that wait are bounded by what a pump has in hand and the sockets' buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
CONNECTIONS_MAX = 200


@dataclass(eq=False)
class _Pair:
    """One connection: the broker's side and Kafka's."""

    broker: asyncio.StreamWriter
    kafka: asyncio.StreamWriter

    def abort(self) -> None:
        for writer in (self.broker, self.kafka):
            _reset(writer)


@dataclass
class Gate:
    """What happens to bytes of one direction."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        self.open.set()


class Link:
    """Listens on `port` and speaks to Kafka at `target`.

    Attributes:
        refusing: New connections are reset at once.
        up, down: What the broker sends, and what Kafka answers.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self.up, self.down = Gate(), Gate()
        self.refusing = False
        self.opened = 0
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        return len(self._pairs)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, LOOPBACK, self.port, limit=CHUNK_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection."""
        for pair in list(self._pairs):
            pair.abort()

    def hold(self, *, up: bool = True, down: bool = True) -> None:
        """Let no byte through in a direction; connections stay open, as behind a router that drops packets."""
        for gate, held in ((self.up, up), (self.down, down)):
            if held:
                gate.open.clear()

    def half_close(self) -> None:
        """Tell Kafka that the broker will send no more, while the broker believes that it is connected."""
        self.hold(up=False, down=True)
        for pair in list(self._pairs):
            with contextlib.suppress(OSError, RuntimeError):
                pair.kafka.write_eof()

    def delay(self, delay_s: float) -> None:
        """Hold each chunk back for so long, in both directions, one after the other."""
        self.up.delay_s = self.down.delay_s = delay_s

    def heal(self) -> None:
        """Everything goes through again; what was held is delivered late."""
        self.refusing = False
        for gate in (self.up, self.down):
            gate.delay_s = 0.0
            gate.open.set()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        if self.refusing or len(self._pairs) >= CONNECTIONS_MAX:
            _reset(writer)
            return
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_kafka, to_kafka = await asyncio.open_connection(LOOPBACK, self.target, limit=CHUNK_BYTES)
        except OSError:
            _reset(writer)
            return
        pair = _Pair(writer, to_kafka)
        self._pairs.add(pair)
        pumps = [
            asyncio.ensure_future(_pump(reader, to_kafka, self.up)),
            asyncio.ensure_future(_pump(from_kafka, writer, self.down)),
        ]
        try:
            # The end of one direction ends both: Kafka's clients know no half-closed connections.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._pairs.discard(pair)
            for one in (writer, to_kafka):
                one.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side is told of a reset, not of an orderly end."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: Gate) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            if gate.delay_s:
                await asyncio.sleep(gate.delay_s)
            await gate.open.wait()
            writer.write(data)
            await writer.drain()
    # The end is told no earlier than the bytes before it.
    await gate.open.wait()
