"""The audit by Spark of a long log of many bundles: against a Spark job that only counts it, and against the local engine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.bench.lane import kafka, make_channel
from tests.bench.measure import Figure, Load, worker
from tests.bench.records import LogMaker
from tests.bench.replay import fill

MODES = ("count", "spark", "local")
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
            begun_s = time.monotonic()
            fill(bootstrap, channel, LogMaker(size))
            print(f"spark: {size:,} records written in {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
            load = Load()
            rounds = {
                mode: worker("tests.bench.spark_worker", mode, bootstrap, channel, timeout_s=TIMEOUT_S)
                for mode in MODES
            }
            for mode, facts in rounds.items():
                measured = {name: value for name, value in facts.items() if name != "answer"}
                print(f"spark: {mode} {json.dumps(measured)}", file=sys.stderr)
            answers = [facts["answer"] for facts in rounds.values() if "answer" in facts]
            if any(answer != answers[0] for answer in answers) or answers[0]["records"] != size:
                raise RuntimeError(f"the engines do not agree on {size} records: {answers}")
            figures += _figures(size, rounds, str(load))
            took[size] = rounds["spark"]
    small, large = min(sizes), max(sizes)
    if small < large:
        name, aim = f"spark.growth.{_short(small)}-to-{_short(large)}", f"near {large / small:g}"
        figures += [
            Figure(f"{name}.{clock}", took[large][f"{clock}_s"] / took[small][f"{clock}_s"], "x time", aim=aim)
            for clock in ("wall", "cpu")
        ]
    return figures


def _figures(size: int, rounds: dict[str, dict[str, Any]], load: str) -> list[Figure]:
    name = f"spark.{_short(size)}"
    figures = []
    for clock, unit in (("wall", "records/s"), ("cpu", "records/CPU s")):
        speed = {mode: size / facts[f"{clock}_s"] for mode, facts in rounds.items()}
        for mode, facts in rounds.items():
            ratio = None if mode == "count" else speed[mode] / speed["count"]
            aim = ">= 0.25 of counting" if mode == "spark" else ""
            measured = {key: value for key, value in facts.items() if key != "answer"}
            figures.append(
                Figure(f"{name}.{mode}.{clock}", speed[mode], unit, ratio=ratio, aim=aim, load=load, notes=measured)
            )
    spark = rounds["spark"]
    spent, stages = spark["spent_s"], spark["stages"]
    wrote = [stage for stage in stages if stage["write_mib"] and not stage["read_mib"]][:1]
    folding = [stage for stage in stages if stage["read_mib"]][:1]
    reading_s = sum(stage["task_s"] - stage["write_s"] for stage in wrote)
    shuffling_s = sum(stage["write_s"] for stage in wrote)
    python_s = spent["unpacking"] + spent["judging"]
    passing_s = max(0.0, sum(stage["task_s"] for stage in folding) - python_s)
    for what, seconds in (
        ("reading", reading_s),
        ("writing the shuffle", shuffling_s),
        ("shuffle to Python", passing_s),
        ("unpacking", spent["unpacking"]),
        ("judging", spent["judging"]),
    ):
        figures.append(Figure(f"{name}.time.{what}", seconds, "task s"))
    figures.append(
        Figure(f"{name}.memory.all", spark["all_mib"], "MiB", aim=f"heap within {HEAP_AIM_MIB} MiB", notes=spark)
    )
    for part in ("jvm", "workers", "driver"):
        figures.append(Figure(f"{name}.memory.{part}", spark[f"{part}_mib"], "MiB"))
    return figures


def _short(size: int) -> str:
    return f"{size // 1_000_000}M" if size >= 1_000_000 else f"{size // 1_000}k"
