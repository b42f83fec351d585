"""Every command of the model comes to what it says, and a rule that is taken away is missed."""

from __future__ import annotations

import re

import pytest

from tests.model.commands import FOLDER, MODEL, SLOW, answers, widened

LINES = 600


def test_every_command_comes_to_what_it_says() -> None:
    outcomes = [*answers()]
    assert [answer.command for answer in outcomes if answer.satisfiable != answer.expected] == []
    assert {answer.expected for answer in outcomes} == {False, True}
    assert not any(answer.command.startswith(SLOW) for answer in outcomes)


def test_every_rule_can_be_taken_away() -> None:
    text = MODEL.read_text()
    rules = re.findall(r"\w+", re.sub("//.*", "", text.split("enum Rule {")[1].split("}")[0]))
    assert len(rules) > 12
    assert {f"Without{rule}" for rule in rules} == set(re.findall(r"^check (Without\w+)", text, re.MULTILINE))
    assert all(text.count(f"rule[{rule}]") for rule in rules)


def test_the_model_is_short() -> None:
    assert sum(len(file.read_text().splitlines()) for file in FOLDER.glob("*.als")) <= LINES


def test_a_wider_scope_is_that_of_claims_alone() -> None:
    text = MODEL.read_text()
    wide = widened(text, 9)
    assert wide.count("9 Version, 9 Record expect 0") == text.count("expect 0") > 3
    assert re.findall(".*expect 1", wide) == re.findall(".*expect 1", text)
    assert widened(text, 2) == text


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="NoSuch"):
        next(answers(only="NoSuch"))
