"""Recommendation of a strategy and settings for a real cluster, by `simulate compare`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pydantic import Field

from shedders.contest.comparison import ContenderRow, ContestComparison, ScenarioPart, marks_by_seed, sorted_outcomes
from shedders.contest.contenders import AS_IT_IS, Contender
from shedders.contest.figures import Certainty, PairedComparison, bounds_of, formatter_of
from shedders.contest.outcome import ResultPart, RunResult

ALIKE: Final = 0.01
"""Share of the bound within which largest loads count as equal; then the load moved decides."""
MOVED_ALIKE: Final = 0.005
"""Share of the traffic within which loads moved count as equal; then the seconds without an owner decide."""
_MEASURES: Final = ("max_over_bound", "max_over_mean", "moved_share", "unavailable_bundle_s")


class RankedContender(ResultPart):
    """Rank of a contender."""

    place: int
    contender: str
    about: str
    max_over_bound: float | None = Field(description="Median over the seeds, as the others.")
    max_over_mean: float | None
    moved_share: float | None
    unavailable_bundle_s: float | None
    failed: int


class Recommendation(ResultPart):
    """Recommended contender for a trace."""

    scenario: str
    contender: str | None = Field(description="None: every run failed.")
    settings: dict[str, Any] = Field(description="Settings by dotted name, to configure or to set as policies.")
    commands: list[str] = Field(description="Commands that set them as policies.")
    ranking: list[RankedContender]
    against_next: dict[str, PairedComparison] = Field(description="The first against the second, over the seeds.")
    messages: list[str] = Field(description="Sentences for people.")


def recommended(
    comparison: ContestComparison, rans: Sequence[RunResult], scenario: str | None = None
) -> Recommendation:
    """Rank the contenders of one scenario (by default the first): by largest load, load moved, unavailability."""
    part = next(candidate for candidate in comparison.scenarios if scenario in (None, candidate.scenario))
    contenders = {ran.run.contender.name: ran.run.contender for ran in rans}
    rows = list(_ranked(part))
    ranking = [_ranked_row(place, row) for place, row in enumerate(rows, 1)]
    best = rows[0] if rows and rows[0].measures else None
    if best is None:
        return Recommendation(
            scenario=part.scenario,
            contender=None,
            settings={},
            commands=[],
            ranking=ranking,
            against_next={},
            messages=["no recommendation, as every run failed"],
        )
    rival = next((row for row in rows[1:] if row.measures), None)
    marks = {} if rival is None else _marks(rans, part.scenario, best.contender, rival.contender)
    settings = _settings(contenders[best.contender])
    return Recommendation(
        scenario=part.scenario,
        contender=best.contender,
        settings=settings,
        commands=list(_commands(contenders[best.contender])),
        ranking=ranking,
        against_next=marks,
        messages=list(_sentences(part, best, rival, marks)),
    )


def _ranked(part: ScenarioPart) -> Iterator[ContenderRow]:
    """Contenders by rank: among those with about the lowest load the one that moved least, among these the most available.

    The present configuration is preferred among equals in load and load moved. A contender that failed on a seed
    comes last, as its figures are of the other seeds only.
    """
    for failed in (False, True):
        left = [row for row in part.rows if row.measures and bool(row.failed) is failed]
        while left:
            fit = left
            for figure, room in _CRITERIA:
                lowest = min(figure(row) for row in fit)
                fit = [row for row in fit if figure(row) <= lowest + room]
            left.remove(fit[0])
            yield fit[0]
    yield from (row for row in part.rows if not row.measures)


def _median(row: ContenderRow, measure: str) -> float:
    return bounds_of(row.measures[measure]).median


_CRITERIA: Final[Sequence[tuple[Callable[[ContenderRow], float], float]]] = (
    (partial(_median, measure="max_over_bound"), ALIKE),
    (partial(_median, measure="moved_share"), MOVED_ALIKE),
    (lambda row: row.contender != AS_IT_IS, 0.0),
    (partial(_median, measure="unavailable_bundle_s"), 0.0),
)
"""Criteria in order, with the tolerance within which figures count as equal."""


def _ranked_row(place: int, row: ContenderRow) -> RankedContender:
    def median(measure: str) -> float | None:
        return row.measures[measure].median if row.measures else None

    return RankedContender(
        place=place,
        contender=row.contender,
        about=row.about,
        max_over_bound=median("max_over_bound"),
        max_over_mean=median("max_over_mean"),
        moved_share=median("moved_share"),
        unavailable_bundle_s=median("unavailable_bundle_s"),
        failed=len(row.failed),
    )


def _marks(rans: Sequence[RunResult], scenario: str, own: str, other: str) -> dict[str, PairedComparison]:
    ours, theirs = (
        sorted_outcomes(ran for ran in rans if (ran.run.source.name, ran.run.contender.name) == (scenario, contender))[
            0
        ]
        for contender in (own, other)
    )
    return marks_by_seed(ours, theirs, other, _MEASURES)


def _settings(contender: Contender) -> dict[str, Any]:
    chosen = {"shedding": contender.shedding, "placement": contender.placement, "split": contender.split}
    return {"manager": contender.manager, **chosen, **dict(sorted(contender.overrides.items()))}


def _commands(contender: Contender) -> Iterator[str]:
    """`policy` commands; none for contenders of upstream, which are references with defects."""
    if contender.upstream or contender.name == AS_IT_IS:
        return
    yield f"statechannel policy set manager {contender.manager}"
    for name, value in _settings(contender).items():
        if name != "manager":
            yield f"statechannel policy set setting {name.removeprefix('parts.')} {_word(value)}"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sentences(
    part: ScenarioPart, best: ContenderRow, rival: ContenderRow | None, marks: Mapping[str, PairedComparison]
) -> Iterator[str]:
    seeds = len(best.seeds)
    over = f"{seeds} seeds" if seeds > 1 else "one seed"
    yield f"recommended for {part.scenario}, over {over}: {best.contender}: {_figures(best)}"
    yield f"lower bound of the largest load for any placement of these topics: {_of(best, 'bound_over_mean')} x the mean"
    if best.contender == AS_IT_IS:
        yield "this is the present configuration of the cluster: no change is needed"
    if best.upstream:
        yield "it is a reference, upstream's policy with its defects; choose the first of our strategies in the ranking"
    if rival is None:
        yield "no other contender took part"
        return
    yield f"second: {rival.contender}: {_figures(rival)}"
    if all(mark.certainty is Certainty.SAME for mark in marks.values()):
        yield "the two are equal here: either is suitable"
        return
    words = {"max_over_bound": "largest load", "moved_share": "load moved", "unavailable_bundle_s": "unavailability"}
    for name, word in words.items():
        yield f"{word}: {_difference(marks[name], best.contender)}"
    if seeds == 1:
        yield "one seed does not show significance: repeat with --seeds 1-6"
    elif _median(rival, "max_over_bound") - _median(best, "max_over_bound") <= ALIKE:
        same = abs(_median(rival, "moved_share") - _median(best, "moved_share")) <= MOVED_ALIKE
        why = ", and they move about the same load: either is suitable" if same else ", so the load moved decides"
        yield f"their largest loads differ by less than {100 * ALIKE:.0f} % of the bound{why}"


def _figures(row: ContenderRow) -> str:
    return (
        f"largest load {_of(row, 'max_over_bound')} x the bound ({_of(row, 'max_over_mean')} x the mean), "
        f"{_of(row, 'moved_share')} of the traffic moved, "
        f"bundles without an owner for {_of(row, 'unavailable_bundle_s')} s in total"
    )


def _of(row: ContenderRow, measure: str) -> str:
    middle, worst = (
        formatter_of(measure)(figure) for figure in (row.measures[measure].median, row.measures[measure].worst)
    )
    return middle if middle == worst else f"{middle} (worst seed {worst})"


def _difference(mark: PairedComparison, name: str) -> str:
    if mark.certainty is Certainty.SAME:
        return "no difference on any seed"
    pairs = mark.lower + mark.higher + mark.equal
    if mark.lower >= mark.higher:
        return f"{name} is lower on {mark.lower} of {pairs} seeds: {mark.certainty} (sign test, p = {mark.p:.2g})"
    return f"{name} is higher on {mark.higher} of {pairs} seeds: {mark.certainty} (sign test, p = {mark.p:.2g})"
