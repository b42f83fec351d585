"""design/settings.md is what the code makes of the tree."""

from pathlib import Path

from statechannel.settings.names import known
from statechannel.settings.render import render

PAGE = Path(__file__).parents[3] / "design" / "settings.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m statechannel.settings.render > design/settings.md"


def test_every_setting_is_on_it_once() -> None:
    page = render()
    for names in known().values():
        for name in names:
            assert f"| `{name}` |" in page


def test_no_address_or_path_of_a_machine_is_on_it() -> None:
    assert "/home" not in render()
    assert "/root" not in render()
