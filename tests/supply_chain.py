"""What can be checked of the dependencies: `python -m tests.supply_chain`; with `--vulnerabilities` an advisory service is asked.

Offline: every requirement is pinned to one version with hashes, all lists agree, they are what `requirements/*.in` and
pyproject.toml ask for, nothing comes from an address of its own; jars are pinned by SHA-256; what is installed is what is pinned,
fits together, and has a licence of the list below. None of this tells whether a pinned version has a known hole: that is what
the advisory service is for, and where it cannot be reached this says so and passes.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.licenses import canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
JARS = (
    "statechannel/embedded/jars.sha256",
    "spark/jars.sha256",
    "tests/support/kafka_tools.sha256",
    "tests/support/model_checker.sha256",
)
OWN = "statechannel"
# Permissive ones, and the MPL, which asks for nothing where its files are used as they are.
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
    }
    | {"Python-2.0", "Unlicense", "Zlib"}
)
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
SAID_ELSEWHERE: Mapping[str, str] = {"axe-playwright-python": "MIT AND MPL-2.0", "promql-parser": "MIT"}
"""Packages whose metadata names no licence, with the one that their files name."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+(?:\[[^\]]*\])?)==([^\s;\\]+)\s*(?:;\s*([^\\]+?))?\s*\\?$")
_HASH = re.compile(r"^\s+--hash=sha256:[0-9a-f]{64}(?: \\)?$")
_JAR = re.compile(r"^[0-9a-f]{64}  [A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+:([0-9][A-Za-z0-9_.-]*)$")
_UNREACHABLE = re.compile(
    r"ConnectionError|ServiceError|[Tt]ime[d ]*out|Max retries|name resolution|Failed to (fetch|resolve)|dns error"
    r"|not found in the package registry|HTTP status"
)
_NOT_AUDITED = "could not be audited"


def pins(path: Path) -> Iterator[tuple[str, Version, int, str]]:
    """Name, version, number of hashes and line of each requirement; whatever else the file has comes with a name of None."""
    name, version, hashes = "", Version("0"), 0
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if _HASH.match(line):
            hashes += 1
            continue
        if name:
            yield name, version, hashes, ""
        found = _PIN.match(line)
        name, hashes = "", 0
        if found is None:
            yield "", version, 0, line
        else:
            name, version = canonicalize_name(found[1].partition("[")[0]), Version(found[2])
    if name:
        yield name, version, hashes, ""


def locks(root: Path = ROOT) -> list[str]:
    """What is wrong with the lists of pins."""
    wrong: list[str] = []
    by_name: dict[str, dict[str, set[Version]]] = {}
    for path in sorted(root.glob("requirements/*.txt")):
        for name, version, hashes, line in pins(path):
            if not name:
                wrong.append(f"{path.name}: not a version pinned by ==: {line.strip()}")
            elif not hashes:
                wrong.append(f"{path.name}: {name} has no hash")
            else:
                by_name.setdefault(path.name, {}).setdefault(name, set()).add(version)
    every: dict[str, set[Version]] = {}
    for listed in by_name.values():
        for name, versions in listed.items():
            if name in every and every[name] != versions:
                wrong.append(f"{name} is pinned differently in different lists")
            every.setdefault(name, set()).update(versions)
    for path in sorted(root.glob("requirements/*.in")):
        listed = by_name.get(path.with_suffix(".txt").name, {})
        wrong += [f"{path.name}: {why}" for why in unmet(wanted(path), listed)]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    runtime = [Requirement(text) for text in project["dependencies"]]
    wrong += [f"pyproject.toml: {why}" for why in unmet(runtime, by_name.get("runtime.txt", {}))]
    return wrong


def wanted(path: Path) -> list[Requirement]:
    """The requirements of an `.in` file, those of the files that it includes too."""
    found: list[Requirement] = []
    for raw in path.read_text().splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("-r "):
            found += wanted(path.parent / line[3:].strip())
        elif line and not line.startswith("-"):
            found.append(Requirement(line))
    return found


def unmet(requirements: list[Requirement], listed: Mapping[str, set[Version]]) -> Iterator[str]:
    """Requirements that no pin meets, and those that name an address."""
    for one in requirements:
        if one.url is not None:
            yield f"{one} comes from an address of its own"
        versions = listed.get(canonicalize_name(one.name), set())
        if not any(one.specifier.contains(version, prereleases=True) for version in versions):
            yield f"{one} is not met by what is pinned ({', '.join(map(str, versions)) or 'nothing'}): `make lock`"


