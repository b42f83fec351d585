"""A rolling restart of ten brokers with 1,000 bundles, while clients ask a router where to send their requests.

The brokers run in this process, with the balancer and its own decisions, on an embedded Kafka; `statechannel rolling-restart` is
the command itself, and restarts each broker by hand (`--manual`): a shutdown, and another process of the same id. A bundle's gap
is the time from the start of the old owner's `on_release` to the new owner's `on_serve`, by one clock. A client's request fails
if no broker admits it within `PATIENCE_S`.
"""

import asyncio
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from zlib import crc32

from loaddata.measure.synthetic import SimulatedHost
from loaddata.model.bundle_load import BundleStats
from loaddata.source import MeasuredBundle, TopicRates
from shedders.balancer.extension import BalancerExtension
from shedders.balancer.settings import configured
from shedders.contest.contenders import contender
from shedders.contest.scenario import load_scenario
from shedders.contest.workload import scenario_trace
from shedders.contest.world import ContestWorld
from statechannel.api import BrokerHooks, Done, Owned, StateChannel, StateChannelError
from statechannel.api.guard import Admission, Redirect
from statechannel.router import Route, Router
from statechannel.settings import Settings, load
from tests.bench.handoff import Hops
from tests.bench.lane import kafka, make_channel
from tests.bench.measure import ROOT, Figure, Load, percentile

BROKERS, BUNDLES = 10, 1_000
CHANNEL, FLOOR_CHANNEL, NAMESPACE = "bench-rolling", "bench-rolling-floor", "tenant/rolling"
RATE = "20/s"
CLIENTS, PAUSE_S = 4, 0.01
PATIENCE_S = 1.0
AFTER_S = 60.0
"""After the end the balancer is watched for this long."""
SETTLE_S = 30.0
READY_S = 180.0
BALANCER = {
    "interval_s": 5,
    "settle_s": 5,
    "splitting": False,
    "load": {
        "measure_interval_s": 1.0,
        "sample_interval_s": 1.0,
        "settle_s": 0.5,
        "tick_s": 0.2,
        "top_interval_s": 1.0,
    },
}
MSG_RATE = 100.0
FULL_RATE = 2.2 * 1.5 * MSG_RATE * BUNDLES / BROKERS
"""Messages a second of a full machine: brokers are a little below half full."""


def weight(bundle: str) -> float:
    """Load of a bundle, from 1 to 2, the same at every broker."""
    return 1.0 + crc32(bundle.encode()) % 1_000 / 1_000


@dataclass
class Witness:
    """What all brokers' hooks saw, by one clock.

    Attributes:
        owner: By bundle.
        moves: Time, bundle, source and destination of each move.
        gaps_s: Of each bundle that changed its owner.
    """

    owner: dict[str, str] = field(default_factory=dict)
    moves: list[tuple[float, str, str, str]] = field(default_factory=list)
    gaps_s: list[tuple[float, float]] = field(default_factory=list)
    released_s: dict[str, float] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    loads: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def released(self, bundle: str) -> None:
        self.released_s[bundle] = time.monotonic()

    def served(self, bundle: str, broker: str) -> None:
        now_s, before = time.monotonic(), self.owner.get(bundle)
        self.owner[bundle] = broker
        self.loads[broker] += weight(bundle)
        if before is None or before == broker:
            return
        self.loads[before] -= weight(bundle)
        self.moves.append((now_s, bundle, before, broker))
        if bundle in self.released_s:
            self.gaps_s.append((now_s, now_s - self.released_s.pop(bundle)))


class WitnessedBroker(BrokerHooks):
    """Quick hooks of one broker, and the source of its load."""

    def __init__(self, broker: str, witness: Witness) -> None:
        self.broker = broker
        self._witness = witness
        self._served: dict[str, MeasuredBundle] = {}

    async def on_serve(self, bundle: str, generation: int) -> None:
        del generation
        rate = MSG_RATE * weight(bundle)
        self._served[bundle] = MeasuredBundle(BundleStats(rate, rate, rate * 1_000, rate * 1_000, topics=1))
        self._witness.served(bundle, self.broker)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        del generation, destination
        self._served.pop(bundle, None)
        self._witness.released(bundle)

    def bundles(self) -> Mapping[str, MeasuredBundle]:
        return dict(self._served)

    def topics(self, bundle: str) -> Sequence[TopicRates]:
        del bundle
        return ()


