"""Rounds, medians, and figures with what they are held against."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Attributes:
        ratio: The number against its floor of the same run; None where there is none to be had.
        aim: What the ratio should be, in words.
        rounds: The single rounds behind a median.
        load: Load average of the last minute when it was taken, as `before -> after`.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    aim: str = ""
    rounds: Sequence[float] = ()
    load: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)


class Load:
    """Load average around a measurement."""

    def __init__(self) -> None:
        self._before = os.getloadavg()[0]

    def __str__(self) -> str:
        return f"{self._before:.1f} -> {os.getloadavg()[0]:.1f}"


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of all values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def worker(module: str, *arguments: object, timeout_s: float = 900) -> Any:
    """Run a module in a process of its own; its last line of output is JSON."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, of this one if none is named."""
    return int(psutil.Process(pid).memory_info().rss)


def machine() -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def save(path: Path, figures: Sequence[Figure]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"machine": machine(), "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
