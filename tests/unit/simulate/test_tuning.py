"""Pulsar's strategies with their thresholds swept: who is chosen, and that the others are not shown; and ours with less."""

from importlib import import_module

from shedders.contest.comparison import compared
from shedders.contest.sources import chosen_scenarios
from tests.bench.ablation import PACKAGE, PARTS, switched_off, table
from tests.bench.tuned import BEST_OF_EACH, BEST_OVERALL, tuned, without_sweep
from tests.support.contest_runs import contender as plain
from tests.support.contest_runs import failed, ran, source

SWEEP = [plain("a@upstream"), plain("b@upstream"), plain("c@upstream")]


def figures(scenario, **spreads):
    """One seed of each: max/bound and churn."""
    return [
        ran(f"{name}@upstream", of=source(scenario), max_over_bound=spread, churn_share=churn)
        for name, (spread, churn) in spreads.items()
    ]


def chosen(rans, name):
    return {
        result.run.source.name: result.run.contender.about.rpartition(" ")[2]
        for result in rans
        if result.run.contender.name == name
    }


def test_the_best_of_each_scenario_and_the_best_overall():
    rans = [
        *figures("x", a=(1.05, 0.3), b=(1.20, 0.1), c=(1.08, 0.2)),
        *figures("y", a=(1.90, 0.3), b=(1.10, 0.1), c=(1.12, 0.2)),
    ]
    best = tuned(rans, SWEEP)
    assert chosen(best, BEST_OF_EACH) == {"x": "a@upstream", "y": "b@upstream"}
    assert chosen(best, BEST_OVERALL) == {"x": "c@upstream", "y": "c@upstream"}
    result = compared([*without_sweep(rans, SWEEP, [SWEEP[1]]), *best, ran("ours", of=source("x"))])
    assert [row.contender for row in result.scenarios[0].rows] == ["b@upstream", BEST_OF_EACH, BEST_OVERALL, "ours"]
    assert {row.contender: row.measures["max_over_bound"].median for row in result.scenarios[1].rows} == {
        "b@upstream": 1.10, BEST_OF_EACH: 1.10, BEST_OVERALL: 1.12
    }  # fmt: skip


def test_of_those_that_are_as_even_the_one_with_less_churn_is_chosen():
    best = tuned(figures("x", a=(1.050, 0.5), b=(1.059, 0.2), c=(1.062, 0.1)), SWEEP)
    assert chosen(best, BEST_OF_EACH) == {"x": "b@upstream"}


def test_who_failed_is_not_chosen():
    rans = [*figures("x", a=(1.0, 0.1), b=(1.2, 0.1)), failed("a@upstream", 2, of=source("x"))]
    rans += [ran("b@upstream", 2, of=source("x"), max_over_bound=1.2)]
    best = tuned(rans, SWEEP)
    assert chosen(best, BEST_OF_EACH) == {"x": "b@upstream"}
    assert chosen(best, BEST_OVERALL) == {"x": "b@upstream"}
    assert len(best) == 4, "both seeds under both names"
    assert tuned([failed("a@upstream", of=source("x"))], SWEEP) == []
    assert tuned([ran("ours")], SWEEP) == []


def test_a_mechanism_is_away_while_it_is_switched_off_alone():
    for part in PARTS:
        module = import_module(f"{PACKAGE}.{part.module}")
        usual = getattr(module, part.constant)
        with switched_off(part):
            assert getattr(module, part.constant) == part.off != usual
        assert getattr(module, part.constant) == usual
    _, _, usual, without = table(chosen_scenarios(["swap-trap"]), PARTS[:1])
    assert usual.startswith("| nothing |")
    assert without.startswith(f"| {PARTS[0].name} |")
