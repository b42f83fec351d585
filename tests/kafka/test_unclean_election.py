"""Records that a member has read are truncated by an unclean leader election, on a real Kafka of three nodes."""

import asyncio
import os
from pathlib import Path

import pytest

from statechannel.api import ChannelStoppedError, StateChannel
from statechannel.errors import ExitCode
from statechannel.settings import Settings
from tests.faults.kafka_nodes import KafkaNodes
from tests.support.channels import EXPIRY, Recorder, created, make_settings
from tests.support.log_lines import capture_logs
from tests.support.unclean_election import UncleanElection
from tests.support.waits import WAIT_S

pytestmark = [
    pytest.mark.skipif(
        "STATECHANNEL_TEST_LONG" not in os.environ,
        reason="two minutes, three nodes: STATECHANNEL_TEST_LONG=1, or make faults",
    )
]

QUICK = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""A dead node is found out after so long."""
BUNDLE = "t/n/0x00000000_0xffffffff"


async def served(channel: StateChannel, hooks: Recorder) -> int:
    """The newest generation that the hooks were called to serve, once the bundle is."""
    async with asyncio.timeout(WAIT_S):
        await channel.lookup("t/n/x", timeout_s=WAIT_S)
        while channel.serves(BUNDLE) is None:  # noqa: ASYNC110 - hooks
            await asyncio.sleep(0.1)
    return max(generation for name, bundle, generation in hooks.calls if (name, bundle) == ("on_serve", BUNDLE))


async def test_who_has_read_what_was_truncated_stops_and_no_generation_of_it_is_served_again(tmp_path: Path) -> None:
    nodes = KafkaNodes(tmp_path, 3, (), QUICK)
    await nodes.start()
    try:
        settings, hooks = make_settings(nodes.address, "cut", membership=EXPIRY), Recorder()
        async with asyncio.timeout(6 * WAIT_S):
            before = await lose_the_bundle(nodes, settings, hooks)
            with capture_logs() as lines:
                await accept_the_loss(settings, before)
            assert any(line["event"] == "log.shorter" for line in lines)
    finally:
        await nodes.close()


async def lose_the_bundle(nodes: KafkaNodes, settings: Settings, hooks: Recorder) -> int:
    """A namespace is created and served, and all records of it are truncated; returns the generation that was served."""
    opening = StateChannel.open(settings, broker="b1", hooks=hooks, create_topics=True, join_timeout_s=WAIT_S)
    async with opening as channel:
        election = UncleanElection(nodes, "cut", 0)
        await election.leave_behind()
        await created(channel, "t/n", 1)
        generation = await served(channel, hooks)
        end = await election.read_end()
        await election.leader.kill()
        await election.elect()
        assert election.cut < end
        await election.restore()
        ended = await channel.wait_stopped()
        assert (ended.reason, ended.exit_code) == ("topic-broken", ExitCode.TOPIC_BROKEN)
        assert channel.serves(BUNDLE) is None
        with pytest.raises(ChannelStoppedError):
            await channel.lookup("t/n/x")
    return generation


async def accept_the_loss(settings: Settings, before: int) -> None:
    """Started again it waits; with the loss accepted it begins above all that was served."""
    accepts = settings.model_copy(update={"leader": settings.leader.model_copy(update={"accept_lost_head": True})})
    hooks = Recorder()
    async with StateChannel.open(accepts, broker="b1", hooks=hooks, join_timeout_s=WAIT_S) as channel:
        await created(channel, "t/n", 1)
        assert await served(channel, hooks) > before
