"""Download of jars by coordinate through an ordinary Maven client: `mvn` if installed, else jgo.

Maven goes first because it knows the user's mirrors and proxies; jgo is pure Python, so that pip
and Java are enough. Nothing is resolved here: every coordinate is pinned, and who calls compares
the content with checksums.
"""

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree as ET

from statechannel.embedded.errors import JarsUnavailableError

_MAVEN_TIMEOUT_S = 300.0
_PARALLEL_DOWNLOADS = 6
HINT = "check the network, then try again"


def fetch(coordinates: Sequence[str], scratch: Path, *, hint: str = HINT) -> dict[str, Path]:
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
