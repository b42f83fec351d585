"""The proxy itself: what goes through, what does not, and that it is bounded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.faults.link import LOOPBACK, Link


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
    link = Link(0, server.sockets[0].getsockname()[1])
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
