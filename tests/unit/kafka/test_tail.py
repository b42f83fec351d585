"""Reading one partition up to an end, or following it, and asking where it ends (a scripted client)."""

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from statechannel.kafka import partition_consumer, tail
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import (
    AppendOutcomeUnknownError,
    KafkaAccessDeniedError,
    KafkaClientError,
    KafkaUnavailableError,
)
from statechannel.kafka.tail import BlockingWriter, PartitionTail, Span, append_and_wait, side_tail
from statechannel.kafka.topic_policy import plans_topic
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.scripted_consumer import ScriptedConsumer, end, event, record

SETTINGS = ClientSettings("h:1", tuning=KafkaSettings.model_construct(topic_grace_s=0.01))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> ScriptedConsumer:
    scripted = ScriptedConsumer()
    monkeypatch.setattr(partition_consumer, "Consumer", lambda _: scripted)
    return scripted


def open_tail(**how: Any) -> PartitionTail:
    return PartitionTail(SETTINGS, Topic.REGISTRY, "c", 0, group_id="g", **{"timeout_s": 0.2, **how})


# --- where it begins and ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "at", "span"),
    [
        (0, None, Span(2, 2, 8)),
        (5, None, Span(2, 5, 8)),
        (9, None, Span(2, 9, 8)),
        (0, 4, Span(2, 4, 8)),
        (5, 0, Span(2, 2, 8)),  # a time counts, not the start
        (0, -1, Span(2, 8, 8)),  # nothing was written at that time or later
    ],
)
def test_the_span_of_a_partition(client: ScriptedConsumer, start: int, at: int | None, span: Span) -> None:
    client.marks = (2, 8)
    client.times = [SimpleNamespace(offset=at, error=None)]
    assert open_tail().span(start=start, from_time_ms=None if at is None else 77) == span
    assert [asked[0] for asked in client.asked.get("times", [])] == ([] if at is None else [("c", 0, 77)])


def test_the_end_of_another_partition(client: ScriptedConsumer) -> None:
    client.marks = (2, 8)
    assert open_tail().end_of(3) == 8
    assert client.asked["marks"][0][:2] == ("c", 3)


@pytest.mark.parametrize(
    ("marks", "answers"),
    [((0, 0), True), (None, False), (KafkaError._TRANSPORT, False), (KafkaError.UNKNOWN_TOPIC_OR_PART, False)],
)
def test_whether_kafka_answers_now(client: ScriptedConsumer, marks: Any, answers: bool) -> None:
    client.marks = marks
    assert open_tail().answers(0.1) is answers
    assert client.asked["marks"] == [("c", 0, 0.1)]


def test_a_refusal_is_no_outage(client: ScriptedConsumer) -> None:
    client.marks = KafkaError.TOPIC_AUTHORIZATION_FAILED
    for ask in (lambda: open_tail().answers(0.1), lambda: open_tail().span(), lambda: open_tail().end_of(1)):
        with pytest.raises(KafkaAccessDeniedError):
            ask()


def test_the_reason_that_the_client_gave_is_said_where_nothing_answers(client: ScriptedConsumer, monkeypatch):
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(partition_consumer, "Consumer", lambda config: configs.append(config) or client)
    client.marks = None
    opened = open_tail()
    with pytest.raises(KafkaUnavailableError) as quiet:
        opened.span()
    configs[0]["error_cb"](KafkaError(KafkaError._TRANSPORT, "connection refused"))
    with pytest.raises(KafkaUnavailableError, match="connection refused"):
        opened.span()
    assert "querying the end of c-0" in str(quiet.value)


# --- reading up to an end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "script", "offsets"),
    [
        (Span(0, 0, 0), [], []),
        (Span(0, 4, 3), [], []),
        (Span(0, 1, 3), [record(1), record(2)], [1, 2]),
        (Span(0, 0, 3), [record(0), None, record(2)], [0, 2]),
        (Span(0, 0, 3), [record(0), record(1), record(2), record(3)], [0, 1, 2]),  # it has grown meanwhile
        (Span(0, 0, 3), [record(0), record(3), record(4)], [0]),  # the last one was compacted
        (Span(0, 0, 3), [record(0), None, end(3)], [0]),  # and nothing follows
        (Span(0, 0, 3), [end(3)], []),
        (Span(0, 2, 3), [end(1), None, record(2)], [2]),
        (Span(0, 0, 3), [event(KafkaError._TRANSPORT), record(2)], [2]),
        (Span(0, 0, 3), [event(KafkaError.UNKNOWN_TOPIC_OR_PART), None, record(0), record(2)], [0, 2]),
    ],
)
def test_what_lies_below_an_end(client: ScriptedConsumer, span: Span, script: list[Message | None], offsets: list[int]):
    client.script.extend(script)
    with open_tail() as opened:
        records = list(opened.records(span))
    assert records == [RecordRead(Topic.REGISTRY, 0, offset, 7, b"k", b"v") for offset in offsets]
    assert client.held == [], "it is not read any further"
    assert client.closed == 1
    assert client.places[:1] == ([("c", 0, span.start)] if span.start < span.end else [])


