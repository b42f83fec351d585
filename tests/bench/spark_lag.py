"""How far the Spark view is behind the log, at a trigger of one second: from the log's time to the pointer that covers it."""

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Producer

from spark.core.session import open_session
from spark.core.store import SnapshotStore
from spark.core.streaming import Streaming
from spark.jobs.table_view import TableViewOptions
from spark.jobs.table_view import run as run_job
from tests.bench.lane import kafka, make_channel
from tests.bench.measure import Figure, Load, percentile
from tests.bench.records import LogMaker

CHANNEL = "bench-view"
EVERY_S = 0.15
WARM_UP_S = 20.0
_LOOK_S = 0.02
SHAPES = ((16, 64), (16, 4_096))
"""Namespaces, and bundles of each: about a thousand, and 65,536."""


def run(records: int = 300) -> Sequence[Figure]:
    """Lag of each of so many records, one every 150 ms, for a small and for a large view."""
    figures: list[Figure] = []
    with kafka() as bootstrap, tempfile.TemporaryDirectory(prefix="statechannel-bench-") as folder:
        session = open_session("bench", conf={"spark.master": "local[2]", "spark.local.dir": folder})
        try:
            for namespaces, bundles in SHAPES:
                figures += _measure(session, bootstrap, Path(folder), namespaces, bundles, records)
        finally:
            session.stop()
    return figures


def _measure(
    session: object, bootstrap: str, folder: Path, namespaces: int, bundles: int, records: int
) -> Sequence[Figure]:
    name = f"{CHANNEL}-{namespaces * bundles}"
    client, _ = make_channel(bootstrap, name)
    log = LogMaker(10**9, namespaces=namespaces, bundles=bundles).make()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    times: dict[int, int] = {}

    def acked(error: object, message: object) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        times[message.offset()] = message.timestamp()[1]  # type: ignore[attr-defined]

    def write() -> None:
        key, value = next(log)
        producer.produce(name, value, key, 0, on_delivery=acked)
        producer.flush(30)

    for _ in range(namespaces):
        write()
    table = folder / name
    streaming = Streaming(client=client, channel=name, checkpoint=str(folder / f"{name}.checkpoint"), trigger_s=1.0)
    stop = threading.Event()
    job = threading.Thread(target=run_job, args=(session, streaming, TableViewOptions(str(table)), stop))
    job.start()
    seen: list[tuple[int, int]] = []
    store = SnapshotStore(str(table / "view"))

    def look() -> None:
        pointer = store.latest()
        if pointer is not None:
            position = int(pointer.meta["partitions"]["0"]["position"])
            if not seen or seen[-1][0] != position:
                seen.append((position, time.time_ns() // 1_000_000))

    load = Load()
    _for_a_while(WARM_UP_S, write, look)
    first = len(times)
    _for_a_while(records * EVERY_S, write, look)
    last = len(times)
    while (not seen or seen[-1][0] < last) and job.is_alive():
        look()
        time.sleep(_LOOK_S)
    stop.set()
    job.join(120)
    lags_s = sorted(_lag_ms(times[offset], offset, seen) / 1_000 for offset in range(first, last))
    label = f"spark-lag.{namespaces * bundles}-bundles"
    return [
        Figure(f"{label}.p50", percentile(lags_s, 0.5), "s", load=str(load)),
        Figure(f"{label}.p99", percentile(lags_s, 0.99), "s", load=str(load)),
    ]


def _for_a_while(length_s: float, write: Callable[[], None], look: Callable[[], None]) -> None:
    end_s = time.monotonic() + length_s
    while time.monotonic() < end_s:
        write()
        next_s = time.monotonic() + EVERY_S
        while time.monotonic() < next_s:
            look()
            time.sleep(_LOOK_S)


def _lag_ms(written_ms: int, offset: int, seen: Sequence[tuple[int, int]]) -> int:
    return next(at_ms for position, at_ms in seen if position > offset) - written_ms
