"""Side by side: medians, worst seeds, how sure differences are, and aims."""

import random
import re
from pathlib import Path

import pytest

from shedders.contest.comparison import COMPARED, ContenderRow, ContestComparison, ScenarioPart, compared
from shedders.contest.figures import Certainty, certainty_of, marked, sign_test
from shedders.contest.outcome import Measures, RunOutcome, RunResult
from shedders.contest.tables import aims_grid, markdown, outcome_grid, overall_grid, scenario_grid
from tests.support.contest_runs import failed, field_of, outcome, ran, source

PAGE = Path(__file__).parents[3] / "design/reference/json.md"


def row(comparison: ContestComparison, name: str, scenario: int = 0) -> ContenderRow:
    return next(row for row in comparison.scenarios[scenario].rows if row.contender == name)


def aim(row: ContenderRow, name: str):
    return next(aim for aim in row.aims if aim.aim == name)


# --- the sign test --------------------------------------------------------------------------------------------------------


def test_the_sign_test_is_exact():
    """Against all 2**n ways in which n coins can fall."""
    for pairs in range(1, 9):
        for lower in range(pairs + 1):
            rarer = min(lower, pairs - lower)
            heads = [toss.bit_count() for toss in range(2**pairs)]
            as_lopsided = sum(min(head, pairs - head) <= rarer for head in heads)
            assert sign_test(lower, pairs - lower) == as_lopsided / 2**pairs


def test_how_sure_it_is_depends_on_how_many_pairs_say_so():
    assert certainty_of(0, 0) is Certainty.SAME
    assert certainty_of(6, 0) is certainty_of(0, 6) is Certainty.SURE
    assert certainty_of(5, 0) is certainty_of(0, 3) is Certainty.LIKELY
    assert certainty_of(2, 0) is certainty_of(5, 1) is certainty_of(4, 4) is Certainty.UNSURE
    assert certainty_of(16, 4) is Certainty.SURE  # p = 0.012


def test_chance_alone_is_rarely_taken_for_a_difference():
    draws = random.Random(7)
    sure = sum(
        marked([(draws.random(), draws.random()) for _ in range(10)], "other").certainty is Certainty.SURE
        for _ in range(2_000)
    )
    assert sure / 2_000 <= 0.05


def test_a_mark_tells_pairs_and_the_median_difference():
    mark = marked([(1.0, 2.0), (3.0, 3.0), (5.0, 4.5)], "other")
    assert (mark.lower, mark.equal, mark.higher, mark.difference) == (1, 1, 1, 0.0)
    assert mark.certainty is Certainty.UNSURE
    never = marked([(None, 2.0), (None, 3.0), (None, None)], "other")
    assert (never.lower, never.equal, never.higher, never.difference) == (0, 1, 2, None)


# --- side by side -----------------------------------------------------------------------------------------------------------


def test_medians_and_worst_seeds_of_every_measure():
    result = compared([ran(seed=seed, max_over_mean=figure) for seed, figure in ((1, 1.3), (2, 1.1), (3, 1.2))])
    measures = row(result, "ours").measures
    assert measures.keys() == Measures.model_fields.keys()
    assert (measures["max_over_mean"].median, measures["max_over_mean"].worst) == (1.2, 1.3)


def test_never_settled_is_the_worst_there_is():
    settled = [ran(seed=seed, rounds_to_settle=rounds) for seed, rounds in ((1, 1.0), (2, None), (3, 2.0))]
    spread = row(compared(settled), "ours").measures["rounds_to_settle"]
    assert (spread.median, spread.worst) == (2.0, None)


def test_others_are_compared_with_ours_over_the_seeds_that_both_have():
    result = compared([*field_of(range(1, 7)), ran("transfer", 9, max_over_mean=0.1)])
    assert row(result, "ours").marks == {}
    marks = row(result, "transfer@upstream").marks
    assert set(marks) == set(COMPARED)
    assert marks["max_over_mean"].certainty is Certainty.SURE
    assert (marks["max_over_mean"].higher, marks["moved_share"].lower) == (6, 6)
    assert marks["reconnects"].certainty is Certainty.SAME
    assert row(result, "transfer").marks["max_over_mean"].equal == 0
    assert row(result, "transfer").marks["max_over_mean"].higher == 6


def test_the_order_in_which_runs_end_changes_nothing_but_the_order_of_rows():
    runs = field_of(of=source("a")) + field_of(of=source("b", held_out=True))
    once = compared(runs)
    shuffled = runs[:1] + random.Random(3).sample(runs[1:], len(runs) - 1)
    again = compared(shuffled)
    assert again.digest == once.digest
    for part in once.scenarios:
        other = next(scenario for scenario in again.scenarios if scenario.scenario == part.scenario)
        assert {row.contender: row for row in other.rows} == {row.contender: row for row in part.rows}


