"""design/strategies.md is made from the strategies' own words."""

from pathlib import Path

import pytest

from shedders.model.registry import KINDS
from shedders.render_strategies import own, prose, render
from tests.support.strategies import install

PAGE = Path(__file__).parents[3] / "design" / "strategies.md"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == render(), "run: python -m shedders.render_strategies > design/strategies.md"


@pytest.mark.parametrize("kind", KINDS)
def test_each_strategy_gives_an_example_and_its_source(kind: str) -> None:
    for name, strategy in own(kind).items():
        text = " ".join(prose(strategy.__doc__ or "")).lower()
        assert "example" in text, name
        assert "source:" in text, name


def test_formulas_stand_apart_and_what_callers_need_is_left_out() -> None:
    text = "Does it.\n\nWith x:\n\n    x = 1\n\n    y | 2\n\nThen more.\n\nArgs:\n    can_take: Filters."
    assert list(prose(text)) == [
        "Does it.",
        "",
        "With x:",
        "",
        "```text",
        "x = 1",
        "",
        "y | 2",
        "```",
        "",
        "Then more.",
    ]
