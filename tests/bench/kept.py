"""The figures that the documentation shows: kept as they were measured, lane by lane, with the machine's facts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.measure import ROOT, Figure, machine

KEPT = ROOT / "design" / "evidence" / "figures.json"
_ROUNDS_MAX = 10
_DIGITS = 4


def keep(lane: str, figures: Sequence[Figure], path: Path = KEPT) -> None:
    """Put this lane's figures in the place of those that were kept of it."""
    lanes = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    lanes[lane] = {"machine": machine(), "figures": [_short(asdict(figure)) for figure in figures]}
    path.write_text(json.dumps(lanes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _short(figure: dict[str, Any]) -> dict[str, Any]:
    rounds = figure["rounds"] if len(figure["rounds"]) <= _ROUNDS_MAX else []
    figure["rounds"] = [_rounded(figures) for figures in rounds]
    figure["value"], figure["ratio"] = _rounded(figure["value"]), _rounded(figure["ratio"])
    return {name: value for name, value in figure.items() if value not in (None, "", [], {})}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def rows(path: Path = KEPT) -> Iterator[tuple[str, str, str, str, str]]:
    """Kept figures: name, value, what they are held against, load, and the command that repeats those of a lane."""
    for lane, figures in json.loads(path.read_text(encoding="utf-8")).items():
        command = f"`make bench ARGS={lane}`"
        for figure in figures["figures"]:
            yield f"`{figure['name']}`", _shown(figure), figure.get("aim", ""), figure.get("load", ""), command
            command = ""


def _shown(figure: Mapping[str, Any]) -> str:
    value, unit, ratio = figure["value"], figure["unit"], figure.get("ratio")
    whole = abs(value) >= 100 or value == int(value)
    number = f"{value:,.0f}" if whole else f"{value:,.{2 if abs(value) < 10 else 1}f}"
    return f"{number} {unit}" if ratio is None or unit == "x" else f"{number} {unit}, {ratio:.2f}x"
