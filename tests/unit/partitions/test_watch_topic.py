"""Who holds the autopilot, by the order of its topic: claims, silence, generations, compaction."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

import orjson
import pytest

from shedders.kafka_rebalance.execution.session import host_name
from shedders.kafka_rebalance.settings import WatchSettings
from shedders.kafka_rebalance.watch import watcher
from shedders.kafka_rebalance.watch.topic import (
    CLAIM,
    STATE,
    WatchBook,
    WatcherIdentity,
    WatchStateNewerError,
    WatchStateUnusableError,
    claim_record,
    state_record,
)
from shedders.kafka_rebalance.watch.values import Spending, WatchState
from shedders.kafka_rebalance.watch.watcher import PartitionWatcher, RecordedPlan, WatchEvent
from statechannel.kafka.errors import KafkaUnavailableError

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


def test_one_with_a_time_from_the_future_is_succeeded_as_any_other() -> None:
    """Kafka's clock was ahead when it wrote last: it does not hold the autopilot until that time comes."""
    topic = Topic()
    topic.claim(7_200, A)
    assert not topic.claim(10, B)
    assert topic.book.newest_ms == 10_000
    assert topic.claim(71, B)


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


def test_foreign_records_are_counted_and_newer_versions_are_known() -> None:
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
    assert (book.junk, book.holder, book.newer) == (4, None, 2)
    with pytest.raises(WatchStateNewerError, match="version 2"):
        book.require_known()


@pytest.mark.parametrize("field", ["generation", "pid"])
@pytest.mark.parametrize("number", [10**30, "7", True, 1.5])
def test_numbers_that_no_watcher_writes_are_junk(field: str, number: object) -> None:
    key, value = state_record(A, 1, WatchState())
    book = WatchBook(AWAY_S)
    book.take(0, 0, key, json.dumps({**json.loads(value), field: number}).encode())
    assert (book.junk, book.holder) == (1, None)


def packed(document: object) -> str:
    return base64.b64encode(zlib.compress(orjson.dumps(document))).decode()


@pytest.mark.parametrize(
    "state", ["eA==", packed([]), packed({**WatchState().to_json(), "brokers": []}), packed({"hold": 1})]
)
def test_a_state_that_cannot_be_parsed_is_an_error(state: str) -> None:
    topic = Topic()
    topic.claim(0, A)
    key, value = state_record(A, 1, WatchState())
    topic.write(1, (key, orjson.dumps({**orjson.loads(value), "state": state})))
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


class Here:
    """A watcher on a topic, without a cluster."""

    def __init__(self, topic: Topic, who: WatcherIdentity) -> None:
        self.topic, self.at_s = topic, 0
        self.events: list[WatchEvent] = []
        self.watcher = PartitionWatcher(who, WatchSettings(away_s=AWAY_S), self, Away(), Idle(), self.events.append)  # type: ignore[arg-type]

    def read(self) -> WatchBook:
        return self.topic.book

    def append(self, record: tuple[bytes, bytes]) -> None:
        self.topic.write(self.at_s, record)

    def tick(self, at_s: int) -> None:
        self.at_s = at_s
        self.watcher.tick(at_s * 1_000)


class Away:
    """A cluster that does not answer."""

    def look(self) -> None:
        raise KafkaUnavailableError("no answer")


class Idle:
    """Executes nothing."""

    running, paused, end = False, False, None

    def recorded(self, plan_id: str) -> RecordedPlan:
        del plan_id
        return RecordedPlan()


def test_a_beat_repeats_the_state_and_stops_when_another_one_holds() -> None:
    topic = Topic()
    first, second = Here(topic, A), Here(topic, B)
    first.tick(0)
    assert topic.holder == "a"
    state = topic.book.state
    for at_s in (50, 100, 150):
        first.at_s = at_s
        first.watcher.beat()
        second.tick(at_s)
    assert (topic.holder, topic.book.state) == ("a", state)
    second.tick(211)
    assert topic.holder == "b"
    first.at_s = 212
    first.watcher.beat()
    assert topic.holder == "b"
    assert not topic.book.mended
    first.tick(213)
    records = len(topic.records)
    first.watcher.beat()
    assert len(topic.records) == records, "it has seen that another one holds"
    second.tick(213)
    assert topic.book.mended


