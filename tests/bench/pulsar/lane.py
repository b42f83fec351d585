"""Pulsar's work and this project's in turn, on one machine in the same minutes: storms, transfers, a killed follower.

Other work on the machine slows both, so that the ratio within a round says more than either figure. Each storm of Pulsar's is
between two of this project's, whose mean it is compared with. Pulsar's brokers are warmed up before: their code is compiled as
it runs, and the first storms cost them a multiple.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise

import psutil

from statechannel.embedded import KafkaServer
from statechannel.embedded.errors import EmbeddedKafkaError
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from statechannel.settings import load as load_settings
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.deaths import LONGEST_S, LOOK_S, lose_broker, own_bundles
from tests.bench.lane import kafka_server
from tests.bench.measure import Figure, Load, median, percentile
from tests.bench.pulsar.client import TENANT, Admin, ask_all, topics_of
from tests.bench.pulsar.cluster import SESSION_S, PulsarCluster, processor_s, pulsar_cluster
from tests.bench.pulsar.jars import BROKER_JARS
from tests.bench.storm import assign_all, spread_of
from tests.support.waits import wait_until

CHANNEL = "bench-beside-pulsar"
SIZES = {64: "", 256: "", 1024: "<= 0.4x"}
WARM_UPS = (256, 1024, 1024, 1024, 1024, 1024)
SETTLE_S = 2.0
"""Before each storm: what the one before has left, compilation and collection above all, is over then."""
TRANSFERS = 200
BLOCK = 20
"""Transfers in a row before it is the other's turn."""
DEATHS = 3
KILLED_WITH = 100
TRANSFERS_AT_ONCE = 8


def run(rounds: int = 5) -> Sequence[Figure]:
    """All of it; nothing, and a sentence on standard error, where Pulsar's jars cannot be had."""
    try:
        jars = BROKER_JARS.prepare(say=lambda line: print(f"pulsar: {line}", file=sys.stderr))
    except EmbeddedKafkaError as error:
        print(f"pulsar: nothing was measured: {error} ({error.hint})", file=sys.stderr)
        return []
    figures: list[Figure] = []
    with (
        kafka_server() as server,
        brokers(server.bootstrap_servers, CHANNEL) as running,
        pulsar_cluster(jars) as pulsar,
    ):
        pair = Pair(server, running, pulsar)
        pair.warm_up()
        for size, aim in SIZES.items():
            figures += pair.storms(size, aim, rounds)
        figures += pair.transfers()
    # Those of the storms would be lost and repaired too.
    with (
        kafka_server() as server,
        brokers(server.bootstrap_servers, CHANNEL) as running,
        pulsar_cluster(jars) as pulsar,
    ):
        figures += Pair(server, running, pulsar).deaths(min(rounds, DEATHS))
    return figures


@dataclass(frozen=True, slots=True)
class PulsarStorm:
    """As `tests.bench.storm.Assignment`, and what more there is to say of Pulsar.

    Attributes:
        storage_us: Processor time of ZooKeeper and the bookie, for each bundle.
        client_us: That of the client.
        differing: Bundles for which the brokers named different owners.
    """

    ms: float
    cpu_us: float
    again_ms: float
    owners: Sequence[str]
    storage_us: float
    client_us: float
    differing: int