def test_an_end_that_is_never_reached_is_an_outage(client: ScriptedConsumer) -> None:
    client.script.extend([record(0), None])
    with pytest.raises(KafkaUnavailableError, match="reading c-0"):
        list(open_tail().records(Span(0, 0, 3)))
    assert client.held == []


def test_a_refusal_while_it_reads_ends_it_at_once(client: ScriptedConsumer) -> None:
    client.script.extend([record(0), event(KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    with pytest.raises(KafkaAccessDeniedError):
        list(open_tail().records(Span(0, 0, 3)))


def test_a_topic_that_is_unknown_for_a_moment_is_asked_for_once_and_read_on(client: ScriptedConsumer) -> None:
    client.script.extend([record(0), event(KafkaError.UNKNOWN_TOPIC_OR_PART), None, None, record(2)])
    assert [one.offset for one in open_tail().records(Span(0, 0, 3))] == [0, 2]
    assert len(client.asked["marks"]) == 1
    assert client.places == [("c", 0, 0), ("c", 0, 1)]


def test_headers_are_shown_before_the_record(client: ScriptedConsumer) -> None:
    seen: list[Any] = []
    client.script.extend([record(0, headers=[("a", b"1")]), record(1), record(2, headers=[("b", b"2")])])
    for one in open_tail(observe_headers=lambda *what: seen.append(what)).records(Span(0, 0, 2)):
        seen.append(one.offset)
    assert seen == [(0, (("a", b"1"),)), (2, (("b", b"2"),)), 0, 1]


def test_a_side_topic_is_read_by_its_own_group(client: ScriptedConsumer) -> None:
    seen: list[Any] = []
    client.script.extend([record(0, headers=[("a", b"1")])])
    opened = side_tail(SETTINGS, plans_topic("c"), 0.2, lambda *what: seen.append(what))
    assert [one.offset for one in opened.records(Span(0, 0, 1))] == [0]
    assert client.places == [("c", 0, 0)]
    assert len(seen) == 1


# --- following --------------------------------------------------------------------------------------------------------


def test_a_follower_gets_an_empty_batch_after_each_quiet_moment_and_all_that_comes(client: ScriptedConsumer) -> None:
    client.script.extend([record(4), record(5), None, event(KafkaError._TRANSPORT), record(9)])
    batches = []
    for batch in open_tail().follow(4, lambda: len(batches) >= 4):
        batches.append([one.offset for one in batch])
    assert batches == [[4, 5], [], [9], []]
    assert client.held == []


def test_a_follower_waits_for_any_time(client: ScriptedConsumer) -> None:
    rounds = count()
    batches = list(open_tail(timeout_s=0.0).follow(4, lambda: next(rounds) >= 50))
    assert len(batches) > 50
    assert not any(batches)


# --- writing ----------------------------------------------------------------------------------------------------------


EVENT, NOTHING = "event", "nothing"


class Producer:
    """Answers each record with the next outcome, by a poll; has room for `room` records.

    Attributes:
        outcomes: Offsets and errors; `EVENT`: the client served something else, `NOTHING`: nothing. None left: no answer.
    """

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.outcomes: list[Any] = []
        self.room = 10
        self.refuses: Exception | None = None
        self.taken: list[dict[str, Any]] = []
        self.waiting: list[Callable[..., None]] = []
        self.purged = 0

    def produce(self, topic: str, **record: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        if len(self.waiting) >= self.room:
            raise BufferError
        self.waiting.append(record.pop("on_delivery"))
        self.taken.append(record | {"topic": topic})

    def poll(self, _: float) -> int:
        if not self.waiting or not self.outcomes:
            return 0
        if isinstance(self.outcomes[0], str):
            return int(self.outcomes.pop(0) == EVENT)
        outcome, deliver = self.outcomes.pop(0), self.waiting.pop(0)
        if isinstance(outcome, KafkaError):
            deliver(outcome, None)
        else:
            deliver(None, SimpleNamespace(offset=lambda: outcome))
        return 1

    def flush(self, _: float) -> int:
        return len(self.waiting)

    def purge(self) -> None:
        self.purged += 1


class Clock:
    """A time that goes on by a tenth of a second with each look at it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        self.now_s += 0.1
        return self.now_s


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    made = Producer()

    def make(config: dict[str, Any]) -> Producer:
        made.config = config
        return made

    monkeypatch.setattr(tail, "Producer", make)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stepping = Clock()
    monkeypatch.setattr(tail, "time", stepping)
    return stepping


def writer(timeout_s: float = 5.0, **how: Any) -> BlockingWriter:
    return BlockingWriter(SETTINGS, "t", "writing to t", timeout_s=timeout_s, **how)


def test_a_record_is_written_with_its_place_and_its_headers(producer: Producer) -> None:
    producer.outcomes = [7]
    result = writer().write([(3, b"k", None)], (("a", b"1"),))
    assert (result.produced, result.written, result.offset) == (1, 1, 7)
    assert producer.taken == [{"topic": "t", "partition": 3, "key": b"k", "value": None, "headers": [("a", b"1")]}]


@pytest.mark.parametrize(("timeout_s", "config_ms"), [(5.0, 5_000), (0.25, 250), (0.0, 1)])
def test_the_client_gives_up_when_its_caller_does(producer: Producer, timeout_s: float, config_ms: int) -> None:
    writer(timeout_s)
    assert producer.config["delivery.timeout.ms"] == config_ms
    writer(timeout_s, properties={"delivery.timeout.ms": 9})
    assert producer.config["delivery.timeout.ms"] == 9


@pytest.mark.parametrize(("timeout_s", "config_ms"), [(60.0, 5_000), (2.0, 2_000), (0.0, 1)])
def test_an_answer_may_take_no_longer_than_the_append(producer: Producer, timeout_s: float, config_ms: int) -> None:
    producer.outcomes = [7]
    assert append_and_wait(SETTINGS, "t", 0, key=b"k", value=b"v", timeout_s=timeout_s) == 7
    assert producer.config["request.timeout.ms"] == config_ms


def test_a_queue_that_is_full_is_waited_for_as_long_as_records_leave_it(producer: Producer, clock: Clock) -> None:
    producer.room, producer.outcomes = 1, list(range(200))
    result = writer(timeout_s=1.0).write([(0, b"k", b"v")] * 200)
    assert (result.written, result.unanswered, result.offset) == (200, 0, 199)


def test_whatever_the_client_serves_shows_that_it_is_not_stuck(producer: Producer, clock: Clock) -> None:
    producer.room = 1
    producer.outcomes = [*[EVENT, NOTHING, NOTHING] * 20, 5, 6]
    result = writer(timeout_s=1.0).write([(0, b"k", b"v")] * 2)
    assert (result.written, result.offset) == (2, 6)


def test_a_queue_that_stays_full_ends_the_write(producer: Producer, clock: Clock) -> None:
    producer.room, producer.outcomes = 1, [5]
    began_s = clock.now_s
    opened = writer(timeout_s=2.0)
    result = opened.write([(0, b"k", b"v")] * 9)
    assert (result.produced, result.written, result.unanswered) == (3, 1, 2)
    assert 4.0 < clock.now_s - began_s < 7.0, "for the queue, then for the answers"
    with pytest.raises(AppendOutcomeUnknownError):
        opened.require(result)


def test_closing_gives_up_only_what_is_left(producer: Producer) -> None:
    opened = writer()
    opened.close(0.0)
    assert producer.purged == 0
    producer.waiting.append(lambda *_: None)
    opened.close(0.0)
    assert producer.purged == 1


@pytest.mark.parametrize(
    ("outcomes", "error"),
    [
        ([KafkaError(KafkaError._MSG_TIMED_OUT)], AppendOutcomeUnknownError),
        ([KafkaError(KafkaError._TIMED_OUT)], AppendOutcomeUnknownError),
        ([], AppendOutcomeUnknownError),
        ([KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)], KafkaAccessDeniedError),
        ([-1], AppendOutcomeUnknownError),
    ],
)
def test_what_is_not_confirmed(producer: Producer, clock: Clock, outcomes: list[Any], error: type[Exception]) -> None:
    """Without an answer the client gives the record up, so that it is not written later."""
    producer.outcomes = list(outcomes)
    with pytest.raises(error) as caught:
        append_and_wait(SETTINGS, "t", 0, key=b"k", value=b"v", timeout_s=1.0)
    assert producer.purged == (not outcomes)
    assert outcomes or KafkaError(KafkaError._MSG_TIMED_OUT).name() in str(caught.value)


def test_why_nothing_was_confirmed_is_the_clients_last_error(producer: Producer, clock: Clock) -> None:
    opened = writer(1.0)
    producer.config["error_cb"](KafkaError(KafkaError._TRANSPORT, "connection refused"))
    assert opened.last_error is not None
    result = opened.write([(0, b"k", b"v")])
    assert opened.last_error is None, "an error of before says nothing of this write"
    producer.config["error_cb"](KafkaError(KafkaError._TRANSPORT, "connection refused"))
    with pytest.raises(AppendOutcomeUnknownError, match="connection refused"):
        opened.require(result)


def test_what_the_client_does_not_take_is_an_error_of_ours(producer: Producer) -> None:
    producer.refuses = KafkaException(KafkaError(KafkaError._FATAL))
    with pytest.raises(KafkaClientError, match="writing to t"):
        writer().write([(0, b"k", b"v")])


def test_a_refusal_for_good_is_noted(producer: Producer) -> None:
    settings = ClientSettings("h:1")
    producer.outcomes = [KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), KafkaError(KafkaError.INVALID_RECORD)]
    opened = BlockingWriter(settings, "t", "writing to t", timeout_s=5.0)
    result = opened.write([(0, b"k", b"v")] * 2)
    assert (result.failed, result.unanswered) == (2, 0)
    with pytest.raises(KafkaClientError):
        opened.require(result)
    assert [refusal.code for refusal in settings.notes.refusals] == ["MSG_SIZE_TOO_LARGE"]
