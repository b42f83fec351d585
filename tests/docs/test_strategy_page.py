"""The example of design/writing-a-strategy.md is a strategy that keeps every rule; that of design/snapshot.md is a snapshot."""

import re
from pathlib import Path
from types import ModuleType

from shedders.conformance.checker import conform
from shedders.snapshots.file import parse_snapshot

DESIGN = Path(__file__).parents[2] / "design"


def block(page: str, language: str) -> str:
    """The first block of that language."""
    found = re.search(
        rf"^```{language}\n(.*?)^```", (DESIGN / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return found.group(1)


def test_the_example_keeps_every_rule() -> None:
    module = ModuleType("example")
    exec(block("writing-a-strategy.md", "python"), module.__dict__)
    findings = conform("shedding", "fewest", module.Fewest, hashes=False)
    assert [(one.rule, one.how) for one in findings if not one.passed] == []
    how = next(one.how for one in findings if one.rule.startswith("its plans"))
    assert int(how.removesuffix(" moves checked")) > 0


def test_the_least_snapshot_is_one() -> None:
    snapshot = parse_snapshot(block("snapshot.md", "json").encode())
    assert list(snapshot.brokers) == ["b1:8080", "b2:8080"]
