"""Plots of live runs: the load of each broker over time, moves as ticks; beside it what the simulator foretells.

`statechannel demo --balance` finds `draw` by the entry point group `statechannel.demo_plots`. Needs matplotlib (extra
`simulate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib.figure import Figure

from shedders.simulate.plots import BAD, COLOURS, FORMATS, INK, Picture, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shedders.simulate.prediction import Run

NAME: Final = "balance"
_DASHED: Final = (0, (3, 2))
_DOTTED: Final = (0, (1, 2))


def draw(series: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw a series (`statechannel.demo.series`) as `balance.svg` and `balance.png`.

    Args:
        folder: Is there.
    """
    with styled():
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        axes = figure.subplots()
        at_s, loads = series["at_s"], series["loads"]
        for number, (name, values) in enumerate(loads.items()):
            _line(axes, at_s, values, number, label=name)
        means = [_mean([values[at] for values in loads.values()]) for at in range(len(at_s))]
        axes.plot(at_s, means, color=INK, linewidth=1.0, linestyle=_DASHED, label="mean")
        _frame(axes, at_s, loads)
        _ticks(axes, [move["at_s"] for move in series["moves"]], 0.02, "moves")
        for mark in series["marks"]:
            _mark(axes, mark["at_s"], mark["text"])
        moves = len(series["moves"])
        axes.set_title(f"Load of each broker, {moves} {'move' if moves == 1 else 'moves'}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    picture, files = Picture(figure), []
    for form in FORMATS:
        files.append(folder / f"{NAME}.{form}")
        files[-1].write_bytes(picture.of(form))
    return files


def prediction_picture(live: Run, foretold: Run, marks: Mapping[str, float], title: str) -> Picture:
    """The loads of a live run, and those that the simulator has foretold, on the same axes.

    Args:
        marks: Times with words for what was done then.
    """
    with styled():
        figure = Figure(figsize=(10, 5), layout="constrained")
        axes = figure.subplots()
        for number, name in enumerate(live.loads):
            _line(axes, live.at_s, live.loads[name], number, label=f"{name}, live")
        for number, name in enumerate(live.loads):
            if name in foretold.loads:
                _line(axes, foretold.at_s, foretold.loads[name], number, label=f"{name}, simulated", linestyle=_DASHED)
        _frame(axes, live.at_s, live.loads)
        _ticks(axes, live.moved_s, 0.05, "moves, live (above)")
        _ticks(axes, foretold.moved_s, 0.015, "moves, simulated (below)")
        for text, at_s in marks.items():
            _mark(axes, at_s, text)
        axes.set_title(title)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return Picture(figure)


def _line(
    axes: Axes,
    at_s: Sequence[float],
    values: Sequence[float | None],
    number: int,
    *,
    label: str,
    linestyle: Any = "solid",
) -> None:
    known = [float("nan") if value is None else value for value in values]
    axes.plot(
        at_s, known, color=COLOURS[number % len(COLOURS)], linewidth=1.2, linestyle=linestyle, label=label
    )  # fmt: skip


def _frame(axes: Axes, at_s: Sequence[float], loads: Mapping[str, Sequence[float | None]]) -> None:
    known = [one for values in loads.values() for one in values if one is not None]
    axes.set_ylim(0, 1.05 * max([1.0, *known]))
    axes.set_xlim(0, max(at_s, default=1.0))
    axes.set_xlabel("seconds")
    axes.set_ylabel("load (1 is full)")


def _ticks(axes: Axes, moved_s: Sequence[float], height: float, label: str) -> None:
    """A tick for each move."""
    if moved_s:
        axes.plot(
            moved_s, [height] * len(moved_s), linestyle="none", marker="|", color=INK, markersize=7, markeredgewidth=0.7,
            transform=axes.get_xaxis_transform(), label=label,
        )  # fmt: skip


def _mark(axes: Axes, at_s: float, text: str) -> None:
    axes.axvline(at_s, color=BAD, linewidth=0.8, linestyle=_DOTTED)
    axes.annotate(
        text, (at_s, 1.0), xycoords=axes.get_xaxis_transform(), xytext=(3, -9), textcoords="offset points", color=BAD,
        fontsize=8,
    )  # fmt: skip


def _mean(values: Sequence[float | None]) -> float:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else float("nan")
