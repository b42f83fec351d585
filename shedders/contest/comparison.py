"""Comparison of contenders on the same traces: medians and worst seeds, significance of differences, and aims. Pure.

Its result is the JSON document of `simulate compare`, with the schema of `ContestComparison`. All of it but `Timings`
repeats bit for bit, and `digest` covers that part.

Aims are targets of our strategies in every scenario, checked on the median and on the worst seed; design/reference/scenarios.md
lists them.

Figures count as equal within `SPREAD_EQUAL` and `MOVED_EQUAL`: smaller differences do not matter in practice. Churn is the
traffic of bundles that were moved or split. In each scenario a contender is *best* if no other has a lower median max/bound, and
*dominated* if another one is as even for less churn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import orjson
from pydantic import Field

from shedders.contest.figures import (
    FigureSpread,
    NumericBounds,
    PairedComparison,
    bounds_of,
    formatter_of,
    marked,
    ratio,
    share,
    spread_of,
)
from shedders.contest.outcome import OURS, Measures, ResultPart, RunOutcome, RunResult, TraceSource

SPREAD_EQUAL: Final = 0.01
"""Share of the bound."""
SPREAD: Final = "max_over_bound"
"""The measure of balance: against what can be reached, which is the same for all contenders."""
MOVED_EQUAL: Final = 0.01
"""Share of the cluster's traffic, over the whole run."""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    contender: str
    upstream: bool
    measures: Mapping[str, FigureSpread]

    def bounds(self, measure: str) -> NumericBounds:
        return bounds_of(self.measures[measure])


class AimResult(ResultPart):
    aim: str
    met: bool = Field(description="On the median and on the worst seed.")
    met_median: bool
    measure: str
    median: float | None = Field(description="Median of the measure; None: never settled.")
    worst: float | None
    limit: float | None = Field(description="Limit for the median.")
    limit_worst: float | None
    message: str = Field(description="The figure against its limit, in words.")


def _best(standings: Iterable[TargetStatus]) -> TargetStatus | None:
    """Best contender by median max/bound; among equals the one with less churn."""

    def rank(status: TargetStatus) -> tuple[float, float, str]:
        return status.bounds(SPREAD).median, _churn(status).median, status.contender

    return min(standings, key=rank, default=None)


def aims_of(own: TargetStatus, standings: Iterable[TargetStatus], *, steady: bool, scale_out: bool) -> list[AimResult]:
    limits = [
        (True, "balance", SPREAD, 1.10, "max/bound"),
        (True, "returned", "returned_share_24h", 0.05, "of the load moved only went back within a day"),
        (steady, "steady", "moved_share_per_h", 0.01, "of the traffic moved an hour"),
        (scale_out, "scale-out", "rounds_to_settle", 2.0, "rounds until settled"),
    ]
    results = [
        _aim(own, aim, measure, NumericBounds(most, most), f"{words}; at most {formatter_of(measure)(most)}")
        for applies, aim, measure, most, words in limits
        if applies
    ]
    return [*results, *_against(own, _rivals(own, standings))]


def _rivals(own: TargetStatus, standings: Iterable[TargetStatus]) -> Sequence[TargetStatus]:
    """Contenders of upstream, or all others if none takes part; for a contender of upstream, none."""
    if own.upstream:
        return ()
    others = [status for status in standings if status.contender != own.contender]
    return [status for status in others if status.upstream] or others


def _against(own: TargetStatus, rivals: Sequence[TargetStatus]) -> Iterator[AimResult]:
    spread, moved = own.bounds(SPREAD), _churn(own)
    best = _best(rivals)
    if best is None:
        return
    theirs = best.bounds(SPREAD)
    words = (
        f"max/bound; {best.contender} has {ratio(theirs.median)} ({ratio(theirs.worst)}) "
        f"and a churn of {share(_churn(best).median)}, this one {share(moved.median)}"
    )
    yield _aim(own, "spread", SPREAD, NumericBounds(*(bounds + SPREAD_EQUAL for bounds in theirs)), words)

    def least(of: str, alike: Callable[[TargetStatus, int], bool], room: float) -> tuple[NumericBounds, str]:
        """The lowest figure among the rivals that are alike, for the median and the worst; and whose."""
        limits, names = [], []
        for which in (0, 1):
            fit = sorted((rival.bounds(of)[which], rival.contender) for rival in rivals if alike(rival, which))
            limits.append(fit[0][0] + room if fit else math.inf)
            names.append(fit[0][1] if fit else "")
        return NumericBounds(*limits), names[0]

    limit, name = least(SPREAD, lambda rival, which: _churn(rival)[which] <= moved[which], SPREAD_EQUAL)
    words = f"max/bound; {name} had as little churn" if name else "max/bound; no other had as little churn"
    yield _aim(own, "spread-at-moved", SPREAD, limit, words)
    limit, name = least(
        "churn_share", lambda rival, which: rival.bounds(SPREAD)[which] <= spread[which] + SPREAD_EQUAL, MOVED_EQUAL
    )
    words = (
        f"of the traffic moved or split; {name} is as even"
        if name
        else "of the traffic moved or split; no other is as even"
    )
    yield _aim(own, "moved-at-spread", "churn_share", limit, words)


