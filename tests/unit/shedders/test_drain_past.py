"""What leaders before this one moved for a drain, as decision records tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ulid import ULID

from shedders.balancer import decision_history
from shedders.balancer.decision_history import DecisionHistory, is_drain_id, moved_for
from shedders.decisions.builder import outcome_record, shed_record
from shedders.decisions.history import DecisionRead, RecallBounds
from shedders.decisions.record import DRAIN, AnyRecord, DrainPart, InvalidDecisionReason
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.protocol.side_record import InvalidRecord
from tests.support.decision_records import AT_MS, IDS, LOWER, NAMESPACE, UPPER, WHOLE, decision, move, occasion, record

DRAIN_ID = str(ULID.from_timestamp(AT_MS / 1_000))
ONE, OTHER = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"


def drained(number: int, *bundles: str, drain: str = DRAIN_ID, broker: str = "b1") -> AnyRecord:
    moves = [move(bundle) for bundle in bundles]
    said = decision(moves=moves, why="3 bundles are left")
    belongs = DrainPart(id=drain, broker=broker)
    return shed_record(occasion(number, strategy=DRAIN, trigger="request", settings={"drain": {}}, drain=belongs), said)


def test_moves_of_the_same_drain_count() -> None:
    assert moved_for(drained(1, ONE, OTHER), DRAIN_ID, "b1", ()) == [ONE, OTHER]
    assert moved_for(drained(1, ONE), DRAIN_ID, "b1", {IDS[1]}) == [], "it is this leader's own"
    assert moved_for(drained(1, ONE), DRAIN_ID, "b2", ()) == []
    assert moved_for(drained(1, ONE, drain="01OTHER"), DRAIN_ID, "b1", ()) == []
    assert moved_for(record(1, moves=[move(ONE)], why=f"drain {DRAIN_ID} of b1: "), DRAIN_ID, "b1", ()) == []
    ended = outcome_record(
        IDS[1], ONE, "done", f"drain {DRAIN_ID} of b1: ", at_ms=1, term=1, leader="b1", operation=None
    )
    assert moved_for(ended, DRAIN_ID, "b1", ()) == []
    assert moved_for(InvalidRecord(InvalidDecisionReason.FORMAT, DRAIN_ID), DRAIN_ID, "b1", ()) == []


@pytest.mark.parametrize(
    ("text", "good"),
    [(DRAIN_ID, True), ("01OP", True), ("", False), ("x" * 65, False), ('a"b', False), (5, False)],
    ids=["ulid", "short", "empty", "long", "quote", "number"],
)
def test_what_may_be_an_id(text: object, good: bool) -> None:
    assert is_drain_id(text) is good


class Reader:
    """The topic of decisions."""

    asked: dict[str, Any]
    records: list[AnyRecord]

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self, **asked: Any) -> Any:
        Reader.asked = asked
        return iter([DecisionRead(number, AT_MS, record) for number, record in enumerate(Reader.records)])


def before(bounds: RecallBounds | None = None, drain: str = DRAIN_ID) -> Any:
    client, topics = ClientSettings("h:1"), decisions_topic("chan")
    history = DecisionHistory(client, topics, 5.0, lambda: bounds or RecallBounds(), lambda: 0.0)
    return asyncio.run(history.moved(drain, "b1", {IDS[3]}))


def test_the_topic_is_read_from_shortly_before_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_history, "DecisionReader", Reader)
    Reader.records = [drained(1, ONE), drained(2, ONE, OTHER), drained(3, WHOLE)]
    assert before() == {ONE, OTHER}
    assert not Reader.asked.pop("stop")()
    assert Reader.asked == {"since_ms": AT_MS - 600_000, "about": [DRAIN_ID]}
    assert before(drain="01OP") == frozenset()
    assert Reader.asked["since_ms"] is None, "an id that tells no time"


def test_it_ends_where_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_history, "DecisionReader", Reader)
    Reader.records = [drained(1, ONE)]
    assert before(RecallBounds(time_s=-1.0)) is None
    assert Reader.asked["stop"](), "also where no record speaks of it"
