"""Plot of each broker's load before and after a plan, as SVG or PNG: the same bytes for the same plan. Needs matplotlib.

Up to `BARS_MAX` brokers have two bars each; more brokers are ordered by their former load and drawn as two lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shedders.contest.plots import COLOURS, INK, Plot, styled
from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.model.amounts import rate, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan

BARS_MAX: Final = 60
_COLUMNS: Final = ((3, 9), (2, 24))
"""Panels per row, by the most brokers for which it holds."""
_MEASURES: Final = (
    ("disk_bytes", "disk", size),
    ("bytes_in_per_s", "bytes in (clients, leaders)", rate),
    ("bytes_out_per_s", "bytes out (clients, leaders)", rate),
    ("cpu", "CPU", lambda value: f"{value:.0%}"),
    ("replicas", "replicas", lambda value: f"{value:.0f}"),
    ("leaders", "leaders", lambda value: f"{value:.0f}"),
)
_COUNTS: Final = frozenset({"replicas", "leaders"})
_BEFORE, _AFTER = "#b9c2cf", COLOURS[0]


class _Panel(NamedTuple):
    title: str
    text_of: Callable[[float], str]
    counts: bool
    before: list[float]
    after: list[float]


def plan_picture(plan: ReassignmentPlan) -> Plot:
    """Draw a plan; unknown measures are omitted."""
    panels = list(_panels(plan))
    names = [str(broker.id) for broker in plan.brokers]
    with styled():
        columns = next((number for number, most in _COLUMNS if len(names) <= most), 1)
        rows = max(1, -(-len(panels) // columns))
        figure = Figure(figsize=(10, 0.9 + 1.5 * rows), layout="constrained")
        axes_list = list(figure.subplots(rows, columns, squeeze=False).flat)
        alive = max(1, sum(broker.alive for broker in plan.brokers))
        for axes, panel in zip(axes_list, panels, strict=False):
            (_bars if len(names) <= BARS_MAX else _lines)(axes, panel, names)
            mean = sum(panel.after) / alive
            axes.axhline(mean, color=INK, linewidth=0.7, linestyle=(0, (3, 2)), label="mean after")
            axes.set_title(panel.title)
            axes.set_ylim(0, 1.08 * max(1e-9, *panel.before, *panel.after))
            if panel.counts:
                axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _, label=panel.text_of: label(value)))
        for axes in axes_list[len(panels) :]:
            axes.set_axis_off()
        if panels:
            handles, labels = axes_list[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower right", ncols=3, fontsize=7)
            figure.supxlabel(
                "broker" if len(names) <= BARS_MAX else "brokers, each line ordered by load, largest first",
                fontsize=8,
                color=INK,
            )
        figure.suptitle(f"{_result(plan)}\nplan {plan.id}", fontsize=10, color=INK, x=0.01, ha="left")
    return Plot(figure)


def _result(plan: ReassignmentPlan) -> str:
    """What the plan does, as a sentence."""
    named = [str(subject) for subject in plan.request.get("subjects", ())]
    listed = ", ".join(named if len(named) <= _NAMED_MAX else [*named[:_NAMED_MAX], "..."])
    who = f"{'broker' if len(named) == 1 else 'brokers'} {listed}"
    what = _DONE.get(str(plan.request.get("mode")), "{} changed").format(who if named else "")
    disks = [(broker.before.disk_bytes, broker.after.disk_bytes) for broker in plan.brokers]
    fullest = ""
    if all(before is not None and after is not None for before, after in disks) and disks:
        before, after = (max(float(used or 0) for used in side) for side in zip(*disks, strict=True))
        fullest = f"; the fullest disk: {size(before)} before, {size(after)} after"
    sentence = f"{what.strip()}: {size(plan.copied_bytes)} copied{fullest}"
    return sentence[0].upper() + sentence[1:]


_NAMED_MAX: Final = 8
_DONE: Final = {
    PlanMode.REBALANCE.value: "cluster rebalanced",
    PlanMode.ADD_BROKERS.value: "{} added",
    PlanMode.REMOVE_BROKERS.value: "{} removed",
    PlanMode.DEMOTE.value: "{} demoted",
    PlanMode.FIX_OFFLINE.value: "offline replicas moved",
    PlanMode.REPLICATION_FACTOR.value: "replication factor changed",
}
"""What a plan does, by its mode; {}: brokers that the request names."""


def _panels(plan: ReassignmentPlan) -> Iterator[_Panel]:
    for field, title, measure in _MEASURES:
        before = [getattr(broker.before, field) for broker in plan.brokers]
        after = [getattr(broker.after, field) for broker in plan.brokers]
        if any(value is not None for value in (*before, *after)):
            yield _Panel(
                title,
                measure,
                field in _COUNTS,
                [float(value or 0) for value in before],
                [float(value or 0) for value in after],
            )


def _bars(axes: Axes, panel: _Panel, names: Sequence[str]) -> None:
    places = list(range(len(names)))
    axes.bar([place - 0.2 for place in places], panel.before, width=0.4, color=_BEFORE, label="before")
    axes.bar([place + 0.2 for place in places], panel.after, width=0.4, color=_AFTER, label="after")
    axes.set_xticks(places, names, fontsize=7)
    axes.grid(visible=False, axis="x")


def _lines(axes: Axes, panel: _Panel, names: Sequence[str]) -> None:
    axes.plot(sorted(panel.before, reverse=True), color="#7d8896", linewidth=1.2, label="before")
    axes.plot(sorted(panel.after, reverse=True), color=_AFTER, linewidth=1.2, label="after")
    axes.set_xlim(0, len(names) - 1)
