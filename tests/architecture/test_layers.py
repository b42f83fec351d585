"""The clients of Kafka are imported in one place only; `make check` sees to the import contracts."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.house_rules import modules, tree

ROOT = Path(__file__).parents[2]
ONLY_HERE = {"confluent_kafka": "kafka", "jgo": "embedded", "typer": "cli", "pydantic_settings": "settings"}
DECODE_SITES = {
    "statechannel.operations.request_record.decode": {"statechannel.broker.requests", "statechannel.stories.requests"},
    "statechannel.engine.membership.decode_member": {"statechannel.engine.presence", "statechannel.stories.registry"},
    "shedders.decisions.record.decode": {"shedders.decisions.history"},
    "shedders.policies.record.decode": {"shedders.policies.book", "shedders.cli.policy.transfer"},
}
"""Who decodes the records of a topic: who acts on them, and one fold for all others. Files of policies have the topic's form."""


@cache
def _imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree(file)):
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


@pytest.mark.parametrize(("decoder", "expected"), DECODE_SITES.items())
def test_records_of_a_topic_are_decoded_in_one_place(decoder, expected):
    home, _, name = decoder.rpartition(".")

    def is_use(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return node.module == home and name in {alias.name for alias in node.names}
        return isinstance(node, ast.Attribute) and ast.unparse(node) == f"{home.rpartition('.')[2]}.{name}"

    users = {module for module, file in modules().items() if any(map(is_use, ast.walk(tree(file))))}
    assert users == expected