def test_where_a_newer_version_has_written_this_one_does_not_act_and_writes_nothing() -> None:
    topic = Topic()
    first = Here(topic, A)
    first.tick(0)
    assert topic.holder == "a"
    key, value = claim_record(B, topic.book.holder)
    topic.write(1, (key, value.replace(b'"v":1', b'"v":2')))
    records = len(topic.records)
    for at_s in (2, 100, 1_000):
        with pytest.raises(WatchStateNewerError):
            first.tick(at_s)
        first.watcher.beat()
    with pytest.raises(WatchStateNewerError):
        Here(topic, C).tick(2_000)
    first.watcher.leave()
    assert len(topic.records) == records


def test_one_that_leaves_is_followed_at_once() -> None:
    topic = Topic()
    first, second = Here(topic, A), Here(topic, B)
    first.tick(0)
    second.tick(1)
    assert [event.kind for event in second.events] == ["standby"]
    first.watcher.leave()
    second.tick(2)
    assert topic.holder == "b"


def test_a_wrong_clock_takes_nothing_over_and_does_not_flood_the_topic() -> None:
    topic = Topic()
    first, ahead = Here(topic, A), Here(topic, B)
    for at_s in range(0, 600, 5):
        first.tick(at_s)
        ahead.at_s = at_s  # the log's time
        ahead.watcher.tick((at_s + 10_000) * 1_000)
    assert topic.holder == "a"
    assert sum(row[2] == CLAIM for row in topic.records) <= 1 + 600 / (AWAY_S / 2)
    behind = Here(topic, C)
    for at_s in range(600, 900, 5):
        behind.at_s = at_s
        behind.watcher.tick((at_s - 500) * 1_000)
    assert topic.holder == "c", "silence is noticed by waiting, too"


@pytest.mark.parametrize("ahead_s", [0, 60, 40 * 86_400])
def test_a_clock_that_is_ahead_forgets_no_spent_bytes(ahead_s: int) -> None:
    """What was spent and moved leaves its window by the time of the log, also at the first look and after a pause."""
    topic = Topic()
    topic.claim(0, A)
    spent = (Spending(plan_id="p", from_ms=1_000, to_ms=2_000, size_bytes=7),)
    topic.write(2, state_record(A, 1, WatchState(spent=spent, moved={("t", 0): 2_000}), left=True))
    late = Here(topic, B)
    for at_s in (3, 8, 13, 50_000, 50_005):
        late.at_s = at_s
        late.watcher.tick((at_s + ahead_s) * 1_000)
        assert topic.holder == "b"
        assert topic.book.state is not None
        assert topic.book.state.spent == spent
        assert topic.book.state.moved == {("t", 0): 2_000}
    window_s = WatchSettings().budget_window_s
    for at_s in (int(window_s) + 100, int(window_s) + 105):
        late.at_s = at_s
        late.watcher.tick((at_s + ahead_s) * 1_000)
    assert topic.book.state is not None
    assert topic.book.state.spent == (), "the window is over"


@pytest.mark.parametrize("ahead_s", [-3_600, 0, 3_600])
def test_a_wrong_clock_decides_by_the_time_of_the_log(ahead_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    here = Here(topic, A)
    times_ms: list[int] = []
    plain = watcher.step

    def step(settings: WatchSettings, now_ms: int, *more: Any) -> Any:
        times_ms.append(now_ms)
        return plain(settings, now_ms, *more)

    monkeypatch.setattr(watcher, "step", step)
    for count, at_s in enumerate((100_000, 101_000, 103_000), 1):
        here.at_s = at_s
        here.watcher.tick((at_s + ahead_s) * 1_000)
        assert len(times_ms) == count
        assert abs(at_s - times_ms[-1] / 1_000) <= AWAY_S / 2


def test_a_clock_that_jumps_ahead_forgets_no_spent_bytes() -> None:
    topic = Topic()
    topic.claim(0, A)
    spent = (Spending(plan_id="p", from_ms=1_000, to_ms=2_000, size_bytes=7),)
    topic.write(2, state_record(A, 1, WatchState(spent=spent), left=True))
    here = Here(topic, B)
    for at_s, clock_s in ((3, 3), (8, 10**8), (13, 10**8 + 5), (18, 18)):
        here.at_s = at_s
        here.watcher.tick(clock_s * 1_000)
        assert topic.book.state is not None
        assert topic.book.state.spent == spent
