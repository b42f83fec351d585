"""Plots of live runs: the load of each broker over time, and moves as ticks."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from matplotlib.figure import Figure

from shedders.contest.plots import BAD, COLOURS, INK, NOTHING, Plot, styled

_DASHED: Final = (0, (3, 2))
_DOTTED: Final = (0, (1, 2))


class LoadLines(NamedTuple):
    """Loads of a run by broker; None where nothing is known.

    Attributes:
        suffix: Of the name of each broker in the legend.
    """

    at_s: Sequence[float]
    loads: Mapping[str, Sequence[float | None]]
    suffix: str = ""
    dashed: bool = False


class MoveTicks(NamedTuple):
    """Times of moves, drawn at a height from 0 to 1."""

    label: str
    at_s: Sequence[float]
    height: float = 0.02


def live_plot(
    title: str, runs: Sequence[LoadLines], moves: Sequence[MoveTicks], marks: Sequence[tuple[float, str]]
) -> Plot:
    """Loads of runs on the same axes; a broker has the same colour in each.

    Args:
        marks: Times with words for what was done then.
    """
    with styled():
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        axes = figure.subplots()
        at_s, first = runs[0].at_s, runs[0].loads
        for run in runs:
            for number, name in enumerate(name for name in first if name in run.loads):
                axes.plot(
                    run.at_s, _gaps(run.loads[name]), color=COLOURS[number % len(COLOURS)], linewidth=1.2,
                    linestyle=_DASHED if run.dashed else "solid", label=f"{name}{run.suffix}",
                )  # fmt: skip
        known = [load for loads in first.values() for load in loads if load is not None]
        axes.set_ylim(0, 1.05 * max([1.0, *known]))
        axes.set_xlim(0, max(at_s, default=1.0))
        axes.set_xlabel("seconds")
        axes.set_ylabel("load (1 is full)")
        for ticks in moves:
            if ticks.at_s:
                axes.plot(
                    ticks.at_s, [ticks.height] * len(ticks.at_s), linestyle="none", marker="|", color=INK, markersize=7,
                    markeredgewidth=0.7, transform=axes.get_xaxis_transform(), label=ticks.label,
                )  # fmt: skip
        for moment_s, text in marks:
            axes.axvline(moment_s, color=BAD, linewidth=0.8, linestyle=_DOTTED)
            axes.annotate(
                text, (moment_s, 1.0), xycoords=axes.get_xaxis_transform(), xytext=(3, -9), textcoords="offset points",
                color=BAD, fontsize=8,
            )  # fmt: skip
        axes.set_title(title)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return Plot(figure)


def _gaps(loads: Sequence[float | None]) -> list[float]:
    return [NOTHING if load is None else load for load in loads]
