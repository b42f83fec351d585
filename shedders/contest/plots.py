"""Plots of runs and comparisons, as SVG, the same bytes for the same runs. Needs matplotlib (extra `simulate`).

Two kinds: a scenario (the load of each broker over time, moves as ticks; contenders side by side on the same axes), and balance
against churn (every contender in every scenario).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import offset_copy

from shedders.contest.figures import ratio, share
from shedders.contest.measures import worst_points
from shedders.contest.outcome import RunOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shedders.contest.comparison import ContestComparison
    from shedders.contest.trace import Floats


NOTHING: Final = float("nan")
"""A broker that is absent leaves a gap in its line."""
TICKS_MAX: Final = 240
"""Moves closer together than that part of the run are one tick."""


class RunSeries(NamedTuple):
    """Series of a run, thinned out.

    Attributes:
        hours: Time of each point; `end_h`: of the last of all.
        loads: A row a broker.
        bands: Lowest load, that of a quarter, of three quarters, and the highest, over the brokers that are present.
        ticks_h: When bundles moved.
    """

    hours: Floats
    end_h: float
    loads: Floats
    bands: Floats
    mean: Floats
    ticks_h: list[float]


def drawn(outcome: RunOutcome, points: int) -> RunSeries:
    """Series of at most `points` points, each the moment with the largest load of its stretch."""
    series = outcome.series
    chosen = worst_points(series.max_over_mean, points)
    loads = np.array([series.loads[name] for name in sorted(series.loads)], np.float64)[:, chosen]
    end_h = max([1e-9, *(at_s / 3_600 for at_s in series.at_s[-1:])])
    width = max([end_h, *(move.at_s / 3_600 for move in outcome.moves)]) / TICKS_MAX
    ticks = sorted({int(move.at_s / 3_600 / width) for move in outcome.moves})
    with warnings.catch_warnings(action="ignore"):  # of moments at which no broker is present
        return RunSeries(
            np.array(series.at_s)[chosen] / 3_600,
            end_h,
            loads,
            np.nanquantile(loads, (0, 0.25, 0.75, 1), axis=0),
            np.nanmean(loads, axis=0),
            [(tick + 0.5) * width for tick in ticks],
        )


LINES_MAX: Final = 12
"""Brokers drawn as lines of their own; of more, bands are drawn that hold all, and the middle half, of them."""
COLOURS: Final = (
    "#3b7dd8", "#e08a2e", "#3fa36b", "#a25fc9", "#d1567f", "#2fa3ab",
    "#9a8a1f", "#7a6ff0", "#b56a4a", "#5f8f2f", "#4a6a9a", "#c24fb0",
)  # fmt: skip
INK, _SOFT, _LINE, BAD = "#1d2430", "#5c6675", "#d9dde3", "#c22f35"
_PAPER: Final = "#ffffff"
_ON_COLOUR: Final = "#fefefe"
"""Text on a mark: not the colour of the paper, which is dark in the dark."""
_OURS: Final = "#1f5fbf"
_DARK: Final = {_PAPER: "#14171c", INK: "#e6e9ee", _SOFT: "#9ba5b4", _LINE: "#333a45", BAD: "#ff7f80", _OURS: "#5b97ea"}
_DARK_RULES: Final = "".join(
    f'[style*="{part}: {light}"] {{ {part}: {dark} !important; }} '
    for light, dark in _DARK.items()
    for part in ("fill", "stroke")
)
"""Style rules that turn a plot into its dark variant."""
_DARK_STYLE: Final = f"<style>@media (prefers-color-scheme: dark) {{ {_DARK_RULES}}}</style>"
_STYLE: Final[Mapping[str, Any]] = {
    "svg.hashsalt": "statechannel",  # names of parts of the file do not depend on the process
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "figure.facecolor": _PAPER,
    "axes.facecolor": _PAPER,
    "text.color": INK,
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
_PANEL_POINTS: Final = 120
_OVERLOADED: Final = 0.85
_RATIOS: Final = (1, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10, 20, 50, 100)


class Plot(NamedTuple):
    figure: Figure

    def svg(self) -> str:
        """As text; it follows the light or dark scheme of the viewer."""
        with styled():
            out = io.StringIO()
            canvas: Any = FigureCanvasSVG(self.figure)
            canvas.print_svg(out, metadata={"Date": None, "Creator": None})
        return out.getvalue().replace("</defs>", f"{_DARK_STYLE}</defs>", 1)


@contextmanager
def styled() -> Iterator[None]:
    """What is drawn does not depend on the settings of matplotlib that this machine has."""
    with style.context(["default", dict(_STYLE)]):
        yield


def scenario_picture(outcomes: Sequence[RunOutcome], *, title: str) -> Plot:
    """Contenders of a scenario on the same axes, a panel each; the title says who is the most even."""
    with styled():
        columns = min(_COLUMNS, len(outcomes))
        rows = -(-len(outcomes) // columns)
        figure = Figure(figsize=(max(7.2, 3.6 * columns), 2.1 * rows + 0.9), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        drawn_series = [drawn(outcome, _PANEL_POINTS) for outcome in outcomes]
        top = 1.08 * max([_OVERLOADED, *(load for series in drawn_series for load in series.bands[-1])])
        for panel, series, outcome in zip(panels.flat, drawn_series, outcomes, strict=False):
            _loads(panel, series)
            panel.set_ylim(0, top)
            panel.xaxis.set_major_locator(MaxNLocator(5))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            measures = outcome.measures
            panel.set_title(
                f"{_wrap(outcome.contender)}\nmax/bound {ratio(measures.max_over_bound)}, moved {share(measures.moved_share)}",
                fontsize=7,
            )
        for panel in list(panels.flat)[len(outcomes) :]:
            panel.set_axis_off()
        for panel in list(panels.flat)[max(0, len(outcomes) - columns) : len(outcomes)]:
            panel.set_xlabel("hours", fontsize=8)
            panel.tick_params(labelbottom=True)
        figure.supylabel("load (1 is full)", fontsize=8, color=_SOFT)
        _scenario_legend(figure, list(panels.flat)[: len(outcomes)], [len(series.loads) for series in drawn_series])
        figure.suptitle(f"{title}: {_most_even(outcomes)}", fontsize=10, color=INK, x=0.01, ha="left")
    return Plot(figure)


def _most_even(outcomes: Sequence[RunOutcome]) -> str:
    """The result of a scenario, as a sentence."""
    figures = sorted((outcome.measures.max_over_bound, outcome.contender) for outcome in outcomes)
    (least, best), others = figures[0], [ratio(figure) for figure, _ in figures[1:]]
    if not others:
        return f"{best} has a max/bound of {ratio(least)}"
    rest = f"{others[0]}{f' to {others[-1]}' if others[-1] != others[0] else ''}"
    return f"{best} is the most even, max/bound {ratio(least)}; the others {rest}"


def _scenario_legend(figure: Figure, panels: Sequence[Axes], brokers: Sequence[int]) -> None:
    """What lines, bands and ticks mean; lines of brokers are too many to be named one by one."""
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    known = {
        "all": "all brokers",
        "half of them": "middle half of the brokers",
        "mean": "mean",
        "overloaded": "overloaded from here on",
        "moves": "moves of bundles",
    }
    named = {words: handles[name] for name, words in known.items() if name in handles}
    if any(many <= LINES_MAX for many in brokers):
        line = next(panel.lines[0] for panel, many in zip(panels, brokers, strict=True) if many <= LINES_MAX)
        named = {"a line for each broker": line} | named
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=len(named), fontsize=7)


def _wrap(name: str) -> str:
    return name.replace("+", "\n+", 1) if len(name) > _NAME_MAX else name


def churn_picture(comparison: ContestComparison) -> Plot:
    """Every contender in every scenario: load moved an hour against max/bound; the median over scenarios stands out."""
    with styled():
        figure = Figure(figsize=(11, 6.4), layout="constrained")
        axes = figure.subplots()
        contenders = sorted(
            _by_contender(comparison), key=lambda contender: (contender.middle[1], contender.middle[0], contender.name)
        )
        styles = _mark_styles(contenders, comparison.against)
        for contender in contenders:
            style = styles[contender.name]
            xs, ys = [x for x, _ in contender.points], [y for _, y in contender.points]
            axes.scatter(xs, ys, s=14, color=style.colour, marker=style.marker, alpha=0.35, linewidths=0, zorder=2)
        axes.set_xscale("symlog", linthresh=_LINEAR_TO)
        axes.set_yscale("log")
        axes.set_xlim(left=-0.0012)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axes.yaxis.set_major_locator(FixedLocator(_RATIOS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.axvline(_LINEAR_TO, color=_SOFT, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(
            "linear | logarithmic", (_LINEAR_TO, 1.0), xycoords=axes.get_xaxis_transform(), xytext=(0, -9),
            textcoords="offset points", ha="center", fontsize=7, color=_SOFT,
        )  # fmt: skip
        axes.set_xlabel(
            "moved in an hour, of the cluster's traffic (linear up to 1 %, logarithmic beyond; less is better)"
        )
        axes.set_ylabel("largest load over the bound (logarithmic; 1 is as even as can be)")
        axes.set_title(
            f"{_least_churn(contenders, comparison.against)}\n"
            "small: a scenario; large: the median over scenarios, beside its place where another one is there"
        )
        if contenders:
            handles = _medians(figure, axes, contenders, styles)
            axes.legend(
                handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, labelspacing=1.1,
                title="max/bound and moved an hour, medians", title_fontsize=7, alignment="left",
            )  # fmt: skip
    return Plot(figure)


_LINEAR_TO: Final = 0.01
_APART_POINTS: Final = 15.0
"""Distance of the middles of two marks that do not cover each other."""
_SHAPES: Final = ("p", "o", "s", "h", "8", "D")


class _MarkStyle(NamedTuple):
    colour: str
    marker: str


def _mark_styles(contenders: Sequence[_Churn], against: str) -> dict[str, _MarkStyle]:
    """A colour for each strategy, and a shape for each of its variants (`@upstream`, `@recommended`)."""
    strategies = sorted({contender.name.partition("@")[0] for contender in contenders} - {against})
    variants = sorted({contender.name.partition("@")[2] for contender in contenders})
    styles = {}
    for contender in contenders:
        name, _, variant = contender.name.partition("@")
        if name in strategies:
            colour = COLOURS[1:][strategies.index(name) % (len(COLOURS) - 1)]
            styles[contender.name] = _MarkStyle(colour, _SHAPES[variants.index(variant) % len(_SHAPES)])
    return styles | {against: _MarkStyle(_OURS, "D")}


def _least_churn(contenders: Sequence[_Churn], against: str) -> str:
    ours = next((contender for contender in contenders if contender.name == against), None)
    others = [contender for contender in contenders if contender.name != against]
    if ours is None or not others:
        return "Balance against churn"
    best = min(others, key=lambda other: (other.middle[1], other.middle[0]))
    return (
        f"{against}: max/bound {ratio(ours.middle[1])}, {share(ours.middle[0])} moved an hour; the most even other, "
        f"{best.name}: {ratio(best.middle[1])}, {share(best.middle[0])}"
    )


def _medians(figure: Figure, axes: Axes, contenders: Sequence[_Churn], styles: Mapping[str, _MarkStyle]) -> list[Any]:
    """Draw the medians; a mark that would cover another one moves to the right, with a line to its place."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # fixes the limits of the axes, by which places become points
    per_point = figure.dpi / 72
    taken: list[tuple[float, float]] = []
    handles: list[Any] = []
    for number, contender in enumerate(contenders, 1):
        place = axes.transData.transform(contender.middle) / per_point
        x, y = float(place[0]), float(place[1])
        while any(abs(x - other[0]) < _APART_POINTS and abs(y - other[1]) < _APART_POINTS for other in taken):
            x += 1.0
        taken.append((x, y))
        shift = (x - float(place[0]), 0.0)
        style, ours = styles[contender.name], styles[contender.name].marker == "D"
        if shift[0]:
            axes.annotate(
                "", contender.middle, xytext=shift, textcoords="offset points", zorder=3,
                arrowprops={"arrowstyle": "-", "color": style.colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
        moved = offset_copy(axes.transData, fig=figure, x=shift[0], units="points")
        (mark,) = axes.plot(
            [contender.middle[0]], [contender.middle[1]], linestyle="none", marker=style.marker, markersize=12,
            color=style.colour, markeredgecolor=_PAPER, transform=moved, zorder=5 + ours,
            label=f"{number}  {contender.name}: {ratio(contender.middle[1])}, {share(contender.middle[0])}",
        )  # fmt: skip
        axes.annotate(
            str(number), contender.middle, xytext=shift, textcoords="offset points", ha="center", va="center_baseline",
            color=_ON_COLOUR, fontsize=7, zorder=6 + ours,
        )  # fmt: skip
        handles.append(mark)
    return handles


class _Churn(NamedTuple):
    """Load moved an hour and max/bound of one contender, in each scenario and in the middle."""

    name: str
    points: list[tuple[float, float]]
    middle: tuple[float, float]


def _by_contender(comparison: ContestComparison) -> Iterator[_Churn]:
    figures: dict[str, list[tuple[float, float]]] = {}
    for part in comparison.scenarios:
        for row in part.rows:
            if not row.measures:
                continue
            moved, spread = row.measures["moved_share_per_h"].median, row.measures["max_over_bound"].median
            figures.setdefault(row.contender, []).append((moved or 0.0, spread or 1.0))
    for name, points in figures.items():
        yield _Churn(name, points, (median(x for x, _ in points), median(y for _, y in points)))


def _loads(axes: Axes, series: RunSeries) -> None:
    if len(series.loads) <= LINES_MAX:
        for number, loads in enumerate(series.loads):
            axes.plot(series.hours, loads, color=COLOURS[number % len(COLOURS)], linewidth=0.9)
    else:
        lowest, lower, upper, highest = series.bands
        axes.fill_between(series.hours, lowest, highest, color=COLOURS[0], alpha=0.25, linewidth=0, label="all")
        axes.fill_between(series.hours, lower, upper, color=COLOURS[0], alpha=0.45, linewidth=0, label="half of them")
        axes.plot(series.hours, highest, color=COLOURS[0], linewidth=0.7)
    axes.plot(series.hours, series.mean, color=INK, linewidth=1.0, linestyle=(0, (3, 2)), label="mean")
    axes.axhline(_OVERLOADED, color=BAD, linewidth=0.7, linestyle=(0, (1, 2)), label="overloaded")
    axes.set_xlim(0, series.end_h)
    if series.ticks_h:
        axes.plot(
            series.ticks_h, [0.02] * len(series.ticks_h), linestyle="none", marker="|", color=INK, markersize=6,
            markeredgewidth=0.6, transform=axes.get_xaxis_transform(), label="moves",
        )  # fmt: skip
