"""The command line in this process, without anything of this machine in its way."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from statechannel.cli.kit.output import Output, choose
from statechannel.cli.main import app

KEPT = ("STATECHANNEL_KAFKA_JARS", "STATECHANNEL_CACHE_DIR", "STATECHANNEL_KAFKA__COMMAND_TIMEOUT_S")
GOLDEN = Path(__file__).parents[1] / "golden" / "channel-record"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command line in an empty folder that has the golden logs under `logs`."""
    for name in list(os.environ):
        if name.startswith("STATECHANNEL_") and name not in KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("STATECHANNEL_EMBEDDED__FOLDER", "no-kafka-here")
    monkeypatch.setenv("STATECHANNEL_CONTEXTS", "contexts.toml")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").symlink_to(GOLDEN)
    runner = CliRunner()
    return lambda *args: runner.invoke(app, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def output_of_no_other_test() -> None:
    """A run chooses the format of its output for its process, which tests share."""
    choose(Output.TABLE)


@pytest.fixture
def closed_port() -> int:
    """A port on loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
