"""Comparison of contenders on the same traces: medians and worst seeds, significance of differences, and aims. Pure.

Its result is the JSON document of `simulate compare`, with the schema of `ContestComparison`. All of it but `Timings`
repeats bit for bit, and `digest` covers that part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field

from shedders.contest.aims import AimResult, TargetStatus, aims_of, best_of
from shedders.contest.figures import FigureSpread, spread_of
from shedders.contest.outcome import Measures, RunOutcome
from shedders.contest.paired import PairedComparison, marked
from shedders.contest.runs import OURS, RunResult, TraceSource

FORMAT: Final = 1
COMPARED: Final = (
    "max_over_mean",
    "max_over_mean_worst",
    "max_over_bound",
    "std",
    "overloaded_broker_s",
    "moved_share",
    "moved_share_per_h",
    "moves",
    "returns",
    "rounds_to_settle",
    "settle_s",
    "unavailable_bundle_s",
    "unavailable_share",
    "refused_share",
    "reconnects",
)
"""Measures of which less is better; others are descriptive."""
OVER_SCENARIOS: Final = ("max_over_mean", "max_over_bound", "moved_share_per_h", "unavailable_bundle_s")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FailedRun(_Part):
    """Run without an outcome."""

    seed: int
    error: str


class Timings(_Part):
    """Wall time of one contender's runs: no part of the digest."""

    run_s: float = Field(description="Longest run.")
    decision_ms: float = Field(description="Median over the runs of the median decision.")
    decision_ms_max: float


class ContenderRow(_Part):
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


class ScenarioPart(_Part):
    """Results of one scenario."""

    scenario: str
    about: str
    held_out: bool
    steady: bool
    scale_out: bool
    best_upstream: str | None = Field(
        description="The contender of upstream with the lowest median max/mean; none where upstream does not take part."
    )
    best_other: str | None = Field(
        None, description="The same of all contenders but the one that all are compared with."
    )
    rows: list[ContenderRow]


class Overall(_Part):
    """Results of one contender over a group of scenarios."""

    contender: str
    scenarios: int
    failed: int = Field(description="Number of failed runs.")
    aims_met: int
    aims: int
    medians: dict[str, FigureSpread] = Field(
        description="Of the scenarios' medians: their median, and the worst of them."
    )
    marks: dict[str, PairedComparison] = Field(
        description="Sign test over the scenarios' medians, against the one that all are compared with."
    )


class ContestComparison(_Part):
    """Results of all scenarios."""

    format: int = FORMAT
    against: str = Field(description="Reference contender that all others are compared with.")
    seeds: list[int]
    scenarios: list[ScenarioPart]
    overall: dict[str, list[Overall]] = Field(
        description="`seen`: scenarios that were looked at while our strategy was tuned; `held-out`: the others."
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
    groups = {
        word: [part for part in parts if part.held_out is held_out]
        for word, held_out in (("seen", False), ("held-out", True))
    }
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


def _scenario(source: TraceSource, by_contender: Mapping[str, Sequence[RunResult]], against: str) -> ScenarioPart:
    sorted_results = {name: _sorted(rans) for name, rans in by_contender.items()}
    measured = {name: _measured(outcomes) for name, (outcomes, _) in sorted_results.items()}
    standings = {
        name: TargetStatus(name, rans[0].run.contender.upstream, measured[name])
        for name, rans in by_contender.items()
        if measured[name]
    }
    base = sorted_results[against][0] if against in sorted_results else []
    return ScenarioPart(
        scenario=source.name,
        about=source.about,
        held_out=source.held_out,
        steady=source.steady,
        scale_out=source.scale_out,
        best_upstream=best_of([status for status in standings.values() if status.upstream], other_than=against),
        best_other=best_of(standings.values(), other_than=against),
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
                else _marks(sorted_results[name][0], base, against),
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


def _sorted(rans: Sequence[RunResult]) -> tuple[list[RunOutcome], list[FailedRun]]:
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


def _marks(own: Sequence[RunOutcome], base: Sequence[RunOutcome], against: str) -> dict[str, PairedComparison]:
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
