"""The audit by Spark of a long log of many bundles: against a Spark job that only counts it, and against the local engine.

The log lies in an archive, as the job table-view writes it, but for the verdicts, which the audit does not read; and, unless it
is very long, in a topic. Parts of a long log differ in their namespaces alone, as it would take longer to make than to read.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.core.schemas import ARCHIVE
from spark.core.store import SnapshotStore
from tests.bench.lane import kafka, make_channel
from tests.bench.measure import Figure, Load, worker
from tests.bench.records import LogMaker
from tests.bench.replay import fill

FLOORS = {"spark": "count", "local": "count", "spark-archive": "count-archive"}
"""Each reading, and the job that only counts the same."""
MODES = (*dict.fromkeys(FLOORS.values()), *FLOORS)
PART_RECORDS = 1_000_000
BUNDLES = 6_500
"""Of each of ten namespaces, whatever the length."""
NAME = b"tenant/namespace-"
TOPIC_RECORDS_MAX = int(os.environ.get("BENCH_TOPIC_RECORDS", "10000000"))
HEAP_AIM_MIB = 2_048
TIMEOUT_S = 3_600


def run(sizes: Sequence[int]) -> list[Figure]:
    """Each size in a topic of its own, read in each way; the answers of both engines must be the same."""
    figures: list[Figure] = []
    took: dict[int, dict[str, Any]] = {}
    with kafka() as bootstrap:
        for size in sizes:
            channel = f"bench-spark-{size}"
            make_channel(bootstrap, channel)
            has_topic = size <= TOPIC_RECORDS_MAX
            begun_s = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="statechannel-bench-") as table:
                log = ArchivedLog(size)
                log.archive(Path(table))
                if has_topic:
                    fill(bootstrap, channel, log.make())
                del log
                print(f"spark: {size:,} records written in {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
                load = Load()
                rounds = {
                    mode: worker("tests.bench.spark_worker", mode, bootstrap, channel, table, timeout_s=TIMEOUT_S)
                    for mode in MODES
                    if has_topic or mode.endswith("-archive")
                }
            for mode, facts in rounds.items():
                measured = {name: value for name, value in facts.items() if name != "answer"}
                print(f"spark: {mode} {json.dumps(measured)}", file=sys.stderr)
            answers = [facts["answer"] for facts in rounds.values() if "answer" in facts]
            if any(answer != answers[0] for answer in answers) or answers[0]["records"] != size:
                raise RuntimeError(f"the engines do not agree on {size} records: {answers}")
            figures += _figures(size, rounds, str(load))
            took[size] = rounds["spark-archive"]
    small, large = min(sizes), max(sizes)
    if small < large:
        name, aim = f"spark.growth.{_short(small)}-to-{_short(large)}", f"near {large / small:g}"
        figures += [
            Figure(f"{name}.{clock}", took[large][f"{clock}_s"] / took[small][f"{clock}_s"], "x time", aim=aim)
            for clock in ("wall", "cpu")
        ]
    return figures


class ArchivedLog:
    """The records of a log, and its archive."""

    def __init__(self, records: int) -> None:
        self._parts = max(1, records // PART_RECORDS)
        records_once = LogMaker(records // self._parts, bundles=BUNDLES // self._parts).make()
        self._part = [
            (key, bytes(bytearray(value))) for key, value in records_once
        ]  # orjson's bytes take kilobytes each

    def make(self) -> Iterator[tuple[bytes, bytes]]:
        for number in range(self._parts):
            for key, value in self._part:
                yield key.replace(NAME, _name(number)), value

    def archive(self, table: Path) -> None:
        folder = table / "archive" / "dt=1970-01-01" / "batch=000000000000"
        folder.mkdir(parents=True)
        size = len(self._part)
        keys, values = (pa.array(column, pa.binary()) for column in zip(*self._part, strict=True))
        names = pa.array([b"/".join(key.split(b"/")[:2]).decode() for key, _ in self._part])
        for number in range(self._parts):
            offsets = pa.array(np.arange(number * size, (number + 1) * size))
            columns = {
                "partition": pa.array(np.zeros(size, np.int32)),
                "offset": offsets,
                "timestamp_ms": offsets,
                "key": pc.replace_substring(keys, NAME, _name(number)),
                "value": values,
                "namespace": pc.replace_substring(names, NAME.decode(), _name(number).decode()),
            }
            arrays = [columns.get(field.name, pa.nulls(size, field.type)) for field in ARCHIVE]
            name = folder / f"part-{number:05}.snappy.parquet"
            rows = pa.Table.from_arrays(arrays, schema=ARCHIVE)
            pq.write_table(rows, name, row_group_size=PART_RECORDS // 4, use_dictionary=["namespace"])
        meta = {
            "partitions": {"0": {"position": self._parts * size}},
            "incomplete": [],
            "written_at_ms": time.time_ns() // 1_000_000,
        }
        SnapshotStore(str(table / "view")).publish(None, meta)


def _name(number: int) -> bytes:
    return b"%s%d-" % (NAME, number)


def _figures(size: int, rounds: dict[str, dict[str, Any]], load: str) -> list[Figure]:
    name = f"spark.{_short(size)}"
    figures = []
    for clock, unit in (("wall", "records/s"), ("cpu", "records/CPU s")):
        speed = {mode: size / facts[f"{clock}_s"] for mode, facts in rounds.items()}
        for mode, facts in rounds.items():
            ratio = speed[mode] / speed[FLOORS[mode]] if mode in FLOORS else None
            aim = ">= 0.5 of counting" if mode.startswith("spark") else ""
            measured = {key: value for key, value in facts.items() if key != "answer"}
            figures.append(
                Figure(f"{name}.{mode}.{clock}", speed[mode], unit, ratio=ratio, aim=aim, load=load, notes=measured)
            )
    spark = rounds["spark-archive"]
    figures.append(
        Figure(f"{name}.memory.all", spark["all_mib"], "MiB", aim=f"heap within {HEAP_AIM_MIB} MiB", notes=spark)
    )
    for part in ("jvm", "workers", "driver"):
        figures.append(Figure(f"{name}.memory.{part}", spark[f"{part}_mib"], "MiB"))
    return figures


def _short(size: int) -> str:
    return f"{size // 1_000_000}M" if size >= 1_000_000 else f"{size // 1_000}k"
