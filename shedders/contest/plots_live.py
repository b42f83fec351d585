"""Plots of live runs: the load of each broker over time, moves as ticks, and the simulator's prediction.

`statechannel demo --balance` finds `draw` by the entry point group `statechannel.demo_plots`. Needs matplotlib (extra
`simulate`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib.figure import Figure

from shedders.contest.outcome import RunOutcome
from shedders.contest.plots import BAD, COLOURS, FORMATS, INK, Plot, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        means = [_mean_known([values[at] for values in loads.values()]) for at in range(len(at_s))]
        axes.plot(at_s, means, color=INK, linewidth=1.0, linestyle=_DASHED, label="mean")
        _frame(axes, at_s, loads)
        _ticks(axes, [move["at_s"] for move in series["moves"]], 0.02, "moves")
        for mark in series["marks"]:
            _mark(axes, mark["at_s"], mark["text"])
        moves = len(series["moves"])
        axes.set_title(f"Load of each broker, {moves} {'move' if moves == 1 else 'moves'}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    picture, files = Plot(figure), []
    for form in FORMATS:
        files.append(folder / f"{NAME}.{form}")
        files[-1].write_bytes(picture.of(form))
    return files


def prediction_picture(live: LoadRun, foretold: LoadRun, marks: Mapping[str, float], title: str) -> Plot:
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
    return Plot(figure)


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
    known = [value for values in loads.values() for value in values if value is not None]
    axes.set_ylim(0, 1.05 * max([1.0, *known]))
    axes.set_xlim(0, max(at_s, default=1.0))
    axes.set_xlabel("seconds")
    axes.set_ylabel("load (1 is full)")


def _ticks(axes: Axes, moved_s: Sequence[float], height: float, label: str) -> None:
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


def _mean_known(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


CLOSE: Final = 0.05
"""Largest distance of the maximum from the mean load, as a share of a machine, that counts as settled."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Loads over time, live or simulated.

    Attributes:
        at_s: Ascending.
        loads: By broker; None where nothing is known.
        moved_s: Time of each move.
    """

    at_s: Sequence[float]
    loads: Mapping[str, Sequence[float | None]]
    moved_s: Sequence[float]

    @classmethod
    def of(cls, outcome: RunOutcome, begun_s: float = 0.0) -> LoadRun:
        """A run of the simulator.

        Args:
            begun_s: When it began, by the time of the run that it is held against.
        """
        at_s = [begun_s + moment for moment in outcome.series.at_s]
        return cls(at_s, outcome.series.loads, [begun_s + move.at_s for move in outcome.moves])

    def at(self, at_s: float) -> dict[str, float]:
        """Each broker's load at a time: as it was last known then."""
        place = bisect_right(self.at_s, at_s) - 1
        if place < 0:
            return {}
        return {name: load for name, loads in self.loads.items() if (load := loads[place]) is not None}


@dataclass(frozen=True, slots=True)
class LoadDifferences:
    """Loads are parts of a machine; differences are means over time of what they are at each moment, without sign.

    Attributes:
        by_rank: Between the busiest brokers of both, the second busiest, and so on.
        by_broker: Between the same brokers.
        largest: Between the largest loads.
        apart_live, apart_foretold: Largest over smallest load at the end, as a difference.
        moves_live, moves_foretold: Since `since_s`.
        settle_live_s, settle_foretold_s: From `since_s` until the largest load stays close to the mean; None: it never does.
    """

    by_rank: float
    by_broker: float
    largest: float
    apart_live: float
    apart_foretold: float
    moves_live: int
    moves_foretold: int
    settle_live_s: float | None
    settle_foretold_s: float | None


def differences(live: LoadRun, foretold: LoadRun, since_s: float) -> LoadDifferences:
    """Compare, at the moments of the live run.

    Args:
        since_s: When balance was upset: moves and the time to settle are counted from then.

    Raises:
        ValueError: The runs have no moment in common.
    """
    moments = [(live.at(at_s), foretold.at(at_s)) for at_s in live.at_s]
    both = [(moment, other) for moment, other in moments if moment and moment.keys() == other.keys()]
    if not both:
        raise ValueError("the runs have no common moment at which all loads are known")
    ranks = [_apart(sorted(load.values()), sorted(other.values())) for load, other in both]
    brokers = [_apart(list(load.values()), [other[name] for name in load]) for load, other in both]
    return LoadDifferences(
        by_rank=_mean(ranks),
        by_broker=_mean(brokers),
        largest=_mean([abs(max(load.values()) - max(other.values())) for load, other in both]),
        apart_live=_spread(both[-1][0]),
        apart_foretold=_spread(both[-1][1]),
        moves_live=sum(at_s >= since_s for at_s in live.moved_s),
        moves_foretold=sum(at_s >= since_s for at_s in foretold.moved_s),
        settle_live_s=settled_s(live, since_s),
        settle_foretold_s=settled_s(foretold, since_s),
    )


def settled_s(run: LoadRun, since_s: float) -> float | None:
    """Seconds from a time until the largest load stays close to the mean (`CLOSE`); None: it does not to the end."""
    since: float | None = None
    for at_s in run.at_s:
        loads = run.at(at_s)
        if at_s < since_s or not loads:
            continue
        if max(loads.values()) - _mean(list(loads.values())) > CLOSE:
            since = None
        elif since is None:
            since = at_s - since_s
    return since


def _apart(own: Sequence[float], other: Sequence[float]) -> float:
    return _mean([abs(a - b) for a, b in zip(own, other, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _spread(loads: Mapping[str, float]) -> float:
    return max(loads.values()) - min(loads.values())
