"""What strategies say of themselves, which design/strategies.md is made from."""

import pytest

from shedders.model.strategy import KINDS
from tests.docs.strategy_pages import own, prose
from tests.support.strategies import install


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


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