def _aim(own: TargetStatus, aim: str, measure: str, limit: NumericBounds, words: str) -> AimResult:
    bounds = own.bounds(measure)
    met = [_within(figure, most) for figure, most in zip(bounds, limit, strict=True)]
    spread = own.measures[measure]
    text_of = formatter_of(measure)
    return AimResult(
        aim=aim,
        met=all(met),
        met_median=met[0],
        measure=measure,
        median=spread.median,
        worst=spread.worst,
        limit=_finite(limit.median),
        limit_worst=_finite(limit.worst),
        message=f"{text_of(bounds.median)} (worst {text_of(bounds.worst)}) {words}",
    )


def _within(number: float, most: float) -> bool:
    return number <= most or (math.isfinite(most) and math.isclose(number, most, rel_tol=1e-9))


def _churn(status: TargetStatus) -> NumericBounds:
    return status.bounds("churn_share")


def best_of(standings: Sequence[TargetStatus]) -> list[str]:
    """Contenders whose median max/bound is the lowest, or within `SPREAD_EQUAL` of it."""
    least = min((status.bounds(SPREAD).median for status in standings), default=math.inf)
    return [status.contender for status in standings if _within(status.bounds(SPREAD).median, least + SPREAD_EQUAL)]


def dominated_of(standings: Sequence[TargetStatus]) -> dict[str, str]:
    """Contenders for which another one is as even for less churn, and that one: the one with the least churn."""
    dominated = {}
    for status in standings:
        spread, churn = status.bounds(SPREAD).median, _churn(status).median
        cheaper = [
            (_churn(other).median, other.contender)
            for other in standings
            if _within(other.bounds(SPREAD).median, spread + SPREAD_EQUAL)
            and _churn(other).median < churn - MOVED_EQUAL
        ]
        if cheaper:
            dominated[status.contender] = min(cheaper)[1]
    return dominated


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


FORMAT: Final = 1
COMPARED: Final = (
    "max_over_bound",
    "max_over_mean",
    "max_over_mean_worst",
    "std",
    "overloaded_broker_s",
    "moved_share",
    "moved_share_per_h",
    "split_share",
    "churn_share",
    "returned_share_1h",
    "returned_share_6h",
    "returned_share_24h",
    "moves",
    "returns",
    "rounds_to_settle",
    "settle_s",
    "unavailable_bundle_s",
    "unavailable_share",
    "refused_share",
    "reconnects",
    "misplaced_bundle_s",
)
"""Measures of which less is better; others are descriptive."""
OVER_SCENARIOS: Final = (
    "max_over_bound",
    "max_over_mean",
    "churn_share",
    "moved_share_per_h",
    "returned_share_24h",
    "refused_share",
    "unavailable_bundle_s",
)


class FailedRun(ResultPart):
    """Run without an outcome."""

    seed: int
    error: str


class Timings(ResultPart):
    """Wall time of one contender's runs: no part of the digest."""

    run_s: float = Field(description="Longest run.")
    decision_ms: float = Field(description="Median over the runs of the median decision.")
    decision_ms_max: float


class ContenderRow(ResultPart):
    """Results of one contender in one scenario."""

    contender: str
    about: str
    upstream: bool
    seeds: list[int]
    failed: list[FailedRun]
    measures: dict[str, FigureSpread] = Field(description="By the names of a run's measures; empty if all runs failed.")
    marks: dict[str, PairedComparison] = Field(description="Comparison with the reference contender; none for itself.")
    aims: list[AimResult]
    remarks: dict[str, int] = Field(description="Remarks of runs, with their counts.")
    digests: dict[int, str] = Field(description="Digest of the repeatable part of each run, by seed.")
    timings: Timings | None


