"""How the demo ends where something did not come out as promised."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from statechannel.cli.demo import app
from statechannel.cli.failures import CommandError
from statechannel.demo.errors import DemoError
from statechannel.demo.story import Story


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_broken_promise_is_a_failure_and_keeps_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Story, "tell", lambda story: story.promises.check(False, "b1 and b2 both served x"))
    result = CliRunner().invoke(app, ["--keep"])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 1
    assert "both served x" in str(result.exception)
    assert "[FAILED] b1 and b2 both served x" in result.output
    kept = list(tmp_path.iterdir())
    assert len(kept) == 1
    assert kept[0].name in "".join(result.output.split())


def test_demo_that_cannot_go_on_cleans_up_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(story: Story) -> None:
        raise DemoError("broker b1 was not ready within 60 s", log=story.cluster.folder / "b1-1.log")

    monkeypatch.setattr(Story, "tell", stuck)
    result = CliRunner().invoke(app, [])
    assert isinstance(result.exception, DemoError)
    assert result.exception.hint.startswith("Read ")
    assert "Logs and data are still in" in result.output


def test_demo_that_went_well_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Story, "tell", lambda story: story.promises.check(True, "all is well"))
    assert CliRunner().invoke(app, []).exit_code == 0
    assert list(tmp_path.iterdir()) == []