@dataclass
class Requests:
    """What clients saw."""

    sent: int = 0
    errors: int = 0
    redirects: list[int] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)


class Cluster:
    """Ten brokers in this process."""

    def __init__(self, bootstrap: str) -> None:
        self.settings: Settings = load(
            overrides={
                "kafka": {"bootstrap_servers": bootstrap},
                "channel": {"name": CHANNEL},
                "membership": {"interval_s": 0.5, "expiry_s": 10.0},
            }
        )
        self.witness = Witness()
        self.channels: dict[str, StateChannel] = {}
        self.turn: str | None = None

    async def start(self, name: str) -> None:
        hooks = WitnessedBroker(name, self.witness)
        host = SimulatedHost(hooks, msg_rate_max=2 * FULL_RATE)
        balancer = BalancerExtension(configured(BALANCER), source=hooks, host=host, replication_factor=1)
        self.channels[name] = await StateChannel.open(
            self.settings, broker=name, hooks=hooks, extensions=[balancer], create_topics=True, join_timeout_s=READY_S
        )

    async def restart(self, name: str) -> None:
        await self.channels.pop(name).shutdown(30.0)
        await self.start(name)

    async def fill(self) -> None:
        """Create all bundles and look each of them up."""
        first = next(iter(self.channels.values()))
        ticket = await first.create_namespace(NAMESPACE, BUNDLES)
        outcome = await ticket.outcome(60.0)
        if not isinstance(outcome, Done):
            raise StateChannelError(f"the namespace was not created: {outcome}")
        names = sorted(bundle.bundle for bundle in first.picture().bundles)
        for begin in range(0, len(names), 50):
            answers = await asyncio.gather(*(first.lookup(name, 60.0) for name in names[begin : begin + 50]))
            if not all(isinstance(answer, Owned) for answer in answers):
                raise RuntimeError("a bundle was not assigned")

    async def even(self) -> None:
        """Begin with brokers that are equally full: a storm of lookups may leave some fuller, and time is short."""
        loads, owner = dict(self.witness.loads), dict(self.witness.owner)
        moves: dict[str, str] = {}
        for bundle in sorted(owner):
            least, most = min(loads, key=lambda name: (loads[name], name)), owner[bundle]
            if loads[most] - loads[least] > 2 * weight(bundle) and loads[most] > sum(loads.values()) / len(loads):
                loads[most] -= weight(bundle)
                loads[least] += weight(bundle)
                moves[bundle] = least
        names = list(moves)
        for begin in range(0, len(names), 20):
            tickets = [
                await self.channels[owner[name]].transfer(name, moves[name]) for name in names[begin : begin + 20]
            ]
            await asyncio.gather(*(ticket.outcome(60.0) for ticket in tickets))

    async def watch_loads(self, ended: asyncio.Event) -> None:
        """Note the largest load, against what it would be if all were equally full, without the broker whose turn it is."""
        while not ended.is_set():
            loads = self.witness.loads
            staying = [name for name in self.channels if name != self.turn]
            largest = max(loads[name] for name in staying)
            self.witness.peaks.append(largest / (sum(loads.values()) / len(staying)))
            await asyncio.sleep(0.2)


async def ask(cluster: Cluster, router: Router, seen: Requests, number: int, ended: asyncio.Event) -> None:
    """One client: a request after the other, each to a topic of its own."""
    for turn in count(number, CLIENTS):
        if ended.is_set():
            return
        await _one(cluster, router, seen, f"{NAMESPACE}/topic-{turn * 7_919 % 100_003}")
        await asyncio.sleep(PAUSE_S)


async def _one(cluster: Cluster, router: Router, seen: Requests, topic: str) -> None:
    seen.sent += 1
    begun_s, redirects, broker = time.monotonic(), 0, ""
    while time.monotonic() - begun_s < PATIENCE_S:
        if not broker:
            route = router.lookup(topic)
            if not isinstance(route, Route):
                route = await router.wait(topic, PATIENCE_S)
            broker = route.broker if isinstance(route, Route) else ""
        channel = cluster.channels.get(broker)
        answer = None if channel is None else channel.guard(topic)
        if isinstance(answer, Admission):
            seen.redirects.append(redirects)
            seen.waits_s.append(time.monotonic() - begun_s)
            return
        # Where the broker names another one it is asked at once; else the router is, in a moment.
        broker = answer.broker or "" if isinstance(answer, Redirect) else ""
        redirects += bool(broker)
        if not broker:
            await asyncio.sleep(0.001)
    seen.errors += 1


