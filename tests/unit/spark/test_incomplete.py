"""What a pointer says of records that the archive lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from spark.channel.fold import FoldPlan
from spark.channel.plan import BatchStep, JoinReason, Missing, Reading, ReadingPosition, incomplete


def entry(partition: int, from_offset: int, to_offset: int, strict_from: int | None = None) -> dict[str, Any]:
    return asdict(Missing(partition, from_offset, to_offset, from_offset, to_offset, strict_from))


def step(missing: Missing | None, why: JoinReason | None, strict_from: int | None = None) -> BatchStep:
    reading = Reading.JOINING if strict_from is None else Reading.STRICT
    return BatchStep(FoldPlan(2), ReadingPosition(reading=reading, strict_from=strict_from or 0), why, missing)


GAP = Missing(0, 20, 29, 20, 29, None)


def test_a_first_gap_is_an_entry() -> None:
    assert incomplete([], {0: step(GAP, JoinReason.GAP)}) == [entry(0, 20, 29)]


def test_the_newest_open_entry_of_the_partition_grows() -> None:
    before = [entry(0, 1, 2, 3), entry(0, 4, 5), entry(0, 6, 7), entry(1, 8, 9)]
    grown = [entry(0, 1, 2, 3), entry(0, 4, 5), entry(0, 6, 7) | {"to_offset": 29, "to_ms": 29}, entry(1, 8, 9)]
    assert incomplete(before, {0: step(GAP, None)}) == grown
    assert before[2] == entry(0, 6, 7)


def test_one_that_has_ended_does_not_grow() -> None:
    before = [entry(0, 1, 2, 3), entry(1, 8, 9)]
    assert incomplete(before, {0: step(GAP, JoinReason.GAP)}) == [*before, entry(0, 20, 29)]


def test_who_vouches_ends_all_of_the_partition() -> None:
    before = [entry(0, 1, 2, 3), entry(0, 4, 5), entry(1, 8, 9)]
    ended = [entry(0, 1, 2, 3), entry(0, 4, 5, 40), entry(1, 8, 9)]
    assert incomplete(before, {0: step(None, JoinReason.AGAIN, 40)}) == ended


def test_a_gap_that_somebody_vouches_behind_grows_and_ends() -> None:
    missing = Missing(0, 20, 29, 20, 29, 40)
    ended = [entry(0, 4, 5, 40) | {"to_offset": 29, "to_ms": 29}]
    assert incomplete([entry(0, 4, 5)], {0: step(missing, JoinReason.GAP, 40)}) == ended
    assert incomplete([], {0: step(missing, JoinReason.GAP, 40)}) == [entry(0, 20, 29, 40)]


def test_a_cold_start_ends_none() -> None:
    before = [entry(0, 4, 5)]
    assert incomplete(before, {0: step(None, JoinReason.COLD_START, 40)}) == before
