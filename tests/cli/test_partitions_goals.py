"""`statechannel partitions goals` prints what the goals say of themselves."""

import json

import pytest
from typer.testing import CliRunner

from shedders.kafka_rebalance.cli.command import goals_app
from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.goals.table import DEFAULTS, OF_MODES, OWN, every, explained


def test_list_has_all_goals_in_their_order() -> None:
    result = CliRunner().invoke(goals_app, ["list", "--output", "json"])
    assert result.exit_code == 0
    assert [goal["name"] for goal in json.loads(result.stdout)["goals"]] == [*OWN, *OF_MODES]
    table = CliRunner().invoke(goals_app, ["list"], env={"COLUMNS": "300"}).stdout
    assert all(name in table for name in (*OWN, *OF_MODES))


def test_explain_prints_the_formula_and_the_source() -> None:
    result = CliRunner().invoke(goals_app, ["explain", "disk"])
    assert result.exit_code == 0
    assert "mean x (1 - range) <= bytes of its replicas <= mean x (1 + range)" in result.stdout
    assert "Source: Cruise Control's" in result.stdout
    document = json.loads(CliRunner().invoke(goals_app, ["explain", "cpu-capacity", "--output", "json"]).stdout)
    assert (document["hard"], document["range_share"], document["needs"]) == (True, 0.7, ["CPU"])


def test_a_goal_that_does_not_exist_is_named_with_what_was_meant() -> None:
    result = CliRunner().invoke(goals_app, ["explain", "dsik"])
    assert isinstance(result.exception, RequestRefusedError)
    with pytest.raises(RequestRefusedError, match="unknown goal `dsik`") as caught:
        raise result.exception
    assert "Did you mean `disk`?" in caught.value.hint


@pytest.mark.parametrize("name", [*OWN, *OF_MODES])
def test_each_goal_gives_its_formula_its_moves_an_example_and_its_source(name: str) -> None:
    text = explained(name).text
    for part in ("Formula, for each", "Moves: ", "Example: ", "Source: "):
        assert part in text, part


def test_modes_go_by_goals_that_there_are() -> None:
    assert {name for names in DEFAULTS.values() for name in names} <= set(OWN)
    assert [item.name for item in every()][: len(OWN)] == list(OWN)
