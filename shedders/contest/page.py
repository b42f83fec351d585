"""Report of a comparison as one HTML page with tables and plots, without network access."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from typing import Any, Final

import jinja2

from shedders.contest.comparison import ContestComparison, ScenarioPart
from shedders.contest.outcome import RunOutcome
from shedders.contest.plots import LINES_MAX, churn_picture, scenario_picture
from shedders.contest.recommendation import Recommendation
from shedders.contest.tables import aims_grid, overall_grid, ranking_grid, rivals_grid, scenario_grid, standing_grid

_LINES_BYTES: Final = 5_000_000
"""All lines of all plots together; a point has about 12 bytes."""
_POINT_BYTES: Final = 12
_POINTS: Final = (24, 120)
_BANDS: Final = 6
_NOTHING_ELSE: Final = "base-uri 'none'; form-action 'none'"


def page(
    comparison: ContestComparison,
    outcomes: Sequence[RunOutcome],
    *,
    recommendation: Recommendation | None = None,
    title: str = "Comparison of load balancers",
    command: str = "",
) -> str:
    """Render the page.

    Args:
        outcomes: Whose loads are drawn: whole ones, one for each scenario and contender.
        command: Command that repeats the runs, for people.
    """
    by_scenario: dict[str, list[RunOutcome]] = {}
    for outcome in outcomes:
        by_scenario.setdefault(outcome.scenario, []).append(outcome)
    points = _points(outcomes)
    script, style = _part("filter.js"), _part("style.css")
    # Plots are full of attributes `style`; a page without any address to send to loses nothing by them.
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src 'unsafe-inline'; {_NOTHING_ELSE}"
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            comparison=comparison,
            names=list(dict.fromkeys(row.contender for part in comparison.scenarios for row in part.rows)),
            command=command,
            recommendation=recommendation,
            ranking=None if recommendation is None else ranking_grid(recommendation),
            overall=[
                *(overall_grid(comparison, group) for group in comparison.overall),
                rivals_grid(comparison),
                standing_grid(comparison),
            ],
            churn=inlined(churn_picture(comparison).svg(), "churn-"),
            aims=aims_grid(comparison, comparison.against),
            scenarios=[
                _scenario(number, part, by_scenario, comparison, points)
                for number, part in enumerate(comparison.scenarios, 1)
            ],
            shown_seed=", ".join(str(seed) for seed in sorted({outcome.seed for outcome in outcomes})) or "none",
            lines_max=LINES_MAX,
            policy=policy,
            script=script,
            style=style,
            version=metadata.version("statechannel"),
        )
    )


def _scenario(
    number: int,
    part: ScenarioPart,
    outcomes: Mapping[str, Sequence[RunOutcome]],
    comparison: ContestComparison,
    points: int,
) -> dict[str, Any]:
    shown = [outcome for outcome in outcomes.get(part.scenario, ()) if outcome.series.at_s]
    return {
        "part": part,
        "grid": scenario_grid(part, comparison.against),
        "plot": inlined(scenario_picture(shown, points=points).svg(), f"p{number}-") if shown else "",
    }


def _points(outcomes: Sequence[RunOutcome]) -> int:
    """Points of a line, so that a page of many runs can still be opened."""
    lines = sum(len(outcome.series.loads) if len(outcome.series.loads) <= LINES_MAX else _BANDS for outcome in outcomes)
    least, most = _POINTS
    return max(least, min(most, _LINES_BYTES // (_POINT_BYTES * max(1, lines))))


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(_part),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _part(name: str) -> str:
    return resources.files("shedders.contest").joinpath("page_parts", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_DROPPED: Final = (
    re.compile(r"^.*?(?=<svg)", re.DOTALL),
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style[^>]*>.*?</style>", re.DOTALL),
    re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"'),
)
_SIZE: Final = re.compile(r'(<svg\b[^>]*?)\swidth="[^"]*"\sheight="[^"]*"')
_ID: Final = re.compile(r'\sid="([^"]*)"')
_USED: Final = re.compile(r'(?:href="#|url\(#)([^")]+)')
_PLACES: Final = re.compile(r'\b(d|x|y)="([^"]*)"')
_NUMBER: Final = re.compile(r"-?\d+\.\d+")
_BLANKS: Final = re.compile(r"\s*\n\s*")


def inlined(svg: str, prefix: str) -> str:
    """The plot to stand in a page; names that it uses within itself begin with `prefix`, all others are gone.

    Coordinates are rounded to a tenth of a point, which is invisible and halves the size of the page.
    """
    for pattern in _DROPPED:
        svg = pattern.sub("", svg)
    svg = _SIZE.sub(r'\1 role="img"', svg, count=1).replace("xlink:href", "href")
    used = set(_USED.findall(svg))
    svg = _ID.sub(lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", svg)
    svg = _USED.sub(lambda match: f"{match[0][: -len(match[1])]}{prefix}{match[1]}", svg)
    svg = _PLACES.sub(lambda match: f'{match[1]}="{_rounded(match[2])}"', svg)
    return _BLANKS.sub("\n", svg).strip()


def _rounded(text: str) -> str:
    return _BLANKS.sub("", _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), text)).replace(
        "L ", "L"
    )
