"""The jars of Apache Kafka: which ones, where they are, and that they are the listed ones.

`jars.sha256` is the whole truth: one line per jar, its SHA-256 and its Maven coordinate. Whatever
client fetched a jar, and wherever it lies, only a listed file with the listed content is loaded.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from platformdirs import user_cache_path

from statechannel.embedded import fetch
from statechannel.embedded.errors import JarsUnavailableError

KAFKA_VERSION = "4.3.1"
JARS_VARIABLE = "STATECHANNEL_KAFKA_JARS"
CACHE_VARIABLE = "STATECHANNEL_CACHE_DIR"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """One listed jar: its file name, Maven coordinate `group:artifact:version` and SHA-256."""

    name: str
    coordinate: str
    sha256: str


@cache
def listed_jars() -> tuple[Jar, ...]:
    """Return the committed list, sorted by file name (this is also the class path's order)."""
    text = resources.files("statechannel.embedded").joinpath("jars.sha256").read_text("ascii")
    return tuple(sorted((_parse(line) for line in text.splitlines()), key=lambda jar: jar.name))


def cache_dir() -> Path:
    """Return the user's cache folder of this program; STATECHANNEL_CACHE_DIR overrides it."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else user_cache_path("statechannel")


def find_jars(folder: Path | None = None) -> tuple[Path, ...] | None:
    """Return the checked jars in class path order, or None if the cache has not been filled.

    Args:
        folder: A folder of the user's own; None takes STATECHANNEL_KAFKA_JARS, else the cache.

    Raises:
        JarsUnavailableError: The user's own folder lacks a listed jar, or a jar's content differs.
    """
    own = folder if folder is not None else _folder_from_environment()
    if own is not None:
        return _checked(own)
    cached = _cached_folder()
    return _checked(cached) if cached.is_dir() else None


def prepare_jars(folder: Path | None = None, *, say: Say = lambda _: None) -> tuple[Path, ...]:
    """Return the checked jars, fetching them into the user's cache once if need be.

    Args:
        folder: A folder of the user's own, as in `find_jars`; it is never written to.
        say: Receives one line before the download starts, for people.

    Raises:
        JarsUnavailableError: A jar is missing or different, or no client could fetch them.
    """
    found = find_jars(folder)
    if found is not None:
        return found
    with _cache_lock():
        if (cached := find_jars()) is not None:
            return cached
        say(f"fetching the {len(listed_jars())} jars of Apache Kafka {KAFKA_VERSION}, 44 MiB, once")
        _fill_cache()
    return _checked(_cached_folder())


def _fill_cache() -> None:
    target = _cached_folder()
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
        fetched = fetch.fetch([jar.coordinate for jar in listed_jars()], Path(scratch))
        complete = Path(scratch) / "complete"
        complete.mkdir()
        for jar in listed_jars():
            if jar.name in fetched:
                shutil.move(fetched[jar.name], complete / jar.name)
        _checked(complete)
        # Only a complete and checked folder ever gets the final name.
        complete.rename(target)


def _checked(folder: Path) -> tuple[Path, ...]:
    paths = tuple(folder / jar.name for jar in listed_jars())
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JarsUnavailableError(
            f"{folder} lacks {len(missing)} of {len(paths)} jars of Kafka {KAFKA_VERSION}, first {missing[0]}",
            hint=_folder_hint(folder),
        )
    for jar, path in zip(listed_jars(), paths, strict=True):
        if _sha256(path) != jar.sha256:
            raise JarsUnavailableError(
                f"{path} is not the listed {jar.coordinate}: its SHA-256 differs",
                hint=_folder_hint(folder),
            )
    return paths


def _folder_hint(folder: Path) -> str:
    if folder == _cached_folder():
        return f"remove {folder} and try again; the jars are then fetched anew"
    return f"unset {JARS_VARIABLE} to let the jars be fetched, or put the listed jars in the folder"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(line: str) -> Jar:
    sha256, coordinate = line.split()
    _, artifact, version = coordinate.split(":")
    return Jar(name=f"{artifact}-{version}.jar", coordinate=coordinate, sha256=sha256)


def _folder_from_environment() -> Path | None:
    value = os.environ.get(JARS_VARIABLE)
    return Path(value) if value else None


def _cached_folder() -> Path:
    return cache_dir() / f"kafka-{KAFKA_VERSION}"


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Let one process fetch; the others wait and then find the jars."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
