"""Real broker processes with generated load and a hot spot, held against what the simulator foretells for the same trace.

Four brokers of `statechannel broker run`, with a data plane, on an embedded Kafka balance a namespace that becomes three times
as busy at once, with `weighted-move`, and intervals a tenth as long as usual. Loads are read from the brokers once a second.
Then the simulator is given the same load (`tests.support.predictions`), the same owners at the start and the same settings;
both are compared.

What was seen lies beside the plot as JSON; `python -m tests.bench.live_balance FILE.json` compares it anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loaddata.measure.synthetic import SimulatedSettings
from shedders.balancer.settings import BalancerSettings
from shedders.contest.contenders import contender
from shedders.contest.trace import Namespace
from shedders.contest.world import simulate
from statechannel.demo.cluster import command_path
from statechannel.router import BlockingRouter, Route
from tests.bench.lane import kafka
from tests.bench.load_series import LoadSeries, Sampler
from tests.bench.measure import ROOT, Figure, Load
from tests.support.data_plane import PROTOCOL
from tests.support.predictions import LoadDifferences, LoadRun, differences, prediction_plot, synthetic_trace

PLOT = ROOT / "design" / "evidence" / "contest" / "live.svg"
BROKERS = ("b1", "b2", "b3", "b4")
HOT = "public/launch"
NAMESPACES = (HOT, "public/orders", "public/clicks")
BUNDLES = 16
SEED = 1
START_S = 60.0
"""Until then the brokers run and serve everything; who owns what then is where the simulator begins."""
QUIET_S = 40.0
"""From then to the hot spot."""
AFTER_S = 120.0
STEP_S = 0.5
SERVED_S = 60.0
MADE_UP = {"topics": 100, "msg_rate": 40.0, "heavy": 20.0, "wave": 0.05, "noise": 0.05, "hot_factor": 3.0}
INTERVAL_S = 6.0
LOAD = {"measure_interval_s": 0.5, "sample_interval_s": 0.5, "settle_s": 0.5, "top_interval_s": 1.5, "tick_s": 0.1}
QUICK = {"payback_min": 0.1}
"""A gap is waited for by the decision, not by the minute: a run has two minutes."""
CONTENDER = "ours"


@dataclass(frozen=True, slots=True)
class Live:
    """What was seen of the live run; times in seconds from its beginning.

    Attributes:
        begin_s: Seconds since 1970.
        hot_s: When the hot spot appears; `decided_s`: when the leader first decided. The simulator decides with it.
        owners: By namespace, those of its bundles in the order of the ring, at the beginning.
    """

    series: LoadSeries
    begin_s: float
    hot_s: float
    decided_s: float
    owners: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {"hot_s": self.hot_s, "decided_s": self.decided_s, "owners": dict(self.owners), **self.series.to_json()}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Live:
        """As it was kept."""
        series = LoadSeries(kept["begun_ms"], kept["at_s"], kept["loads"], kept["moves"])
        return cls(series, series.begun_ms / 1_000, kept["hot_s"], kept["decided_s"], kept["owners"])

    @property
    def run(self) -> LoadRun:
        """As it is compared."""
        moved_s = [move["at_s"] for move in self.series.moves if move["result"] == "done"]
        return LoadRun(self.series.at_s, dict(sorted(self.series.loads.items())), moved_s)


def run(plot: Path) -> list[Figure]:
    """All figures; draws both runs.

    Args:
        plot: The SVG to be written.
    """
    load = Load()
    live = _live(round(time.time() + START_S + QUIET_S))
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.with_suffix(".json").write_text(json.dumps(live.to_json(), indent=1) + "\n", encoding="utf-8")
    return figures(live, plot, str(load))


def figures(live: Live, plot: Path, load: str = "") -> list[Figure]:
    """What came of the comparison."""
    differences, foretold = compare(live)
    title = (
        f"{len(BROKERS)} live brokers and their simulation: {differences.moves_live} and {differences.moves_foretold} moves, "
        f"loads differ by {100 * differences.by_rank:.1f} % of a machine by rank"
    )
    plot.write_text(prediction_plot(live.run, foretold, {"hot spot": live.hot_s}, title).svg(), encoding="utf-8")
    return list(_figures(differences, load, live))


def compare(live: Live) -> tuple[LoadDifferences, LoadRun]:
    """What the simulator foretells, and how far it is off."""
    settings = SimulatedSettings(**MADE_UP, hot_namespace=HOT, hot_from_s=live.begin_s + live.hot_s)
    # So that both decide at the same moments, as strategies count decisions.
    early_s = max(INTERVAL_S, BalancerSettings().settle_s) - live.decided_s
    trace = synthetic_trace(
        settings,
        SEED,
        brokers=BROKERS,
        namespaces=[Namespace(name, len(owners), owners=owners) for name, owners in live.owners.items()],
        begin_s=live.begin_s - early_s,
        steps=round((early_s + live.hot_s + AFTER_S) / STEP_S),
        step_s=STEP_S,
        disturbed_s=[early_s + live.hot_s],
    )
    flags = [f"balancer.interval_s={INTERVAL_S}", "balancer.splitting=false"]
    flags += [f"shedding.weighted-move.{name}={value:g}" for name, value in QUICK.items()]
    flags += [f"load.{name}={value}" for name, value in LOAD.items()]
    foretold = LoadRun.of(simulate(trace, contender(",".join([CONTENDER, *flags]))), begun_s=-early_s)
    return differences(live.run, foretold, live.hot_s), foretold


def _figures(compared: LoadDifferences, load: str, live: Live) -> Iterator[Figure]:
    lane = "live-balance"
    notes = {"brokers": len(BROKERS), "bundles": sum(map(len, live.owners.values())), "readings": len(live.series.at_s)}
    yield Figure(f"{lane}.loads-by-rank", 100 * compared.by_rank, "% of a machine", load=load, notes=notes)
    yield Figure(f"{lane}.loads-by-broker", 100 * compared.by_broker, "% of a machine", load=load)
    yield Figure(f"{lane}.largest-load", 100 * compared.largest, "% of a machine", load=load)
    yield Figure(f"{lane}.apart-at-the-end.live", 100 * compared.apart_live, "% of a machine", load=load)
    yield Figure(f"{lane}.apart-at-the-end.simulated", 100 * compared.apart_foretold, "% of a machine", load=load)
    yield Figure(f"{lane}.moves.live", compared.moves_live, "moves", load=load)
    yield Figure(f"{lane}.moves.simulated", compared.moves_foretold, "moves", load=load)
    for name, seconds in (("live", compared.settle_live_s), ("simulated", compared.settle_foretold_s)):
        if seconds is not None:
            yield Figure(f"{lane}.settled.{name}", seconds, "s", load=load)


# --- the live run -----------------------------------------------------------------------------------------------------


def _live(hot_at_s: float) -> Live:
    with _cluster(hot_at_s) as cluster:
        _serve(cluster)
        sampler = _begin(cluster, hot_at_s - QUIET_S)
        try:
            begin_s = sampler.series.begun_ms / 1_000
            owners = {name: _owners(cluster, name) for name in NAMESPACES}
            time.sleep(max(0.0, hot_at_s + AFTER_S - time.time()))
        finally:
            sampler.stop()
        decisions = cluster.ask("decisions", "--since", "1h")["decisions"]
        sheds = [decision for decision in decisions if decision["subject"] == "shed"]
        sampler.series.moved(sheds)
        decided_s = next(shed["at_ms"] for shed in sheds if shed["skipped"] is None) / 1_000 - begin_s
        return Live(sampler.series, begin_s, hot_at_s - begin_s, decided_s, owners)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Broker processes on an embedded Kafka.

    Attributes:
        urls: Of their data planes, by broker.
    """

    bootstrap: str
    urls: Mapping[str, str]

    def ask(self, *args: str) -> Any:
        """The JSON answer of a command."""
        command = [str(command_path()), *args, "-b", self.bootstrap, "--output", "json"]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=SERVED_S).stdout)


