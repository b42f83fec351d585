"""The import contracts hold, and the clients of Kafka are imported in one place only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONLY_HERE = {"confluent_kafka": "kafka", "jgo": "embedded", "typer": "cli", "pydantic_settings": "settings"}


def test_import_contracts_hold():
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    run = subprocess.run(
        [sys.executable, "-c", command], check=False, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 broken" in run.stdout


def _imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize(("library", "package"), ONLY_HERE.items())
def test_library_is_imported_by_one_package_only(library, package):
    users = {
        file.relative_to(ROOT / "statechannel").parts[0]
        for file in (ROOT / "statechannel").rglob("*.py")
        if library in _imported(file)
    }
    assert users <= {package}


@pytest.mark.parametrize("library", ["rich", "typer"])
def test_jobs_know_no_command_line(library):
    folder = ROOT / "spark"
    users = {file.relative_to(folder).parts[0] for file in folder.rglob("*.py") if library in _imported(file)}
    assert users <= {"cli"}


@pytest.mark.parametrize("file", sorted((ROOT / "tests/twin").glob("*.py")), ids=lambda file: file.name)
def test_the_twin_is_independent(file):
    """What the core is compared with must not be made of the core."""
    assert "statechannel" not in _imported(file)
