"""Tables of results: for a terminal, and for Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from shedders.contest.comparison import OVER_SCENARIOS, ContenderRow, ContestComparison, Overall, ScenarioPart
from shedders.contest.figures import (
    Certainty,
    FigureFormatter,
    FigureSpread,
    PairedComparison,
    formatter_of,
    ratio,
    share,
)
from shedders.contest.outcome import RunOutcome
from shedders.model.amounts import Grid

_COLUMNS: Final = (
    ("max/bound", "max_over_bound"),
    ("max/mean", "max_over_mean"),
    ("refused", "refused_share"),
    ("overloaded s", "overloaded_broker_s"),
    ("churn", "churn_share"),
    ("moved", "moved_share"),
    ("moved/h", "moved_share_per_h"),
    ("back 1 h", "returned_share_1h"),
    ("back 6 h", "returned_share_6h"),
    ("back 24 h", "returned_share_24h"),
    ("moves", "moves"),
    ("rounds", "rounds_to_settle"),
    ("unserved s", "unavailable_bundle_s"),
)
_SIGN: Final = {Certainty.SURE: "**", Certainty.LIKELY: "*", Certainty.UNSURE: "", Certainty.SAME: ""}
_SEEDS_SHOWN: Final = 6
LEGEND: Final = (
    "median over the seeds, in brackets the worst seed if it differs; ** significantly (p <= 0.05) and * probably (all seeds "
    "agree) different from {against}, by a sign test over the seeds; bound: the least that any placement could have; "
    "refused: share of the traffic beyond its broker's capacity; churn: traffic of bundles moved or split; back: share of the "
    "load moved that only went back within this time; rounds: decisions with moves until settled; overloaded: broker seconds; "
    "unserved: bundle seconds"
)


def scenario_grid(part: ScenarioPart, against: str) -> Grid:
    held = " (held out)" if part.held_out else ""
    return Grid(
        f"{part.scenario}{held}: {part.about}",
        ("contender", *(header for header, _ in _COLUMNS), "decide ms", "aims"),
        tuple(_row(row) for row in part.rows),
        (LEGEND.format(against=against), *_troubles(part)),
    )


def _row(row: ContenderRow) -> tuple[str, ...]:
    if not row.measures:
        return (row.contender, *("failed" for _ in _COLUMNS), "-", "-")
    return (
        row.contender,
        *(_cell(row.measures, row.marks, measure) for _, measure in _COLUMNS),
        "-" if row.timings is None else ratio(row.timings.decision_ms),
        f"{sum(aim.met for aim in row.aims)} of {len(row.aims)}",
    )


def _cell(measures: Mapping[str, FigureSpread], marks: Mapping[str, PairedComparison], measure: str) -> str:
    mark = marks.get(measure)
    return figure_text(measures[measure], formatter_of(measure)) + ("" if mark is None else _SIGN[mark.certainty])


def figure_text(spread: FigureSpread, text_of: FigureFormatter = ratio) -> str:
    middle, worst = text_of(spread.median), text_of(spread.worst)
    return middle if middle == worst else f"{middle} ({worst})"


def _troubles(part: ScenarioPart) -> Iterator[str]:
    for row in part.rows:
        seeds: dict[str, list[int]] = {}
        for failed_run in row.failed:
            seeds.setdefault(failed_run.error, []).append(failed_run.seed)
        for error, failed in seeds.items():
            yield f"{row.contender}, {_seeds(failed)}, failed: {error}"
        for remark, times in row.remarks.items():
            runs = "1 run" if times == 1 else f"{times} runs"
            yield f"{row.contender}, {runs}: {remark}"


def _seeds(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_SEEDS_SHOWN])
    more = f" and {len(numbers) - _SEEDS_SHOWN} more" if len(numbers) > _SEEDS_SHOWN else ""
    return f"seed{'s' if len(numbers) > 1 else ''} {shown}{more}"


def aims_grid(comparison: ContestComparison, contender: str, *, missed_only: bool = False) -> Grid:
    aims = [
        (part.scenario, aim) for part in comparison.scenarios for row in part.rows if row.contender == contender
        for aim in row.aims
    ]  # fmt: skip
    met = sum(aim.met for _, aim in aims)
    return Grid(
        f"aims of {contender}: {met} of {len(aims)} met on the median and the worst seed",
        ("scenario", "aim", "met", "figure"),
        tuple(
            (scenario, aim.aim, "yes" if aim.met else "median only" if aim.met_median else "no", aim.message)
            for scenario, aim in aims
            if not (missed_only and aim.met)
        ),
    )


def summary_grids(comparison: ContestComparison, *, missed_only: bool = False) -> list[Grid]:
    """Tables over all scenarios: by group, the reference contender beside its best rival, and its aims."""
    return [
        *(overall_grid(comparison, group) for group in comparison.overall),
        rivals_grid(comparison),
        standing_grid(comparison),
        aims_grid(comparison, comparison.against, missed_only=missed_only),
    ]


def overall_grid(comparison: ContestComparison, group: str) -> Grid:
    rows = comparison.overall[group]
    words = {
        "seen": "over the scenarios that were used for tuning",
        "held-out": "over the held-out scenarios",
        "generated": "over the generated scenarios",
    }
    return Grid(
        f"{words[group]} ({max((row.scenarios for row in rows), default=0)})",
        (
            "contender",
            *("max/bound", "max/mean", "churn", "moved/h", "back 24 h", "refused", "unserved s"),
            "best",
            "dominated",
            "aims",
            "failed runs",
        ),
        tuple(_overall_row(row) for row in rows),
        (
            f"median over the scenarios' medians, in brackets the worst scenario; ** significantly and * probably different from "
            f"{comparison.against}, by a sign test over the scenarios; best: scenarios in which it has the lowest median "
            "max/bound or is within 0.01 of it; dominated: in which another one is as even for less churn",
        ),
    )


def _overall_row(row: Overall) -> tuple[str, ...]:
    return (
        row.contender,
        *(_cell(row.medians, row.marks, measure) if row.medians else "failed" for measure in OVER_SCENARIOS),
        f"{row.best} of {row.scenarios}",
        f"{row.dominated} of {row.scenarios}",
        f"{row.aims_met} of {row.aims}",
        str(row.failed),
    )


def standing_grid(comparison: ContestComparison) -> Grid:
    """Table of the shares of scenarios in which the reference contender is best, and in which it is dominated."""
    name = comparison.against
    rows, notes = [], []
    for group, overalls in comparison.overall.items():
        own = next((row for row in overalls if row.contender == name), None)
        if own is not None:
            rows.append((group, str(own.scenarios), _part_of(own.best, own), _part_of(own.dominated, own)))
    for part in comparison.scenarios:
        own_row = next((row for row in part.rows if row.contender == name and row.measures), None)
        if own_row is None:
            continue
        spread = figure_text(own_row.measures["max_over_bound"])
        if name not in part.best:
            notes.append(f"{part.scenario}: not best: {spread}, {_spread_of(part, part.best[0])} of {part.best[0]}")
        if name in part.dominated:
            rival = part.dominated[name]
            notes.append(
                f"{part.scenario}: dominated by {rival}: {_spread_of(part, rival)} for a churn of {_churn_of(part, rival)}, "
                f"{spread} for {_churn_of(part, name)}"
            )
    return Grid(
        f"{name}: best by max/bound, and dominated",
        ("scenarios", "count", "best or within 0.01", "dominated (another one is as even for less churn)"),
        tuple(rows),
        tuple(notes),
    )


def _part_of(number: int, row: Overall) -> str:
    return f"{number} ({share(number / row.scenarios)})"


def _spread_of(part: ScenarioPart, name: str) -> str:
    return figure_text(next(row for row in part.rows if row.contender == name).measures["max_over_bound"])


def _churn_of(part: ScenarioPart, name: str) -> str:
    return figure_text(next(row for row in part.rows if row.contender == name).measures["churn_share"], share)


def rivals_grid(comparison: ContestComparison) -> Grid:
    """Table of the reference contender and the best of upstream, by scenario.

    Without contenders of upstream, it has the best of the others.
    """
    upstream = any(row.upstream for part in comparison.scenarios for row in part.rows)
    best = "best of upstream" if upstream else "best of the others"
    whose = "its policies" if upstream else "them"
    return Grid(
        f"{comparison.against} and the {best}, scenario by scenario",
        (
            "scenario",
            "bound/mean",
            *("max/bound", "max/mean", "churn", "back 24 h", "refused"),
            "aims",
            best,
            *("its max/bound", "its max/mean", "its churn", "its back 24 h", "its refused"),
        ),
        tuple(
            _rivals(part, comparison.against, part.best_upstream if upstream else part.best_other)
            for part in comparison.scenarios
        ),
        (
            f"bound/mean: lower bound of max/mean; {best}: the lowest median max/bound of {whose}, regardless of load "
            "moved; marks as above",
        ),
    )


def _rivals(part: ScenarioPart, against: str, rival: str | None) -> tuple[str, ...]:
    rows = {row.contender: row for row in part.rows if row.measures}
    own, best = rows.get(against), rows.get(rival or "")
    columns = ("max_over_bound", "max_over_mean", "churn_share", "returned_share_24h", "refused_share")

    def cells(row: ContenderRow | None) -> tuple[str, ...]:
        return tuple("-" if row is None else _cell(row.measures, row.marks, column) for column in columns)

    return (
        part.scenario + (" (held out)" if part.held_out else " (generated)" if part.generated else ""),
        "-" if own is None else figure_text(own.measures["bound_over_mean"]),
        *cells(own),
        "-" if own is None else f"{sum(aim.met for aim in own.aims)} of {len(own.aims)}",
        rival or "-",
        *cells(best),
    )


def outcome_grid(outcome: RunOutcome) -> Grid:
    measures = type(outcome.measures).model_fields
    return Grid(
        f"{outcome.contender} on {outcome.scenario}, seed {outcome.seed}: {outcome.steps} steps of {outcome.step_s:g} s",
        ("measure", "figure", "meaning"),
        tuple(
            (name, formatter_of(name)(getattr(outcome.measures, name)), field.description or "")
            for name, field in measures.items()
        ),
        (
            f"digest {outcome.digest()}",
            f"{outcome.timing.run_s:.1f} s for {outcome.timing.decisions} decisions of "
            f"{outcome.timing.decision_ms_p50:.1f} ms (median), {outcome.timing.decision_ms_max:.1f} ms at most",
            *outcome.remarks,
        ),
    )


def markdown(grids: Iterable[Grid], *, level: int = 2) -> str:
    return "\n".join(line for grid in grids for line in _markdown(grid, "#" * level))


def _markdown(grid: Grid, hashes: str) -> Iterator[str]:
    yield f"{hashes} {grid.title}\n"
    yield _line(grid.headers)
    yield _line(["---"] * len(grid.headers))
    yield from (_line(row) for row in grid.rows)
    yield ""
    for note in grid.notes:
        yield f"{_escaped(note)}\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    """Marks of certainty and names are no markup."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")
