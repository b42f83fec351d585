"""The archive of classes: sessions start with it where it is there, and one that does not fit harms nobody."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spark.core.session import archive_options, archive_path
from statechannel.embedded.java import find_java
from tests.support.waits import WAIT_S


def archive_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it lies for a cache of this test's own."""
    monkeypatch.setenv("STATECHANNEL_CACHE_DIR", str(folder))
    path = archive_path(find_java())
    path.parent.mkdir(parents=True)
    return path


def test_there_are_options_only_for_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = find_java()
    path = archive_in(tmp_path, monkeypatch)
    assert archive_options(java) == ""
    path.write_bytes(b"")
    assert str(path) in archive_options(java)
    monkeypatch.setenv("STATECHANNEL_SPARK_CLASS_ARCHIVE_TO", str(path))
    assert f"-XX:ArchiveClassesAtExit={path}" in archive_options(java)


def test_a_folder_with_a_blank_is_no_option_for_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark cuts the options at blanks."""
    archive_in(tmp_path / "a b", monkeypatch).write_bytes(b"")
    assert archive_options(find_java()) == ""


def test_an_archive_that_does_not_fit_is_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, java = archive_in(tmp_path, monkeypatch), find_java()
    path.write_bytes(b"damaged" * 10_000)
    options = archive_options(java).split()
    assert f"-XX:SharedArchiveFile={path}" in options
    command = [java.executable, *options, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(java.banner.splitlines()), "the version, and not a word more"
