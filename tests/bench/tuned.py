"""Pulsar's strategies with their thresholds swept over a stated grid: the best of each scenario, and the best over all of them.

`python -m tests.bench.tuned [SCENARIO|FILE]... --out DIR` compares as `statechannel simulate compare` does, with these two beside
the others.

Ours aims at 5 % where Pulsar's defaults tolerate 10 to 50: a comparison with the defaults alone is one of thresholds. Every pair
of `shedders.contest.contenders.PAIRS` takes part with its defaults and with each value of `GRID`. The best is chosen after the
fact, by the same runs that it is judged by, which is in its favour.
"""

import argparse
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Final, NamedTuple

from shedders.cli.contest.compare import CompareOptions, present, run_field, scenario_sources
from shedders.cli.contest.options import contender_names, parse_seeds
from shedders.cli.options import make_folder
from shedders.contest.comparison import SPREAD_EQUAL
from shedders.contest.contenders import PAIRS, RECOMMENDED, UPSTREAM, Contender, contender, contenders
from shedders.contest.outcome import RunResult
from statechannel.cli.kit.output import Output

BEST_OF_EACH: Final = "pulsar/tuned-each"
BEST_OVERALL: Final = "pulsar/tuned-overall"
SWEEPS: Final[Mapping[str, Sequence[str]]] = {
    UPSTREAM: (UPSTREAM,),
    RECOMMENDED: (RECOMMENDED,),
    "all": (UPSTREAM, RECOMMENDED),
}
"""What is swept: as in Pulsar, mended, or both."""
GRID: Final[Mapping[str, Sequence[Mapping[str, float]]]] = {
    "threshold": (
        {"threshold_percent": 3.0},
        {"threshold_percent": 5.0},
        {"threshold_percent": 5.0, "direct_memory_weight": 1.0},
    ),
    "range-threshold": ({"threshold_percent": 3.0}, {"threshold_percent": 5.0}),
    "uniform": (
        {"max_rate_difference_percent": 15.0, "max_throughput_ratio": 1.15},
        {"max_rate_difference_percent": 30.0, "max_throughput_ratio": 1.3},
    ),
    "avg": (
        {"low_threshold": 5.0, "hit_count_low": 4},
        {"low_threshold": 10.0, "hit_count_low": 8},
        {"low_threshold": 5.0, "direct_memory_weight": 1.0},
    ),
    "overload": ({"overloaded_percent": 60.0}, {"overloaded_percent": 70.0}),
    "transfer": ({"target_std": 0.05}, {"target_std": 0.1}),
}
"""Settings of shedders that are tried beside the defaults."""


class _SweepMedians(NamedTuple):
    """Medians over the seeds of one contender in one scenario."""

    spread: float
    churn: float


def swept(which: str) -> list[Contender]:
    """All contenders of a sweep, defaults first; `which`: of `SWEEPS`."""
    names = [
        name
        for settings in SWEEPS[which]
        for manager, shedding, placement, _ in PAIRS
        for name in _names(f"{manager}/{shedding}+{placement}@{settings}", shedding)
    ]
    return [contender(name) for name in names]


def _names(base: str, shedding: str) -> Iterable[str]:
    yield base
    for values in GRID[shedding]:
        yield ",".join([base, *(f"shedding.{shedding}.{name}={value:g}" for name, value in values.items())])


