"""The admin API: answers a second beside a fixed answer by the same libraries, actions beside direct calls, and many readers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from statechannel.protocol.bundle import bundle_key, namespace_bounds
from tests.bench.cluster import BrokerProcess, brokers
from tests.bench.lane import kafka
from tests.bench.measure import ROOT, Figure, Load, median, percentile, worker

MODULE = "tests.bench.http_process"
CHANNEL = "bench-http"
NAMESPACE = "http/all"
BUNDLES = 1_024
CONNECTIONS = 8
READ_S = 4.0
MOVES = 100
READERS = 200
READERS_S = 12.0
SETTLE_S = 3.0
RATE = 20.0
"""Transfers a second while readers are measured; each is three changes."""


def run(rounds: int) -> Sequence[Figure]:
    """One broker is asked, of three."""
    with kafka(512) as bootstrap, brokers(bootstrap, CHANNEL, module=MODULE) as running:
        asked = running["b1"]
        if asked.ask("create", NAMESPACE, BUNDLES) != "Done":
            raise RuntimeError(f"{NAMESPACE} was not created")
        bounds = namespace_bounds(BUNDLES)
        names = [bundle_key(NAMESPACE, bounds[number], bounds[number + 1]) for number in range(BUNDLES)]
        asked.ask("owners", names)
        url = asked.ask("api")
        return [*_reads(asked, url, names[0], rounds), *_moves(asked, url, names[0]), *_readers(running, url, names)]


def _reads(asked: BrokerProcess, url: str, name: str, rounds: int) -> list[Figure]:
    load = Load()
    path = f"{url}/v1/bundles/{name}"
    body = worker(MODULE, "clients", "reads", path, 1, 0.2)
    floor_url = asked.ask("floor", json.dumps({"bundle": name, "filler": "x" * 500}))
    rates, floors = list[dict[str, float]](), list[dict[str, float]]()
    for _ in range(rounds):
        rates.append(worker(MODULE, "clients", "reads", path, CONNECTIONS, READ_S))
        floors.append(worker(MODULE, "clients", "reads", floor_url, CONNECTIONS, READ_S))
    rate, floor = median(row["rate"] for row in rates), median(row["rate"] for row in floors)
    notes = {
        "floor": "a fixed answer by starlette and uvicorn",
        "floor_rate": round(floor),
        "alone_p50_ms": body["p50_ms"],
    }
    return [
        Figure(
            "http.read.rate", rate, "answers/s", ratio=rate / floor, rounds=[row["rate"] for row in rates], load=str(load),
            notes=notes,
        ),
        Figure("http.read.p50", median(row["p50_ms"] for row in rates), "ms", load=str(load)),
        Figure(
            "http.read.p99", median(row["p99_ms"] for row in rates), "ms", load=str(load),
            notes={"floor_p99_ms": median(row["p99_ms"] for row in floors), "connections": CONNECTIONS},
        ),
    ]  # fmt: skip


def _moves(asked: BrokerProcess, url: str, name: str) -> list[Figure]:
    """The floor is the same transfer, begun by the library in the asked broker."""
    load = Load()
    others = ("b2", "b3")
    asked.ask("transfer", name, others[-1])  # wherever it is
    taken_ms = worker(MODULE, "clients", "moves", url, name, ",".join(others), MOVES)
    direct_ms = [asked.ask("transfer", name, to)["ms"] for _, to in zip(range(MOVES), cycle(others), strict=False)]
    notes = {
        "transfers": MOVES,
        "direct_p50_ms": percentile(direct_ms, 0.5),
        "direct_p99_ms": percentile(direct_ms, 0.99),
    }
    p50 = percentile(taken_ms, 0.5)
    return [
        Figure("http.transfer.p50", p50, "ms", ratio=p50 / percentile(direct_ms, 0.5), load=str(load), notes=notes),
        Figure("http.transfer.p99", percentile(taken_ms, 0.99), "ms", load=str(load)),
    ]


class _Mover:
    """Begins transfers at a steady rate, in another broker than the one that is measured."""

    def __init__(self, broker: BrokerProcess, names: Sequence[str]) -> None:
        self._broker, self._names = broker, names
        self._enough = threading.Event()
        self.moved = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        ways = cycle([(name, to) for to in ("b2", "b3") for name in self._names])
        while not self._enough.wait(1 / RATE):
            self.moved += self._broker.ask("transfer", *next(ways))["done"]

    def end(self) -> None:
        self._enough.set()
        self._thread.join(60)


def _readers(running: dict[str, BrokerProcess], url: str, names: Sequence[str]) -> list[Figure]:
    """With 200 readers and without any, while bundles move."""
    load = Load()
    mover = _Mover(running["b2"], names)
    try:
        time.sleep(SETTLE_S)
        without = running["b1"].ask("late", READERS_S / 2)
        command = [sys.executable, "-m", MODULE, "clients", "readers", url, str(READERS), str(READERS_S)]
        reading = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        time.sleep(SETTLE_S)
        late = running["b1"].ask("late", READERS_S / 2)
        out, _ = reading.communicate(timeout=120)
        got: dict[str, Any] = json.loads(out)
    finally:
        mover.end()
    notes = {"readers": READERS, "changes of a reader": f"{got['least']} to {got['most']}", "moves": mover.moved}
    more_percent = 100 * (late["share"] - without["share"])
    return [
        Figure(
            "http.readers.loop-late.p99", late["p99_ms"], "ms", ratio=late["p99_ms"] / max(0.1, without["p99_ms"]),
            load=str(load), notes={**notes, "without_ms": without["p99_ms"]},
        ),
        Figure("http.readers.loop-late.p50", late["p50_ms"], "ms", load=str(load), notes={"without_ms": without["p50_ms"]}),
        Figure(
            "http.readers.processor", more_percent, "% of a core more than without readers", load=str(load),
            notes={"without_percent": 100 * without["share"]},
        ),
    ]  # fmt: skip
