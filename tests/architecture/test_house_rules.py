"""The rules of the house: nothing new offends, and what was mended leaves the list of offenders."""

import ast

import pytest

from tests.architecture import house_rules
from tests.architecture.house_rules import RULES, grown, shrunk, stored


@pytest.mark.parametrize("rule", RULES)
def test_nothing_new_offends_and_what_was_mended_has_left_the_list(rule):
    """`python -m tests.architecture.house_rules` takes out what was mended."""
    allowed, present = stored()[rule], RULES[rule]()
    assert grown(allowed, present) == {}
    assert shrunk(allowed, present) == {}


@pytest.mark.parametrize(
    "code",
    [
        'record.why.startswith("drain ")',
        '"; " in outcome.detail',
        'f" {unit}" in why',
        're.match("x", error.message)',
        'str(error).split(": ")',
        'head, _, tail = hint.partition("; ")',
        '_WHY.fullmatch(policy.why or "")',
    ],
)
def test_a_text_that_is_read_back_is_seen(code):
    assert sum(house_rules.reads_text(node) for node in ast.walk(ast.parse(code))) == 1


@pytest.mark.parametrize(
    "code", ['record.reason == "stale-version"', "verdict.reason in REASONS", 'name.startswith("t/")']
)
def test_stable_codes_and_names_may_be_compared(code):
    assert not any(house_rules.reads_text(node) for node in ast.walk(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["for one in brokers: pass", "found = 1", "def told(): pass", "lambda it: it", "[x for one in y]"]
)
def test_a_name_that_says_nothing_is_seen(code):
    assert sum(house_rules.binds_house_name(node) for node in ast.walk(ast.parse(code))) == 1


def test_a_circle_for_type_checkers_only_is_seen(tmp_path, monkeypatch):
    package = tmp_path / "circled"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "engine.py").write_text("import circled.part\n")
    (package / "part.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circled.engine import Engine\n"
    )
    (package / "other.py").write_text("import circled.engine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert house_rules.circles(house_rules.graph_of("circled")) == {"circled.engine": 2, "circled.part": 2}


def test_more_of_the_same_offends_and_less_of_it_shrinks():
    assert grown({"a": 2}, {"a": 3, "b": 1}) == {"a": 3, "b": 1}
    assert grown({"a": 2}, {"a": 2}) == {}
    assert shrunk({"a": 2, "b": 1, "c": 1}, {"a": 1, "c": 1}) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("text", "dangling"),
    [
        ("see the record format", 1),
        ("protocol section 5", 1),
        ("the source document, section 2", 1),
        ("protocol.md section 5", 0),
        ("protocol.md section 99", 1),
        ("nowhere.md", 1),
        ("decision 1", 0),
    ],
)
def test_a_page_or_section_that_is_not_there_is_seen(text, dangling):
    assert house_rules.dangling_in(text) == dangling


def test_reasons_are_given_for_files_that_are_there():
    named = {*house_rules.KEPT_SMALL, *house_rules.READ_BACK_KEPT}
    assert named <= set(house_rules.modules())
    assert all(house_rules.KEPT_SMALL.values())
