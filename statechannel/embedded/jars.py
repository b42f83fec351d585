"""Pinned jars: a committed list with checksums, verification, and download into the user's cache; Kafka's are listed here.

The list has one line per jar, its SHA-256 and its Maven coordinate, and is the whole truth: whatever client fetched a
jar, and wherever it lies, only a listed file with the listed content is loaded. An ordinary Maven client fetches them: `mvn`
if installed, since it knows the user's mirrors and proxies, else jgo, which is pure Python. Nothing is resolved.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

from platformdirs import user_cache_path

from statechannel.embedded.errors import JarsUnavailableError

CACHE_VARIABLE = "STATECHANNEL_CACHE_DIR"
Say = Callable[[str], None]
_MAVEN_TIMEOUT_S = 300.0
_PARALLEL_DOWNLOADS = 6
_FETCH_HINT = "check the network, then try again"


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
        return cache_dir() / self.folder_name

    def _fill_cache(self) -> None:
        target = self.cached_folder()
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
            coordinates = [jar.coordinate for jar in self.listed()]
            fetched = fetch(coordinates, Path(scratch), hint=self._fetch_hint())
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
                    f"{path} is not the listed {jar.coordinate}: its SHA-256 differs", hint=self._folder_hint(folder)
                )
        return paths

    def _folder_hint(self, folder: Path) -> str:
        if folder == self.cached_folder():
            return f"remove {folder} and try again; the jars are then fetched again"
        return f"unset {self.variable} to let the jars be fetched, or put the listed jars in the folder"

    def _fetch_hint(self) -> str:
        listed = f"{self.package.replace('.', '/')}/{self.resource}"
        return f"{_FETCH_HINT}; or copy the jars listed in {listed} to a folder and name it in {self.variable}"

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


def fetch(coordinates: Sequence[str], scratch: Path, *, hint: str = _FETCH_HINT) -> dict[str, Path]:
    """Fetch the jars of `group:artifact:version` coordinates.

    Args:
        coordinates: Exact coordinates; nothing else is fetched.
        scratch: An empty folder to work in; the jars stay below it.
        hint: Next step if nothing can be fetched.

    Returns:
        Each jar's path by file name.

    Raises:
        JarsUnavailableError: Every client failed; the message says how.
    """
    failures = []
    for client in (_fetch_by_maven, _fetch_by_jgo):
        outcome = client(coordinates, scratch)
        if not isinstance(outcome, str):
            return {path.name: path for path in outcome}
        failures.append(outcome)
    raise JarsUnavailableError(f"the jars cannot be fetched: {'; '.join(failures)}", hint=hint)


def _fetch_by_maven(coordinates: Sequence[str], scratch: Path) -> list[Path] | str:
    maven = shutil.which("mvn")
    if maven is None:
        return "mvn is not on PATH"
    pom, out = scratch / "pom.xml", scratch / "maven"
    pom.write_bytes(_pom(coordinates))
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    # -U: a look-up that failed yesterday must not be remembered as "does not exist".
    command += ["-U", "-DexcludeTransitive=true", f"-DoutputDirectory={out}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mvn: {error}"
    if answer.returncode != 0:
        return f"mvn: {_first_error(answer.stdout)}"
    return list(out.glob("*.jar"))


def _pom(coordinates: Sequence[str]) -> bytes:
    project = ET.Element("project")
    fixed = {"modelVersion": "4.0.0", "groupId": "local", "artifactId": "jars", "version": "1"}
    for tag, text in {**fixed, "packaging": "pom"}.items():
        ET.SubElement(project, tag).text = text
    dependencies = ET.SubElement(project, "dependencies")
    for coordinate in coordinates:
        dependency = ET.SubElement(dependencies, "dependency")
        parts = zip(("groupId", "artifactId", "version"), coordinate.split(":"), strict=True)
        for tag, text in parts:
            ET.SubElement(dependency, tag).text = text
    return ET.tostring(project)


def _first_error(output: str) -> str:
    errors = (line.strip() for line in output.splitlines() if "ERROR" in line)
    return next(errors, "failed without an error line")


def _fetch_by_jgo(coordinates: Sequence[str], scratch: Path) -> list[Path] | str:
    # Imported late: only the one start that has to fetch pays for it.
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415

    context = MavenContext(repo_cache=scratch / "jgo", resolver=PythonResolver(), timeout=60)

    def fetch_one(coordinate: str) -> Path:
        group, artifact, version = coordinate.split(":")
        component = context.project(group, artifact).at_version(version)
        return Path(component.artifact("", "jar").resolve())

    try:
        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
            return list(pool.map(fetch_one, coordinates))
    except Exception as error:
        return f"jgo: {error}"


KAFKA_VERSION = "4.3.1"
JARS_VARIABLE = "STATECHANNEL_KAFKA_JARS"

KAFKA_JARS = PinnedJars(
    title=f"Apache Kafka {KAFKA_VERSION}",
    package="statechannel.embedded",
    resource="jars.sha256",
    folder_name=f"kafka-{KAFKA_VERSION}",
    variable=JARS_VARIABLE,
    size_mib=44,
)

prepare_jars = KAFKA_JARS.prepare
