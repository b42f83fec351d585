"""One Kafka node, or three that are one cluster, each with a listener of its own for every broker's proxies.

Kafka tells its clients where to connect, so a proxy in front of its port is left at once. Each broker therefore has a
listener whose advertised port is that of its proxy.
"""

import asyncio
import contextlib
import os
import re
import resource
import signal
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from confluent_kafka import KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from statechannel.embedded import BrokerOptions, EmbeddedKafkaError, KafkaServer
from statechannel.embedded.layout import LOOPBACK
from statechannel.embedded.process import find_free
from statechannel.embedded.server import new_cluster_id
from tests.faults.kafka_clock import ClockSpan, make_agent
from tests.faults.link import Link
from tests.faults.purposes import topic_patterns
from tests.faults.throttle import Throttle, slow_disk

_ACTIVE = re.compile(r"Becoming the active controller at epoch (\d+)")
START_S = 90.0
ASK_S = 10.0
STARTS = 3


async def to_its_end(function: Callable[[], object]) -> None:
    """Run it in a thread; a cancellation waits for its end, so that a process that it starts can be ended."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


class Node:
    """One Kafka process."""

    def __init__(self, number: int, server: KafkaServer, links: dict[str, Link]) -> None:
        self.number, self.server, self.links = number, server, links
        self.paused = False
        self._starting = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return self.server.pid is not None

    async def start(self) -> None:
        """Start it, and again if that fails: after a full disk the old process may still be on its way out."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return  # a fault heals because the run is being ended: nobody wants this node any more
        async with self._starting:  # two faults of the same node may heal at once
            for _ in range(STARTS - 1):
                if self.alive:
                    return
                with contextlib.suppress(EmbeddedKafkaError):
                    await to_its_end(self.server.start)
                    return
                await asyncio.sleep(1.0)
            await to_its_end(self.server.start)

    async def stop(self) -> None:
        await to_its_end(self.server.stop)

    async def kill(self) -> None:
        await to_its_end(self.server.kill)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.paused = False

    def fill_disk(self, slack_bytes: int) -> None:
        """Let no file of the process grow beyond the channel's log as it is now, and a little: appends fail as on a full disk.

        A limit of the process (RLIMIT_FSIZE) rather than a small file system, since that needs no root; Kafka meets an
        error of the write in both cases ("file too large" in place of "no space left on device").
        """
        logs = [*(self.server.folder / "log").glob("*/*.log")]
        largest = max((path.stat().st_size for path in logs), default=0)
        self._limit(largest + slack_bytes)

    def slow_disk(self, writes_per_s: int) -> Throttle | None:
        """Limit what it may write to its disk; None while it does not run."""
        pid = self.server.pid
        return None if pid is None else slow_disk(pid, self.server.folder, writes_per_s)

    def free_disk(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size_bytes: int) -> None:
        pid = self.server.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def controller_epoch(self) -> int:
        """Of the last term in which it was the active controller, by its log; -1: never."""
        log = self.server.log_path.read_text(errors="replace") if self.server.log_path.exists() else ""
        return max((int(epoch) for epoch in _ACTIVE.findall(log)), default=-1)

    def _signal(self, number: int) -> None:
        pid = self.server.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class KafkaNodes:
    """All nodes of the run's Kafka.

    Args:
        count: 1, or 3 with replicated topics.
        brokers: Who needs a link of its own.
        properties: More of Kafka's, for each node.
        disks: Names of the log directories of each node, in its folder; none: one directory.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        brokers: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        disks: Sequence[str] = (),
    ) -> None:
        taken: set[int] = set()
        ports = [_free(taken) for _ in range(count)]
        controllers = [_free(taken) for _ in range(count)]
        voters = ",".join(f"{n + 1}@{LOOPBACK}:{port}" for n, port in enumerate(controllers))
        cluster_id = new_cluster_id()
        self._patterns: dict[bytes, str] = {}
        self._topics: dict[str, str] = {}
        self._folder = folder
        self.clock_spans: list[ClockSpan] = []
        self.nodes: list[Node] = []
        for index in range(count):
            links = {broker: Link(_free(taken), _free(taken), self._patterns) for broker in brokers}
            names = {broker: f"LINK_{broker.upper()}" for broker in brokers}
            own = f"PLAINTEXT://{LOOPBACK}:{ports[index]}"
            inside = [f"{names[b]}://{LOOPBACK}:{link.target}" for b, link in links.items()]
            outside = [f"{names[b]}://{LOOPBACK}:{link.port}" for b, link in links.items()]
            protocols = [f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *names.values())]
            own_properties = {
                "node.id": str(index + 1),
                "controller.quorum.voters": voters,
                "listeners": ",".join([own, f"CONTROLLER://{LOOPBACK}:{controllers[index]}", *inside]),
                "advertised.listeners": ",".join([own, *outside]),
                "listener.security.protocol.map": ",".join(protocols),
            }
            if disks:
                own_properties["log.dirs"] = ",".join(str(folder / f"kafka-{index + 1}" / name) for name in disks)
            if count > 1:
                own_properties |= _REPLICATED | {"broker.rack": NODE_RACKS[index]}
            options = BrokerOptions(
                cluster_id=cluster_id,
                properties=own_properties | dict(properties or {}),
                start_timeout_s=START_S,
                fast_cleaner=True,
            )
            server = KafkaServer(folder / f"kafka-{index + 1}", port=ports[index], options=options)
            self.nodes.append(Node(index + 1, server, links))
        self.address = ",".join(f"{LOOPBACK}:{port}" for port in ports)

    def address_for(self, broker: str) -> str:
        """Where a broker finds Kafka: through its own links."""
        return ",".join(f"{LOOPBACK}:{node.links[broker].port}" for node in self.nodes)

    async def learn_topics(self, channel: str) -> None:
        """Learn the ids of a channel's topics: requests name them by these, and links tell connections apart by requests."""
        self._topics = {"channel": channel, "registry": f"{channel}-registry", "requests": f"{channel}-requests"}
        client = AdminClient({"bootstrap.servers": self.address})
        asked = client.describe_topics(TopicCollection([*self._topics.values()]), request_timeout=START_S)
        topics = {name: await asyncio.to_thread(future.result) for name, future in asked.items()}
        ids = {role: (name, _id_bytes(topics[name].topic_id)) for role, name in self._topics.items()}
        self._patterns.update(topic_patterns(ids))

    @property
    def channel(self) -> str:
        """Name of the channel's topic, once it was learnt."""
        return self._topics["channel"]

    def name_of(self, role: str) -> str:
        """Name of the channel's topic, the registry or the requests, once they were learnt."""
        return self._topics[role]

    async def leader_of(self, role: str) -> Node:
        """The node that leads the only partition of a topic; the first node while no node leads it."""
        name = self._topics[role]
        client = AdminClient({"bootstrap.servers": self.address})
        leader = -1
        with contextlib.suppress(KafkaException):  # another fault may keep all of Kafka away
            metadata = await asyncio.to_thread(client.list_topics, name, ASK_S)
            leader = metadata.topics[name].partitions[0].leader
        return next((node for node in self.nodes if node.number == leader), self.nodes[0])

    def clock_agent(self) -> Path:
        """What sets a node's clock; made when it is wanted.

        Raises:
            NoJdkError: It cannot be made here.
        """
        return make_agent(self._folder)

    def begin_clock_span(self, offset_s: float) -> ClockSpan:
        """Note that from now on a node's clock may be set apart.

        Raises:
            NoJdkError: It cannot be.
        """
        self.clock_agent()
        self.clock_spans.append(ClockSpan(offset_s, time.monotonic_ns()))
        return self.clock_spans[-1]

    async def flush_each(self, *, on: bool) -> None:
        """Have the channel's topics answer a record only when it is on disk, or leave that to the kernel again."""
        kind = AlterConfigOpType.SET if on else AlterConfigOpType.DELETE
        entry = ConfigEntry("flush.messages", "1", incremental_operation=kind)
        changes = [
            ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in self._topics.values()
        ]
        client = AdminClient({"bootstrap.servers": self.address})
        with contextlib.suppress(KafkaException):  # another fault may keep all of Kafka away
            for future in client.incremental_alter_configs(changes, request_timeout=ASK_S).values():
                await asyncio.to_thread(future.result)

    def links_of(self, broker: str) -> list[Link]:
        return [node.links[broker] for node in self.nodes]

    def links(self) -> Iterator[Link]:
        for node in self.nodes:
            yield from node.links.values()

    async def start(self) -> None:
        for link in self.links():
            await link.start()
        await asyncio.gather(*(node.start() for node in self.nodes))
        await asyncio.to_thread(self._wait_until_registered)

    def _wait_until_registered(self) -> None:
        """A client that is made before all nodes are registered does not know the others for a while."""
        admin = AdminClient({"bootstrap.servers": self.address})
        deadline_s = time.monotonic() + REGISTERED_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(KafkaException):
                if len(admin.list_topics(timeout=REGISTERED_S / 10).brokers) == len(self.nodes):
                    return
            time.sleep(0.1)
        raise EmbeddedKafkaError(f"not all of {len(self.nodes)} nodes were registered within {REGISTERED_S:.0f} s")

    async def close(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # what one cannot end keeps no other alive
            for node in self.nodes:
                stack.push_async_callback(node.kill)
                stack.callback(node.resume)
            for link in self.links():
                stack.push_async_callback(link.close)

    def controller(self) -> Node:
        """The node that is, or was last, the active controller."""
        return max(self.nodes, key=lambda node: node.controller_epoch())


REGISTERED_S = 60.0
NODE_RACKS = ("rack-1", "rack-2", "rack-3")
"""Of nodes 1 to 3. Only consumers that say where they are (`client.rack`) read from followers."""

_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "unclean.leader.election.enable": "false",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


def _id_bytes(topic_id: Uuid) -> bytes:
    halves = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return struct.pack(">qq", *halves)


def _free(taken: set[int]) -> int:
    while (port := find_free()) in taken:
        pass
    taken.add(port)
    return port
