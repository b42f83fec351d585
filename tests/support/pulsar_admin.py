"""Pulsar's own Java admin client in a process, to be called from a test; skipped where there is no Java compiler or Maven."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from statechannel.embedded.errors import JarsUnavailableError
from tests.bench.pulsar.jars import ADMIN_JARS
from tests.support.waits import WAIT_S

DRIVER = Path(__file__).with_name("PulsarAdminDriver.java")
REQUIRED_VARIABLE = "PULSAR_ADMIN_REQUIRED"


class Thrown(NamedTuple):
    """What a call of the client threw."""

    error: str
    status: int
    reason: str


def admin_classes_or_skip(folder: Path) -> str:
    """The class path of the driver, compiled into a folder; without it the test is skipped, or fails where it is required."""
    javac = shutil.which("javac")
    if javac is None:
        _skip("javac is not on PATH: install a JDK, so that Pulsar's Java admin client can be called")
    try:
        jars = ADMIN_JARS.prepare()
    except JarsUnavailableError as error:
        _skip(f"the jars of Pulsar's Java admin client cannot be had: {error}; {error.hint}")
    compiled = subprocess.run(
        [javac, "-cp", f"{jars}/*", "-d", str(folder), str(DRIVER)],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert compiled.returncode == 0, compiled.stderr
    return f"{folder}:{jars}/*"


def _skip(why: str) -> NoReturn:
    if os.environ.get(REQUIRED_VARIABLE) == "1":
        pytest.fail(why)
    pytest.skip(why)


class PulsarAdmin:
    """The client; one call at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, *words: str) -> Any:
        """What a call gives, or `Thrown`."""
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client ended at {words}: {self._process.wait(WAIT_S)}"
        answer = json.loads(line)
        return answer["result"] if "error" not in answer else Thrown(**answer)

    def thrown(self, *words: str) -> tuple[str, int]:
        """Class and status of what a call must throw."""
        answer = self(*words)
        assert isinstance(answer, Thrown), answer
        assert answer.reason, answer
        return answer.error, answer.status


@contextmanager
def pulsar_admin(classes: str, url: str, log: Path, *, token: str | None) -> Iterator[PulsarAdmin]:
    """The client of a cluster.

    Args:
        classes: Of `admin_classes_or_skip`.
        log: File for what it writes about itself.
    """
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classes, "PulsarAdminDriver", url]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, *([] if token is None else [token])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as process,
    ):  # fmt: skip
        try:
            yield PulsarAdmin(process)
        finally:
            process.kill()
