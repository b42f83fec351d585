"""Members that die, hooks that fail, a Kafka that goes away: what the others see and how it ends."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from statechannel.api import (
    BrokerHooks,
    ChannelStoppedError,
    Done,
    HookReentryError,
    Owned,
    Rejected,
    StateChannel,
    Ticket,
    Undetermined,
)
from statechannel.embedded import KafkaServer
from tests.support.channels import EXPIRY, Recorder, created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, until

NAMESPACE = "public/default"
TOPIC = f"{NAMESPACE}/orders"
ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def member(settings, broker: str, hooks: BrokerHooks | None = None) -> AsyncIterator[StateChannel]:
    async with StateChannel.open(
        settings, broker=broker, hooks=hooks, create_topics=True, join_timeout_s=WAIT_S
    ) as channel:
        yield channel


@asynccontextmanager
async def process(broker: str, bootstrap: str, channel: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A member in a process of its own, ready; killed at the end if it still runs."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.broker_process",
        broker,
        bootstrap,
        channel,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        limit=2**20,
    )
    try:
        await line(child, r"^ready")
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def line(child: asyncio.subprocess.Process, pattern: str, timeout_s: float = WAIT_S) -> str:
    async with asyncio.timeout(timeout_s):
        while text := (await child.stdout.readline()).decode():
            if re.search(pattern, text):
                return text
    raise AssertionError(f"the process ended before it said {pattern}")


async def done(ticket: Ticket, timeout_s: float = WAIT_S) -> Done:
    outcome = await ticket.outcome(timeout_s)
    assert isinstance(outcome, Done), outcome
    return outcome


@pytest.mark.lane("fast")
async def test_killed_process_is_repaired_and_the_records_say_when_it_was_heard(kafka: Kafka, topic_prefix: str):
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, membership=EXPIRY)
    address = kafka.bootstrap_servers
    async with (
        process("p1", address, topic_prefix) as first,
        process("p2", address, topic_prefix),
        member(settings, "b3") as channel,
    ):
        await created(channel, NAMESPACE, 8)
        for number in range(40):
            await channel.lookup(f"{NAMESPACE}/{number}", WAIT_S)
        bundles = [
            f"{NAMESPACE}/0x{n:08x}_0x{min(n + 0x20000000, 0xFFFFFFFF):08x}" for n in range(0, 2**32, 0x20000000)
        ]
        owners = [await channel.lookup(bundle, WAIT_S) for bundle in bundles]
        orphans = [owner for owner in owners if isinstance(owner, Owned) and owner.broker == "p1"]
        assert orphans
        live = channel.changes(since={})
        first.kill()
        await first.wait()
        repairs = []
        async with asyncio.timeout(WAIT_S):
            async for change in live:
                if change.forced:
                    repairs.append(change)
                if len(repairs) == len(orphans):
                    break
        await live.aclose()
        assert all(change.lost is not None and change.lost["broker"] == "p1" for change in repairs)
        assert all(change.lost["last_heard_ms"] > 0 for change in repairs if change.lost)
        for orphan in orphans:
            owner = await channel.lookup(orphan.bundle, WAIT_S)
            assert isinstance(owner, Owned), owner
            assert owner.broker != "p1"
            assert owner.generation > orphan.generation


async def test_second_process_with_a_live_id_is_refused(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    async with member(settings, "b1"):
        with pytest.raises(ChannelStoppedError) as refused:
            async with member(settings, "b1"):
                pass
        assert refused.value.stopped.reason == "id-in-use"


class Refusing(Recorder):
    """`on_own` never returns."""

    async def on_own(self, bundle, generation) -> None:
        await super().on_own(bundle, generation)
        await asyncio.Event().wait()


async def test_hook_that_hangs_declines_and_another_broker_serves(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, hooks={"deadline_s": 2.0})
    refusing = Refusing()
    async with member(settings, "b1") as good, member(settings, "b2", refusing) as bad:
        ticket = await created(good, NAMESPACE, 8)
        await done(bad.ticket(str(ticket)))
        # Asked at the one that refuses: it knows of itself, so that some bundles are certain to be given to it.
        owners = await asyncio.gather(*(bad.lookup(f"{NAMESPACE}/{number}", WAIT_S) for number in range(30)))
        assert {owner.broker for owner in owners if isinstance(owner, Owned)} == {"b1"}
        assert all(isinstance(owner, Owned) for owner in owners), owners
        assert any(call[0] == "on_own" for call in refusing.calls)
        assert bad.serving() == {}


class Reentrant(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.channel: StateChannel | None = None
        self.errors: list[Exception] = []
        self.answers: list[object] = []

    async def on_serve(self, bundle, generation) -> None:
        try:
            await self.channel.lookup(bundle)
        except HookReentryError as error:
            self.errors.append(error)
        self.task = asyncio.create_task(self.later(bundle))

    async def later(self, bundle: str) -> None:
        self.answers.append(await self.channel.lookup(bundle, WAIT_S))
        self.note("answered")


async def test_hook_may_not_wait_for_the_channel_but_its_task_may(kafka: Kafka, topic_prefix: str) -> None:
    hooks = Reentrant()
    async with member(make_settings(kafka.bootstrap_servers, topic_prefix), "b1", hooks) as channel:
        hooks.channel = channel
        await created(channel, NAMESPACE, 1)
        assert isinstance(await channel.lookup(TOPIC, WAIT_S), Owned)
        await hooks.until(("answered",))
        assert len(hooks.errors) == 1
        assert "Start a task" in hooks.errors[0].hint  # type: ignore[attr-defined]
        assert isinstance(hooks.answers[0], Owned)


@pytest.mark.lane("fast")
async def test_kafka_killed_and_restarted_safe_mode_then_settling_then_normal(
    own_kafka: KafkaServer, topic_prefix: str
) -> None:
    settings = make_settings(own_kafka.bootstrap_servers, topic_prefix, membership=EXPIRY)
    async with member(settings, "b1") as result, member(settings, "b2") as two:
        ticket = await created(result, NAMESPACE, 2)
        await done(two.ticket(str(ticket)))
        before = await result.lookup(TOPIC, WAIT_S)
        assert isinstance(before, Owned)
        await asyncio.to_thread(own_kafka.kill)
        await until(lambda: result.status()["mode"] == two.status()["mode"] == "safe")
        stale = await result.lookup(TOPIC, 5)
        assert isinstance(stale, Owned)
        assert stale.stale_age_s is not None
        assert stale.broker == before.broker
        seen = []
        await asyncio.to_thread(own_kafka.start)
        await until(lambda: seen.append(result.status()["mode"]) or seen[-1] != "safe")
        await until(lambda: result.status()["mode"] == two.status()["mode"] == "normal")
        # The mode follows the registry. The log has a connection of its own, which may come back later, and says its age.
        async with asyncio.timeout(WAIT_S):
            while (after := await result.lookup(TOPIC, WAIT_S)).stale_age_s is not None:
                assert (after.broker, after.generation) == (before.broker, before.generation), after
                await asyncio.sleep(0.05)
        assert isinstance(after, Owned), after
        assert (after.broker, after.generation) == (before.broker, before.generation)
        other = "b2" if before.broker == "b1" else "b1"
        # The destination accepts again from its next heartbeat on, some milliseconds after its mode is normal.
        async with asyncio.timeout(WAIT_S):
            while isinstance(outcome := await (await result.transfer(TOPIC, other)).outcome(WAIT_S), Rejected):
                assert outcome.reason == "destination-not-accepting", outcome
                await asyncio.sleep(0.05)
        assert outcome.result == "transferred"


async def test_shutdown_while_kafka_is_away_has_an_exit_code_of_its_own(own_kafka: KafkaServer, topic_prefix: str):
    settings = make_settings(own_kafka.bootstrap_servers, topic_prefix, membership=EXPIRY)
    channel = await StateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S)
    await created(channel, NAMESPACE, 1)
    assert isinstance(await channel.lookup(TOPIC, WAIT_S), Owned)
    await asyncio.to_thread(own_kafka.kill)
    await until(lambda: channel.status()["mode"] == "safe")
    stopped = await channel.shutdown(3)
    assert stopped.reason == "log-away"
    assert stopped.exit_code == 10
    with pytest.raises(ChannelStoppedError):
        await channel.lookup(TOPIC)


async def test_commands_that_wait_when_the_member_stops_end_as_unknown(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, hooks={"deadline_s": 10.0})
    channel = await StateChannel.open(
        settings, broker="b1", hooks=Refusing(), create_topics=True, join_timeout_s=WAIT_S
    )
    await created(channel, NAMESPACE, 1)
    waiting = asyncio.ensure_future(channel.lookup(TOPIC, WAIT_S))
    await asyncio.sleep(0.2)
    await channel.shutdown(0.5)
    outcome = await waiting
    assert isinstance(outcome, Undetermined), outcome
