"""A proxy on loopback between one broker and one Kafka node, whose connections can be cut, held, delayed or half-closed.

All of them at once, or only those that serve one purpose (`purposes.py`): a real network loses one connection, not a broker.

There is no kept package on PyPI that brings such a proxy as a program (toxiproxy is a Go binary that its Python client
expects to find), so this is a small one. Bytes that wait are bounded by what a pump has in hand and the sockets' buffers.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.faults.purposes import Purpose, RequestScanner

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
CONNECTIONS_MAX = 200


@dataclass(eq=False)
class _Pair:
    """One connection: the broker's side and Kafka's."""

    broker: asyncio.StreamWriter
    kafka: asyncio.StreamWriter
    scanner: RequestScanner

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

    async def pass_through(self) -> None:
        """Return when a piece of data may go on."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self.open.wait()

    def heal(self) -> None:
        self.delay_s = 0.0
        self.open.set()


class Link:
    """Listens on `port` and speaks to Kafka at `target`.

    Attributes:
        refusing: New connections are reset at once.
        resetting: Connections of these purposes are reset as soon as a request shows what they are for.
        up, down: What the broker sends, and what Kafka answers.
    """

    def __init__(self, port: int, target: int, patterns: Mapping[bytes, str] | None = None) -> None:
        self.port, self.target = port, target
        self.up, self.down = Gate(), Gate()
        self.refusing = False
        self.resetting: set[Purpose] = set()
        self.opened = 0
        self._patterns = {} if patterns is None else patterns
        self._up_of = {purpose: Gate() for purpose in Purpose}
        self._down_of = {purpose: Gate() for purpose in Purpose}
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

    def connections_for(self, purpose: Purpose) -> int:
        """Connections that have served a purpose so far."""
        return sum(purpose in pair.scanner.purposes for pair in self._pairs)

    def cut(self, purpose: Purpose | None = None) -> None:
        """Reset every connection, or every one that serves a purpose."""
        for pair in list(self._pairs):
            if purpose is None or purpose in pair.scanner.purposes:
                pair.abort()

    def hold(self, *, up: bool = True, down: bool = True, purpose: Purpose | None = None) -> None:
        """Let no byte through in a direction; connections stay open, as behind a router that drops packets."""
        gates = (self.up, self.down) if purpose is None else (self._up_of[purpose], self._down_of[purpose])
        for gate, held in zip(gates, (up, down), strict=True):
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
        self.resetting.clear()
        for gate in (self.up, self.down, *self._up_of.values(), *self._down_of.values()):
            gate.heal()

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
        pair = _Pair(writer, to_kafka, RequestScanner(self._patterns))
        self._pairs.add(pair)
        pumps = [
            asyncio.ensure_future(self._pump_up(reader, pair)),
            asyncio.ensure_future(self._pump_down(from_kafka, pair)),
        ]
        try:
            # The end of one direction ends both: Kafka's clients know no half-closed connections.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._pairs.discard(pair)
            for stream in (writer, to_kafka):
                stream.close()

    async def _pump_up(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                pair.scanner.feed(data)
                if self.resetting & pair.scanner.purposes:
                    pair.abort()
                    return
                await self._pass(pair, self.up, self._up_of)
                pair.kafka.write(data)
                await pair.kafka.drain()
        # The end is passed on no earlier than the bytes before it.
        await self._pass(pair, self.up, self._up_of, end=True)

    async def _pump_down(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._pass(pair, self.down, self._down_of)
                pair.broker.write(data)
                await pair.broker.drain()
        await self._pass(pair, self.down, self._down_of, end=True)

    @staticmethod
    async def _pass(pair: _Pair, gate: Gate, gates: Mapping[Purpose, Gate], *, end: bool = False) -> None:
        """Wait at the gate of the direction, then at those of the connection's purposes."""
        for each in (gate, *(gates[purpose] for purpose in sorted(pair.scanner.purposes))):
            if end:
                await each.open.wait()
            else:
                await each.pass_through()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side is told of a reset, not of an orderly end."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
