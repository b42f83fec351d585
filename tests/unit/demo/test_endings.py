"""How the demo ends: with checks that hold, with one that does not, where it cannot go on, and on Ctrl-C."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statechannel.cli.demo import app
from statechannel.cli.kit.failures import CommandError
from statechannel.demo import cluster
from statechannel.demo.cluster import FOLDER_PREFIX, DemoCluster, forget_old_folders
from statechannel.demo.story import Story
from statechannel.embedded.layout import Layout
from statechannel.embedded.process import take_lock


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_check_that_fails_is_named_at_the_end_and_keeps_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checks = [(True, "the namespace has 17 bundles"), (False, "b1 has the states of the log")]
    monkeypatch.setattr(Story, "run", lambda story: story.checks.extend(checks))
    result = CliRunner().invoke(app, ["--keep"])
    assert isinstance(result.exception, CommandError)
    assert result.exception.exit_code == 1
    assert "1 of the demo's checks failed: b1 has the states" in str(result.exception)
    last = result.output[result.output.index("Checks") :]
    assert last.index("[ok] the namespace has 17 bundles") < last.index("[FAILED] b1 has the states of the log")
    assert "The cluster keeps running" not in result.output
    kept = list(tmp_path.iterdir())
    assert len(kept) == 1
    assert kept[0].name in "".join(result.output.split())


def test_step_that_fails_is_named_with_the_checks_before_it_and_the_logs(tmp_path, monkeypatch):
    refused = (
        "note: waiting\nerror: Kafka at 127.0.0.1:1 did not answer\nhint: Start one here with `statechannel kafka up`."
    )

    def stuck(story: Story) -> None:
        story.narrator.step("A real Kafka")
        story.checks.append((True, "Kafka runs"))
        story.narrator.step("A namespace")
        story.cluster.kafka_folder.mkdir()
        (story.cluster.kafka_folder / "broker.log").touch()
        (story.cluster.folder / "b1.log").touch()
        story.cluster.run("namespace", "create", "t/n")

    command = tmp_path / "statechannel"
    command.write_text(f"#!/bin/sh\nprintf '{refused}' >&2\nexit 10\n")
    command.chmod(0o755)
    monkeypatch.setattr(Story, "run", stuck)
    monkeypatch.setattr(cluster, "command_path", lambda: command)
    result = CliRunner().invoke(app, ["--keep"])
    assert isinstance(result.exception, CommandError)
    outcome = " ".join(result.output.split())
    why = "step 2: `statechannel namespace create t/n` failed (exit code 10): Kafka at 127.0.0.1:1 did not answer"
    assert f"[ok] Kafka runs [FAILED] {why} Clean-up" in outcome
    assert why in str(result.exception)
    assert "kafka/broker.log, b1.log" in outcome
    assert "kafka up" not in outcome + str(result.exception) + result.exception.hint


def test_ctrl_c_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_story: Story) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Story, "run", interrupted)
    CliRunner().invoke(app, [])
    assert list(tmp_path.iterdir()) == []


def test_settings_and_contexts_of_the_user_do_not_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"STATECHANNEL_CHANNEL__NAME": "prod", "STATECHANNEL_CONTEXT": "prod", "STATECHANNEL_KAFKA_JARS": "/jars"}
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    with DemoCluster.make().environment(80):
        assert {name for name in os.environ if name in theirs} == {"STATECHANNEL_KAFKA_JARS"}
        assert os.environ["STATECHANNEL_CONTEXTS"].startswith(str(tmp_path))
    assert {name: os.environ[name] for name in theirs} == theirs
    assert "STATECHANNEL_CONTEXTS" not in os.environ


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
    monkeypatch.setattr(Story, "run", lambda story: story.checks.append((True, "all is well")))
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "[ok] all is well" in result.output
    assert list(tmp_path.iterdir()) == []
