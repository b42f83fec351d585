"""A member that ends while it opens: it may serve bundles already, and hands them over."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from statechannel.api import ChannelStoppedError, Owned, StateChannel
from statechannel.api.extensions import ExtensionError
from statechannel.errors import ExitCode
from tests.support.channels import created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.killing import ROOT, Directed, settled
from tests.support.waits import WAIT_S

NAMESPACE = "public/default"
BUNDLE = f"{NAMESPACE}/0x00000000_0xffffffff"
BROKER_THAT_DOES_NOT_OPEN = """
import asyncio
from statechannel.cli import broker, main
from tests.kafka.test_opening import Unstarted

broker.make_installed = lambda settings: [Unstarted()]
main.main()
"""


class Unstarted:
    """An extension that is starting until it is told to fail."""

    name = "unstarted"
    placement = None

    def __init__(self) -> None:
        self.fails = asyncio.Event()
        self.closed = False

    async def start(self, channel: Any) -> None:
        await self.fails.wait()
        raise OSError("no port")

    async def close(self) -> None:
        self.closed = True

    def status(self) -> dict[str, Any]:
        return {}


class Survivor:
    """The broker `s`, and what it says about `p`."""

    def __init__(self, channel: StateChannel, placement: Directed) -> None:
        self.channel = channel
        self._placement = placement

    async def give_p_the_bundle(self) -> None:
        """As soon as `p` accepts bundles, which is before it is open."""
        self._placement.wanted = {BUNDLE: "p"}
        await settled(lambda: any(seen.broker == "p" and seen.accepting for seen in self.channel.picture().brokers))
        await created(self.channel, NAMESPACE, 1)
        assert await self.owner() == "p"

    async def owner(self) -> str:
        owner = await self.channel.lookup(BUNDLE, WAIT_S)
        assert isinstance(owner, Owned)
        return owner.broker

    async def check_hand_over(self) -> None:
        """It was `p` that gave the bundle away; `s` need not wait until `p` expires, and repair it."""
        states = []
        async with asyncio.timeout(WAIT_S):
            async for change in self.channel.changes(since={}):
                states.append((change.state, change.flow, change.to))
                if change.to == "s":
                    break
        await settled(lambda: all(seen.broker != "p" for seen in self.channel.picture().brokers))
        assert ("Assigned", "assignment", "p") in states
        assert states[-1] == ("Releasing", "transfer", "s")
        assert await self.owner() == "s"


@pytest.fixture
async def survivor(kafka: Kafka, topic_prefix: str) -> AsyncIterator[Survivor]:
    placement = Directed()
    async with StateChannel.open(
        make_settings(kafka.bootstrap_servers, topic_prefix),
        broker="s",
        placement=placement,
        create_topics=True,
        join_timeout_s=WAIT_S,
    ) as channel:
        yield Survivor(channel, placement)


def opening(kafka: Kafka, topic_prefix: str, extension: Unstarted) -> Any:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    return StateChannel.open(settings, broker="p", extensions=[extension], join_timeout_s=WAIT_S)


async def test_cancelled(kafka: Kafka, topic_prefix: str, survivor: Survivor) -> None:
    opened = asyncio.ensure_future(opening(kafka, topic_prefix, Unstarted()))
    await survivor.give_p_the_bundle()
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    await survivor.check_hand_over()


async def test_an_extension_fails(kafka: Kafka, topic_prefix: str, survivor: Survivor) -> None:
    extension = Unstarted()
    opened = asyncio.ensure_future(opening(kafka, topic_prefix, extension))
    await survivor.give_p_the_bundle()
    extension.fails.set()
    with pytest.raises(ExtensionError, match="no port"):
        await opened
    await survivor.check_hand_over()


async def test_shut_down(kafka: Kafka, topic_prefix: str, survivor: Survivor) -> None:
    extension = Unstarted()
    begun = opening(kafka, topic_prefix, extension)
    assert await begun.shutdown() is None, "nothing to shut down yet"
    opened = asyncio.ensure_future(begun)
    await survivor.give_p_the_bundle()
    stopped = await begun.shutdown()
    assert stopped.clean
    assert extension.closed
    with pytest.raises(ChannelStoppedError):
        await opened
    await survivor.check_hand_over()


async def test_a_broker_process_is_ended(kafka: Kafka, topic_prefix: str, survivor: Survivor) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BROKER_THAT_DOES_NOT_OPEN, "broker", "run", "--id", "p"),
        *("-b", kafka.bootstrap_servers, "--channel", topic_prefix),
        cwd=ROOT,
    )
    try:
        await survivor.give_p_the_bundle()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == ExitCode.OK
        await survivor.check_hand_over()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
