"""Contexts: names for clusters, and what wins where several things name a cluster."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statechannel.cli.kit.connection import settings_of
from statechannel.cli.kit.contexts import ClusterContext, Contexts, context_in_use, read_contexts, write_contexts
from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode
from statechannel.settings import Settings

Run = Callable[..., Result]


def settings(bootstrap: str | None = None, config: Path | None = None, chosen: str | None = None) -> Settings:
    return settings_of(bootstrap, None, config, None, None, None, context_in_use(chosen)[1])


def test_set_use_show_list_delete(run: Run) -> None:
    assert run("context", "list").stdout == "no contexts; `statechannel context set NAME -b HOST:PORT` makes one\n"
    assert "it is in use" in run("context", "set", "lab", "-b", "a:1", "--channel", "x").stdout
    assert "`statechannel context use live` makes it" in run("context", "set", "live", "-b", "b:2,c:3").stdout
    assert read_contexts() == Contexts("lab", {"lab": ClusterContext("a:1", "x"), "live": ClusterContext("b:2,c:3")})
    assert run("context", "use", "live").exit_code == 0
    assert json.loads(run("context", "show", "--output", "json").stdout)["bootstrap_servers"] == "b:2,c:3"
    assert "changed" in run("context", "set", "lab", "--channel", "").stdout
    told = json.loads(run("context", "list", "--output", "json").stdout)
    assert told["current"] == "live"
    assert [(row["name"], row["current"], row["channel"]) for row in told["contexts"]] == [
        ("lab", False, None),
        ("live", True, None),
    ]
    assert "no context is in use now" in run("context", "delete", "live").stdout
    assert run("context", "show").exit_code == ExitCode.NOT_FOUND
    assert list(read_contexts().named) == ["lab"]


def test_flags_win_over_the_environment_and_that_over_the_context(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[kafka]\nbootstrap_servers = "file:1"\n[membership]\nexpiry_s = 9\n')
    assert settings().kafka.bootstrap_servers is None
    write_contexts(Contexts("lab", {"lab": ClusterContext("lab:1", "x"), "live": ClusterContext("live:1")}))
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


def test_the_settings_file_of_a_context(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[membership]\nexpiry_s = 9\n")
    assert run("context", "set", "lab", "-b", "lab:1", "--config", "own.toml").exit_code == 0
    assert Path(str(read_contexts().named["lab"].config)).is_absolute()
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


def test_a_current_context_that_was_deleted_is_named(run: Run) -> None:
    write_contexts(Contexts("gone", {"lab": ClusterContext("lab:1")}))
    with pytest.raises(CommandError, match="context `gone` does not exist"):
        settings()
    assert settings(chosen="lab").kafka.bootstrap_servers == "lab:1"
