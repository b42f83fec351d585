"""The package says what it is and ships its types."""

import importlib
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["statechannel", "loaddata", "shedders", "spark"])
def test_package_is_documented_and_typed(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert (Path(module.__file__).parent / "py.typed").exists()


def test_console_script_is_declared() -> None:
    scripts = metadata.entry_points(group="console_scripts", name="statechannel")
    assert [script.value for script in scripts] == ["statechannel.cli.start:main"]


def test_an_interrupt_while_the_command_is_being_loaded_is_no_traceback():
    """The modules of the command take some tenths of a second to load."""
    code = (
        "import sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'statechannel.cli.main':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from statechannel.cli.start import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
