"""A digest of behaviour changes with what the product does, and only with that."""

import pytest

from tests.behaviour import digests
from tests.mutants import planted


def test_a_sentence_in_a_record_does_not_matter_and_all_else_does() -> None:
    assert digests.stable(b'{"id":"a","reason":"one"}') == digests.stable(b'{"id":"a","reason":"another"}')
    assert digests.stable(b'{"id":"a"}') != digests.stable(b'{"id":"b"}')
    assert digests.stable(None) != digests.stable(b"")


@pytest.mark.parametrize(("level", "plant"), [("protocol", "stale-version-taken-for-clean"), ("engine", "repair-died")])
def test_a_bent_rule_changes_the_digest_of_a_few_seeds(level: str, plant: str) -> None:
    straight = digests.seeds(level, 0, 2)
    assert digests.seeds(level, 0, 2) == straight
    with planted(plant):
        assert digests.seeds(level, 0, 2) != straight