def tuned(rans: Sequence[RunResult], sweep: Sequence[Contender]) -> list[RunResult]:
    """Runs of the best of a sweep under names of their own: of each scenario, and over all of them.

    A contender that failed on any seed is chosen in no scenario in which it did, and not over all.
    """
    names = {candidate.name for candidate in sweep}
    by_scenario: dict[str, dict[str, list[RunResult]]] = {}
    for ran in rans:
        if ran.run.contender.name in names:
            by_scenario.setdefault(ran.run.source.name, {}).setdefault(ran.run.contender.name, []).append(ran)
    medians = {scenario: _medians(runs) for scenario, runs in by_scenario.items()}
    chosen: list[RunResult] = []
    for scenario, runs in by_scenario.items():
        best = _best(medians[scenario])
        if best is not None:
            chosen += [_renamed(ran, BEST_OF_EACH, f"the best of the sweep here: {best}") for ran in runs[best]]
    everywhere = {
        name: _SweepMedians(
            fmean(figures[name].spread for figures in medians.values()),
            fmean(figures[name].churn for figures in medians.values()),
        )
        for name in sorted(names)
        if medians and all(name in figures for figures in medians.values())
    }
    overall = _best(everywhere)
    if overall is not None:
        about = f"the best of the sweep over all scenarios: {overall}"
        chosen += [_renamed(ran, BEST_OVERALL, about) for runs in by_scenario.values() for ran in runs[overall]]
    return chosen


def without_sweep(
    rans: Sequence[RunResult], sweep: Sequence[Contender], asked_for: Iterable[Contender]
) -> list[RunResult]:
    """Runs without those that only take part in the sweep."""
    hidden = {candidate.name for candidate in sweep} - {candidate.name for candidate in asked_for}
    return [ran for ran in rans if ran.run.contender.name not in hidden]


def _medians(runs: Mapping[str, Sequence[RunResult]]) -> dict[str, _SweepMedians]:
    medians = {}
    for name, rans in runs.items():
        outcomes = [ran.outcome for ran in rans if ran.outcome is not None]
        if len(outcomes) == len(rans):
            medians[name] = _SweepMedians(
                median(outcome.measures.max_over_bound for outcome in outcomes),
                median(outcome.measures.churn_share for outcome in outcomes),
            )
    return medians


def _best(medians: Mapping[str, _SweepMedians]) -> str | None:
    """The most even one; among those that are as even the one with the least churn."""
    if not medians:
        return None
    least = min(figures.spread for figures in medians.values())
    even = [name for name, figures in medians.items() if figures.spread <= least + SPREAD_EQUAL]
    return min(even, key=lambda name: (medians[name].churn, medians[name].spread, name))


def _renamed(ran: RunResult, name: str, about: str) -> RunResult:
    run = replace(ran.run, contender=replace(ran.run.contender, name=name, about=about))
    outcome = None if ran.outcome is None else ran.outcome.model_copy(update={"contender": name})
    return replace(ran, run=run, outcome=outcome)


def main(words: Sequence[str] | None = None) -> None:
    """Run the sweep beside the contenders, and show and write the comparison."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tuned", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO|FILE", help="default: all built-in scenarios")
    parser.add_argument("--held-out", action="store_true", help="include the held-out scenarios")
    parser.add_argument(
        "--sweep", choices=list(SWEEPS), default=UPSTREAM, help="as in Pulsar (default), mended, or both"
    )
    parser.add_argument("--contenders", action="append", default=[], metavar="NAMES", help="as of `simulate compare`")
    parser.add_argument("--seeds", type=parse_seeds, default="1", help="1-5 or 1,2,7; default: 1")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results; runs are reused")
    given = parser.parse_args(words)
    asked = CompareOptions(
        contenders=given.contenders,
        seeds=given.seeds,
        jobs=given.jobs,
        out=make_folder(given.out),
        again=False,
        output=Output.TABLE,
        own_cluster=False,
        command=shlex.join(["python", "-m", "tests.bench.tuned", *(sys.argv[1:] if words is None else words)]),
    )
    named, sweep = contenders(contender_names(asked.contenders)), swept(given.sweep)
    field = list({one.name: one for one in (*named, *sweep)}.values())
    rans = run_field(asked, scenario_sources(given.scenarios, held_out=given.held_out), field)
    present(asked, [*without_sweep(rans, sweep, named), *tuned(rans, sweep)])
    if failed := [ran for ran in rans if ran.outcome is None]:
        sys.exit(f"{len(failed)} of {len(rans)} runs failed; the first: {failed[0].run.title}: {failed[0].error}")


if __name__ == "__main__":
    main()