def test_the_digest_is_of_every_figure_and_not_of_times():
    slow = ran()
    quick = RunResult(
        slow.run, slow.outcome.model_copy(update={"timing": outcome(slow.run).timing}), digest=slow.digest
    )
    assert compared([slow]).digest == compared([quick]).digest
    assert compared([ran(moves=13)]).digest != compared([slow]).digest


def test_failed_runs_are_told_and_do_not_count():
    result = compared([*field_of(), failed("avg", 1), failed("avg", 2, "KeyError: b"), failed("ours", 4)])
    lost = row(result, "avg")
    assert [(item.seed, item.error) for item in lost.failed] == [(1, "ValueError: no"), (2, "KeyError: b")]
    assert (lost.measures, lost.aims, lost.marks, lost.timings) == ({}, [], {}, None)
    assert row(result, "ours").seeds == [1, 2, 3]
    assert [entry.failed for entry in result.overall["seen"] if entry.contender == "avg"] == [2]


def test_held_out_scenarios_are_a_group_of_their_own():
    runs = field_of(of=source("a")) + field_of(of=source("b")) + field_of(of=source("c", held_out=True))
    result = compared(runs)
    assert {name: [row.scenarios for row in rows] for name, rows in result.overall.items()} == {
        "seen": [2] * 4,
        "held-out": [1] * 4,
    }


def test_over_scenarios_a_scenario_is_a_pair():
    runs = [result for number in range(6) for result in field_of((1,), source(f"s{number}"))]
    upstream = compared(runs).overall["seen"][1]
    assert upstream.marks["max_over_mean"].certainty is Certainty.SURE
    assert upstream.marks["max_over_mean"].higher == 6


def test_without_ours_the_first_is_compared_with():
    result = compared([ran("a"), ran("b", max_over_mean=1.5)])
    assert result.against == "a"
    assert row(result, "b").marks["max_over_mean"].higher == 1


# --- aims -------------------------------------------------------------------------------------------------------------------


def test_the_best_of_upstream_is_the_evenest():
    assert compared(field_of()).scenarios[0].best_upstream == "threshold@upstream"
    (alone,) = compared([ran("ours"), ran("a", max_over_bound=1.5), ran("b")]).scenarios
    assert (alone.best_upstream, alone.best_other) == (None, "b")


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        ({"max_over_mean": 1.05, "max_over_bound": 1.10}, True),
        ({"max_over_mean": 1.05, "max_over_bound": 1.11}, False),
        ({"max_over_mean": 1.40, "max_over_bound": 1.05, "bound_over_mean": 1.3}, True),
    ],
)
def test_balance_is_measured_against_what_can_be_reached(figures, met):
    assert aim(row(compared([ran(**figures)]), "ours"), "balance").met is met


@pytest.mark.parametrize(
    ("name", "sort", "figures", "broken"),
    [
        ("returned", {}, {"returned_share_24h": 0.05}, {"returned_share_24h": 0.06}),
        ("steady", {"steady": True}, {"moved_share_per_h": 0.01}, {"moved_share_per_h": 0.011}),
        ("scale-out", {"scale_out": True}, {"rounds_to_settle": 2.0}, {"rounds_to_settle": 3.0}),
        ("scale-out", {"scale_out": True}, {"rounds_to_settle": 0.0}, {"rounds_to_settle": None}),
    ],
)
def test_an_aim_is_met_only_if_the_worst_seed_meets_it(name, sort, figures, broken):
    place = source(**sort)
    good = aim(row(compared([ran(of=place, seed=seed, **figures) for seed in (1, 2, 3)]), "ours"), name)
    assert (good.met, good.met_median) == (True, True)
    runs = [ran(of=place, seed=seed, **figures) for seed in (1, 2)] + [ran(of=place, seed=3, **broken)]
    bad = aim(row(compared(runs), "ours"), name)
    assert (bad.met, bad.met_median) == (False, True)


def test_aims_of_other_sorts_of_scenarios_do_not_apply():
    assert {aim.aim for aim in row(compared(field_of()), "ours").aims} == {
        "balance", "returned", "spread", "spread-at-moved", "moved-at-spread"
    }  # fmt: skip
    assert {aim.aim for aim in row(compared(field_of()), "transfer@upstream").aims} == {"balance", "returned"}