class ScenarioPart(ResultPart):
    """Results of one scenario."""

    scenario: str
    about: str
    held_out: bool
    generated: bool = Field(False, description="Made by `simulate generate`.")
    steady: bool
    scale_out: bool
    best_upstream: str | None = Field(
        description="The contender of upstream with the lowest median max/bound; none where upstream does not take part."
    )
    best_other: str | None = Field(
        None, description="The same of all contenders but the one that all are compared with."
    )
    best: list[str] = Field([], description="Contenders with the lowest median max/bound, or within 0.01 of it.")
    dominated: dict[str, str] = Field(
        {},
        description="By contender, another one that is as even (within 0.01 of its median max/bound) for a churn that is smaller "
        "by more than 1 % of the traffic.",
    )
    rows: list[ContenderRow]


class Overall(ResultPart):
    """Results of one contender over a group of scenarios."""

    contender: str
    scenarios: int
    failed: int = Field(description="Number of failed runs.")
    aims_met: int
    aims: int
    best: int = Field(0, description="Scenarios in which it is the best by max/bound, or within 0.01 of it.")
    dominated: int = Field(0, description="Scenarios in which another one is as even for less churn.")
    medians: dict[str, FigureSpread] = Field(
        description="Of the scenarios' medians: their median, and the worst of them."
    )
    marks: dict[str, PairedComparison] = Field(
        description="Sign test over the scenarios' medians, against the one that all are compared with."
    )


class ContestComparison(ResultPart):
    """Results of all scenarios."""

    format: int = FORMAT
    against: str = Field(description="Reference contender that all others are compared with.")
    seeds: list[int]
    scenarios: list[ScenarioPart]
    overall: dict[str, list[Overall]] = Field(
        description="`seen`: scenarios that were looked at while our strategy was tuned; `held-out`: those that were not; "
        "`generated`: those that `simulate generate` made."
    )
    digest: str = Field(description="SHA-256 over the digests of all runs.")


def compared(rans: Iterable[RunResult], against: str = OURS) -> ContestComparison:
    """Compare runs, in the order in which scenarios and contenders first occur.

    Args:
        against: Reference contender; the first one, if it does not take part.
    """
    results = list(rans)
    by_scenario: dict[str, dict[str, list[RunResult]]] = {}
    sources: dict[str, TraceSource] = {}
    for ran in results:
        sources.setdefault(ran.run.source.name, ran.run.source)
        rows = by_scenario.setdefault(ran.run.source.name, {})
        rows.setdefault(ran.run.contender.name, []).append(ran)
    names = list(dict.fromkeys(ran.run.contender.name for ran in results))
    if against not in names and names:
        against = names[0]
    parts = [_scenario(sources[name], rows, against) for name, rows in by_scenario.items()]
    groups = {word: [part for part in parts if _group(part) == word] for word in ("seen", "held-out", "generated")}
    return ContestComparison(
        against=against,
        seeds=sorted({ran.run.seed for ran in results}),
        scenarios=parts,
        overall={
            word: [row for name in names if (row := _overall(name, rows, against)) is not None]
            for word, rows in groups.items()
            if rows
        },
        digest=_digest(results),
    )


def _group(part: ScenarioPart) -> str:
    return "generated" if part.generated else "held-out" if part.held_out else "seen"


