"""The command that installs an extra is one that works: it names what this package was installed from."""

import sys
from importlib import metadata

import pytest

from statechannel.extras import install_command


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
