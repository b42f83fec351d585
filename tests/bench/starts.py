"""Start of broker processes until they are ready, one after the other, and what one holds in memory."""

import time
from collections.abc import Sequence

from tests.bench.cluster import BrokerProcess
from tests.bench.lane import kafka
from tests.bench.measure import Figure, Load, median

CHANNEL = "bench-starts"
NAMES = ("b1", "b2", "b3")
AIMS = ("8,898 in Pulsar", "7,510 in Pulsar", "8,100 in Pulsar")
BUNDLES = 10_000
IDLE_S = 3.0


def run(rounds: int = 3) -> Sequence[Figure]:
    """A fresh channel for each round: the first broker creates its topics."""
    load = Load()
    taken_ms: dict[str, list[float]] = {name: [] for name in NAMES}
    idle_mib, full_mib = [], []
    with kafka() as bootstrap:
        for number in range(rounds):
            running = []
            try:
                for name in NAMES:
                    began_s = time.monotonic()
                    running.append(BrokerProcess(name, bootstrap, f"{CHANNEL}-{number}"))
                    running[-1].wait_ready()
                    taken_ms[name].append((time.monotonic() - began_s) * 1e3)
                time.sleep(IDLE_S)
                idle_mib.append(running[0].ask("resident") / 2**20)
                if running[0].ask("create", "starts/many", BUNDLES) != "Done":
                    raise RuntimeError("the namespace was not created")
                full_mib.append(max(process.ask("resident") for process in running) / 2**20)
            finally:
                for process in running:
                    process.kill()
    figures = [
        Figure(f"start.{name}", median(taken_ms[name]), "ms", aim=aim, rounds=taken_ms[name], load=str(load))
        for name, aim in zip(NAMES, AIMS, strict=True)
    ]
    return [
        *figures,
        Figure("memory.broker.idle", median(idle_mib), "MiB", aim="<= 100; 365-435 in Pulsar", rounds=idle_mib),
        Figure(f"memory.broker.{BUNDLES}-bundles", median(full_mib), "MiB", rounds=full_mib),
    ]
