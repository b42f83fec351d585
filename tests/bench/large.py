"""65,536 bundles: a storm of assignments, transfers during a storm, a killed follower and leader, brokers that leave in order.

Brokers come one by one so that each departure and death concerns so many bundles as its name says, and those who stay are
watched: a broker that is busy, but reads and writes, has to stay in normal mode.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from statechannel.protocol.bundle import bundle_key, namespace_bounds
from statechannel.settings import load as load_settings
from tests.bench.cluster import BrokerProcess, brokers, processor_s
from tests.bench.deaths import victim_of
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load, percentile

CHANNEL = "bench-large"
NAMESPACES = ("large/n0", "large/n1")
EACH = 32_768
STORM = 10_000
LOOK_S = 0.05
LONGEST_S = 600.0
SPIN = "while True: pass"


def run(busy: int) -> Sequence[Figure]:
    """Everything on one cluster.

    Args:
        busy: Processes that use all the processor time they get, beside one of the departures.
    """
    figures: list[Figure] = []
    with kafka(512) as bootstrap, brokers(bootstrap, CHANNEL) as running:
        cluster = Cluster(running, bootstrap)
        bundles = [bundle for name in NAMESPACES for bundle in cluster.create(name, EACH)]
        figures += cluster.storm(bundles)
        figures += cluster.transfers_in_a_storm()
        figures.append(cluster.death("follower", bundles))
        cluster.add("b4")
        figures += cluster.departure(bundles, "")
        cluster.add("b5")
        with spinning(busy):
            figures += cluster.departure(bundles, f".beside-{busy}")
        cluster.add("b6")
        figures.append(cluster.death("leader", bundles))
    return figures


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """So many processes that do nothing but take processor time."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Cluster:
    """The brokers of the measurement."""

    def __init__(self, running: dict[str, BrokerProcess], bootstrap: str) -> None:
        self._running = running
        self._bootstrap = bootstrap
        self._expiry_s = load_settings().membership.expiry_s

    def create(self, namespace: str, bundles: int) -> list[str]:
        """Create a namespace; its bundles."""
        if self._running["b1"].ask("create", namespace, bundles) != "Done":
            raise RuntimeError(f"{namespace} was not created")
        bounds = namespace_bounds(bundles)
        time.sleep(1.0)
        return [bundle_key(namespace, bounds[index], bounds[index + 1]) for index in range(bundles)]

    def add(self, name: str) -> None:
        """Start one more broker."""
        self._running[name] = BrokerProcess(name, self._bootstrap, CHANNEL)
        self._running[name].wait_ready()

    def storm(self, bundles: Sequence[str]) -> list[Figure]:
        """All brokers are asked for all bundles at once, until the last has its last answer."""
        load = Load()
        self._watch_modes()
        used_s, began_ns = processor_s(self._running.values()), time.monotonic_ns()
        for process in self._running.values():
            process.tell("owners", bundles)
        answers = [process.answer() for process in self._running.values()]
        took_s = (max(answer["at_ns"] for answer in answers) - began_ns) / 1e9
        cpu_us = (processor_s(self._running.values()) - used_s) / len(bundles) * 1e6
        owners = answers[0]["owners"]
        if None in owners or any(answer["owners"] != owners for answer in answers):
            raise RuntimeError("the brokers do not agree on the owners")
        notes = {"owners": "/".join(str(count) for count in sorted(Counter(owners).values())), "modes": self._modes()}
        name = f"large.storm.{len(bundles)}"
        self._say(f"{name}: {took_s:.1f} s, {cpu_us:.0f} us a bundle, {notes}")
        return [
            Figure(name, took_s, "s", aim="<= 25", load=str(load), notes=notes),
            Figure(f"{name}.cpu", cpu_us, "us/bundle", aim="<= 450", load=str(load)),
        ]

    def transfers_in_a_storm(self) -> list[Figure]:
        """One transfer after the other while 10,000 bundles of another namespace are assigned."""
        (bundle,) = self.create("large/one", 1)
        bundles, load, taken_ms = self.create("large/storm", STORM), Load(), list[float]()
        first, *others = self._running.values()
        first.ask("owners", [bundle])
        for process in others:
            process.tell("owners", bundles)
        until_s = time.monotonic() + LONGEST_S
        pending = {process.broker for process in others}
        turn = 0
        while pending and time.monotonic() < until_s:
            facts = first.ask("transfer", bundle, f"b{turn % 3 + 1}")
            if facts["done"]:  # the first may go where the bundle is
                taken_ms.append(facts["ms"])
            turn += 1
            pending = {process.broker for process in others if process.broker in pending and not process.has_answer()}
        for process in others:
            process.answer()
        self._say(f"transfers during a storm of {STORM}: {len(taken_ms)}, p99 {percentile(taken_ms, 0.99):.0f} ms")
        notes = {"transfers": len(taken_ms), "max": max(taken_ms)}
        return [
            Figure("large.transfer-in-storm.p50", percentile(taken_ms, 0.5), "ms", load=str(load), notes=notes),
            Figure("large.transfer-in-storm.p99", percentile(taken_ms, 0.99), "ms", aim="<= 250", load=str(load)),
        ]

    def death(self, role: str, bundles: Sequence[str]) -> Figure:
        """kill -9; until all bundles have living owners, net of the expiry."""
        load, victim = Load(), victim_of(self._running, role)
        # Thousands of lookups at once keep a broker's loop busy for up to a second: not the leader's, whose work is measured.
        excluded = {victim, victim_of(self._running, "leader")}
        asked = next(process for name, process in self._running.items() if name not in excluded)
        owners = asked.ask("owners", bundles)["owners"]
        waiting = [bundle for bundle, owner in zip(bundles, owners, strict=True) if owner == victim]
        self._watch_modes()
        killed_ns, last_ms, count = time.monotonic_ns(), 0.0, len(waiting)
        self._running.pop(victim).kill()
        while asked.ask("owners", waiting[:1])["owners"][0] == victim:
            time.sleep(LOOK_S)  # to ask for all of them again and again would keep the asked broker from its work
        while waiting:
            facts = asked.ask("owners", waiting)
            last_ms = (facts["at_ns"] - killed_ns) / 1e6
            waiting = [
                bundle for bundle, owner in zip(waiting, facts["owners"], strict=True) if owner in (None, victim)
            ]
            if last_ms > LONGEST_S * 1_000:
                raise RuntimeError(f"{len(waiting)} bundles of {victim} have no living owner after {LONGEST_S:g} s")
            time.sleep(LOOK_S)
        net_s = last_ms / 1_000 - self._expiry_s
        notes = {"bundles": count, "expiry_s": self._expiry_s, "modes": self._modes()}
        self._say(f"killed {role} with {count}: {net_s:.1f} s net, {notes}")
        aim = "<= 3" if role == "follower" else "<= 5"
        return Figure(f"large.killed-{role}", net_s, "s net", aim=aim, load=str(load), notes=notes)

    def departure(self, bundles: Sequence[str], suffix: str) -> list[Figure]:
        """A follower leaves in order."""
        load, leaver = Load(), self._heaviest(bundles)
        process = self._running.pop(leaver)
        self._watch_modes()
        facts = process.ask("leave")
        process.kill()
        modes = self._modes()
        asked = next(iter(self._running.values()))
        left = sum(owner in (None, leaver) for owner in asked.ask("owners", bundles)["owners"])
        notes = {"bundles": facts["bundles"], "left": left, "reason": facts["reason"], "modes": modes}
        self._say(f"{leaver} leaves with {facts['bundles']}: {facts['s']:.1f} s, {notes}")
        flapped = sum(count for mode, count in modes.items() if mode != "normal")
        name = f"large.leave{suffix}"
        return [
            Figure(name, facts["s"], "s", aim="" if suffix else "<= 15", load=str(load), notes=notes),
            Figure(f"{name}.left", left, "bundles", aim="0", load=str(load)),
            Figure(f"{name}.not-normal", flapped, "looks", aim="0", load=str(load)),
        ]

    def _heaviest(self, bundles: Sequence[str]) -> str:
        """A follower with the most bundles."""
        counts = Counter(next(iter(self._running.values())).ask("owners", bundles)["owners"])
        leading = victim_of(self._running, "leader")
        return max((name for name in self._running if name != leading), key=lambda name: counts[name])

    def _watch_modes(self) -> None:
        for process in self._running.values():
            process.ask("watch_modes")

    def _modes(self) -> dict[str, int]:
        """How often a look at a broker found it in each mode since `_watch_modes`."""
        return dict(sum((Counter(process.ask("modes")) for process in self._running.values()), Counter()))

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
