"""Whether topics are still the opened ones: an answer that may be of a broker that knows less counts only if the next agrees."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from statechannel.kafka import topic_watch
from statechannel.kafka.admin import Place
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_watch import TopicFindings, TopicWatch
from statechannel.kafka.topics import TopicInfo

PLACE = ("c", 0)
INTERVAL_S, RETRY_S = 5.0, 0.5
MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
SILENT = KafkaError(KafkaError._TIMED_OUT)
REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Admin:
    """Answers about one topic.

    Attributes:
        identity: Id of the topic, or why there is no answer.
        end: Where its only partition ends, or why there is no answer.
        waits: No answer has arrived yet.
    """

    def __init__(self) -> None:
        self.identity: str | KafkaError = "id"
        self.end: int | KafkaError = 10
        self.waits = False
        self.open: list[Future[Any]] = []
        self.rounds = 0

    @property
    def client(self) -> Admin:
        return self

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        partitions = [SimpleNamespace(id=0)]
        return {
            name: self._answer(self.identity, topic_id=self.identity, partitions=partitions)
            for name in topics.topic_names
        }

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **_: object) -> dict[TopicPartition, Future[Any]]:
        assert wanted, "the client refuses to ask for nothing"
        self.rounds += any(isinstance(spec, type(OffsetSpec.latest())) for spec in wanted.values())
        return {
            place: self._answer(self.end, offset=self.end if isinstance(spec, type(OffsetSpec.latest())) else 0)
            for place, spec in wanted.items()
        }

    def _answer(self, value: object, **facts: object) -> Future[Any]:
        future: Future[Any] = Future()
        if self.waits:
            self.open.append(future)
            return future
        if isinstance(value, KafkaError):
            future.set_exception(KafkaException(value))
        else:
            future.set_result(SimpleNamespace(**facts))
        return future


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    answers = Admin()
    monkeypatch.setattr(topic_watch, "AdminHandle", lambda _: answers)
    return answers


class Bench:
    """A watch, in a time of its own."""

    def __init__(self, topics: Iterable[str] = ("c",), timeout_s: float = 3.0) -> None:
        infos = [TopicInfo(name, "id", 1, 1, {}) for name in topics]
        settings = ClientSettings("127.0.0.1:1")
        self.watch = TopicWatch(settings, infos, interval_s=INTERVAL_S, retry_s=RETRY_S, timeout_s=timeout_s)
        self.now_s = 1_000.0

    def round(self, position: int = 10) -> TopicFindings:
        """The findings of one whole round, as soon as it is due."""
        while True:
            if self.watch.due(self.now_s):
                findings = self.watch.poll(self.now_s, {PLACE: position})
                if findings is not None:
                    return findings
            self.now_s += 0.125


def test_the_topic_that_was_opened_is_clear(admin: Admin) -> None:
    findings = Bench().round()
    assert findings.answered
    assert findings.broken == {}
    assert findings.ends == {PLACE: 10}
    assert findings.clears(PLACE, findings.asked_s)
    assert not findings.clears(PLACE, findings.asked_s + 0.1), "it was asked before the doubt"


def test_another_id_is_certain_at_once(admin: Admin) -> None:
    admin.identity = "another"
    findings = Bench().round()
    assert findings.broken.keys() == {PLACE}
    assert not findings.clears(PLACE, 0.0)


@pytest.mark.parametrize("suspicion", ["missing", "ends before what was read"])
def test_what_two_answers_in_a_row_say_is_believed(admin: Admin, suspicion: str) -> None:
    bench = Bench()
    _raise(admin, suspicion)
    first = bench.round()
    assert first.broken == {}
    assert not first.clears(PLACE, 0.0), "who doubts the partition goes on doubting"
    began_s = bench.now_s
    assert bench.round().broken.keys() == {PLACE}
    assert bench.now_s - began_s < INTERVAL_S, "a suspicion is not left alone for a whole interval"


@pytest.mark.parametrize("suspicion", ["missing", "ends before what was read"])
def test_a_suspicion_that_the_next_answer_lifts_is_forgotten(admin: Admin, suspicion: str) -> None:
    bench = Bench()
    for _ in range(3):
        _raise(admin, suspicion)
        assert bench.round().broken == {}
        admin.identity, admin.end = "id", 10
        assert bench.round().broken == {}
    began_s = bench.now_s
    bench.round()
    assert bench.now_s - began_s >= INTERVAL_S, "all is well again"


@pytest.mark.parametrize("suspicion", ["missing", "ends before what was read"])
def test_a_round_without_an_answer_neither_confirms_nor_lifts_a_suspicion(admin: Admin, suspicion: str) -> None:
    bench = Bench()
    _raise(admin, suspicion)
    assert bench.round().broken == {}
    admin.identity = admin.end = SILENT
    silent = bench.round()
    assert not silent.answered
    assert silent.broken == {}
    assert not silent.clears(PLACE, 0.0)
    admin.identity, admin.end = "id", 10
    _raise(admin, suspicion)
    assert bench.round().broken.keys() == {PLACE}


def test_the_end_may_be_where_the_reader_is(admin: Admin) -> None:
    bench = Bench()
    for _ in range(3):
        assert bench.round(position=10).broken == {}
    assert [bench.round(position=11).broken.keys() for _ in range(2)] == [set(), {PLACE}]


@pytest.mark.parametrize(("end", "known"), [(0, {PLACE: 0}), (-1, {})])
def test_an_empty_log_ends_at_0_and_below_that_is_no_end(admin: Admin, end: int, known: dict[Place, int]) -> None:
    admin.end = end
    bench = Bench()
    assert [bench.round(position=1).ends for _ in range(2)] == [known] * 2
    assert bench.round(position=1).broken.keys() == known.keys(), "it was read to 1, and ends before that"


def test_a_refusal_says_nothing_of_the_topic(admin: Admin) -> None:
    admin.identity = REFUSED
    bench = Bench()
    for _ in range(3):
        assert bench.round().broken == {}


def test_a_refusal_is_an_answer_and_a_time_out_is_none(admin: Admin) -> None:
    admin.identity = admin.end = REFUSED
    assert Bench().round().answered
    admin.identity = admin.end = SILENT
    bench = Bench()
    assert not bench.round().answered
    began_s = bench.now_s
    bench.round()
    assert bench.now_s - began_s < INTERVAL_S, "it is asked again soon"


def test_of_a_topic_that_it_did_not_open_only_the_end_is_asked(admin: Admin) -> None:
    admin.identity = "another"
    findings = Bench(topics=()).round()
    assert findings.broken == {}
    assert findings.ends == {PLACE: 10}


def test_one_round_at_a_time_as_often_as_wanted_and_at_once_when_hurried(admin: Admin) -> None:
    bench = Bench()
    admin.waits = True
    bench.watch.poll(bench.now_s, {PLACE: 0})
    for second in range(20):
        assert bench.watch.poll(bench.now_s + second, {PLACE: 0}) is None
    assert admin.rounds == 1
    admin.waits = False
    bench = Bench()
    bench.round()
    assert not bench.watch.due(bench.now_s + INTERVAL_S - 0.1)
    assert bench.watch.due(bench.now_s + INTERVAL_S)
    bench.watch.hurry()
    assert bench.watch.due(bench.now_s)


def test_before_its_time_no_round_begins(admin: Admin) -> None:
    bench = Bench()
    bench.round()
    assert bench.watch.poll(bench.now_s + INTERVAL_S - 0.1, {PLACE: 10}) is None
    assert admin.rounds == 1
    admin.waits = True
    assert bench.watch.poll(bench.now_s + INTERVAL_S, {PLACE: 10}) is None
    assert admin.rounds == 2
    assert bench.watch.due(bench.now_s), "a round is to be collected, whenever it is complete"


def test_closing_waits_for_the_round_under_way_but_not_for_ever(admin: Admin) -> None:
    bench = Bench(timeout_s=0.5)
    admin.waits = True
    bench.watch.poll(bench.now_s, {PLACE: 10})
    ended = threading.Timer(0.2, lambda: [future.set_result(None) for future in admin.open])
    ended.start()
    bench.watch.close()
    assert all(future.done() for future in admin.open)
    late = Bench(timeout_s=-0.9)
    late.watch.poll(late.now_s, {PLACE: 10})
    late.watch.close()
    assert not all(future.done() for future in admin.open)


def test_where_nothing_is_open_nothing_is_asked(admin: Admin) -> None:
    bench = Bench()
    assert bench.watch.poll(bench.now_s, {}) is None
    assert admin.rounds == 0


def _raise(admin: Admin, suspicion: str) -> None:
    if suspicion == "missing":
        admin.identity = MISSING
    else:
        admin.end = 9
