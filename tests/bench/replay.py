"""Replay of a long log of many bundles against clients that only consume it, or only parse it."""

import sys
import time
from collections.abc import Iterable, Sequence

from confluent_kafka import Producer

from tests.bench.lane import kafka, make_channel
from tests.bench.measure import Figure, Load, median, worker
from tests.bench.records import LogMaker

MODES = ("bare", "parse", "parse-json", "replica", "engine")
CHANNEL = "bench-replay"


def fill(bootstrap: str, channel: str, records: Iterable[tuple[bytes, bytes]]) -> int:
    """Write the whole log; the number of records."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
        }
    )
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    written = 0
    for key, value in records:
        while True:
            try:
                producer.produce(channel, value, key, 0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        written += 1
        if not written % 5_000:
            producer.poll(0)
    producer.flush(120)
    if failures or len(producer):
        raise RuntimeError(f"{len(failures)} records were not written: {failures[:3]}")
    return written


def run(records: int = 1_000_000, rounds: int = 5) -> Sequence[Figure]:
    """Records a second of each mode, the modes taken in turn."""
    with kafka() as bootstrap:
        make_channel(bootstrap, CHANNEL)
        maker = LogMaker(records)
        began_s = time.monotonic()
        end = fill(bootstrap, CHANNEL, maker.make())
        print(f"replay: {end:,} records written in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        load = Load()
        results: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for number in range(rounds):
            for mode in MODES[number % len(MODES) :] + MODES[: number % len(MODES)]:
                facts = worker("tests.bench.replay_worker", mode, bootstrap, CHANNEL, end)
                results[mode].append(facts)
                print(f"replay: {mode} {facts}", file=sys.stderr)
    for facts in results["replica"] + results["engine"]:
        if facts["bundles"] != len(maker.bundles):
            raise RuntimeError(f"the replica holds {facts['bundles']} bundles, not {len(maker.bundles)}")
    return _figures(records, results, str(load))


def _figures(records: int, rounds: dict[str, list[dict[str, float]]], load: str) -> list[Figure]:
    speed = {mode: [f["records"] / f["wall_s"] for f in facts] for mode, facts in rounds.items()}
    cpu = {mode: [f["records"] / f["cpu_s"] for f in facts] for mode, facts in rounds.items()}
    figures = []
    for mode in MODES:
        figures.append(Figure(f"replay.{mode}", median(speed[mode]), "records/s", rounds=speed[mode], load=load))
    for floor, aim in (("parse", ">= 0.5"), ("parse-json", "comparison"), ("bare", "comparison")):
        for clock, rates in (("wall", speed), ("cpu", cpu)):
            ratios = [ours / theirs for ours, theirs in zip(rates["engine"], rates[floor], strict=True)]
            figures.append(
                Figure(
                    f"replay.ratio-to-{floor}.{clock}",
                    median(ratios),
                    "x",
                    ratio=median(ratios),
                    aim=aim,
                    rounds=ratios,
                    load=load,
                    notes={"records": records},
                )
            )
    return figures
