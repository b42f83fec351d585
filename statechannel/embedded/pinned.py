"""Pinned jars: a committed list with checksums, verification, and download into the user's cache.

The list has one line per jar, its SHA-256 and its Maven coordinate, and is the whole truth: whatever client fetched a
jar, and wherever it lies, only a listed file with the listed content is loaded.
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

CACHE_VARIABLE = "STATECHANNEL_CACHE_DIR"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """One listed jar: its file name, Maven coordinate `group:artifact:version` and SHA-256."""

    name: str
    coordinate: str
    sha256: str


def cache_dir() -> Path:
    """Return the user's cache folder of this program; STATECHANNEL_CACHE_DIR overrides it."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else user_cache_path("statechannel")


@dataclass(frozen=True, slots=True)
class PinnedJars:
    """A set of jars by its committed list.

    Attributes:
        title: Name of the set with its version: "Kafka 4.3.1".
        package: Package that holds the list, beside its code.
        resource: File name of the list.
        folder_name: Name of the set's folder in the cache; another version is another name.
        variable: Environment variable that names a folder of the user's own.
        size_mib: Size of the download.
    """

    title: str
    package: str
    resource: str
    folder_name: str
    variable: str
    size_mib: int

    def listed(self) -> tuple[Jar, ...]:
        """Return the committed list, sorted by file name (this is also the class path's order)."""
        return _listed(self.package, self.resource)

    def find(self, folder: Path | None = None) -> tuple[Path, ...] | None:
        """Return the checked jars in class path order, or None if the cache has not been filled.

        Args:
            folder: A folder of the user's own; None takes the variable's, else the cache.

        Raises:
            JarsUnavailableError: The user's own folder lacks a listed jar, or a jar's content differs.
        """
        own = folder if folder is not None else self._folder_from_environment()
        if own is not None:
            return self._checked(own)
        cached = self.cached_folder()
        return self._checked(cached) if cached.is_dir() else None

    def prepare(self, folder: Path | None = None, *, say: Say = lambda _: None) -> tuple[Path, ...]:
        """Return the checked jars, fetching them into the user's cache once if need be.

        Args:
            folder: A folder of the user's own, as in `find`; it is never written to.
            say: Receives one line before the download starts, for people.

        Raises:
            JarsUnavailableError: A jar is missing or different, or no client could fetch them.
        """
        files = self.find(folder)
        if files is not None:
            return files
        with _cache_lock():
            if (cached := self.find()) is not None:
                return cached
            say(f"fetching the {len(self.listed())} jars of {self.title}, {self.size_mib} MiB, once")
            self._fill_cache()
        return self._checked(self.cached_folder())

    def cached_folder(self) -> Path:
        """Folder of the fetched jars."""
        return cache_dir() / self.folder_name

    def _fill_cache(self) -> None:
        target = self.cached_folder()
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
            coordinates = [jar.coordinate for jar in self.listed()]
            fetched = fetch.fetch(coordinates, Path(scratch), hint=self._fetch_hint())
            complete = Path(scratch) / "complete"
            complete.mkdir()
            for jar in self.listed():
                if jar.name in fetched:
                    shutil.move(fetched[jar.name], complete / jar.name)
            self._checked(complete)
            # Only a complete and checked folder ever gets the final name.
            complete.rename(target)

    def _checked(self, folder: Path) -> tuple[Path, ...]:
        paths = tuple(folder / jar.name for jar in self.listed())
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise JarsUnavailableError(
                f"{folder} lacks {len(missing)} of {len(paths)} jars of {self.title}, first {missing[0]}",
                hint=self._folder_hint(folder),
            )
        for jar, path in zip(self.listed(), paths, strict=True):
            if _sha256(path) != jar.sha256:
                raise JarsUnavailableError(
                    f"{path} is not the listed {jar.coordinate}: its SHA-256 differs",
                    hint=self._folder_hint(folder),
                )
        return paths

    def _folder_hint(self, folder: Path) -> str:
        if folder == self.cached_folder():
            return f"remove {folder} and try again; the jars are then fetched again"
        return f"unset {self.variable} to let the jars be fetched, or put the listed jars in the folder"

    def _fetch_hint(self) -> str:
        listed = f"{self.package.replace('.', '/')}/{self.resource}"
        return f"{fetch.HINT}; or copy the jars listed in {listed} to a folder and name it in {self.variable}"

    def _folder_from_environment(self) -> Path | None:
        value = os.environ.get(self.variable)
        return Path(value) if value else None


@cache
def _listed(package: str, resource: str) -> tuple[Jar, ...]:
    text = resources.files(package).joinpath(resource).read_text("ascii")
    return tuple(sorted((_parse(line) for line in text.splitlines()), key=lambda jar: jar.name))


def _parse(line: str) -> Jar:
    sha256, coordinate = line.split()
    _, artifact, version = coordinate.split(":")
    return Jar(name=f"{artifact}-{version}.jar", coordinate=coordinate, sha256=sha256)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Let one process fetch; the others wait and then find the jars."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
