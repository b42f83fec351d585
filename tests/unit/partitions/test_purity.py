"""What decides about samples and loads has no clock, no I/O and no client."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "loaddata" / "partitions"
PURE = ("sample", "loads", "layout", "capacity", "formulas", "averages", "metric_names", "sample_record", "series")
FORBIDDEN = {
    *("asyncio", "datetime", "logging", "os", "pathlib", "random", "socket", "threading", "time", "urllib"),
    *("confluent_kafka", "kafka"),
}


@pytest.mark.parametrize("name", PURE)
def test_imports(name: str) -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    assert not {one for one in found if one.split(".")[0] in FORBIDDEN or one.startswith("statechannel.kafka")}
    ours = {one.removeprefix("loaddata.partitions.") for one in found if one.startswith("loaddata.partitions.")}
    assert ours <= set(PURE)
