"""Loads and decisions as of a moment: what counted in their topics then, no more and no less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from loaddata.report.record import Tombstone
from shedders.balancer.settings import BalancerSettings
from shedders.decisions.history import DecisionRead
from shedders.decisions.record import OutcomeRecord
from shedders.queries import decisions as decision_queries
from shedders.queries import live_source
from shedders.queries.decisions import DecisionsQuery
from shedders.queries.live_source import LoadsQuery
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.light_topic import LightBatch
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.protocol.side_record import SideRecord
from statechannel.queries.connection import Notes
from tests.support.decision_records import AT_MS, IDS, WHOLE, move, record
from tests.support.load_reports import record as load_record
from tests.support.load_rows import top_record

TTL_MS = round(1_000 * BalancerSettings().load.ttl_s)
THEN_MS = 10 * TTL_MS
NAMES = LoadTopics("channel")
CONNECTION: Any = SimpleNamespace(
    client=None, timeout_s=1.0, topics=SimpleNamespace(channel="channel", reader_group="group"), reporter=Notes()
)


def load(broker: str, offset: int, at_ms: int) -> SideRecord:
    return load_record(broker, offset, seq=offset + 1, timestamp_ms=at_ms)


def deleted(broker: str, offset: int, last_offset: int, at_ms: int) -> SideRecord:
    return SideRecord(broker.encode(), None, Tombstone("leaving", last_offset, at_ms).headers(), offset, at_ms)


def lay(monkeypatch: pytest.MonkeyPatch, loads: Sequence[SideRecord], tops: Sequence[SideRecord] = ()) -> None:
    """The load topics have these records, in two batches."""

    class Reader:
        last_error = None

        def __init__(self, _: object, name: str, sink: Any, *, group_id: str) -> None:
            self._records, self._sink = {NAMES.broker_load: loads, NAMES.top_bundles: tops}[name], sink
            assert group_id == "group"

        def start(self) -> None:
            for number, records in enumerate((self._records[:1], self._records[1:])):
                self._sink(LightBatch(records, number == 0, len(self._records), number == 1))

        def wait_caught_up(self, _: float) -> bool:
            return True

        def close(self, _: float) -> bool:
            return True

    CONNECTION.reporter = Notes()
    monkeypatch.setattr(live_source, "LightReader", Reader)
    monkeypatch.setattr(live_source, "TopicAdmin", lambda *_, **__: SimpleNamespace(describe=lambda names: names))
    monkeypatch.setattr(live_source, "balancer_settings", lambda _: BalancerSettings())
    monkeypatch.setattr(live_source, "notify_if_slow", nullcontext)
    monkeypatch.setattr(live_source, "naming_address", nullcontext)


LATEST = [load("b1", 0, THEN_MS - 10), load("b1", 1, THEN_MS), load("b1", 2, THEN_MS + 1)]
DELETED = [load("b1", 0, THEN_MS - 20), deleted("b1", 1, 0, THEN_MS - 10)]


@pytest.mark.parametrize(
    ("records", "at_ms", "seen"),
    [
        ([], THEN_MS, []),
        (LATEST, None, [("b1", THEN_MS + 1)]),
        (LATEST, THEN_MS + 1, [("b1", THEN_MS + 1)]),
        (LATEST, THEN_MS, [("b1", THEN_MS)]),
        (LATEST, THEN_MS - 1, [("b1", THEN_MS - 10)]),
        (LATEST, THEN_MS - 11, []),
        ([load("b1", 0, THEN_MS - TTL_MS)], THEN_MS, [("b1", THEN_MS - TTL_MS)]),
        ([load("b1", 0, THEN_MS - TTL_MS - 1)], THEN_MS, []),
        ([load("b1", 0, THEN_MS - TTL_MS - 1)], None, [("b1", THEN_MS - TTL_MS - 1)]),
        ([load("b2", 0, THEN_MS), load("b1", 1, THEN_MS)], THEN_MS, [("b1", THEN_MS), ("b2", THEN_MS)]),
        (DELETED, None, []),
        (DELETED, THEN_MS, []),
        (DELETED, THEN_MS - 11, [("b1", THEN_MS - 20)]),
        ([*DELETED, load("b1", 2, THEN_MS)], THEN_MS, [("b1", THEN_MS)]),
        ([load("b1", 3, THEN_MS - 1), deleted("b1", 4, 2, THEN_MS)], THEN_MS, [("b1", THEN_MS - 1)]),
        ([load("b1", 3, THEN_MS), SideRecord(b"b1", None, (), 4, THEN_MS)], THEN_MS, [("b1", THEN_MS)]),
    ],
)
def test_the_loads_of_a_moment(
    monkeypatch: pytest.MonkeyPatch, records: Sequence[SideRecord], at_ms: int | None, seen: Sequence[tuple[str, int]]
) -> None:
    lay(monkeypatch, records)
    document = live_source.loads(CONNECTION, LoadsQuery(at_ms=at_ms))
    assert [(row["broker"], row["logged_at_ms"]) for row in document["brokers"]] == seen
    assert (document["bundles"], CONNECTION.reporter.sentences) == ([], [])


@pytest.mark.parametrize(
    ("at_ms", "brokers"),
    [
        (None, ["b2"]),
        (THEN_MS + 1, ["b2"]),
        (THEN_MS, ["b1", "b2"]),
        (THEN_MS - 1, ["b1"]),
        (THEN_MS - 6, []),
        (THEN_MS + TTL_MS + 1, []),
    ],
)
def test_the_heaviest_bundles_of_a_moment(monkeypatch: pytest.MonkeyPatch, at_ms: int | None, brokers: Sequence[str]):
    tops = [
        top_record("b1", 0, 1, 1, THEN_MS - 5),
        top_record("b2", 1, 1, 1, THEN_MS),
        deleted("b1", 2, 0, THEN_MS + 1),
    ]
    lay(monkeypatch, [], tops)
    document = live_source.loads(CONNECTION, LoadsQuery(at_ms=at_ms))
    assert [row["broker"] for row in document["bundles"]] == brokers


def test_a_topic_that_is_not_there_has_no_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    lay(monkeypatch, LATEST)
    monkeypatch.setattr(live_source, "TopicAdmin", lambda *_, **__: SimpleNamespace(describe=lambda _: []))
    document = live_source.loads(CONNECTION, LoadsQuery(at_ms=THEN_MS))
    assert (document["brokers"], document["bundles"], len(CONNECTION.reporter.sentences)) == ([], [], 1)


def ended(number: int) -> OutcomeRecord:
    return OutcomeRecord(
        decision=IDS[number], bundle=WHOLE, operation="o", result="moved", why="", at_ms=AT_MS, took_ms=1.0, term=7,
        leader="b1",
    )  # fmt: skip


READS = [
    DecisionRead(0, AT_MS, record(1, moves=[move()])),
    DecisionRead(1, AT_MS + 10, record(2)),
    DecisionRead(2, AT_MS + 20, ended(1)),
    DecisionRead(3, AT_MS + 30, record(3)),
]


@pytest.mark.parametrize(
    ("since_ms", "limit", "until_ms", "seen"),
    [
        (AT_MS, 9, None, [1, 2, 3]),
        (AT_MS, 9, AT_MS + 30, [1, 2, 3]),
        (AT_MS, 9, AT_MS + 29, [1, 2]),
        (AT_MS, 9, AT_MS - 1, []),
        (AT_MS + 1, 9, AT_MS + 29, [2]),
        (AT_MS, 1, None, [3]),
        (AT_MS, 1, AT_MS + 29, [2]),
        (AT_MS + 31, 9, None, []),
    ],
)
def test_the_decisions_between_two_moments(
    monkeypatch: pytest.MonkeyPatch, since_ms: int, limit: int, until_ms: int | None, seen: Sequence[int]
) -> None:
    document = decisions_between(monkeypatch, READS, since_ms, limit, until_ms)
    assert [row["id"] for row in document["decisions"]] == [IDS[number] for number in seen]
    assert (document["since_ms"], document["unreadable"]) == (since_ms, {})


@pytest.mark.parametrize(("until_ms", "results"), [(AT_MS + 19, [None]), (AT_MS + 20, ["moved"]), (None, ["moved"])])
def test_the_result_of_a_move_is_known_from_its_record_on(
    monkeypatch: pytest.MonkeyPatch, until_ms: int | None, results: Sequence[str | None]
) -> None:
    document = decisions_between(monkeypatch, READS[:3], AT_MS, 9, until_ms)
    assert [move["result"] for move in document["decisions"][0]["moves"]] == results


def test_without_their_topic_there_are_no_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decisions_between(monkeypatch, None, AT_MS, 9, None)["decisions"] == []


def decisions_between(
    monkeypatch: pytest.MonkeyPatch,
    reads: Sequence[DecisionRead] | None,
    since_ms: int,
    limit: int,
    until_ms: int | None,
) -> dict[str, Any]:
    class Reader:
        def read(self, *, since_ms: int) -> Iterator[DecisionRead]:
            return (read for read in reads or () if read.timestamp_ms >= since_ms)

    @contextmanager
    def reader(_: object) -> Iterator[Reader]:
        if reads is None:
            raise TopicMissingError("the topic does not exist")
        yield Reader()

    monkeypatch.setattr(decision_queries, "decision_reader", reader)
    return decision_queries.decisions(CONNECTION, DecisionsQuery(since_ms=since_ms, limit=limit, until_ms=until_ms))
