"""Plots of runs and comparisons, as SVG or PNG, the same bytes for the same runs. Needs matplotlib (extra `simulate`).

Three kinds: one run (the load of each broker over time, moves as ticks), one scenario (all contenders side by side on the same
axes), and balance against churn (every contender in every scenario).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from shedders.contest.figures import ratio, share
from shedders.contest.outcome import RunOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shedders.contest.comparison import ContestComparison


NOTHING: Final = float("nan")
"""A broker that is not there leaves a gap in its line."""
TICKS_MAX: Final = 240
"""Moves closer together than that part of the run are one tick."""


@dataclass(frozen=True, slots=True)
class RunSeries:
    """Series of a run, thinned out.

    Attributes:
        hours: Time of each point.
        loads: By broker.
        lowest, lower, mean, upper, highest: Over the brokers that are there: `lower` to `upper` is their middle half.
        moves_h: Times of moves.
    """

    hours: list[float]
    loads: Mapping[str, list[float]]
    lowest: list[float]
    lower: list[float]
    mean: list[float]
    upper: list[float]
    highest: list[float]
    max_over_mean: list[float]
    max_over_bound: list[float]
    moves_h: list[float]


def drawn(outcome: RunOutcome, points: int) -> RunSeries:
    """Series of at most `points` points, each the moment with the largest load of its stretch."""
    series = outcome.series
    count = len(series.at_s)
    chosen = [_worst(outcome, *stretch) for stretch in _stretches(count, points)]
    there = [sorted(_there(series.loads, at)) for at in chosen]
    return RunSeries(
        hours=[series.at_s[at] / 3_600 for at in chosen],
        loads={
            name: [NOTHING if (load := loads[at]) is None else load for at in chosen]
            for name, loads in sorted(series.loads.items())
        },
        lowest=[loads_there[0] if loads_there else NOTHING for loads_there in there],
        lower=[_quantile(loads_there, 0.25) for loads_there in there],
        mean=[sum(loads_there) / len(loads_there) if loads_there else NOTHING for loads_there in there],
        upper=[_quantile(loads_there, 0.75) for loads_there in there],
        highest=[loads_there[-1] if loads_there else NOTHING for loads_there in there],
        max_over_mean=[series.max_over_mean[at] for at in chosen],
        max_over_bound=[series.max_over_bound[at] for at in chosen],
        moves_h=[move.at_s / 3_600 for move in outcome.moves],
    )


def ticks_of(series: RunSeries) -> list[float]:
    """Times at which ticks stand for moves."""
    if not series.hours or not series.moves_h:
        return []
    width = max(series.hours[-1], series.moves_h[-1], 1e-9) / TICKS_MAX
    return [(number + 0.5) * width for number in sorted({int(at / width) for at in series.moves_h})]


def _stretches(count: int, points: int) -> list[tuple[int, int]]:
    """Parts of a series, the first and the last point on their own."""
    if count <= points:
        return [(at, at + 1) for at in range(count)]
    inner, parts = count - 2, max(1, points - 2)
    cuts = [1 + inner * part // parts for part in range(parts + 1)]
    middle = [(begin, end) for begin, end in pairwise(cuts) if begin < end]
    return [(0, 1), *middle, (count - 1, count)]


def _worst(outcome: RunOutcome, begin: int, end: int) -> int:
    over = outcome.series.max_over_mean
    return max(range(begin, end), key=lambda at: (over[at], -at))


def _there(loads: Mapping[str, Sequence[float | None]], at: int) -> list[float]:
    return [load for series in loads.values() if (load := series[at]) is not None]


def _quantile(ordered: Sequence[float], part: float) -> float:
    if not ordered:
        return NOTHING
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


FORMATS: Final = ("svg", "png")
LINES_MAX: Final = 12
"""Brokers drawn as lines of their own; of more, bands are drawn that hold all, and the middle half, of them."""
COLOURS: Final = (
    "#3b7dd8", "#e08a2e", "#3fa36b", "#a25fc9", "#d1567f", "#2fa3ab",
    "#9a8a1f", "#7a6ff0", "#b56a4a", "#5f8f2f", "#4a6a9a", "#c24fb0",
)  # fmt: skip
INK, _SOFT, _LINE, BAD = "#1d2430", "#5c6675", "#d9dde3", "#c22f35"
_OURS, _UPSTREAM, _OTHER = "#1f5fbf", "#b56a4a", "#8a94a2"
_STYLE: Final[Mapping[str, Any]] = {
    "svg.hashsalt": "statechannel",  # names of parts of the file do not depend on the process
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _SOFT,
    "axes.titlesize": 9,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.5,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "legend.frameon": False,
    "path.simplify": True,
}
_COLUMNS: Final = 3
_NAME_MAX: Final = 56
_OVERLOADED: Final = 0.85
_RATIOS: Final = (1, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10, 20, 50, 100)


class Plot(NamedTuple):
    """A plot that is not yet written."""

    figure: Figure

    def svg(self) -> str:
        """As text."""
        with styled():
            out = io.StringIO()
            canvas: Any = FigureCanvasSVG(self.figure)
            canvas.print_svg(out, metadata={"Date": None, "Creator": None})
        return out.getvalue()

    def png(self, dpi: int = 110) -> bytes:
        with styled():
            out = io.BytesIO()
            self.figure.set_dpi(dpi)
            canvas: Any = FigureCanvasAgg(self.figure)
            canvas.print_png(out, metadata={"Software": None})
        return out.getvalue()

    def of(self, form: str) -> bytes:
        """In one of `FORMATS`."""
        return self.svg().encode() if form == "svg" else self.png()


@contextmanager
def styled() -> Iterator[None]:
    """What is drawn does not depend on the settings of matplotlib that this machine has."""
    with style.context(["default", dict(_STYLE)]):
        yield


def run_picture(outcome: RunOutcome, *, overloaded: float = _OVERLOADED, points: int = 720) -> Plot:
    """One run: every broker's load over time, moves as ticks below, and how far the largest is from the bound."""
    with styled():
        figure = Figure(figsize=(10, 6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        series = drawn(outcome, points)
        _loads(above, series, overloaded, legend=True)
        measures = outcome.measures
        above.set_title(
            f"{outcome.contender} on {outcome.scenario}, seed {outcome.seed}: max/mean {ratio(measures.max_over_mean)}, "
            f"{measures.moves} moves of {share(measures.moved_share)} of the traffic, {measures.returns} back and forth"
        )
        above.set_ylabel("load (1 is full)")
        below.plot(series.hours, series.max_over_mean, color=INK, linewidth=1.0, label="largest over mean")
        below.plot(series.hours, series.max_over_bound, color=_OURS, linewidth=1.0, label="largest over bound")
        below.axhline(1.0, color=_SOFT, linewidth=0.6)
        below.set_ylim(bottom=0.95, top=_top(series.max_over_mean + series.max_over_bound, 1.2))
        below.set_xlabel("hours")
        below.legend(loc="upper right", ncols=2, fontsize=8)
    return Plot(figure)


def scenario_picture(
    outcomes: Sequence[RunOutcome], *, overloaded: float = _OVERLOADED, points: int = 120, title: str = ""
) -> Plot:
    """All contenders of a scenario on the same axes, a panel each."""
    with styled():
        columns = min(_COLUMNS, len(outcomes))
        rows = -(-len(outcomes) // columns)
        figure = Figure(figsize=(3.6 * columns, 1.9 * rows + 0.4), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        drawn_series = [drawn(outcome, points) for outcome in outcomes]
        top = max(_top([*series.highest, overloaded], overloaded) for series in drawn_series)
        for panel, series, outcome in zip(panels.flat, drawn_series, outcomes, strict=False):
            _loads(panel, series, overloaded, legend=False)
            panel.set_ylim(0, top)
            measures = outcome.measures
            panel.set_title(
                f"{_broken(outcome.contender)}\nmax/mean {ratio(measures.max_over_mean)}, moved {share(measures.moved_share)}",
                fontsize=7,
            )
        for panel in list(panels.flat)[len(outcomes) :]:
            panel.set_axis_off()
        figure.supxlabel("hours", fontsize=8, color=_SOFT)
        figure.supylabel("load (1 is full)", fontsize=8, color=_SOFT)
        if title:
            figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
    return Plot(figure)


def _broken(name: str) -> str:
    """A name that is too long for a panel, on two lines."""
    return name.replace("+", "\n+", 1) if len(name) > _NAME_MAX else name


def churn_picture(comparison: ContestComparison, *, title: str = "Balance against churn") -> Plot:
    """Every contender in every scenario: load moved an hour against max/mean; the median over scenarios stands out."""
    with styled():
        figure = Figure(figsize=(10, 6), layout="constrained")
        axes = figure.subplots()
        contenders = sorted(
            _by_contender(comparison), key=lambda contender: (contender.middle[1], contender.middle[0], contender.name)
        )
        for number, contender in enumerate(contenders, 1):
            ours = contender.name == comparison.against
            colour = _OURS if ours else _UPSTREAM if contender.upstream else _OTHER
            front = 6 if ours else 3
            axes.scatter(
                [x for x, _ in contender.points],
                [y for _, y in contender.points],
                s=12,
                color=colour,
                alpha=0.35,
                linewidths=0,
                zorder=front - 1,
            )
            marker = "D" if ours else "s" if contender.upstream else "o"
            axes.scatter(
                [contender.middle[0]], [contender.middle[1]], s=130, color=colour, marker=marker, edgecolors="white",
                zorder=front, label=f"{number}  {contender.name}",
            )  # fmt: skip
            axes.annotate(
                str(number),
                contender.middle,
                ha="center",
                va="center_baseline",
                color="white",
                fontsize=7,
                zorder=front + 1,
            )
        axes.set_xscale("symlog", linthresh=0.01)
        axes.set_yscale("log")
        axes.set_xlim(left=-0.001)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axes.yaxis.set_major_locator(FixedLocator(_RATIOS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if contenders:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, labelspacing=1.2)
        axes.set_xlabel("moved in an hour, of the cluster's traffic (less is better)")
        axes.set_ylabel("largest load over mean load (1 is even)")
        axes.set_title(f"{title}; small: a scenario, large: the median over scenarios")
    return Plot(figure)


class _Churn(NamedTuple):
    """Load moved an hour and max/mean of one contender, in each scenario and in the middle."""

    name: str
    upstream: bool
    points: list[tuple[float, float]]
    middle: tuple[float, float]


def _by_contender(comparison: ContestComparison) -> Iterator[_Churn]:
    figures: dict[str, list[tuple[float, float]]] = {}
    upstream: dict[str, bool] = {}
    for part in comparison.scenarios:
        for row in part.rows:
            if not row.measures:
                continue
            moved, spread = row.measures["moved_share_per_h"].median, row.measures["max_over_mean"].median
            figures.setdefault(row.contender, []).append((moved or 0.0, spread or 1.0))
            upstream[row.contender] = row.upstream
    for name, points in figures.items():
        yield _Churn(name, upstream[name], points, (median(x for x, _ in points), median(y for _, y in points)))


def _loads(axes: Axes, series: RunSeries, overloaded: float, *, legend: bool) -> None:
    if len(series.loads) <= LINES_MAX:
        for number, (name, loads) in enumerate(series.loads.items()):
            axes.plot(series.hours, loads, color=COLOURS[number % len(COLOURS)], linewidth=0.9, label=name)
    else:
        axes.fill_between(
            series.hours, series.lowest, series.highest, color=COLOURS[0], alpha=0.25, linewidth=0, label="all"
        )
        axes.fill_between(
            series.hours, series.lower, series.upper, color=COLOURS[0], alpha=0.45, linewidth=0, label="half of them"
        )
        axes.plot(series.hours, series.highest, color=COLOURS[0], linewidth=0.7)
    axes.plot(series.hours, series.mean, color=INK, linewidth=1.0, linestyle=(0, (3, 2)), label="mean")
    axes.axhline(overloaded, color=BAD, linewidth=0.7, linestyle=(0, (1, 2)), label="overloaded")
    axes.set_ylim(0, _top([*series.highest, overloaded], overloaded))
    axes.set_xlim(0, max(series.hours[-1], 1e-9) if series.hours else 1.0)
    moved = ticks_of(series)
    if moved:
        axes.plot(
            moved, [0.02] * len(moved), linestyle="none", marker="|", color=INK, markersize=6, markeredgewidth=0.6,
            transform=axes.get_xaxis_transform(), label="moves",
        )  # fmt: skip
    if legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)


def _top(numbers: Sequence[float | None], least: float) -> float:
    return 1.08 * max([least, *(number for number in numbers if number is not None)])
