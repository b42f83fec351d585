"""The admin API of a broker: reads, an action beside the command, and what 200 readers of changes cost its loop and processor."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.bench.lane import kafka
from tests.bench.measure import ROOT, Figure, Load, median, percentile
from tests.support.broker_cluster import COMMAND, BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka

NAMESPACE: Final = "t/http"
SERVED: Final = re.compile(r"http-served.*?url\W+(http://[0-9.:]+)")
FLAGS: Final = ("http.port=0", "http.open_role=force", "http.requests_per_s=100000", "observe.metrics_port=0")
BUNDLES: Final = 64
READS_S: Final = 4.0
ACTIONS: Final = 10
READERS: Final = 200
ROUND_S: Final = 12.0
ROUNDS: Final = 3
EACH_S: Final = 0.05
WARM_S: Final = 2.0


def run() -> Sequence[Figure]:
    """Everything, in one cluster of two brokers."""
    with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder, kafka(512) as bootstrap:
        cluster = BrokerCluster(Kafka(bootstrap, "the bench"), "bench-http", Path(folder), FLAGS)
        with broker_cluster(cluster):
            cluster.start("b1", "b2")
            urls = {name: _served(cluster, name) for name in ("b1", "b2")}
            cluster("namespace", "create", NAMESPACE, "--bundles", str(BUNDLES), "--timeout", "60")
            bundles = sorted(cluster.owners())
            cluster.look_up(bundles)
            cluster.wait(lambda: all(cluster.owners().values()))
            figures = _reads(urls["b1"], bundles[0])
            figures += _actions(cluster, urls["b1"], bundles)
            return figures + _readers(cluster, urls, bundles)


def _served(cluster: BrokerCluster, name: str) -> str:
    log = cluster.folder / f"{name}.log"
    cluster.wait(lambda: SERVED.search(log.read_text()) is not None)
    return SERVED.findall(log.read_text())[-1]


def _rate(url: str, path: str) -> tuple[float, list[float]]:
    """Answers per second of one client on one connection, and their times (ms)."""
    times_ms: list[float] = []
    with httpx.Client(base_url=url) as client:
        ends_s = time.monotonic() + READS_S
        while (began_s := time.monotonic()) < ends_s:
            client.get(path).raise_for_status()
            times_ms.append((time.monotonic() - began_s) * 1_000)
    return len(times_ms) / READS_S, times_ms


@contextlib.contextmanager
def _bare() -> Iterator[str]:
    """The floor: the same server and framework with an answer that takes nothing, in a process of its own."""
    code = "from tests.bench import http; http.serve_bare()"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("no output")
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def serve_bare() -> None:
    """Serve one path, and print where."""
    app = Starlette(routes=[Route("/", lambda _: Response(b"{}", media_type="application/json"))])
    config = uvicorn.Config(app, port=0, log_config=None, http="h11")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[listening])


def _reads(url: str, bundle: str) -> list[Figure]:
    # Only medians are held against the floor: on a busy machine a slice of some seconds may lose most of its time to others.
    load = Load()
    with _bare() as bare:
        time.sleep(WARM_S)
        _rate(bare, "/")
        floor, floor_ms = _rate(bare, "/")
    figures = [Figure("http-api.read.floor", floor, "answers/s", load=str(load), notes={"p50_ms": median(floor_ms)})]
    for name, path in (
        ("lookup", f"/v1/lookup?name={bundle}"),
        ("bundle", f"/v1/bundles/{bundle}"),
        ("bundles-100", "/v1/bundles?limit=100"),
    ):
        _rate(url, path)
        rate, times_ms = _rate(url, path)
        p50, p99 = percentile(times_ms, 0.5), percentile(times_ms, 0.99)
        figures += [
            Figure(f"http-api.{name}", rate, "answers/s", load=str(load)),
            Figure(f"http-api.{name}.p50", p50, "ms", ratio=p50 / percentile(floor_ms, 0.5), load=str(load)),
            Figure(f"http-api.{name}.p99", p99, "ms", load=str(load)),
        ]
    return figures


def _actions(cluster: BrokerCluster, url: str, bundles: Sequence[str]) -> list[Figure]:
    """A transfer over HTTP, and by the command in a process of its own."""
    load, owners = Load(), cluster.owners()
    by_http_ms, by_command_ms = [], []
    with httpx.Client(
        base_url=url, headers={"Statechannel-Client": "bench", "Prefer": "wait=60"}, timeout=60
    ) as client:
        for number in range(2 * ACTIONS):
            bundle = bundles[number % len(bundles)]
            destination = "b2" if owners[bundle] == "b1" else "b1"
            began_s = time.monotonic()
            if number % 2:
                body = {"destination": destination}
                client.post(f"/v1/bundles/{bundle}/transfer", json=body).raise_for_status()
                by_http_ms.append((time.monotonic() - began_s) * 1_000)
            else:
                command = [
                    *COMMAND,
                    "transfer",
                    bundle,
                    "--dest",
                    destination,
                    "--yes",
                    *cluster.place,
                    "--output",
                    "json",
                ]
                subprocess.run(command, check=True, capture_output=True)
                by_command_ms.append((time.monotonic() - began_s) * 1_000)
    http_ms, command_ms = median(by_http_ms), median(by_command_ms)
    return [
        Figure("http-api.transfer.command.p50", command_ms, "ms", rounds=by_command_ms, load=str(load)),
        Figure("http-api.transfer.p50", http_ms, "ms", ratio=http_ms / command_ms, rounds=by_http_ms, load=str(load)),
    ]


class _Changes(threading.Thread):
    """Transfers through the other broker, one after the other at a steady pace."""

    def __init__(self, url: str, bundles: Sequence[str]) -> None:
        super().__init__()
        self._url, self._bundles = url, bundles
        self._ends = threading.Event()
        self.begun = 0

    def run(self) -> None:
        with httpx.Client(base_url=self._url, headers={"Statechannel-Client": "bench"}, timeout=60) as client:
            while not self._ends.wait(EACH_S):
                bundle = self._bundles[self.begun % len(self._bundles)]
                destination = ("b1", "b2")[self.begun // len(self._bundles) % 2]
                body = {"destination": destination, "force": True}
                client.post(f"/v1/bundles/{bundle}/transfer", json=body)
                self.begun += 1

    def stop(self) -> None:
        self._ends.set()
        self.join()


def _lag(url: str) -> dict[float, float]:
    """Turns of the loop by their longest delay (s), cumulative."""
    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            if sample.name == "statechannel_loop_lag_seconds_bucket":
                buckets[float(sample.labels["le"])] = sample.value
    return buckets


def _p99_ms(before: dict[float, float], after: dict[float, float]) -> float:
    turns = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = turns[float("inf")]
    below, low = 0.0, 0.0
    for bound, number in turns.items():
        if number >= 0.99 * total:  # within the bucket by its share
            if bound == float("inf"):
                return low * 1_000
            return (low + (bound - low) * (0.99 * total - below) / max(1.0, number - below)) * 1_000
        below, low = number, bound
    return 0.0


def _readers(cluster: BrokerCluster, urls: dict[str, str], bundles: Sequence[str]) -> list[Figure]:
    rows = {row["broker"]: row for row in cluster("brokers")["brokers"]}
    metrics, broker = rows["b1"]["http"], psutil.Process(cluster.brokers["b1"].pid)
    load = Load()
    changes = _Changes(urls["b2"], bundles)
    changes.start()
    share: dict[int, list[float]] = {0: [], READERS: []}
    lag_ms: dict[int, list[float]] = {0: [], READERS: []}
    lookup_ms: dict[int, list[float]] = {0: [], READERS: []}
    met: dict[str, Any] = {}
    try:
        for _ in range(ROUNDS):
            for count in (0, READERS):
                with _following(urls["b1"], count) as counted:
                    before, cpu = _lag(metrics), sum(broker.cpu_times()[:2])
                    began_s = time.monotonic()
                    with httpx.Client(base_url=urls["b1"]) as client:
                        while time.monotonic() - began_s < ROUND_S:
                            asked_s = time.monotonic()
                            client.get("/v1/lookup", params={"name": bundles[0]})
                            lookup_ms[count].append((time.monotonic() - asked_s) * 1_000)
                            time.sleep(EACH_S)
                    took_s = time.monotonic() - began_s
                    share[count].append((sum(broker.cpu_times()[:2]) - cpu) / took_s * 100)
                    lag_ms[count].append(_p99_ms(before, _lag(metrics)))
                met |= counted
    finally:
        changes.stop()
    if met["ended"] or not met["least"]:
        raise RuntimeError(f"not every reader was served: {met}")
    notes = {"readers": READERS, "changes of the last round": met["least"]}
    figures = []
    for name, unit, measured in (
        ("processor", "% of a core", share), ("loop-lag.p99", "ms", lag_ms), ("lookup.p99", "ms", lookup_ms),
    ):  # fmt: skip
        none, many = (
            percentile(measured[count], 0.99) if name == "lookup.p99" else median(measured[count])
            for count in (0, READERS)
        )
        ratio = many / none if none else None
        figures += [
            Figure(f"http-api.readers.{name}.none", none, unit, load=str(load)),
            Figure(f"http-api.readers.{name}.{READERS}", many, unit, ratio=ratio, load=str(load), notes=notes),
        ]
    return figures


@contextlib.contextmanager
def _following(url: str, count: int) -> Iterator[dict[str, Any]]:
    """So many readers meanwhile; filled at the end with what they were sent."""
    counted: dict[str, Any] = {}
    if not count:
        yield counted
        return
    command = [sys.executable, "-m", "tests.bench.http_readers", url, str(count)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        process.stdout.readline()
        yield counted
        process.stdin.write("end\n")
        process.stdin.flush()
        counted |= json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