def _scenario(source: TraceSource, by_contender: Mapping[str, Sequence[RunResult]], against: str) -> ScenarioPart:
    sorted_results = {name: _sorted_outcomes(rans) for name, rans in by_contender.items()}
    measured = {name: _measured(outcomes) for name, (outcomes, _) in sorted_results.items()}
    standings = {
        name: TargetStatus(name, rans[0].run.contender.upstream, measured[name])
        for name, rans in by_contender.items()
        if measured[name]
    }
    others = [status for name, status in standings.items() if name != against]
    best_upstream, best_other = _best(status for status in others if status.upstream), _best(others)
    base = sorted_results[against][0] if against in sorted_results else []
    return ScenarioPart(
        scenario=source.name,
        about=source.about,
        held_out=source.held_out,
        generated=source.generated,
        steady=source.steady,
        scale_out=source.scale_out,
        best_upstream=None if best_upstream is None else best_upstream.contender,
        best_other=None if best_other is None else best_other.contender,
        best=best_of(list(standings.values())),
        dominated=dominated_of(list(standings.values())),
        rows=[
            ContenderRow(
                contender=name,
                about=rans[0].run.contender.about,
                upstream=rans[0].run.contender.upstream,
                seeds=[outcome.seed for outcome in sorted_results[name][0]],
                failed=sorted_results[name][1],
                measures=measured[name],
                marks={}
                if name == against or not base or not sorted_results[name][0]
                else _marks_by_seed(sorted_results[name][0], base, against),
                aims=aims_of(standings[name], standings.values(), steady=source.steady, scale_out=source.scale_out)
                if name in standings
                else [],
                remarks=_remarks(sorted_results[name][0]),
                digests={ran.run.seed: ran.digest for ran in rans if ran.outcome is not None},
                timings=_timings(sorted_results[name][0]),
            )
            for name, rans in by_contender.items()
        ],
    )


def _sorted_outcomes(rans: Iterable[RunResult]) -> tuple[list[RunOutcome], list[FailedRun]]:
    ordered = sorted(rans, key=lambda ran: ran.run.seed)
    outcomes = [ran.outcome.model_copy(update={"seed": ran.run.seed}) for ran in ordered if ran.outcome is not None]
    return outcomes, [FailedRun(seed=ran.run.seed, error=ran.error) for ran in ordered if ran.outcome is None]


def _measured(outcomes: Sequence[RunOutcome]) -> dict[str, FigureSpread]:
    if not outcomes:
        return {}
    return {
        name: spread_of(
            [getattr(outcome.measures, name) for outcome in outcomes], lower_is_better=name != "bound_over_mean"
        )
        for name in Measures.model_fields
    }


def _marks_by_seed(own: Sequence[RunOutcome], base: Sequence[RunOutcome], against: str) -> dict[str, PairedComparison]:
    """Comparison of two contenders over the seeds that both have, by measure."""
    by_seed = {outcome.seed: outcome.measures for outcome in base}
    pairs = [(outcome.measures, by_seed[outcome.seed]) for outcome in own if outcome.seed in by_seed]
    return {
        name: marked([(getattr(mine, name), getattr(theirs, name)) for mine, theirs in pairs], against)
        for name in COMPARED
    }


def _remarks(outcomes: Iterable[RunOutcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        for remark in dict.fromkeys(outcome.remarks):
            counts[remark] = counts.get(remark, 0) + 1
    return counts


def _timings(outcomes: Sequence[RunOutcome]) -> Timings | None:
    if not outcomes:
        return None
    return Timings(
        run_s=max(outcome.timing.run_s for outcome in outcomes),
        decision_ms=median(outcome.timing.decision_ms_p50 for outcome in outcomes),
        decision_ms_max=max(outcome.timing.decision_ms_max for outcome in outcomes),
    )


def _overall(name: str, parts: Sequence[ScenarioPart], against: str) -> Overall | None:
    rows = [(part, row) for part in parts for row in part.rows if row.contender == name]
    if not rows:
        return None
    aims = [aim for _, row in rows for aim in row.aims]
    pairs = [(row, other) for part, row in rows for other in part.rows if other.contender == against]
    both = [(row.measures, other.measures) for row, other in pairs if row.measures and other.measures]
    measured = [row.measures for _, row in rows if row.measures]
    return Overall(
        contender=name,
        scenarios=len(rows),
        failed=sum(len(row.failed) for _, row in rows),
        aims_met=sum(aim.met for aim in aims),
        aims=len(aims),
        best=sum(name in part.best for part, _ in rows),
        dominated=sum(name in part.dominated for part, _ in rows),
        medians={
            measure: spread_of([each[measure].median for each in measured]) for measure in OVER_SCENARIOS if measured
        },
        marks={}
        if name == against
        else {
            measure: marked([(mine[measure].median, theirs[measure].median) for mine, theirs in both], against)
            for measure in OVER_SCENARIOS
        },
    )


def _digest(rans: Iterable[RunResult]) -> str:
    lines: list[Any] = sorted(
        [ran.run.source.name, ran.run.seed, ran.run.contender.name, ran.digest or f"failed: {ran.error}"]
        for ran in rans
    )
    return hashlib.sha256(orjson.dumps(lines)).hexdigest()