def jars(root: Path = ROOT) -> list[str]:
    """What is wrong with the lists of jars."""
    wrong: list[str] = []
    for name in JARS:
        lines = [line for line in (root / name).read_text().splitlines() if line and not line.startswith("#")]
        wrong += [f"{name}: not a SHA-256 and a version: {line}" for line in lines if _JAR.match(line) is None]
        wrong += [f"{name}: a snapshot is not one thing: {line}" for line in lines if "SNAPSHOT" in line]
        if len(set(lines)) != len(lines) or not lines:
            wrong.append(f"{name}: empty, or a line stands there twice")
    return wrong


def installed(root: Path = ROOT) -> list[str]:
    """What is wrong with what is installed here: versions that are not pinned, and licences."""
    pinned: dict[str, set[Version]] = {}
    for path in root.glob("requirements/*.txt"):
        for name, version, _, _ in pins(path):
            pinned.setdefault(name, set()).add(version)
    wrong: list[str] = []
    for one in metadata.distributions():
        name = canonicalize_name(one.metadata["Name"])
        if name in (OWN, "pip", "setuptools", "wheel"):
            continue
        if name in pinned and Version(one.version) not in pinned[name]:
            wrong.append(f"{name} {one.version} is installed, and {', '.join(map(str, pinned[name]))} is pinned")
        if name in pinned and not (licences(one) and licences(one) <= ALLOWED):
            wrong.append(f"{name} {one.version}: licence {sorted(licences(one)) or 'unknown'} is not in the list")
    return wrong


def licences(one: metadata.Distribution) -> set[str]:
    """Every licence that a distribution's metadata names; of a choice (OR) those that are allowed."""
    name = canonicalize_name(one.metadata["Name"])
    text = one.metadata.get("License-Expression") or SAID_ELSEWHERE.get(name)
    if text:
        names: set[str] = set()
        for part in re.split(r"\s+AND\s+", canonicalize_license_expression(text)):
            choices = {word.strip("() ") for word in re.split(r"\s+OR\s+", part)}
            names |= choices & ALLOWED or choices
        return names
    classified = [line.rpartition(" :: ")[2] for line in one.metadata.get_all("Classifier", []) if "License ::" in line]
    found = {CLASSIFIERS.get(word, word) for word in classified if word not in ("OSI Approved", "DFSG approved")}
    if found:
        return found
    word = (one.metadata.get("License") or "").strip()
    return {{"3-Clause BSD License": "BSD-3-Clause"}.get(word, word)} if word and "\n" not in word else set()


def fits_together() -> list[str]:
    """Whether every installed package finds what it requires."""
    answer = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "check", "--python", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    return [] if answer.returncode == 0 else answer.stderr.strip().splitlines()


def vulnerabilities(root: Path = ROOT) -> tuple[list[str], str]:
    """Known holes of what is pinned, as pip-audit's service has them; and why it could not be asked, if so."""
    command = [sys.executable, "-m", "uv", "tool", "run", "--quiet", "pip-audit", "--require-hashes", "--disable-pip"]
    command += ["--progress-spinner", "off", "--timeout", "10"]
    for path in sorted(root.glob("requirements/*.txt")):
        command += ["-r", str(path)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return [], "no answer within 120 s"
    unknown = (answer.stdout + answer.stderr).count(_NOT_AUDITED)
    if answer.returncode == 0:
        # A mirror without advisories says of every package that it does not know it, and nothing is wrong with any.
        return [], f"it knows nothing of {unknown} packages" if unknown else ""
    if "Found" in answer.stderr and "known vulnerabilit" in answer.stderr:
        return answer.stdout.strip().splitlines(), ""
    last = (answer.stderr.strip().splitlines() or ["no word"])[-1]
    return ([], last[:200]) if _UNREACHABLE.search(answer.stderr) else ([f"pip-audit failed: {last[:200]}"], "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vulnerabilities", action="store_true", help="ask pip-audit's advisory service, too")
    asked = parser.parse_args()
    wrong = [*locks(), *jars(), *installed(), *fits_together()]
    skipped = ""
    if asked.vulnerabilities:
        holes, skipped = vulnerabilities()
        wrong += holes
    for line in wrong:
        print(f"supply chain: {line}", file=sys.stderr)
    if not wrong:
        print("supply chain: pins, hashes, jars, licences and what is installed are as they should be")
    if skipped:
        print(f"supply chain: SKIPPED, known vulnerabilities: the advisory service could not be asked ({skipped})")
    elif not asked.vulnerabilities:
        print("supply chain: known vulnerabilities were not asked for (`make supply-chain`)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
