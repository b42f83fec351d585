"""The page of the Python API names everything that is public, and every stable word that the code uses."""

import ast
from collections.abc import Iterator

from statechannel.api import FlightStatus, MemberStatus, PartitionStatus, RuntimeStatus
from statechannel.broker.exits import STOP_REASONS
from tests.architecture.public_api import MODULES
from tests.docs.api_page import GROUPS, api_page, documented
from tests.docs.generate import ROOT
from tests.support.lone_member import lone_channel


def test_every_public_name_is_on_the_page() -> None:
    shown = [name for _, names in GROUPS.values() for name in names]
    unions = ["Outcome", "RouteAnswer"]  # each is any of the answers
    assert sorted([*shown, *unions]) == sorted(name for module in MODULES for name in module.__all__)
    page = "\n".join(api_page())
    assert [name for name in shown if f"### {name}\n" not in page] == []
    assert [odd for odd in ("\n\n\n", "ForwardRef") if odd in page] == []


async def test_the_keys_of_status_are_those_of_its_types() -> None:
    async with lone_channel() as channel:
        status = channel.status()
    assert status.keys() == MemberStatus.__annotations__.keys()
    assert status["runtime"].keys() == RuntimeStatus.__annotations__.keys()
    assert status["partitions"][0].keys() == PartitionStatus.__annotations__.keys()
    flight = ast.parse((ROOT / "statechannel/engine/engine.py").read_text(encoding="utf-8"))
    keys = [[key.value for key in node.keys] for node in ast.walk(flight) if isinstance(node, ast.Dict)]  # type: ignore[union-attr]
    assert list(FlightStatus.__annotations__) in keys


def _stop_reasons() -> Iterator[str]:
    """First arguments of `Stopped(...)` and of calls of `stop` in the code."""
    for file in (ROOT / "statechannel").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("Stopped", "StopEngine", "stop", "_stop") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def test_every_reason_of_an_end_is_explained_and_no_other() -> None:
    assert set(_stop_reasons()) | {"log-away"} == set(STOP_REASONS)


def test_a_docstring_becomes_lists() -> None:
    text = "Does it.\n\nMore.\n\nArgs:\n    a, b: One\n        and two.\n    c: Three.\n\nReturns:\n    A value.\n\nThe end."
    assert [line for line in documented(text) if line] == [
        "Does it.", "More.", "Arguments:", "- `a`, `b`: One", "  and two.", "- `c`: Three.", "Returns:", "- A value.", "The end.",
    ]  # fmt: skip
