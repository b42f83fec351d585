"""Every scenario file runs as it is written."""

import os
from pathlib import Path

import pytest

from tests.scenarios.runner import FOLDER, KNOWN_BUG, happened, rewritten

FILES = sorted(FOLDER.glob("*.txt"))


def _cases() -> list[object]:
    cases: list[object] = []
    for path in FILES:
        bugs = [line for line in path.read_text().splitlines() if line.startswith(KNOWN_BUG)]
        marks = [pytest.mark.xfail(strict=True, reason="; ".join(bugs))] if bugs else []
        cases.append(pytest.param(path, id=path.stem, marks=marks))
    return cases


@pytest.mark.parametrize("path", _cases())
def test_scenario(path: Path) -> None:
    if os.environ.get("SCENARIO_REWRITE"):
        path.write_text(rewritten(path.read_text()))
    for block, lines in happened(path.read_text()):
        if block.commands:
            assert lines == block.expected, f"after {block.commands}"


def test_no_scenario_tells_a_violation() -> None:
    telling = [path.name for path in FILES if "VIOLATION" in path.read_text()]
    assert telling == []
