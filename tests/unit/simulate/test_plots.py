"""Plots: what is drawn, the same bytes each time, also in another process."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shedders.contest.comparison import compared
from shedders.contest.outcome import ContestRun
from shedders.contest.plots import TICKS_MAX, churn_picture, drawn, scenario_picture
from tests.support.contest_runs import contender, field_of, outcome, ran, source

ROOT = Path(__file__).parents[3]


def make_run(name: str = "ours", **more: object):
    return outcome(ContestRun(source(), 1, contender(name)), **more)


def test_a_thinned_series_keeps_the_worst_of_each_stretch():
    run = make_run(points=700)
    peak = 333
    run.series.max_over_mean[peak] = 9.0
    few = drawn(run, 60)
    assert len(few.hours) <= 60
    assert run.series.at_s[peak] / 3_600 in few.hours
    assert few.end_h == run.series.at_s[-1] / 3_600


def test_a_broker_that_is_not_there_leaves_a_gap_and_counts_in_no_mean():
    few = drawn(make_run(points=10), 60)
    assert np.isnan(few.loads[-1]).tolist() == [True] * 5 + [False] * 5
    low, lower, upper, high = few.bands
    assert all((low <= few.mean) & (few.mean <= high) & (lower <= upper))


def test_many_moves_are_few_ticks():
    run = make_run()
    many = run.model_copy(update={"moves": [run.moves[0].model_copy(update={"at_s": n / 10}) for n in range(17_000)]})
    assert 100 < len(drawn(many, 60).ticks_h) <= TICKS_MAX + 1
    assert drawn(run.model_copy(update={"moves": []}), 60).ticks_h == []


@pytest.mark.parametrize("brokers", [1, 4, 40])
def test_one_run_shows_brokers_mean_moves_and_its_name(brokers):
    text = scenario_picture([make_run(brokers=brokers)], title="calm, seed 1").svg()
    words = re.findall(r">([^<>]+)</text>", text)
    assert any(word.startswith("calm, seed 1: ours has a max/bound of ") for word in words)
    assert {"mean", "overloaded from here on", "moves of bundles", "hours"} <= set(words)
    assert ("a line for each broker" in words) is (brokers <= 12)
    assert ("middle half of the brokers" in words) is (brokers > 12)


def test_all_contenders_of_a_scenario_are_side_by_side():
    names = [f"contender-{number}" for number in range(7)]
    text = scenario_picture([make_run(name) for name in names], title="calm").svg()
    assert all(f">{name}</tspan>" in text or f">{name}</text>" in text for name in names)
    words = set(re.findall(r">([^<>]+)</text>", text))
    assert any(word.startswith("calm: contender-0 is the most even, max/bound ") for word in words)


def test_balance_against_churn_names_everybody():
    runs = [ran for name in "abc" for ran in field_of(of=source(name))]
    text = churn_picture(compared(runs)).svg()
    assert all(name in text for name in ("ours", "transfer@upstream", "threshold@upstream", "transfer"))
    words = re.findall(r">([^<>]+)</text>", text) + re.findall(r">([^<>]+)</tspan>", text)
    assert any(word.startswith("ours: max/bound ") for word in words)
    assert any("linear up to 1 %, logarithmic beyond" in word for word in words)


def test_contenders_look_different_and_no_mark_covers_another():
    names = [f"strategy-{number}@{variant}" for number in range(8) for variant in ("upstream", "recommended")]
    runs = [ContestRun(source(), 1, contender(name)) for name in ("ours", *names)]
    same = [ran(run.contender.name) for run in runs]
    figure = churn_picture(compared(same)).figure
    axes = figure.axes[0]
    marks = [line for line in axes.lines if line.get_marker() in {"o", "s", "D", "p"}]
    assert len(marks) == 17
    assert len({(line.get_color(), line.get_marker()) for line in marks}) == 17
    per_point = figure.dpi / 72
    places = [line.get_transform().transform((line.get_xdata()[0], line.get_ydata()[0])) / per_point for line in marks]
    for number, one in enumerate(places):
        for other in places[:number]:
            assert max(abs(one - other)) >= marks[0].get_markersize()


def test_a_plot_has_a_dark_variant_in_the_same_file():
    text = scenario_picture([make_run()], title="calm").svg()
    [rules] = re.findall(r"@media \(prefers-color-scheme: dark\) \{(.*?)\}</style>", text)
    light = set(re.findall(r'\[style\*="(?:fill|stroke): (#[0-9a-f]{6})"\]', rules))
    used = set(re.findall(r'style="[^"]*?(?:fill|stroke): (#[0-9a-f]{6})', text.replace(rules, "")))
    assert {"#ffffff", "#1d2430", "#5c6675", "#d9dde3", "#c22f35"} <= light & used


def test_pictures_are_the_files_that_they_say_and_differ_with_the_figures():
    picture = scenario_picture([make_run()], title="calm")
    assert picture.svg().startswith("<?xml")
    assert scenario_picture([make_run(tilt=0.9)], title="calm").svg() != picture.svg()


def draw_plots() -> list[str]:
    """Digests of one plot of each kind, as SVG."""
    runs = field_of((1,))
    pictures = [scenario_picture([run.outcome for run in runs], title="calm"), churn_picture(compared(runs))]
    return [hashlib.sha256(picture.svg().encode()).hexdigest() for picture in pictures]


def test_the_same_bytes_in_another_process_whatever_its_hash_seed_and_settings(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nlines.linewidth: 5\naxes.facecolor: red\nsvg.hashsalt: x\n")
    script = "from tests.unit.simulate.test_plots import draw_plots; print(*draw_plots())"
    result = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
    )
    here = draw_plots()
    assert result.stdout.split() == here
    assert len(set(here)) == 2
