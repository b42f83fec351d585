"""The package says what it is and ships its types."""

import importlib
from importlib import metadata
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["statechannel", "loaddata", "shedders", "spark"])
def test_package_is_documented_and_typed(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert module.__file__ is not None
    assert (Path(module.__file__).parent / "py.typed").exists()


def test_console_script_is_declared() -> None:
    scripts = metadata.entry_points(group="console_scripts", name="statechannel")
    assert [script.value for script in scripts] == ["statechannel.cli.main:main"]
