"""The package says what it is and ships its types."""

import subprocess
import sys
from importlib import metadata

import pytest

from statechannel.extras import install_command


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


class Installed:
    def __init__(self, origin: str | None) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._origin


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (None, "'statechannel[spark]'"),
        ('{"url": "file:///srv/clone", "dir_info": {"editable": true}}', "-e '/srv/clone[spark]'"),
        ('{"url": "file:///srv/a%20b.whl", "archive_info": {}}', "'/srv/a b.whl[spark]'"),
        ('{"url": "https://index.example/statechannel.whl", "archive_info": {}}', "'statechannel[spark]'"),
        ("no JSON", "'statechannel[spark]'"),
    ],
)
def test_it_names_what_was_installed(origin: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(origin))
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    assert install_command("spark") == f"/venv/bin/python -m pip install {wanted}"