def against(ours: tuple[float, float], *rivals: tuple[float, float]) -> dict[str, bool]:
    """Which aims are met; each contender is its max/bound and its churn."""
    runs = [ran("ours", max_over_bound=ours[0], churn_share=ours[1])]
    runs += [
        ran(f"r{n}@upstream", max_over_bound=rival[0], churn_share=rival[1], max_over_mean_worst=1.9)
        for n, rival in enumerate(rivals)
    ]
    names = ("spread", "spread-at-moved", "moved-at-spread")
    return {aim.aim: aim.met for aim in row(compared(runs), "ours").aims if aim.aim in names}


def test_aims_against_upstream():
    best = dict.fromkeys(("spread", "spread-at-moved", "moved-at-spread"), True)
    assert against((1.05, 0.2), (1.2, 0.6), (1.3, 0.1)) == best
    # Evener than anybody, for more.
    assert against((1.05, 0.7), (1.2, 0.6), (1.3, 0.1)) == best
    # As even as the best, for more.
    assert against((1.2, 0.7), (1.2, 0.6)) == {**best, "moved-at-spread": False}
    # Less even than one that moved more: the price of thrift.
    assert against((1.25, 0.2), (1.2, 0.6)) == {**best, "spread": False}
    # Less even than one that moved less.
    assert against((1.25, 0.7), (1.2, 0.6)) == dict.fromkeys(best, False)
    # What nobody would notice is equal.
    assert against((1.2, 0.2), (1.195, 0.195)) == best


def test_best_is_within_a_hundredth_and_dominated_is_as_even_for_less_churn():
    runs = [
        ran("ours", max_over_bound=1.05, churn_share=0.5),
        ran("near", max_over_bound=1.06, churn_share=0.2),
        ran("thrifty", max_over_bound=1.07, churn_share=0.05),
        ran("alike", max_over_bound=1.05, churn_share=0.495),
    ]
    (part,) = compared(runs).scenarios
    assert part.best == ["ours", "near", "alike"]
    # `near` is as even as `ours` for less; `thrifty` is as even as `near`; half a percent of the traffic is no difference.
    assert part.dominated == {"ours": "near", "alike": "near", "near": "thrifty"}
    never = compared([*runs, ran("a", of=source("b", generated=True)), ran("ours", of=source("b", generated=True))])
    counts = {
        group: [(row.contender, row.best, row.dominated) for row in rows] for group, rows in never.overall.items()
    }
    assert counts["generated"] == [("ours", 1, 0), ("a", 1, 0)]
    assert counts["seen"][0] == ("ours", 1, 1)


# --- tables -------------------------------------------------------------------------------------------------------------------


def test_tables_have_a_cell_for_every_header_and_markdown_a_line_for_every_row():
    place = source("a|b", steady=True)
    runs = [*field_of(range(1, 7), place), failed("avg", of=place), ran("odd", of=place, remarks=["it failed\nonce"])]
    result = compared(runs)
    part: ScenarioPart = result.scenarios[0]
    grids = [
        scenario_grid(part, result.against),
        aims_grid(result, "ours"),
        aims_grid(result, "ours", missed_only=True),
        overall_grid(result, "seen"),
        outcome_grid(outcome(runs[0].run)),
    ]
    for grid in grids:
        assert all(len(line) == len(grid.headers) for line in grid.rows), grid.title
    assert len(grids[1].rows) == 6
    assert grids[2].rows == ()
    text = markdown(grids)
    assert text.count("\n| ") == sum(len(grid.rows) + 2 for grid in grids)
    assert "a\\|b" in text
    assert "1.30 (1.31)\\*\\*" in text
    assert "avg, seed 1, failed: ValueError: no" in text
    assert "it failed once" in text


def test_the_missed_aims_alone():
    result = compared([ran(returned_share_24h=0.3), ran("a@upstream", max_over_bound=1.01, churn_share=0.0)])
    assert [line[1] for line in aims_grid(result, "ours", missed_only=True).rows] == [
        "returned", "spread", "spread-at-moved", "moved-at-spread"
    ]  # fmt: skip


# --- the page -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "model", "more"),
    [
        ("`simulate run`", RunOutcome, {"digest"}),
        ("`simulate compare`", ContestComparison, set()),
        ("`simulate compare`: one of `scenarios`", ScenarioPart, set()),
        ("`simulate compare`: one of `rows`", ContenderRow, set()),
    ],
)
def test_the_page_of_commands_has_every_key(row, model, more):
    line = next(item for item in PAGE.read_text().splitlines() if item.startswith(f"| {row} |"))
    keys = re.sub(r"\([^)]*\)", "", line.split("|")[2])
    assert {word.strip() for word in keys.split(",")} == set(model.model_fields) | more
