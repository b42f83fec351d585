"""Kafka stands still for a minute (SIGSTOP): lookups meanwhile, changes of ownership, and the time back to normal."""

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from statechannel.embedded import BrokerOptions, KafkaServer
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.measure import Figure, Load

CHANNEL, NAMESPACE = "bench-outage", "outage/all"
BUNDLES = 300
ASK_S = 0.5
LONGEST_S = 120.0


def run(outage_s: float = 60.0) -> Sequence[Figure]:
    """One outage."""
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        server = KafkaServer(Path(folder) / "kafka", options=BrokerOptions(heap_mib=256))
        server.start()
        try:
            with brokers(server.bootstrap_servers, CHANNEL) as running:
                return _measure(running, server, outage_s)
        finally:
            server.kill()


def _measure(running: dict[str, BrokerProcess], server: KafkaServer, outage_s: float) -> list[Figure]:
    load, pid = Load(), server.pid
    if pid is None or running["b1"].ask("create", NAMESPACE, BUNDLES) != "Done":
        raise RuntimeError("the cluster is not ready")
    bounds = namespace_bounds(BUNDLES)
    bundles = [bundle_key(NAMESPACE, bounds[index], bounds[index + 1]) for index in range(BUNDLES)]
    running["b1"].ask("owners", bundles)
    before = _named(running, bundles)
    os.kill(pid, signal.SIGSTOP)
    asked = answered = 0
    try:
        until_s = time.monotonic() + outage_s
        while time.monotonic() < until_s:
            for named in _named(running, bundles).values():
                asked += len(named)
                answered += sum(owner is not None for owner, _ in named)
            time.sleep(ASK_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    back_ns = time.monotonic_ns()
    first_ms = _first_change_ms(running, bundles[0], back_ns)
    normal_ms = _normal_ms(running, back_ns)
    after = _named(running, bundles[1:])
    changed = sum(then != now for name in running for then, now in zip(before[name][1:], after[name], strict=True))
    notes = {"outage_s": outage_s, "bundles": BUNDLES, "asked": asked}
    return [
        Figure("outage.lookups-answered", answered / asked, "of all", aim="1", load=str(load), notes=notes),
        Figure("outage.changes-of-ownership", changed, "bundles", aim="0", load=str(load), notes=notes),
        Figure("outage.until-a-transfer-succeeds", first_ms, "ms", load=str(load), notes=notes),
        Figure("outage.until-all-are-normal", normal_ms, "ms", load=str(load), notes=notes),
    ]


def _named(running: dict[str, BrokerProcess], bundles: Sequence[str]) -> dict[str, list[tuple[str | None, int | None]]]:
    for process in running.values():
        process.tell("generations", list(bundles))
    return {name: [(owner, at) for owner, at in process.answer()] for name, process in running.items()}


def _first_change_ms(running: dict[str, BrokerProcess], bundle: str, back_ns: int) -> float:
    until_s = time.monotonic() + LONGEST_S
    owner, _ = running["b1"].ask("owner", bundle)
    to = next(name for name in running if name != owner)
    while time.monotonic() < until_s:
        if running["b1"].ask("transfer", bundle, to)["done"]:
            return (time.monotonic_ns() - back_ns) / 1e6
        time.sleep(0.02)
    raise RuntimeError(f"no transfer succeeded within {LONGEST_S:g} s after the outage")


def _normal_ms(running: dict[str, BrokerProcess], back_ns: int) -> float:
    until_s = time.monotonic() + LONGEST_S
    while time.monotonic() < until_s:
        if all(process.ask("status")["mode"] == "normal" for process in running.values()):
            return (time.monotonic_ns() - back_ns) / 1e6
        time.sleep(0.02)
    raise RuntimeError(f"the brokers are not in normal mode {LONGEST_S:g} s after the outage")