class Pair:
    """Both clusters, three brokers each."""

    def __init__(self, server: KafkaServer, running: dict[str, BrokerProcess], pulsar: PulsarCluster) -> None:
        self._running = running
        self._pulsar = pulsar
        self._bootstrap = server.bootstrap_servers
        self._kafka = psutil.Process(server.pid)
        self._expiry_s = load_settings().membership.expiry_s
        self._namespaces = 0

    def warm_up(self) -> None:
        """Storms that nobody counts."""
        for size in WARM_UPS:
            storm = self._pulsar_storm(size)
            assign_all(self._running, self._namespace(), size)
            print(f"pulsar: warm-up with {size} bundles, {storm.ms:.0f} ms", file=sys.stderr)

    def storms(self, size: int, aim: str, rounds: int) -> list[Figure]:
        """Before, Pulsar's, after; the ratio in each round."""
        load, here, there, storage_us, ratios = Load(), [], [], [], []
        for _ in range(rounds):
            time.sleep(SETTLE_S)
            used_s = self._kafka_s()
            before = assign_all(self._running, self._namespace(), size)
            storage_us.append((self._kafka_s() - used_s) / size * 1e6)
            there.append(self._pulsar_storm(size))
            time.sleep(SETTLE_S)
            after = assign_all(self._running, self._namespace(), size)
            here += [before, after]
            ratios.append((before.ms + after.ms) / 2 / there[-1].ms)
            print(
                f"pulsar: {size} bundles, {before.ms:.0f} ms, Pulsar {there[-1].ms:.0f} ms, then {after.ms:.0f} ms: "
                f"{ratios[-1]:.2f}x; owners {before.spread}, in Pulsar {spread_of(there[-1].owners)}",
                file=sys.stderr,
            )
        name, label = f"pulsar.storm.{size}", str(load)
        figure = partial(Figure, load=label)
        notes = {"ratios": [round(ratio, 3) for ratio in ratios], "owners": here[-1].spread}
        theirs = {
            "owners": [spread_of(storm.owners) for storm in there],
            "client_us": median(at.client_us for at in there),
        }
        here_ms, there_ms = [storm.ms for storm in here], [storm.ms for storm in there]
        return [
            figure(f"{name}.here", median(here_ms), "ms", median(ratios), aim, rounds=here_ms, notes=notes),
            figure(f"{name}.pulsar", median(there_ms), "ms", rounds=there_ms, notes=theirs),
            figure(f"{name}.owned-already.here", median(storm.again_ms for storm in here), "ms"),
            figure(f"{name}.owned-already.pulsar", median(storm.again_ms for storm in there), "ms"),
            figure(f"{name}.brokers.here", median(storm.cpu_us for storm in here), "us/bundle"),
            figure(f"{name}.brokers.pulsar", median(storm.cpu_us for storm in there), "us/bundle"),
            figure(f"{name}.storage.here", median(storage_us), "us/bundle"),
            figure(f"{name}.storage.pulsar", median(storm.storage_us for storm in there), "us/bundle"),
            figure(f"{name}.client.pulsar", median(storm.client_us for storm in there), "us/bundle"),
        ]

    def transfers(self) -> list[Figure]:
        """Blocks of transfers in turn, one transfer at a time."""
        load = Load()
        with self._pulsar.admin() as admin:
            here, there = Transfers(self._running), PulsarTransfers(self._pulsar, admin)
            for _ in range(1 + TRANSFERS // BLOCK):
                here.take(BLOCK)
                there.take(BLOCK)
        # The first block warms up.
        here_ms, there_ms = here.taken_ms[BLOCK:], there.taken_ms[BLOCK:]
        figures, notes = [], {"transfers": TRANSFERS}
        for word, share in (("p50", 0.5), ("p99", 0.99)):
            ours, theirs = percentile(here_ms, share), percentile(there_ms, share)
            figures += [
                Figure(f"pulsar.transfer.{word}.here", ours, "ms", ours / theirs, load=str(load), notes=notes),
                Figure(f"pulsar.transfer.{word}.pulsar", theirs, "ms", load=str(load), notes=notes),
            ]
        return figures

    def deaths(self, rounds: int) -> list[Figure]:
        """kill -9 of a follower with its share of the bundles, in turn; net of the expiry, and of the session."""
        load, here, there = Load(), Nets(self._expiry_s), Nets(SESSION_S)
        bundles = own_bundles(self._running, 3 * KILLED_WITH)
        with self._pulsar.admin() as admin:
            deaths = PulsarDeaths(self._pulsar, admin)
        for number in range(rounds):
            victim, answered_ms = lose_broker(self._running, bundles, KILLED_WITH, "follower")
            here.add(answered_ms)
            lost, answered_ms = deaths.lose_follower()
            there.add(answered_ms)
            print(
                f"pulsar: killed, {here.lasts[-1]:.0f} ms net, in Pulsar {there.lasts[-1]:.0f} ms net", file=sys.stderr
            )
            if number + 1 < rounds:
                self._running[victim] = BrokerProcess(victim, self._bootstrap, CHANNEL)
                self._running[victim].wait_ready()
                self._pulsar.add(lost)
        name, label, notes = f"pulsar.killed-follower.{KILLED_WITH}-bundles", str(load), {"bundles": KILLED_WITH}
        return [
            Figure(f"{name}.{where}", median(nets.lasts), "ms net", rounds=nets.lasts, load=label, notes=notes)
            for where, nets in (("here", here), ("pulsar", there))
        ]

    def _pulsar_storm(self, size: int) -> PulsarStorm:
        time.sleep(SETTLE_S)
        namespace = self._namespace(TENANT)
        with self._pulsar.admin() as admin:
            topics = topics_of(namespace, admin.create(namespace, size))
        used_s, stored_s = processor_s(self._pulsar.processes()), processor_s(self._pulsar.storage)
        storm = ask_all(self._pulsar.ports, topics)
        used_s = processor_s(self._pulsar.processes()) - used_s
        stored_s = processor_s(self._pulsar.storage) - stored_s
        owners = storm.answers[0].owners
        differing = sum(
            len(set(named)) > 1 for named in zip(*(answers.owners for answers in storm.answers), strict=True)
        )
        again = ask_all(self._pulsar.ports[:1], topics)
        seconds = (used_s, stored_s, storm.client_s)
        used_us, stored_us, client_us = (taken_s / size * 1e6 for taken_s in seconds)
        return PulsarStorm(storm.ms, used_us, again.ms, owners, stored_us, client_us, differing)

    def _namespace(self, tenant: str = "storm") -> str:
        self._namespaces += 1
        return f"{tenant}/n{self._namespaces}"

    def _kafka_s(self) -> float:
        used = self._kafka.cpu_times()
        return float(used.user + used.system)


class Nets:
    """Times until the bundles of killed brokers had a living owner, less those until the death could be known."""

    def __init__(self, known_s: float) -> None:
        self._known_ms = known_s * 1000
        self.lasts: list[float] = []

    def add(self, answered_ms: Sequence[float]) -> None:
        self.lasts.append(max(answered_ms) - self._known_ms)


class Transfers:
    """Transfers of a bundle of this project from broker to broker, the call and its end in the process of the first."""

    def __init__(self, running: dict[str, BrokerProcess]) -> None:
        self.taken_ms: list[float] = []
        self._running = running
        self._to = cycle(running)
        if running["b1"].ask("create", "transfers/all", 1) != "Done":
            raise RuntimeError("the namespace was not created")
        bounds = namespace_bounds(1)
        self._bundle = bundle_key("transfers/all", bounds[0], bounds[1])
        self._source, _ = running["b1"].ask("owner", self._bundle)

    def take(self, count: int) -> None:
        """So many, one after the other."""
        for _ in range(count):
            to = next(name for name in self._to if name != self._source)
            facts = self._running["b1"].ask("transfer", self._bundle, to)
            if not facts["done"]:
                raise RuntimeError(f"a transfer to {to} ended as {facts['outcome']}")
            self.taken_ms.append(facts["ms"])
            self._source = to


class PulsarTransfers:
    """The same in Pulsar, by the admin call at its first broker."""

    def __init__(self, pulsar: PulsarCluster, admin: Admin) -> None:
        self.taken_ms: list[float] = []
        self._pulsar = pulsar
        self._admin = admin
        self._to = cycle(pulsar.brokers)
        self._namespace = f"{TENANT}/transfers"
        boundaries = admin.create(self._namespace, 1)
        self._bundle = "_".join(boundaries)
        self._topics = topics_of(self._namespace, boundaries)
        self._source = self._owner()

    def take(self, count: int) -> None:
        """So many, one after the other."""
        for _ in range(count):
            to = next(name for name in self._to if name != self._source)
            began_ns = time.monotonic_ns()
            self._admin.transfer(self._namespace, self._bundle, self._pulsar.brokers[to].id)
            self.taken_ms.append((time.monotonic_ns() - began_ns) / 1e6)
            self._source = to
        wait_until(lambda: self._owner() == self._source, "the bundle's owner is another than it was transferred to")

    def _owner(self) -> str | None:
        return self._pulsar.name_of(ask_all(self._pulsar.ports, self._topics).answers[0].owners[0])


class PulsarDeaths:
    """A namespace whose bundles are spread evenly over Pulsar's brokers before a follower is killed."""

    def __init__(self, pulsar: PulsarCluster, admin: Admin) -> None:
        self._pulsar = pulsar
        self._namespace = f"{TENANT}/deaths"
        bounds = admin.create(self._namespace, KILLED_WITH * len(pulsar.brokers))
        topics = topics_of(self._namespace, bounds)
        self._bundles = dict(zip(topics, (f"{low}_{high}" for low, high in pairwise(bounds)), strict=True))
        ask_all(pulsar.ports, topics)

    def lose_follower(self) -> tuple[str, list[float]]:
        """Kill it; its name, and milliseconds until a survivor named a living owner, for each bundle lost."""
        with self._pulsar.admin() as admin:
            self._even_out(admin)
            leader = admin.leader()
        name = next(name for name, broker in reversed(self._pulsar.brokers.items()) if broker.id != leader)
        asked = [broker.port for other, broker in self._pulsar.brokers.items() if other != name][:1]
        waiting = [topic for topic, owner in self._owners().items() if owner == name]
        killed_ns = time.monotonic_ns()
        self._pulsar.kill(name)
        answered_ms: list[float] = []
        while waiting:
            answers = ask_all(asked, waiting).answers[0]
            now_ms = (answers.at_ns - killed_ns) / 1e6
            left = [
                topic for topic, url in zip(waiting, answers.owners, strict=True) if self._pulsar.name_of(url) is None
            ]
            answered_ms += [now_ms] * (len(waiting) - len(left))
            waiting = left
            if now_ms > LONGEST_S * 1000:
                raise RuntimeError(f"{len(waiting)} bundles of {name} have no living owner after {LONGEST_S:g} s")
            time.sleep(LOOK_S)
        return name, answered_ms

    def _owners(self) -> dict[str, str | None]:
        topics = list(self._bundles)
        urls = ask_all(self._pulsar.ports[:1], topics).answers[0].owners
        return {topic: self._pulsar.name_of(url) for topic, url in zip(topics, urls, strict=True)}

    def _even_out(self, admin: Admin) -> None:
        held: dict[str | None, list[str]] = {}
        for topic, owner in self._owners().items():
            held.setdefault(owner, []).append(topic)
        room = [name for name in self._pulsar.brokers for _ in range(KILLED_WITH - len(held.get(name, ())))]
        moved = [topic for topics in held.values() for topic in topics[KILLED_WITH:]]

        def move(topic: str, to: str) -> None:
            admin.transfer(self._namespace, self._bundles[topic], self._pulsar.brokers[to].id)

        with ThreadPoolExecutor(TRANSFERS_AT_ONCE) as pool:
            list(pool.map(move, moved, room))
