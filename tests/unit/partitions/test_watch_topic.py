"""Who holds the autopilot, by the order of its topic: claims, silence, generations, compaction."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random

import orjson
import pytest

from shedders.kafka_rebalance.execution.session import host_name
from shedders.kafka_rebalance.watch.topic import (
    CLAIM,
    STATE,
    WatchBook,
    WatcherIdentity,
    WatchStateUnusableError,
    claim_record,
    state_record,
)
from shedders.kafka_rebalance.watch.values import WatchState

AWAY_S = 60.0
A, B, C = (WatcherIdentity(name=name, host=f"host-{name}", pid=1) for name in "abc")
Record = tuple[int, int, bytes, bytes]


class Topic:
    """A log, and a reader of it from its beginning."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.book = WatchBook(AWAY_S)

    def write(self, at_s: int, record: tuple[bytes, bytes]) -> None:
        row = (len(self.records), at_s * 1_000, *record)
        self.records.append(row)
        self.book.take(*row)

    def claim(self, at_s: int, watcher: WatcherIdentity) -> bool:
        self.write(at_s, claim_record(watcher, self.book.holder))
        return self.holder == watcher.name

    def state(self, at_s: int, watcher: WatcherIdentity, generation: int, *, left: bool = False) -> None:
        self.write(at_s, state_record(watcher, generation, WatchState(looked_at_ms=at_s), left=left))

    @property
    def holder(self) -> str | None:
        return None if self.book.holder is None else self.book.holder.watcher.name


def read(records: Sequence[Record]) -> WatchBook:
    book = WatchBook(AWAY_S)
    for row in records:
        book.take(*row)
    return book


def test_the_first_claim_holds_and_a_second_one_waits_for_its_silence() -> None:
    topic = Topic()
    first, second = claim_record(A, None), claim_record(B, None)  # both have read an empty topic
    topic.write(0, first)
    topic.write(0, second)
    assert topic.holder == "a"
    topic.state(10, A, 1)
    assert not topic.claim(70, B)
    assert topic.claim(71, B)
    assert topic.book.holder is not None
    assert topic.book.holder.generation == 2
    assert topic.book.state == WatchState(looked_at_ms=10), "the state of the one before is taken over"


def test_one_that_has_left_is_succeeded_at_once() -> None:
    topic = Topic()
    topic.claim(0, A)
    topic.state(1, A, 1, left=True)
    assert topic.claim(1, B)


def test_one_that_died_on_this_host_is_succeeded_at_once() -> None:
    topic = Topic()
    gone = WatcherIdentity(name="gone", host=host_name(), pid=2**22 + 1)
    lives = WatcherIdentity(name="lives", host=host_name(), pid=os.getpid())
    topic.claim(0, gone)
    assert topic.claim(1, lives)
    assert not topic.claim(2, A)


def test_of_two_that_take_over_together_one_does() -> None:
    topic = Topic()
    topic.claim(0, A)
    before = topic.book.holder
    topic.write(100, claim_record(B, before))
    topic.write(100, claim_record(C, before))
    assert topic.holder == "b"


def test_one_that_was_replaced_cannot_write_and_its_record_is_replaced_too() -> None:
    topic = Topic()
    topic.claim(0, A)
    topic.state(1, A, 1)
    topic.claim(100, B)
    topic.state(101, B, 2)
    topic.state(102, A, 1)
    assert topic.holder == "b"
    assert topic.book.state == WatchState(looked_at_ms=101)
    assert not topic.book.mended, "its holder writes again, before compaction"
    topic.state(103, B, 2)
    assert topic.book.mended


def test_foreign_records_and_newer_versions_are_counted() -> None:
    book = WatchBook(AWAY_S)
    good = claim_record(A, None)[1]
    for key, value in (
        (None, b"x"),
        (STATE, None),
        (CLAIM, b"{}"),
        (b"other", good),
        (CLAIM, good.replace(b'"v":1', b'"v":2')),
    ):
        book.take(0, 0, key, value)
    assert (book.junk, book.holder) == (5, None)


def test_a_state_that_cannot_be_parsed_is_an_error() -> None:
    topic = Topic()
    topic.claim(0, A)
    key, value = state_record(A, 1, WatchState())
    topic.write(1, (key, orjson.dumps({**orjson.loads(value), "state": "eA=="})))
    with pytest.raises(WatchStateUnusableError, match="cannot be parsed"):
        _ = topic.book.state


@pytest.mark.parametrize("seed", range(30))
def test_a_compacted_log_says_the_same(seed: int) -> None:
    """Random watchers, some of them late by hours; of records older than an hour the last of each key stays."""
    rng, topic, at_s = Random(seed), Topic(), 0
    generations: dict[str, int] = {}
    for _ in range(120):
        at_s += rng.choice((1, 5, 20, 70, 200))
        watcher, holder = rng.choice((A, B, C)), topic.book.holder
        if holder is not None and holder.watcher == watcher:
            generations[watcher.name] = holder.generation
            topic.state(at_s, watcher, holder.generation, left=rng.random() < 0.1)
        elif rng.random() < 0.15 and watcher.name in generations:
            topic.state(at_s, watcher, generations[watcher.name])  # it does not know yet that it was replaced
        else:
            topic.claim(at_s, watcher)
        if not topic.book.mended:
            assert topic.book.holder is not None
            topic.state(at_s, topic.book.holder.watcher, topic.book.holder.generation)
        last = {row[2]: row[0] for row in topic.records}
        kept = [row for row in topic.records if row[1] > (at_s - 3_600) * 1_000 or last[row[2]] == row[0]]
        again = read(kept)
        assert again.holder == topic.book.holder
        assert again.state == topic.book.state
