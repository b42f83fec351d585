"""Pages on policies and strategies, and the code, say the same."""

import re
from pathlib import Path

import orjson
import pytest

from shedders.model.strategy import KINDS
from shedders.policies.effective import Force
from shedders.policies.kinds import REQUIRED, RULES, PolicyKind
from shedders.policies.record import InvalidPolicyReason, PolicyRecord, decode, decode_key, encode
from tests.docs.strategy_pages import own, prose

PAGE = (Path(__file__).parents[3] / "design" / "policies.md").read_text(encoding="utf-8")
EXAMPLES = re.search(r"^Examples.*?^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE).group(1).splitlines()  # type: ignore[union-attr]


@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: line.partition(" ")[0])
def test_examples_are_records(line: str) -> None:
    key, _, value = line.partition(" ")
    record = decode(decode_key(key.encode()), value.encode())
    assert isinstance(record, PolicyRecord), record
    loaded = orjson.loads(value)
    assert loaded.items() <= orjson.loads(encode(record)).items()


def test_every_kind_has_an_example() -> None:
    assert {decode_key(line.partition(" ")[0].encode()).kind for line in EXAMPLES} == set(PolicyKind)  # type: ignore[union-attr]


def row(kind: PolicyKind) -> list[str]:
    [lines] = [line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |") and line.count("|") == 5]
    return [cell.strip() for cell in lines.split("|")[1:-1]]


@pytest.mark.parametrize("kind", PolicyKind)
def test_the_table_has_the_fields_of_each_kind(kind: PolicyKind) -> None:
    result = row(kind)[2]
    assert re.findall(r"`(\w+)`", result) == [field.name for field in RULES[kind].fields]
    defaults = [field for field in RULES[kind].fields if field.default is not REQUIRED]
    if kind is PolicyKind.QUOTA:
        assert result.endswith("each = 0")
        assert {default.default for default in defaults} == {0.0}
    else:
        assert re.findall(r"`(\w+)` = (\S+?)(?:,|$)", result) == [
            (default.name, f"{default.default:g}" if isinstance(default.default, float) else str(default.default))
            for default in defaults
        ]


def test_the_words_are_on_the_page() -> None:
    for word in (*InvalidPolicyReason, *Force):
        assert f"`{word}`" in PAGE


# --- strategies: what they say of themselves -------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_strategy_gives_an_example_and_its_source(kind: str) -> None:
    for name, strategy in own(kind).items():
        text = " ".join(prose(strategy.__doc__ or "")).lower()
        assert "example" in text, name
        assert "source:" in text, name


def test_formulas_stand_apart_and_what_callers_need_is_left_out() -> None:
    text = "Does it.\n\nWith x:\n\n    x = 1\n\n    y | 2\n\nThen more.\n\nArgs:\n    can_take: Filters."
    expected = ["Does it.", "", "With x:", "", "```text", "x = 1", "", "y | 2", "```", "", "Then more."]
    assert list(prose(text)) == expected
