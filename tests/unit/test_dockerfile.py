"""What can be known of the Dockerfile without an engine: each line names things that are there, and nothing is unpinned."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from statechannel.embedded.java import MIN_JAVA_MAJOR

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
LINES = [line.split(maxsplit=1) for line in TEXT.splitlines() if line and not line.startswith("#")]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in LINES if name == instruction]


def copied() -> list[str]:
    """What comes from the sources."""
    lines = [line.split() for line in arguments("COPY") if not line.startswith("--from")]
    return [word for line in lines for word in line[:-1]]


@pytest.mark.parametrize("name", copied())
def test_what_is_copied_is_there_and_is_sent_to_the_engine(name: str) -> None:
    assert (ROOT / name).exists()
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore.index("*") < ignore.index(f"!{name}")
    assert not any(
        fnmatch(name, rule) for rule in ignore[ignore.index(f"!{name}") :] if not rule.startswith(("!", "#"))
    )


def test_all_that_the_wheel_is_made_of_is_copied() -> None:
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(copied())
    assert {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml"} <= set(copied())


def test_packages_are_pinned_by_hash() -> None:
    [install] = [line for line in arguments("RUN") if "--require-hashes" in line]
    assert "--no-deps" in install.split()
    files = re.findall(r"-r (\S+)", install)
    assert set(files) == {"requirements/runtime.txt", "requirements/build.txt", "requirements/spark.txt"}
    for name in files:
        pins = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
        assert all("==" in pin and "--hash=sha256:" in pin for pin in pins)
    [other] = [line for line in arguments("RUN") if "pip install" in line and line != install]
    assert {"--no-index", "--no-deps", "--no-build-isolation"} <= set(other.split())


def test_java_is_new_enough_and_nobody_is_root() -> None:
    java = re.search(r"openjdk-(\d+)-jre-headless", TEXT)
    assert java
    assert int(java.group(1)) >= MIN_JAVA_MAJOR
    last = max(index for index, (name, _) in enumerate(LINES) if name == "FROM")
    names = [name for name, _ in LINES[last:]]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert arguments("USER") == ["statechannel"]


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile", "design/spark.md"])
def test_an_installation_by_hash_resolves_nothing(name: str) -> None:
    # Old versions of pip take the newest release of a package that is required with an extra, whatever the file pins.
    installs = [line for line in (ROOT / name).read_text().splitlines() if "--require-hashes" in line]
    assert installs
    assert all("--no-deps" in line for line in installs)
