"""The proxy itself: what goes through, what does not, and that it is bounded."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.faults.link import LOOPBACK, Link
from tests.faults.purposes import FRAME_READ_BYTES, Purpose, RequestScanner, topic_patterns

IDS = {"channel": bytes(range(16)), "registry": bytes(range(16, 32)), "requests": bytes(range(32, 48))}
NAMES = {"channel": "faults", "registry": "faults-registry", "requests": "faults-requests"}
PATTERNS = topic_patterns({role: (NAMES[role], IDS[role]) for role in IDS})


def request(api: int, body: bytes = b"") -> bytes:
    """A request as a client frames it: size, API key, version, correlation id, client id, body."""
    frame = struct.pack(">hhih", api, 16, 7, 15) + b"statechannel-b1" + body
    return struct.pack(">i", len(frame)) + frame


def produce(name: str) -> bytes:
    return request(0, bytes([len(name) + 1]) + name.encode() + b"records\n")


def fetch(role: str) -> bytes:
    return request(1, IDS[role] + b"\n")


@asynccontextmanager
async def echo() -> AsyncIterator[Link]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0)
    link = Link(0, server.sockets[0].getsockname()[1], PATTERNS)
    await link.start()
    try:
        yield link
    finally:
        await link.close()
        server.close()


async def ask(link: Link, text: bytes = b"hello\n") -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, link.port)
    try:
        writer.write(text)
        return await reader.readline()
    finally:
        writer.close()


def test_bytes_go_through():
    async def main() -> None:
        async with echo() as link:
            assert await ask(link) == b"hello\n"

    asyncio.run(main())


def test_a_cut_resets_what_is_open_and_the_next_connection_works():
    async def main() -> None:
        async with echo() as link:
            reader, writer = await asyncio.open_connection(LOOPBACK, link.port)
            writer.write(b"one\n")
            assert await reader.readline() == b"one\n"
            link.cut()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            assert await ask(link) == b"hello\n"

    asyncio.run(main())


def test_refusing_ends_when_healed():
    async def main() -> None:
        async with echo() as link:
            link.refusing = True
            with pytest.raises(ConnectionResetError):
                await ask(link)
            link.heal()
            assert await ask(link) == b"hello\n"

    asyncio.run(main())


def test_what_is_held_is_late_and_not_lost():
    async def main() -> None:
        async with echo() as link:
            link.hold()
            asking = asyncio.ensure_future(ask(link))
            await asyncio.sleep(0.1)
            assert not asking.done()
            link.heal()
            assert await asking == b"hello\n"

    asyncio.run(main())


def test_a_held_direction_takes_no_more_than_the_buffers_hold():
    async def main() -> None:
        async with echo() as link:
            link.hold(up=True, down=False)
            _, writer = await asyncio.open_connection(LOOPBACK, link.port)
            writer.transport.set_write_buffer_limits(high=1)
            taken = 0

            async def send() -> None:
                nonlocal taken
                while True:
                    writer.write(b"x" * 1_000_000)
                    await writer.drain()
                    taken += 1

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(), 1)
            assert taken < 50
            writer.transport.abort()

    asyncio.run(main())


def test_half_closed_kafka_hears_the_end_and_the_broker_nothing():
    async def main() -> None:
        async with echo() as link:
            reader, writer = await asyncio.open_connection(LOOPBACK, link.port)
            writer.write(b"one\n")
            assert await reader.readline() == b"one\n"
            link.half_close()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.read(1)
            link.heal()
            assert await reader.read(1) == b""
            assert await ask(link) == b"hello\n"

    asyncio.run(main())


def test_delays_add_up():
    async def main() -> None:
        async with echo() as link:
            link.delay(0.1)
            before_s = asyncio.get_running_loop().time()
            assert await ask(link) == b"hello\n"
            assert asyncio.get_running_loop().time() - before_s >= 0.2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "purposes"),
    [
        (request(18) + request(3, b"\x07faults"), set()),
        (produce("faults"), {Purpose.WRITE_CHANNEL}),
        (produce("faults-registry"), {Purpose.WRITE_REGISTRY}),
        (request(0, struct.pack(">h", 6) + b"faults"), {Purpose.WRITE_CHANNEL}),
        (fetch("channel") + fetch("registry"), {Purpose.READ_CHANNEL, Purpose.READ_REGISTRY}),
        (fetch("requests") + request(1), {Purpose.READ_REQUESTS}),
        (request(12), {Purpose.ELECTION}),
        (request(11) + produce("faults"), {Purpose.ELECTION, Purpose.WRITE_CHANNEL}),
        (request(0, b"x" * FRAME_READ_BYTES + IDS["channel"]), set()),
    ],
    ids=lambda value: value.hex()[:16] if isinstance(value, bytes) else "+".join(sorted(value)) or "nothing",
)
@pytest.mark.parametrize("piece_bytes", [1, 5, 100_000])
def test_requests_show_what_a_connection_is_for(sent, purposes, piece_bytes):
    scanner = RequestScanner(PATTERNS)
    for start in range(0, len(sent), piece_bytes):
        scanner.feed(sent[start : start + piece_bytes])
    assert scanner.purposes == purposes


def test_a_large_request_shows_its_purpose_before_it_is_whole():
    scanner = RequestScanner(PATTERNS)
    scanner.feed(
        produce("faults")[:4].replace(b"\x00\x00", b"\x00\x7f", 1) + produce("faults")[4:] + b"x" * FRAME_READ_BYTES
    )
    assert scanner.purposes == {Purpose.WRITE_CHANNEL}


def test_one_purpose_is_held_in_one_direction_and_the_others_go_on():
    async def main() -> None:
        async with echo() as link:
            reading, writing = [await asyncio.open_connection(LOOPBACK, link.port) for _ in range(2)]
            for (reader, writer), sent in ((reading, fetch("channel")), (writing, produce("faults"))):
                writer.write(sent)
                assert await reader.readexactly(len(sent)) == sent
            assert link.connections_for(Purpose.READ_CHANNEL) == 1
            link.hold(up=False, down=True, purpose=Purpose.READ_CHANNEL)
            reading[1].write(b"answered late\n")
            writing[1].write(b"answered at once\n")
            assert await writing[0].readline() == b"answered at once\n"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reading[0].read(1)
            link.heal()
            assert await reading[0].readline() == b"answered late\n"

    asyncio.run(main())


def test_a_connection_is_reset_as_soon_as_a_request_shows_its_purpose():
    async def main() -> None:
        async with echo() as link:
            link.resetting = {Purpose.ELECTION}
            reader, writer = await asyncio.open_connection(LOOPBACK, link.port)
            writer.write(fetch("channel"))
            await reader.readexactly(len(fetch("channel")))
            writer.write(request(12))
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            link.heal()
            assert await ask(link, request(12) + b"\n")

    asyncio.run(main())
