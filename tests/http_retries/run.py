"""A cluster whose brokers are killed and started again while clients call it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.http_retries.calls import NAMESPACE, RetriedCall, RetryingClients
from tests.http_retries.checker import read_story, violations
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka
from tests.support.killing import read_log
from tests.support.waits import WAIT_S

BROKERS: Final = ("b1", "b2", "b3")
FLAGS: Final = (
    "http.open_role=force",
    "http.requests_per_s=100000",
    "http.actions_max=1000",
    "http.connections_max=1000",
    "extensions.balancer.enabled=true",
)
BUNDLES: Final = 32
DEAD_MAX_S: Final = 2.0


class RetryResult(NamedTuple):
    """What came of the calls.

    Attributes:
        kills: Brokers that were killed while calls were under way.
        troubles: Number of attempts without an end, by kind.
    """

    calls: list[RetriedCall]
    kills: int
    troubles: Mapping[str, int]
    broken: list[str]
    took_s: float


class _Killer:
    """Kills one broker at a time with SIGKILL, and starts it again."""

    def __init__(self, cluster: BrokerCluster, ports: Mapping[str, int], seed: int, every_s: float) -> None:
        self._cluster = cluster
        self._ports = ports
        self._rng = Random(f"{seed}/kills")
        self._every_s = every_s
        self.kills = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * self._every_s)
            victim = self._rng.choice(BROKERS)
            await asyncio.to_thread(self._cluster.kill, victim)
            self.kills += 1
            await asyncio.sleep(self._rng.uniform(0.1, DEAD_MAX_S))
            begin(self._cluster, victim, self._ports[victim])
            # Two of three live at any time: the next one is killed once this one answers again.
            await asyncio.to_thread(_wait_open, self._ports[victim])


def begin(cluster: BrokerCluster, broker: str, port: int) -> None:
    """Start a broker that serves the API at this port."""
    cluster.spawn(broker, (f"http.port={port}",))


def _wait_open(port: int) -> None:
    ends_s = time.monotonic() + WAIT_S
    while time.monotonic() < ends_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port} after {WAIT_S:g} s")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def run_calls(
    kafka: Kafka,
    channel: str,
    folder: Path,
    *,
    calls: int,
    seed: int,
    at_once: int = 16,
    kill_every_s: float = 8.0,
    plant_new_keys: bool = False,
) -> RetryResult:
    """Make the calls, end everything, and check what the log says.

    Args:
        kill_every_s: Mean time between the return of a broker and the next kill.
        plant_new_keys: Break the rule, to see that the checker notices.
    """
    ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
    with broker_cluster(BrokerCluster(kafka, channel, folder, FLAGS)) as cluster:
        for broker, port in ports.items():
            begin(cluster, broker, port)
        cluster.wait(lambda: {row["broker"] for row in cluster.alive()} >= set(BROKERS))
        cluster("namespace", "create", NAMESPACE, "--bundles", str(BUNDLES), "--timeout", "60")
        killer = _Killer(cluster, ports, seed, kill_every_s)
        urls = {broker: f"http://127.0.0.1:{port}" for broker, port in ports.items()}

        async def call() -> RetryingClients:
            clients = RetryingClients(urls, seed, plant_new_keys=plant_new_keys)
            killing = asyncio.create_task(killer.run())
            try:
                await clients.run(calls, at_once)
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
                await clients.close()
            return clients

        begun_s = time.monotonic()
        clients = asyncio.run(call())
        took_s = time.monotonic() - begun_s
        story = read_story(read_log(kafka.bootstrap_servers, channel))
    return RetryResult(clients.calls, killer.kills, clients.troubles, violations(clients.calls, story), took_s)
