"""The broker's side of the toy data plane."""

import asyncio

from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.demo.client import DemoLink
from statechannel.demo.plane import DataPlane


def test_a_plane_that_closes_under_its_clients_complains_of_nothing():
    complaints = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        plane = DataPlane("b1")
        link = DemoLink(await plane.start())
        assert (await link.ask("serving", 5))["serving"] == {}
        await plane.close()
        await asyncio.sleep(0.05)
        await link.close()

    asyncio.run(main())
    assert complaints == []


def test_a_broker_that_has_stopped_answers_that_it_has():
    class Gone:
        async def lookup(self, *_):
            raise ChannelStoppedError(Stopped("replaced", "another process runs under its id"))

    async def main() -> None:
        plane = DataPlane("b1")
        link = DemoLink(await plane.start())
        plane.attach(Gone())
        answer = await link.ask("lookup", 5, topic="t/n/orders")
        assert answer["ok"] is False
        assert "another process" in answer["why"]
        await link.close()
        await plane.close()

    asyncio.run(main())


def test_a_write_tells_the_moment_at_which_it_was_checked():
    async def main() -> None:
        plane = DataPlane("b1")
        link = DemoLink(await plane.start())
        plane.served.serve("t/n/0x00000000_0xffffffff", 7)
        first = await link.ask("write", 5, topic="t/n/orders")
        second = await link.ask("write", 5, topic="t/n/orders")
        assert first["generation"] == 7
        assert first["mono_ns"] < second["mono_ns"]
        await link.close()
        await plane.close()

    asyncio.run(main())
