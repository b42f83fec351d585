"""The import contracts hold, and the clients of Kafka are imported in one place only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONLY_HERE = {"confluent_kafka": "kafka", "jgo": "embedded", "typer": "cli", "pydantic_settings": "settings"}


IMPURE = {
    "asyncio",
    "confluent_kafka",
    "logging",
    "os",
    "psutil",
    "pyspark",
    "random",
    "socket",
    "structlog",
    "threading",
    "time",
}
NOT_PURE = {
    "loaddata": {"following.py", "host_usage.py", "kafka_side.py", "nics.py", "service.py"},
    "shedders": {"conformance.py"},
    "spark": {
        "archive.py",
        "archive_check.py",
        "audit_engine.py",
        "channel_joins.py",
        "channel_log.py",
        "channel_publish.py",
        "channel_table.py",
        "class_archive.py",
        "gateway.py",
        "job_session.py",
        "load_table.py",
        "load_views.py",
        "locks.py",
        "metrics.py",
        "partition_loads.py",
        "partition_table.py",
        "progress.py",
        "replay.py",
        "replay_archive.py",
        "replay_export.py",
        "replay_fold.py",
        "replay_log.py",
        "replay_logs.py",
        "replay_named.py",
        "replay_run.py",
        "replay_survey.py",
        "replay_verdicts.py",
        "running.py",
        "session.py",
        "store.py",
        "survey.py",
        "table_figures.py",
    },
    "shedders/live": {
        "balancer.py",
        "checks.py",
        "clocks.py",
        "contradicted.py",
        "decision_topic.py",
        "drain.py",
        "duties.py",
        "extension.py",
        "looking_back.py",
        "metrics.py",
        "movers.py",
        "placement.py",
        "policy_follower.py",
        "policy_topic.py",
        "renewal.py",
        "split_wishes.py",
        "splitting.py",
        "telling.py",
    },
}
"""Files that have a clock, tasks, or clients. All others reckon with what they are given."""


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


@pytest.mark.parametrize("folder", NOT_PURE)
def test_what_reckons_has_no_clock_and_no_client(folder):
    found = {file.name for file in (ROOT / folder).glob("*.py") if _imported(file) & IMPURE}
    assert found == NOT_PURE[folder]
