"""Broker processes of the command line: two under one id, and a Kafka that is killed beneath bundles on the move."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from statechannel.api import Done, Owned, StateChannel
from statechannel.audit.gaps import GapEnd
from statechannel.demo.cluster import command_path
from statechannel.embedded import KafkaServer
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from statechannel.protocol.digest import digest
from statechannel.protocol.states import State
from tests.support.channels import created
from tests.support.kafka_lanes import Kafka
from tests.support.killing import EXPIRY_S, Directed, audit_of, owners, read_log, settled, survivor, victim
from tests.support.waits import WAIT_S

NAMESPACE = "public/default"
BOUNDS = namespace_bounds(8)
BUNDLES = [bundle_key(NAMESPACE, BOUNDS[n], BOUNDS[n + 1]) for n in range(8)]


async def broker_run(broker: str, kafka: Kafka, channel: str, folder: Path) -> asyncio.subprocess.Process:
    """`statechannel broker run` with the short times of the other members."""
    flags = ("membership.interval_s=0.3", f"membership.expiry_s={EXPIRY_S}", "safe_mode.after_s=4.0")
    with (folder / f"{broker}-{os.urandom(2).hex()}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            str(command_path()),
            *("broker", "run", "--id", broker, "-b", kafka.bootstrap_servers, "--channel", channel, "--create-topics"),
            *(word for flag in flags for word in ("--set", flag)),
            stdout=log,
            stderr=log,
        )


async def ended(process: asyncio.subprocess.Process, timeout_s: float = WAIT_S) -> int:
    async with asyncio.timeout(timeout_s):
        return await process.wait()


async def test_second_process_of_a_living_id_refuses_and_of_a_paused_one_replaces_it(
    kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    placement = Directed()
    started = []
    try:
        async with survivor("s", kafka.bootstrap_servers, topic_prefix, placement) as channel:
            await created(channel, NAMESPACE, 8)
            first = await broker_run("p", kafka, topic_prefix, tmp_path)
            started.append(first)
            placement.wanted = dict.fromkeys(BUNDLES, "p")
            for bundle in BUNDLES:
                await hand_over(channel, bundle, "p")
            second = await broker_run("p", kafka, topic_prefix, tmp_path)
            started.append(second)
            assert await ended(second) == ExitCode.ID_IN_USE
            assert {owner.broker for owner in (await owners(channel, BUNDLES)).values()} == {"p"}

            paused = incarnation_of(channel, "p")
            os.kill(first.pid, signal.SIGSTOP)
            third = await broker_run("p", kafka, topic_prefix, tmp_path)
            started.append(third)
            await settled(lambda: incarnation_of(channel, "p") not in (None, paused), WAIT_S)
            os.kill(first.pid, signal.SIGCONT)
            assert await ended(first) == ExitCode.REPLACED
            result = await owners(channel, BUNDLES)
            assert {owner.broker for owner in result.values()} <= {"p", "s"}
            third.terminate()
            assert await ended(third) == ExitCode.OK
            assert {owner.broker for owner in (await owners(channel, BUNDLES)).values()} == {"s"}
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def hand_over(channel: StateChannel, bundle: str, broker: str) -> None:
    """Hand it over as soon as that broker takes bundles."""
    async with asyncio.timeout(WAIT_S):
        while True:
            owner = await channel.lookup(bundle, WAIT_S)
            if isinstance(owner, Owned) and owner.broker == broker:
                return
            await (await channel.transfer(bundle, broker)).outcome(10)
            await asyncio.sleep(0.2)


def incarnation_of(channel: StateChannel, broker: str) -> str | None:
    """Process of that id that is heard."""
    member = channel._host.engine.presence.members.alive.get(broker)
    return None if member is None else member.incarnation


async def test_kafka_killed_beneath_bundles_on_the_move(own_kafka: KafkaServer, topic_prefix: str) -> None:
    at = own_kafka.bootstrap_servers
    placement = Directed()
    async with (
        victim("p", at, topic_prefix) as process,
        survivor("s1", at, topic_prefix, placement) as first,
        survivor("s2", at, topic_prefix, placement) as second,
    ):
        await created(first, NAMESPACE, 8)
        await owners(first, BUNDLES)
        enough = asyncio.Event()
        acknowledged: list[str] = []
        moving = [asyncio.create_task(move(first, bundle, enough, acknowledged)) for bundle in BUNDLES]
        await settled(lambda: len(acknowledged) >= len(BUNDLES), 120)
        await asyncio.to_thread(own_kafka.kill)
        await asyncio.sleep(3)
        await asyncio.to_thread(own_kafka.start)
        await settled(lambda: first.status()["mode"] == second.status()["mode"] == "normal", WAIT_S)
        enough.set()
        await asyncio.gather(*moving)
        await settled(lambda: not audit_of(read_log(at, topic_prefix))[0].view.in_flight, WAIT_S)
        result = await owners(first, BUNDLES)
        audit, gaps = audit_of(read_log(at, topic_prefix))
        log = b"".join(record.value or b"" for record in read_log(at, topic_prefix))
        assert [item for item in acknowledged if item.encode() not in log] == [], (
            "nothing that was answered as done may be missing from the log"
        )
        assert [gap for gap in gaps.all() if gap.end is GapEnd.OPEN] == []
        assert all(key.state is State.ASSIGNED for key in audit.view.existing() if not key.is_namespace)
        await settled(lambda: first.digest()[0] == second.digest()[0] == digest([audit.view]), WAIT_S)
        serving = {"s1": first.serving(), "s2": second.serving(), "p": await process.ask("serving", "serving")}
        for bundle, owner in result.items():
            assert [broker for broker, held in serving.items() if bundle in held] == [owner.broker]


async def move(channel: StateChannel, bundle: str, enough: asyncio.Event, done: list[str]) -> None:
    """Transfer it round and round until it is enough; the operations that were answered as done go into the list."""
    while not enough.is_set():
        for broker in ("p", "s1", "s2"):
            ticket = await channel.transfer(bundle, broker)
            if isinstance(await ticket.outcome(30), Done):
                done.append(str(ticket))
            await asyncio.sleep(0.05)
