"""The comparison of logs that tests leave in a Kafka sees a difference."""

import pytest

from tests.mutants import planted
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS, by_partition, difference, record_of, seeds


def _differences() -> list[str]:
    results = []
    for seed in seeds(20):
        log = loggen.generate(seed, KNOBS["wild"])
        parts = by_partition(log)
        results += [difference(map(record_of, lines), number, len(parts)) for number, lines in parts.items()]
    return [text for text in results if text]


def test_both_implementations_say_the_same_of_every_record() -> None:
    assert _differences() == []


@pytest.mark.parametrize(
    "bug", ["base-unchecked", "duplicate-taken-for-clean", "version-reset", "debts-die-with-namespace"]
)
def test_a_bent_rule_is_seen(bug: str) -> None:
    with planted(bug):
        assert _differences() != []