async def roll(cluster: Cluster, bootstrap: str) -> None:
    """The command; each broker is restarted when its turn is printed."""
    command = [sys.executable, "-c", "from statechannel.cli.main import main; main()", "rolling-restart", "--manual"]
    command += ["--yes", "--rate", RATE, "--bootstrap-servers", bootstrap, "--channel", CHANNEL]
    command += ["--set", "membership.interval_s=0.5", "--set", "membership.expiry_s=10"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    lines: list[str] = []
    try:
        if process.stderr is None:
            raise RuntimeError("the command has no standard error")
        async for line in process.stderr:
            text = line.decode().strip()
            lines.append(text)
            print(f"rolling: {text}", file=sys.stderr)
            for name in list(cluster.channels):
                if text.startswith(f"draining {name}"):
                    cluster.turn = name
                elif text.startswith(f"restart {name} now"):
                    await cluster.restart(name)
                elif text.startswith(f"{name} is back"):
                    cluster.turn = None
        if await process.wait() != 0:
            raise RuntimeError("\n".join(lines[-5:]))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def floor(bootstrap: str, ended: threading.Event) -> list[float]:
    """Milliseconds of two appends that are read back, in this process too, again and again until the end."""
    settings, topics = make_channel(bootstrap, FLOOR_CHANNEL)
    hops, took_ms = Hops(settings, topics.channel), []
    while not ended.wait(0.2):
        took_ms.append(hops.measure(b"x" * 420))
    hops.close()
    return took_ms


async def measure(bootstrap: str) -> list[Figure]:
    load, cluster, seen, ended = Load(), Cluster(bootstrap), Requests(), asyncio.Event()
    for number in range(1, BROKERS + 1):
        await cluster.start(f"b{number:02d}")
    await cluster.fill()
    await cluster.even()
    await asyncio.sleep(SETTLE_S)
    router = await Router.open(cluster.settings, join_timeout_s=READY_S)
    tasks = [asyncio.ensure_future(ask(cluster, router, seen, number, ended)) for number in range(CLIENTS)]
    tasks.append(asyncio.ensure_future(cluster.watch_loads(ended)))
    await asyncio.sleep(1.0)
    witness, before = cluster.witness, Counter(cluster.witness.owner.values())
    peak_before = witness.peaks[-1]
    witness.peaks.clear()
    begun_s, rolled = time.monotonic(), threading.Event()
    floors = asyncio.ensure_future(asyncio.to_thread(floor, bootstrap, rolled))
    try:
        await roll(cluster, bootstrap)
    finally:
        rolled.set()
    ended_s, floors_ms = time.monotonic(), await floors
    peaks, after = list(witness.peaks), Counter(witness.owner.values())
    await asyncio.sleep(AFTER_S)
    watched_s = time.monotonic()
    ended.set()
    await asyncio.gather(*tasks)
    await router.close()
    for channel in list(cluster.channels.values()):
        await channel.close()
    for source in sorted({move[2] for move in witness.moves}):
        receivers = Counter(move[3] for move in witness.moves if move[2] == source and begun_s <= move[0] <= ended_s)
        print(f"rolling: {source} -> {dict(receivers.most_common())}", file=sys.stderr)
    notes = {
        "brokers": BROKERS,
        "bundles": BUNDLES,
        "before": dict(before),
        "after": dict(after),
        "peak_before": peak_before,
    }
    return [
        *_figures(witness, seen, peaks, (begun_s, ended_s, watched_s), str(load), notes),
        *_gaps(witness, floors_ms, (begun_s, ended_s), str(load)),
    ]


def _figures(
    witness: Witness,
    seen: Requests,
    peaks: Sequence[float],
    span: tuple[float, float, float],
    load: str,
    notes: dict[str, Any],
) -> Iterator[Figure]:
    begun_s, ended_s, watched_s = span
    moves = [move for move in witness.moves if begun_s <= move[0] <= ended_s]
    later = [move for move in witness.moves if ended_s < move[0] <= watched_s]
    lane = "rolling"
    floor = BUNDLES + min(notes["before"].values())
    yield Figure(
        f"{lane}.moves", len(moves), "moves", len(moves) / floor, "<= 1.1 of the bundles", load=load, notes=notes
    )
    yield Figure(f"{lane}.moves-a-bundle", len(moves) / BUNDLES, "moves", aim="<= 1.1", load=load)
    yield Figure(f"{lane}.moves-after", len(later), "moves", load=load)
    yield Figure(f"{lane}.took", ended_s - begun_s, "s", load=load)
    yield Figure(f"{lane}.load.before", notes["peak_before"], "of the bound", load=load)
    yield Figure(f"{lane}.load.max", max(peaks), "of the bound", aim="<= 1.15", load=load)
    yield Figure(f"{lane}.load.p99", percentile(peaks, 0.99), "of the bound", aim="<= 1.15", load=load)
    yield Figure(f"{lane}.requests", seen.sent, "requests", load=load)
    yield Figure(f"{lane}.errors", seen.errors, "requests", aim="0", load=load)
    yield Figure(f"{lane}.redirects.max", max(seen.redirects), "a request", load=load)
    yield Figure(f"{lane}.request-wait.max", 1e3 * max(seen.waits_s), "ms", load=load)


def _gaps(witness: Witness, floors_ms: Sequence[float], span: tuple[float, float], load: str) -> Iterator[Figure]:
    gaps_ms = [1e3 * gap_s for at_s, gap_s in witness.gaps_s if span[0] <= at_s <= span[1]]
    for word, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        gap, least = percentile(gaps_ms, share), percentile(floors_ms, share)
        aim = "<= 50 ms" if word == "p99" else ""
        yield Figure(f"rolling.floor.{word}", least, "ms", load=load, notes={"hops": 2, "samples": len(floors_ms)})
        yield Figure(f"rolling.gap.{word}", gap, "ms", gap / least, aim, load=load, notes={"gaps": len(gaps_ms)})


def run() -> list[Figure]:
    """All figures."""
    with kafka() as bootstrap:
        return asyncio.run(measure(bootstrap))


SIMULATED_BROKERS, SIMULATED_NAMESPACES = 100, 20
EVERY_S, BEGUN_MIN = 90.0, 10.0


def simulated() -> list[Figure]:
    """The contest's rolling restart with a hundred brokers and 1,000 bundles, in virtual time: moves and evenness."""
    scenario = load_scenario("rolling-restart")
    scenario = scenario.model_copy(
        update={
            "hours": (BEGUN_MIN * 60 + EVERY_S * (SIMULATED_BROKERS + 2)) / 3_600,
            "fleet": [scenario.fleet[0].model_copy(update={"count": SIMULATED_BROKERS})],
            "namespaces": [scenario.namespaces[0].model_copy(update={"count": SIMULATED_NAMESPACES})],
            "events": [scenario.events[0].model_copy(update={"every_s": EVERY_S, "at_min": BEGUN_MIN})],
        }
    )
    trace = scenario_trace(scenario, 1)
    # A bundle that is split has no count of its own moves.
    world = ContestWorld(trace, contender("ours,balancer.splitting=false"))
    for step in range(trace.steps):
        world.step(step)
    bundles = sum(namespace.bundles for namespace in trace.namespaces)
    begun_s, ended_s = (pick(event.at_s for event in trace.events) for pick in (min, max))
    meanwhile = sum(begun_s <= move.at_s < ended_s for move in world.meter.moves)
    measures, load = world.meter.measures(), str(Load())
    notes = {"brokers": SIMULATED_BROKERS, "bundles": bundles, "splits": measures.splits}
    return [
        Figure("rolling-simulated.moves", world.handed_over, "moves", load=load, notes=notes),
        Figure("rolling-simulated.moves-a-bundle", world.handed_over / bundles, "moves", aim="<= 1.1", load=load),
        Figure("rolling-simulated.moves-of-the-balancer", meanwhile, "moves meanwhile", aim="0", load=load),
        Figure("rolling-simulated.load.max", measures.max_over_bound, "of the bound", load=load),
    ]
