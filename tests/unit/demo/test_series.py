"""What `demo --balance` notes of loads and moves, and that it goes without a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statechannel.cli.main import app
from statechannel.demo import series as module
from statechannel.demo.series import LoadSeries


def make_series() -> LoadSeries:
    series = LoadSeries(begun_ms=1_000_000)
    series.add(1.0, {"b1": 0.2, "b2": 0.2})
    series.add(2.0, {"b1": 0.9, "b2": None})
    series.add(3.0, {"b1": 0.8, "b2": 0.1, "b3": 0.3})
    series.add(4.0, {"b1": 0.5, "b3": 0.4})
    return series


def decision(at_ms: int, *moves: tuple[str, str, str, str]) -> dict[str, Any]:
    return {
        "at_ms": at_ms,
        "moves": [
            {
                "bundle": bundle,
                "source": source,
                "destination": to,
                "result": result,
                "why": "too much",
                "operation": "o",
            }
            for bundle, source, to, result in moves
        ],
    }


def test_brokers_may_come_and_be_silent() -> None:
    series = make_series()
    assert series.loads == {
        "b1": [0.2, 0.9, 0.8, 0.5],
        "b2": [0.2, None, 0.1, None],
        "b3": [None, None, 0.3, 0.4],
    }
    assert series.worst() == {"b1": 0.8, "b2": 0.1, "b3": 0.3}
    assert series.lately() == pytest.approx({"b1": 0.6, "b2": 0.15, "b3": 0.35})
    assert LoadSeries(0).worst() == LoadSeries(0).lately() == {}


def test_only_moves_that_were_begun_count_and_those_that_came_back_are_found() -> None:
    series = make_series()
    held = decision(1_003_000, ("x", "b1", "b2", "started"))
    held["moves"][0]["operation"] = None
    series.moved([decision(1_002_000, ("x", "b1", "b2", "done"), ("y", "b1", "b3", "done")), held])
    assert [(move["at_s"], move["bundle"]) for move in series.moves] == [(2.0, "x"), (2.0, "y")]
    assert series.returned() == []
    series.moved(
        [
            decision(1_002_000, ("x", "b1", "b2", "done"), ("y", "b1", "b3", "taken-back")),
            decision(1_003_000, ("x", "b2", "b3", "done")),
            decision(1_004_000, ("x", "b3", "b1", "done"), ("y", "b3", "b1", "done")),
        ]
    )
    assert series.returned() == ["x"]


class Point:
    """An entry point that is what the test says."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def load(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_it_is_written_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, Any]] = []

    def draw(series: Mapping[str, Any], folder: Path) -> Sequence[Path]:
        seen.append(series)
        return [folder / "x.svg"]

    monkeypatch.setattr(module, "entry_points", lambda group: [Point(draw)])
    series = make_series()
    series.mark("launch", 1_001_500)
    files, why = series.write(tmp_path / "new")
    assert [path.name for path in files] == ["balance.json", "x.svg"]
    assert why == ""
    assert json.loads(files[0].read_text()) == json.loads(json.dumps(seen[0]))
    assert seen[0]["marks"] == [{"at_s": 1.5, "text": "launch"}]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([], "no plotter is installed"),
        ([Point(ModuleNotFoundError("No module named 'matplotlib'"))], "-m pip install"),
    ],
)
def test_without_a_plotter_the_figures_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: list[Point], said: str
) -> None:
    monkeypatch.setattr(module, "entry_points", lambda group: points)
    files, why = make_series().write(tmp_path)
    assert [path.name for path in files] == ["balance.json"]
    assert said in why


def test_a_missing_plotter_is_named_before_the_demo_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        def load(self) -> None:
            raise ImportError("No module named 'matplotlib'")

    monkeypatch.setattr(module, "entry_points", lambda **_: [Point()])
    assert module.missing_plotter() == "No module named 'matplotlib'"
    ran = CliRunner().invoke(app, ["demo", "--balance", "--plots", "p"])
    assert ran.exit_code == 25
    assert "--plots needs a plotter: No module named 'matplotlib'" in ran.stderr
    assert "pip install" in ran.stderr
