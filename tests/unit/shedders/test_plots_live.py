"""The plot of `demo --balance`: both forms, the same bytes for the same series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shedders.contest.plots_live import draw

SERIES: dict[str, Any] = {
    "at_s": [0.0, 1.0, 2.0],
    "loads": {"b1": [0.2, 0.9, 0.5], "b2": [None, 0.1, 0.4]},
    "moves": [{"at_s": 1.5}],
    "marks": [{"at_s": 1.0, "text": "launch"}],
}


def test_both_forms_repeat(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    files = draw(SERIES, first)
    assert [path.name for path in files] == ["balance.svg", "balance.png"]
    svg = files[0].read_text()
    for text in ("b1", "b2", "mean", "launch", "1 move", "seconds"):
        assert f">{text}<" in svg or text in svg, text
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert [path.read_bytes() for path in draw(SERIES, second)] == [path.read_bytes() for path in files]


def test_a_series_of_nothing_can_be_drawn(tmp_path: Path) -> None:
    assert len(draw({"at_s": [], "loads": {}, "moves": [], "marks": []}, tmp_path)) == 2
