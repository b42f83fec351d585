"""The page of the contest: figures as they were measured, pictures beside it."""

import re
from pathlib import Path

import orjson
import pytest

from shedders.contest.comparison import compared
from shedders.contest.contenders import OURS, default_contenders
from shedders.contest.outcome import ContestRun
from shedders.contest.runner import run_all
from shedders.contest.sources import chosen_scenarios
from shedders.contest.tables import markdown, rivals_grid
from tests.bench.tuned import BEST_OF_EACH, swept, tuned, without_sweep
from tests.docs.contest import PAGE, PICTURES, block, keep
from tests.support.contest_runs import field_of, ran


def test_the_block_has_all_tables_and_the_digest() -> None:
    comparison = compared(field_of())
    text = block(comparison)
    for title in ("used for tuning", "the best of upstream", comparison.digest):
        assert title in text


def test_figures_and_pictures_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = compared(field_of())
    run, design = tmp_path / "run", tmp_path / "design"
    for scenario, others in PICTURES.items():
        runs = run / "runs" / scenario / "1"
        runs.mkdir(parents=True)
        for number, name in enumerate(("ours", *others)):
            (runs / f"{number}.json").write_bytes(orjson.dumps({"outcome": ran(name).outcome.model_dump(mode="json")}))
    (design / "contest").mkdir(parents=True)
    (run / "comparison.json").write_bytes(orjson.dumps(comparison.model_dump(mode="json")))
    (run / "churn.svg").write_text("<svg/>")
    page = design / "contest.md"
    page.write_text("before\n<!-- contest -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr("tests.docs.contest.DESIGN", design)
    monkeypatch.setattr("tests.docs.contest.PAGE", page)
    keep(run)
    assert page.read_text() == f"before\n<!-- contest -->\n{block(comparison)}<!-- end -->\nafter\n"
    assert (design / "contest" / "churn.svg").read_text() == "<svg/>"
    for scenario in PICTURES:
        assert "<svg" in (design / "contest" / f"{scenario}.svg").read_text()


def test_the_page_has_figures_of_a_whole_contest() -> None:
    text = PAGE.read_text()
    assert re.search(r"Digest of all figures: `[0-9a-f]{64}`", text)
    assert "ours" in text.partition("<!-- contest -->")[2]


def test_one_scenario_run_again_has_the_figures_of_the_page() -> None:
    """Whatever changes a decision of ours or of Pulsar's policies changes the page: the contest has to be run again then."""
    sources, sweep = chosen_scenarios(["swap-trap"]), swept("upstream")
    asked_for = [one for one in default_contenders() if one.upstream or one.name == OURS]
    names = {one.name: one for one in (*asked_for, *sweep)}
    rans = run_all([ContestRun(source, 1, one) for source in sources for one in names.values()])
    best_of_each = [ran for ran in tuned(rans, sweep) if ran.run.contender.name == BEST_OF_EACH]
    comparison = compared([*without_sweep(rans, sweep, asked_for), *best_of_each])
    row = markdown([rivals_grid(comparison)], level=3).strip().splitlines()[4]
    assert row.startswith("| swap-trap |")
    assert row in PAGE.read_text().splitlines()
