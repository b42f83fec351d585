"""Every broker killed with junk in the log that nobody has answered: what a cold start must not take for the truth."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from statechannel.protocol.bundle import partition_of
from tests.faults.fault import fault
from tests.faults.faults_of_brokers import KillAll
from tests.faults.history import LeftInDebt
from tests.support.killing import read_log

if TYPE_CHECKING:
    from tests.faults.log_copy import LogCopy
    from tests.faults.world import World

FAR_ABOVE = 60
LONG_AGO = 2
COVERS_ALL = 2**50
BUNDLES = 3
ASK_S = 30.0
GAPS_S = 60.0


@fault
class KillAllInDebt(KillAll):
    """Junk on bundles and on a namespace, then every broker killed before anybody answers it, and all started again."""

    kind, held_s, by_name_only, alone = "kill-all-in-debt", (0.0, 3.0), True, True

    async def begin(self, world: World) -> str:
        channel, known = world.kafka.channel, await world.bundles()
        producer = Producer({"bootstrap.servers": world.kafka.address, "linger.ms": 0})
        offsets = await asyncio.to_thread(write_junk, producer, channel, 1, known)
        killed = await super().begin(world)
        world.left_in_debt.append(LeftInDebt(tuple(offsets), int(time.time() * 1000)))
        return f"{killed}; junk at {offsets}"


def write_junk(producer: Producer, channel: str, partitions: int, known: Mapping[str, Any]) -> list[int]:
    """Sound proposals that everybody rejects and a lenient reader takes; their offsets.

    A namespace is deleted at a version far above its own; a bundle is said to be somebody's at one far above, and others at one
    that they had long ago, in records that claim to cover all.
    """
    names = sorted(known)
    if not names:
        return []
    namespace = names[-1].rpartition("/")[0]
    writes = [(namespace, namespace, {"state": "Deleted", "version": _highest(known, namespace) + FAR_ABOVE})]
    for number, name in enumerate(names[:BUNDLES]):
        version = LONG_AGO if number else _highest(known, name) + FAR_ABOVE
        fields = {"state": "Assigned", "version": version, "from": None, "to": known[name][1] or "nobody"}
        writes.append((name, name.rpartition("/")[0], fields))
    offsets: list[int] = []
    for name, namespace, fields in writes:
        head = {"format": 1, "kind": "proposal", "id": uuid.uuid4().hex, "covers": COVERS_ALL, "base": "junk"}
        value = orjson.dumps(head | {"by": {"broker": "nobody", "incarnation": "junk"}} | fields)
        partition = partition_of(namespace, partitions)
        producer.produce(
            channel, value, name, partition=partition, on_delivery=lambda _, written: offsets.append(written.offset())
        )
    producer.flush(ASK_S)
    return offsets


def _highest(known: Mapping[str, Any], name: str) -> int:
    generations = [entry[2] or 0 for key, entry in known.items() if key == name or key.startswith(f"{name}/")]
    return max(generations, default=0)


async def leave_gaps(address: str, channel: str, lag_ms: int, copy: LogCopy) -> int:
    """Have the cleaner take some heartbeats of a channel on which nothing has happened yet; the end of what it may take.

    Whoever joins from now on finds a log with gaps, as on any that is older than the lag, without the wait for that.
    """
    await asyncio.to_thread(_set_lag, address, channel, 1)
    try:
        async with asyncio.timeout(GAPS_S):
            while not await asyncio.to_thread(_is_cleaned, address, channel):  # noqa: ASYNC110 - the cleaner does it
                await asyncio.sleep(0.5)
    finally:
        await asyncio.to_thread(_set_lag, address, channel, lag_ms)
    # A pass that had begun may still end by the short lag; nothing but heartbeats comes before it has.
    await asyncio.sleep(2.0)
    return copy.records[-1].offset + 1


def _set_lag(address: str, channel: str, lag_ms: int) -> None:
    entry = ConfigEntry("min.compaction.lag.ms", str(lag_ms), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, channel, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": address})
    for future in client.incremental_alter_configs([resource], request_timeout=ASK_S).values():
        future.result()


def _is_cleaned(address: str, channel: str) -> bool:
    with contextlib.suppress(IndexError):
        return read_log(address, channel)[0].offset > 0
    return False
