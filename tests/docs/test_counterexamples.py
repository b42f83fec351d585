"""Each rule of the protocol that has a counterexample is needed for it, and is enough."""

import pytest

from tests.docs.counterexamples import COUNTEREXAMPLES, Counterexample, read, without
from tests.mutants import planted


@pytest.mark.parametrize("example", COUNTEREXAMPLES, ids=lambda example: example.plant)
def test_a_member_that_joins_without_the_rule_is_wrong(example: Counterexample) -> None:
    with_rule = read(example)
    assert with_rule.in_debt or with_rule.agree
    with planted(example.plant):
        bent = read(example)
    assert not bent.in_debt
    assert not bent.agree


@pytest.mark.parametrize("example", COUNTEREXAMPLES, ids=lambda example: example.plant)
def test_the_log_is_the_smallest(example: Counterexample) -> None:
    """No record can be left out."""
    for offset in range(len(example.log)):
        with planted(example.plant):
            shorter = read(without(example, offset))
        assert shorter.in_debt or shorter.agree, f"offset {offset} is not needed"
