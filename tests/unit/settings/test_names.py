"""A variable of ours that is no setting must not keep a command from starting."""

import re
from pathlib import Path

from statechannel.settings.names import OTHER_VARIABLES, known
from statechannel.settings.tree import groups
from tests.docs.settings_pages import settings_page

ROOT = Path(__file__).parents[3]
_READ = re.compile(
    r"""(?:environ(?:\.get)?[\[(]|getenv\(|_VARIABLE = |^_?[A-Z_]+ = )\s*"(STATECHANNEL_[A-Z]+(?:_[A-Z]+)*)["]""",
    re.MULTILINE,
)
_EXPORTED = re.compile(r"(?:export |\$\{)(STATECHANNEL_[A-Z]+(?:_[A-Z]+)*)")


def test_every_variable_that_is_read_is_known() -> None:
    files = [
        file
        for folder in ("statechannel", "spark", "shedders", "loaddata", "tests")
        for file in (ROOT / folder).rglob("*.py")
    ]
    read = {name for file in files for name in _READ.findall(file.read_text(encoding="utf-8"))}
    read |= {name for file in (ROOT / "Makefile", ROOT / ".ci/run") for name in _EXPORTED.findall(file.read_text())}
    assert "STATECHANNEL_REQUIRE_BROWSER" in read
    assert "STATECHANNEL_SPARK_JARS" in read
    assert {name for name in read if "__" not in name} <= {*OTHER_VARIABLES, "STATECHANNEL_"}


def test_every_setting_is_on_it_once() -> None:
    page = "\n".join(settings_page())
    for names in known(groups()).values():
        for name in names:
            assert f"| `{name}` |" in page


def test_no_address_or_path_of_a_machine_is_on_it() -> None:
    page = "\n".join(settings_page())
    assert "/home" not in page
    assert "/root" not in page
