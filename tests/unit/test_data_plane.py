"""The toy data plane of tests: what a broker answers to writes, as its hooks told it."""

import asyncio

import pytest

from statechannel.broker.exits import ChannelStoppedError, Stopped
from tests.support.data_plane import DataPlane, ServedBundles, Serving, place_of_bundle, place_of_topic, topic_names
from tests.support.plane_client import PlaneLink

NAMESPACE = "public/default"
PARENT = f"{NAMESPACE}/0x00000000_0x80000000"
LEFT = f"{NAMESPACE}/0x00000000_0x40000000"
RIGHT = f"{NAMESPACE}/0x40000000_0x80000000"
REST = f"{NAMESPACE}/0x80000000_0xffffffff"
IN_LEFT, IN_RIGHT, IN_REST, _ = (topic_names(NAMESPACE, 4)[i] for i in (0, 1, 2, 3))


def test_only_what_was_announced_is_served() -> None:
    served = ServedBundles()
    assert served.find(IN_LEFT) is None
    served.serve(PARENT, 3)
    assert served.find(IN_LEFT) == Serving(PARENT, 3)
    assert served.find(IN_REST) is None
    assert served.find(IN_LEFT.replace(NAMESPACE, "public/other")) is None
    served.release(PARENT)
    assert served.find(IN_LEFT) is None


def test_children_take_the_parents_place_without_a_gap() -> None:
    served = ServedBundles()
    served.serve(PARENT, 3)
    served.serve(RIGHT, 6)
    assert served.find(IN_LEFT) == Serving(PARENT, 3)
    assert served.find(IN_RIGHT) == Serving(RIGHT, 6)
    served.serve(LEFT, 6)
    assert served.all() == {LEFT: 6, RIGHT: 6}
    served.release(LEFT)
    assert served.find(IN_LEFT) is None


def test_forwards_until_it_comes_back() -> None:
    served = ServedBundles()
    served.serve(REST, 3)
    served.release(REST)
    assert served.forward(IN_REST) is None
    served.moved(REST, "toy://127.0.0.1:1")
    assert served.forward(IN_REST) == "toy://127.0.0.1:1"
    assert served.forward(IN_LEFT) is None
    served.serve(REST, 9)
    assert served.forward(IN_REST) is None
    served.moved(REST, "toy://127.0.0.1:1")
    assert served.forward(IN_REST) is None, "a late notice about a bundle that is here again"


def test_last_hash_of_the_ring_belongs_to_the_last_bundle() -> None:
    assert place_of_bundle(REST).holds(NAMESPACE, 0xFFFFFFFF)
    assert not place_of_bundle(PARENT).holds(NAMESPACE, 0x80000000)


@pytest.mark.parametrize("text", ["orders", "public/orders", ""])
def test_names_without_namespace_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        place_of_topic(text)


def test_topics_lie_one_in_each_part_of_the_ring() -> None:
    names = topic_names(NAMESPACE, 32)
    assert [place_of_topic(name)[1] >> 27 for name in names] == list(range(32))


def test_a_plane_that_closes_under_its_clients_complains_of_nothing():
    complaints = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        plane = DataPlane("b1")
        link = PlaneLink(await plane.start())
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
        link = PlaneLink(await plane.start())
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
        link = PlaneLink(await plane.start())
        plane.served.serve("t/n/0x00000000_0xffffffff", 7)
        first = await link.ask("write", 5, topic="t/n/orders")
        second = await link.ask("write", 5, topic="t/n/orders")
        assert first["generation"] == 7
        assert first["mono_ns"] < second["mono_ns"]
        await link.close()
        await plane.close()

    asyncio.run(main())
