"""What goals say of themselves, which design/reference/partitions-goals.md is made from."""

import pytest

from shedders.kafka_rebalance.goals.table import DEFAULTS, OF_MODES, OWN, every, explained


@pytest.mark.parametrize("name", [*OWN, *OF_MODES])
def test_each_goal_gives_its_formula_its_moves_an_example_and_its_source(name: str) -> None:
    text = explained(name).text
    for part in ("Formula, for each", "Moves: ", "Example: ", "Source: "):
        assert part in text, part


def test_modes_go_by_goals_that_there_are() -> None:
    assert {name for names in DEFAULTS.values() for name in names} <= set(OWN)
    assert [item.name for item in every()][: len(OWN)] == list(OWN)
