"""Pulsar's jars: resolved by Maven into the user's cache once, and compared with one digest of them all before every start.

Kafka's jars are a committed list (`statechannel.embedded.jars`); here that would be more than three hundred lines for a
measurement, and thirty for a test. The versions are those of Pulsar's own parent POM, as its distribution has them, and what
Maven made of it is pinned as a whole: the digest is the SHA-256 of the sorted lines `SHA-256  NAME`, kept beside the jars.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from statechannel.embedded.errors import JarsUnavailableError
from statechannel.embedded.jars import Say, cache_dir

PULSAR_VERSION = "4.2.4"
JARS_DIGEST = "854811be4621384a8751ddcd06bc5b5d8504ee6736d1d98bbee88c0bc065adda"
JARS_VARIABLE = "PULSAR_JARS"
SIZE_MIB = 242
ADMIN_DIGEST = "facfe78e678f800929526de082b1b6361afb9e5d13cf57f790732328e88df75a"
LISTING = "jars.sha256"
MAVEN_TIMEOUT_S = 900.0


class PinnedJars(NamedTuple):
    """The jars of one artifact of Pulsar, with all that it needs.

    Attributes:
        digest: SHA-256 of `listing`.
        variable: Environment variable that may name a folder with them.
    """

    artifact: str
    digest: str
    variable: str
    size_mib: int
    folder: str

    def prepare(self, *, say: Say = lambda _: None) -> Path:
        """The folder with the checked jars, and no others; they are fetched into the user's cache if need be.

        Args:
            say: Receives one line before the download starts, for people.

        Raises:
            JarsUnavailableError: Maven cannot fetch them, or they are not the pinned ones.
        """
        own = os.environ.get(self.variable)
        if own:
            return _checked(Path(own), self)
        target = cache_dir() / self.folder
        if not target.is_dir():
            say(f"fetching the jars of Apache Pulsar {PULSAR_VERSION}, {self.size_mib} MiB, once")
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as scratch:
                fetched = _fetch(Path(scratch), self)
                # Only a checked folder ever gets the final name; who is second keeps the first one's.
                if not target.is_dir():
                    _checked(fetched, self).rename(target)
        return _checked(target, self)


BROKER_JARS = PinnedJars("pulsar-broker", JARS_DIGEST, JARS_VARIABLE, SIZE_MIB, f"pulsar-{PULSAR_VERSION}")
ADMIN_JARS = PinnedJars(
    "pulsar-client-admin", ADMIN_DIGEST, "PULSAR_ADMIN_JARS", 57, f"pulsar-client-admin-{PULSAR_VERSION}"
)


def _pom(artifact: str) -> str:
    return f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId> <artifactId>pulsar</artifactId> <version>1</version> <packaging>pom</packaging>
  <dependencyManagement><dependencies><dependency>
    <groupId>org.apache.pulsar</groupId> <artifactId>pulsar</artifactId> <version>{PULSAR_VERSION}</version>
    <type>pom</type> <scope>import</scope>
  </dependency></dependencies></dependencyManagement>
  <dependencies><dependency>
    <groupId>org.apache.pulsar</groupId> <artifactId>{artifact}</artifactId> <version>{PULSAR_VERSION}</version>
  </dependency></dependencies>
</project>
"""


def listing(folder: Path) -> str:
    """One line for each jar of a folder: its SHA-256 and its name."""
    digests = {}
    for jar in sorted(folder.glob("*.jar")):
        with jar.open("rb") as file:
            digests[jar.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def _checked(folder: Path, pinned: PinnedJars) -> Path:
    lines = listing(folder)
    count, digest = lines.count("\n"), hashlib.sha256(lines.encode()).hexdigest()
    if digest != pinned.digest:
        raise JarsUnavailableError(
            f"the {count} jars of {folder} are not those of Apache Pulsar {PULSAR_VERSION} that are pinned: "
            f"their digest is {digest}",
            hint=f"unset {pinned.variable} and remove the folder, so that they are fetched again; see {LISTING} for each jar",
        )
    return folder


def _fetch(scratch: Path, pinned: PinnedJars) -> Path:
    maven = shutil.which("mvn")
    hint = f"install Maven and check the network, or name a folder with the jars in {pinned.variable}"
    if maven is None:
        raise JarsUnavailableError("mvn is not on PATH", hint=hint)
    (scratch / "pom.xml").write_text(_pom(pinned.artifact), encoding="ascii")
    folder = scratch / "jars"
    command = [maven, "-q", "-B", "-U", "-f", str(scratch / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsUnavailableError(f"mvn does not run: {error}", hint=hint) from error
    if ended.returncode != 0:
        first = next((line for line in ended.stdout.splitlines() if "ERROR" in line), "it failed without an error line")
        raise JarsUnavailableError(f"mvn cannot fetch the jars of Apache Pulsar {PULSAR_VERSION}: {first}", hint=hint)
    (folder / LISTING).write_text(listing(folder), encoding="ascii")
    return folder
