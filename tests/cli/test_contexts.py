"""Contexts: names for clusters, and what wins where several things name a cluster."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statechannel.cli.kit.connection import settings_of
from statechannel.cli.kit.contexts import context_in_use
from statechannel.errors import ExitCode, NotFoundError
from statechannel.settings import Settings

Run = Callable[..., Result]


def settings(bootstrap: str | None = None, config: Path | None = None, chosen: str | None = None) -> Settings:
    return settings_of(bootstrap, None, config, None, None, None, context_in_use(chosen)[1])


TWO = """\
# My [clusters].
  current = "lab"
[contexts.lab]
bootstrap_servers = "lab:1"
channel = "x"
[contexts.live]
bootstrap_servers = "live:1"  # current = "lab"
"""


def test_list_and_use(run: Run) -> None:
    assert run("context", "list").stdout == "no contexts in contexts.toml\n"
    Path("contexts.toml").write_text(TWO)
    assert run("context", "use", "live").stdout == "context live is in use\n"
    listed = json.loads(run("context", "list", "--output", "json").stdout)
    assert (listed["file"], listed["current"]) == ("contexts.toml", "live")
    expected = [("lab", False, "x"), ("live", True, None)]
    assert [(row["name"], row["current"], row["channel"]) for row in listed["contexts"]] == expected
    written = TWO.replace('  current = "lab"\n', "")
    assert Path("contexts.toml").read_text() == f'current = "live"\n{written}', "the rest of the file stays as it is"
    expected = [["lab", "lab:1"], ["*", "live"]]
    assert [line.split()[:2] for line in run("context", "list").stdout.splitlines()[1:]] == expected


def test_flags_win_over_the_environment_and_that_over_the_context(run: Run, monkeypatch, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[kafka]\nbootstrap_servers = "file:1"\n[membership]\nexpiry_s = 9\n')
    assert settings().kafka.bootstrap_servers is None
    Path("contexts.toml").write_text(TWO)
    assert (settings().kafka.bootstrap_servers, settings().channel.name) == ("lab:1", "x")
    assert settings(chosen="live").kafka.bootstrap_servers == "live:1"
    monkeypatch.setenv("STATECHANNEL_CONTEXT", "live")
    assert settings().kafka.bootstrap_servers == "live:1"
    assert settings(chosen="lab").kafka.bootstrap_servers == "lab:1"
    assert settings(config=file).kafka.bootstrap_servers == "file:1"
    assert settings(bootstrap="flag:1", config=file).kafka.bootstrap_servers == "flag:1"
    monkeypatch.setenv("STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS", "environment:1")
    assert settings(chosen="lab").kafka.bootstrap_servers == "environment:1"
    assert settings(bootstrap="flag:1").kafka.bootstrap_servers == "flag:1"


def test_the_settings_file_of_a_context_is_named_from_the_folder_of_the_contexts(run: Run, tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text("[membership]\nexpiry_s = 9\n")
    (tmp_path / "contexts.toml").write_text(
        'current = "lab"\n[contexts.lab]\nbootstrap_servers = "lab:1"\nconfig = "own.toml"\n'
    )
    monkeypatch.setenv("STATECHANNEL_CONTEXTS", str(tmp_path / "contexts.toml"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert settings().membership.expiry_s == 9
    assert settings().kafka.bootstrap_servers == "lab:1"


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "current = 1",
        "contexts = 1",
        "[contexts]\nlab = 1",
        "[contexts.lab]\nchanel = 'x'",
        "[contexts.lab]\nchannel = 1",
    ],
)
def test_a_file_that_is_none_of_contexts(content: str, run: Run) -> None:
    Path("contexts.toml").write_text(content)
    for command in (("context", "list"), ("bundles",)):
        result = run(*command)
        assert result.exit_code == ExitCode.BAD_SETTINGS
        assert "contexts.toml cannot be used" in result.stderr


def test_a_current_context_that_does_not_exist_is_named(run: Run) -> None:
    Path("contexts.toml").write_text('current = "gone"\n[contexts.lab]\nbootstrap_servers = "lab:1"\n')
    with pytest.raises(NotFoundError, match="context `gone` does not exist"):
        settings()
    assert settings(chosen="lab").kafka.bootstrap_servers == "lab:1"
