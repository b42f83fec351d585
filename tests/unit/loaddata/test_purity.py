"""The parts that decide have no clock, no I/O and no client; nothing here speaks to Kafka but through statechannel.kafka."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "loaddata"
WITH_CLOCKS = {"cgroup", "following", "host_usage", "kafka_side", "nics", "service"}
FORBIDDEN = {
    "asyncio",
    "datetime",
    "logging",
    "os",
    "pathlib",
    "psutil",
    "random",
    "socket",
    "threading",
    "time",
    "uuid",
}
LAYERS = ("statechannel.kafka", "statechannel.runtime", "statechannel.api", "statechannel.cli", "shedders")


def imported(file: Path) -> set[str]:
    """What a module imports when it runs, not what it only names in annotations."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_imports(file: Path) -> None:
    names = imported(file)
    assert not any(name.split(".")[0] in {"confluent_kafka", "shedders"} for name in names)
    if file.stem not in WITH_CLOCKS:
        assert {name for name in names if name.split(".")[0] in FORBIDDEN or name.startswith(LAYERS)} == set()
        named = {f"loaddata.{one}" for one in WITH_CLOCKS}
        assert names & named == set(), "a pure module rests on pure modules only"
