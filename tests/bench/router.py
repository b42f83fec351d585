"""What a router answers and costs beside a member, how soon it knows of a move, and what its clients meet through a drain."""

import sys
import time
from collections.abc import Sequence

from statechannel.protocol.bundle import bundle_key, namespace_bounds
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load, percentile

MODULE = "tests.bench.router_process"
CHANNEL = "bench-router"
NAMESPACES = ("router/n0", "router/n1")
EACH = 32_768
NAMES = 65_536
DRAINED = 1_000
CLIENTS = 8
MOVES = 300
RATES_S = 3.0
IDLE_S = 3.0
BESIDE_S = 1.0


def run(bundles: int = 2 * EACH) -> Sequence[Figure]:
    """Moves and a drain in a small channel; then start, memory and lookups at many bundles."""
    with kafka(512) as bootstrap:
        figures = _moves(bootstrap)
        figures += _many(bootstrap, bundles // len(NAMESPACES))
    return figures


def _create(broker: BrokerProcess, namespace: str, bundles: int) -> list[str]:
    if broker.ask("create", namespace, bundles) != "Done":
        raise RuntimeError(f"{namespace} was not created")
    bounds = namespace_bounds(bundles)
    time.sleep(BESIDE_S)
    return [bundle_key(namespace, bounds[number], bounds[number + 1]) for number in range(bundles)]


def _moves(bootstrap: str) -> list[Figure]:
    """How long after the new owner may serve the router names it; then a broker with 1,000 bundles leaves in order."""
    channel = f"{CHANNEL}-moves"
    with brokers(bootstrap, channel, module=MODULE) as running:
        asker = BrokerProcess("r1", bootstrap, channel, MODULE)
        try:
            asker.wait_ready()
            bundles = _create(running["b1"], "router/moves", DRAINED)
            owners = running["b1"].ask("owners", bundles)["owners"]
            known_ms, load = [], Load()
            for number in range(MOVES):
                bundle, source = bundles[0], owners[0]
                others = [name for name in running if name != source]
                owners[0] = others[number % 2]
                asker.tell("known", bundle, owners[0])
                if not running["b1"].ask("transfer", bundle, owners[0])["done"]:
                    raise RuntimeError(f"transfer {number} failed")
                known_ns, served_ns = asker.answer(), None
                while served_ns is None:
                    served_ns = running[owners[0]].ask("stamp", "serve", bundle)
                known_ms.append((known_ns - served_ns) / 1e6)
            notes = {"moves": len(known_ms)}
            figures = [
                Figure("router.move-known.p50", percentile(known_ms, 0.5), "ms", load=str(load), notes=notes),
                Figure("router.move-known.p99", percentile(known_ms, 0.99), "ms", aim="<= 50", load=str(load)),
                Figure("router.move-known.max", max(known_ms), "ms", load=str(load)),
            ]
            return figures + _drain(running, asker, bundles)
        finally:
            asker.kill()


def _drain(running: dict[str, BrokerProcess], asker: BrokerProcess, bundles: Sequence[str]) -> list[Figure]:
    leaver = "b3"
    owners = running["b1"].ask("owners", bundles)["owners"]
    others = [bundle for bundle, owner in zip(bundles, owners, strict=True) if owner != leaver]
    if running["b1"].ask("move", others, leaver) != len(others):
        raise RuntimeError("the bundles did not come together on one broker")
    ports = {name: process.ask("guard_port") for name, process in running.items()}
    time.sleep(BESIDE_S)
    load = Load()
    asker.ask("begin", bundles, CLIENTS, ports)
    time.sleep(BESIDE_S)
    facts = running[leaver].ask("leave")
    time.sleep(BESIDE_S)
    met = asker.ask("end")
    if met["failed"]:
        raise RuntimeError(f"clients failed: {met['failed']}")
    print(f"drain of {facts['bundles']} bundles in {facts['s']:.2f} s, {met}", file=sys.stderr)
    notes = {"requests by redirects": met["redirects"], "bundles": facts["bundles"], "drain_s": round(facts["s"], 2)}
    most = max(int(number) for number in met["redirects"])
    return [
        Figure("router.drain.redirects-a-request.max", most, "redirects", aim="<= 1", load=str(load), notes=notes),
        Figure("router.drain.request.p99", met["p99_ms"], "ms", load=str(load)),
        Figure("router.drain.request.max", met["max_ms"], "ms", load=str(load)),
    ]


def _many(bootstrap: str, each: int) -> list[Figure]:
    """A router that joins a channel with many bundles, and a member that does."""
    with brokers(bootstrap, CHANNEL, module=MODULE) as running:
        first = running["b1"]
        bundles = [bundle for name in NAMESPACES for bundle in _create(first, name, each)]
        for process in running.values():
            process.tell("owners", bundles)
        if any(None in process.answer()["owners"] for process in running.values()):
            raise RuntimeError("not every bundle has an owner")
        names = [f"{NAMESPACES[number % 2]}/topic-{number}" for number in range(NAMES)]
        figures = []
        for role, name in (("router", "r1"), ("member", "b4")):
            load, began_s = Load(), time.monotonic()
            process = BrokerProcess(name, bootstrap, CHANNEL, MODULE)
            try:
                process.wait_ready()
                start_s = time.monotonic() - began_s
                time.sleep(IDLE_S)
                mib = process.ask("resident") / 2**20
                facts = process.ask("rates", names, RATES_S)
            finally:
                process.kill()
            figures += [
                Figure(f"router.start.{role}", start_s, "s", load=str(load)),
                Figure(f"router.memory.{role}", mib, "MiB", load=str(load)),
            ]
            floor = facts.pop("floor")
            for call, figure in facts.items():
                aims = ("300,000", "<= 10") if call == "lookup" else ("", "")
                label, notes = f"router.{call}.{role}", {"bundles": len(bundles), "floor": round(floor["rate"])}
                of_floor, rate = figure["rate"] / floor["rate"], figure["rate"]
                figures += [
                    Figure(label, rate, "answers/s", ratio=of_floor, aim=aims[0], load=str(load), notes=notes),
                    Figure(f"{label}.p50", figure["p50_us"], "us", load=str(load)),
                    Figure(f"{label}.p99", figure["p99_us"], "us", aim=aims[1], load=str(load)),
                ]
        return figures