@contextmanager
def _cluster(hot_at_s: float) -> Iterator[_Cluster]:
    running: list[subprocess.Popen[str]] = []
    with kafka() as bootstrap, tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        settings = Path(folder) / "brokers.toml"
        settings.write_text(_settings(hot_at_s))
        _Cluster(bootstrap, {}).ask("init")
        try:
            for broker in BROKERS:
                command = [
                    sys.executable,
                    "-m",
                    "tests.support.plane_broker",
                    "broker",
                    "run",
                    "--id",
                    broker,
                    "--events",
                ]
                command += ["-b", bootstrap, "--config", str(settings)]
                with (Path(folder) / f"{broker}.log").open("wb") as log:
                    running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True))
            yield _Cluster(bootstrap, dict(zip(BROKERS, map(_ready, running), strict=True)))
        finally:
            for process in running:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[str]) -> str:
    """The URL of a broker's data plane, once it has caught up; what it prints later is read and dropped."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "ready":
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return str(event["urls"][PROTOCOL])
    raise RuntimeError("a broker ended while starting")


def _serve(cluster: _Cluster) -> None:
    """Have everything served, the namespace that heats up by one broker; nothing moves yet."""
    cluster.ask("override", "shedding", "off", "--for", "1h", "--reason", "until the run begins")
    cluster.ask("policy", "set", "pin", HOT, BROKERS[0])
    with BlockingRouter.open(kafka={"bootstrap_servers": cluster.bootstrap}) as router:
        for namespace in NAMESPACES:
            cluster.ask("namespace", "create", namespace, "--bundles", str(BUNDLES))
            for bundle in cluster.ask("bundles", "--namespace", namespace)["bundles"]:
                assert isinstance(router.wait(bundle["bundle"], SERVED_S, assign=True), Route), bundle
    cluster.ask("policy", "delete", "pin", HOT)


def _begin(cluster: _Cluster, at_s: float) -> Sampler:
    """Let the balancer go about its work, and begin to read the loads."""
    time.sleep(max(0.0, at_s - time.time()))
    sampler = Sampler(cluster.urls)
    sampler.start()
    cluster.ask("override", "end", "shedding")
    return sampler


def _owners(cluster: _Cluster, namespace: str) -> list[str]:
    bundles = cluster.ask("bundles", "--namespace", namespace)["bundles"]
    return [bundle["owner"] for bundle in sorted(bundles, key=lambda bundle: bundle["bundle"])]


def _settings(hot_at_s: float) -> str:
    values: dict[str, Any] = {
        "extensions.balancer": {
            "source": "simulated",
            "simulated_seed": SEED,
            "shedding": "weighted-move",
            "placement": "weighted-move",
            "splitting": False,
            "interval_s": INTERVAL_S,
            "settle_s": 3,
        },
        "extensions.balancer.simulated": {**MADE_UP, "hot_namespace": HOT, "hot_from_s": hot_at_s},
        "extensions.balancer.load": LOAD,
        "extensions.balancer.strategies.shedding.weighted-move": QUICK,
    }
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in by.items())
        for group, by in values.items()
    )


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    KEPT = Path(sys.argv[1])
    for figure in figures(Live.of(json.loads(KEPT.read_text(encoding="utf-8"))), KEPT.with_suffix(".svg")):
        print(f"{figure.name}: {figure.value:.4g} {figure.unit}")
