"""Runs of records travel together, and nothing changes its place."""

from __future__ import annotations

from random import Random

import pytest

from statechannel.core.inputs import Input, PositionReached, RecordRead, RecordsRead, Tick, Topic
from statechannel.runtime.portions import portions


def _taken_apart(inputs: list[Input]) -> list[Input]:
    apart: list[Input] = []
    for item in inputs:
        apart += item.records if isinstance(item, RecordsRead) else [item]
    return apart


@pytest.mark.parametrize("seed", range(50))
def test_the_order_stays(seed: int) -> None:
    rng = Random(seed)
    inputs: list[Input] = []
    for offset in range(rng.randint(0, 1_500)):
        topic = rng.choices((Topic.CHANNEL, Topic.REQUESTS), (300, 1))[0]
        inputs.append(RecordRead(topic, rng.choices((0, 1), (400, 1))[0], offset, 0, b"k", b"v"))
        if rng.random() < 0.004:
            inputs.append(rng.choice((Tick(), PositionReached(Topic.CHANNEL, 0, offset + 1))))
    assert _taken_apart(list(portions(inputs))) == inputs


def test_a_long_run_is_one_input_of_one_partition() -> None:
    runs = [
        [RecordRead(Topic.CHANNEL, partition, offset, 0, None, None) for offset in range(200)] for partition in (0, 1)
    ]
    assert list(portions([*runs[0], *runs[1]])) == [RecordsRead(runs[0]), RecordsRead(runs[1])]


def test_a_few_live_records_come_one_by_one() -> None:
    few = [RecordRead(Topic.CHANNEL, 0, offset, 0, None, None) for offset in range(100)]
    assert list(portions(few)) == few
