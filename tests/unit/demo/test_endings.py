"""How the demo ends where something did not come out as promised."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statechannel.cli.demo import app
from statechannel.cli.kit.failures import CommandError
from statechannel.demo.cluster import FOLDER_PREFIX, DemoCluster, DemoError, EndedCommand, forget_old_folders
from statechannel.demo.story import Story
from statechannel.embedded.layout import Layout
from statechannel.embedded.process import take_lock


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_broken_promise_is_a_failure_and_keeps_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Story, "run", lambda story: story.promises.check(False, "b1 and b2 both served x"))
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

    monkeypatch.setattr(Story, "run", stuck)
    result = CliRunner().invoke(app, [])
    assert isinstance(result.exception, DemoError)
    assert result.exception.hint.startswith("Read ")
    assert "Logs and data are still in" in result.output


def test_failed_step_says_which_and_where_to_look_and_the_end_is_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = (
        "note: waiting\nerror: Kafka at 127.0.0.1:1 did not answer\nhint: Start one here with `statechannel kafka up`."
    )

    def stuck(story: Story) -> None:
        story.narrator.step("A real Kafka")
        story.narrator.step("A namespace")
        story.cluster.kafka_folder.mkdir()
        story.cluster.kafka_log.touch()
        story.cluster.ask("namespace", "create", "t/n")

    monkeypatch.setattr(Story, "run", stuck)
    monkeypatch.setattr(DemoCluster, "run", lambda *_, **__: EndedCommand(10, "", refused))
    result = CliRunner().invoke(app, [])
    outcome = " ".join(result.output.split())
    assert "[failed] step 2: `statechannel namespace create t/n` failed (exit code 10): Kafka at 127.0.0.1:1" in outcome
    assert outcome.index("[failed]") < outcome.index("Clean-up")
    assert "The end" not in outcome
    assert isinstance(result.exception, DemoError)
    assert result.exception.hint.endswith("kafka/broker.log")
    assert "kafka up" not in outcome + str(result.exception) + result.exception.hint


def test_folders_of_earlier_runs_are_removed_but_for_the_newest(tmp_path: Path) -> None:
    for age in range(8):
        folder = tmp_path / f"{FOLDER_PREFIX}{age}"
        (folder / "kafka").mkdir(parents=True)
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "another").mkdir()
    with take_lock(Layout(tmp_path / f"{FOLDER_PREFIX}7" / "kafka")):
        forget_old_folders(keep=5)
        left = sorted(folder.name.removeprefix(FOLDER_PREFIX) for folder in tmp_path.iterdir())
    assert left == ["0", "1", "2", "3", "4", "7", "another"], "the oldest has a Kafka that lives"


def test_demo_that_went_well_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Story, "run", lambda story: story.promises.check(True, "all is well"))
    assert CliRunner().invoke(app, []).exit_code == 0
    assert list(tmp_path.iterdir()) == []
