"""Every line about a member names its broker: a program that embeds several filters by it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("statechannel/api", "statechannel/broker")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
UNBOUND = {"_log"}
"""Loggers of modules; one that a member has bound to its broker is an attribute or an argument."""
OF_NO_MEMBER = {"topic-reader-late", "topic-reader-failed"}
"""Side topics are read outside members, too."""


def lines_without_broker() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                logger = node.func.value
                if node.func.attr not in LEVELS or not isinstance(logger, ast.Name) or logger.id not in UNBOUND:
                    continue
                event = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
                if event not in OF_NO_MEMBER and not any(word.arg == "broker" for word in node.keywords):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {event}"


def test_every_line_about_a_member_has_its_broker() -> None:
    assert list(lines_without_broker()) == []
