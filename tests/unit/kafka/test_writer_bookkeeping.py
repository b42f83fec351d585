"""Each token ends exactly once, whatever the producer does (a scripted producer, no broker)."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from statechannel.engine.effects import Append
from statechannel.engine.inputs import Appended, AppendFailed
from statechannel.engine.kafka_limits import RefusalReason
from statechannel.kafka import writer as writer_module
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.writer import LogWriter
from statechannel.protocol.log import Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.kafka_adapter import Inbox
from tests.support.waits import WAIT_S, wait_until

NAMES = {Topic.CHANNEL: "c", Topic.REGISTRY: "r"}


class Clock:
    """Real time, and what tests skip of it."""

    skipped_s = 0.0

    @classmethod
    def monotonic(cls) -> float:
        return time.monotonic() + cls.skipped_s


@pytest.fixture(autouse=True)
def _no_idle_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that does not end the pause of an idle writer at once would never be reported."""
    monkeypatch.setattr(writer_module, "time", Clock)
    monkeypatch.setattr(writer_module, "_IDLE_S", 3_600.0)


class Message:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset

    def topic(self) -> str:
        return "c"

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v" * 99


class ScriptedProducer:
    """Keeps what it is given; the test decides what becomes of it, inside `poll` as the real one."""

    created: "list[ScriptedProducer]"

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.held: list[Callable[..., None]] = []
        self.groups: list[int] = []
        self.places: list[tuple[str, int]] = []
        self.reports: list[Callable[[], None]] = []
        self.refuse_with: Exception | None = None
        self.raises: list[BaseException] = []
        self.lose_on_purge = False
        self.purged_as = KafkaError._PURGE_QUEUE
        self.is_purged = False
        self._lock = threading.Lock()

    def produce(self, topic: str, *, on_delivery: Callable[..., None], partition: int, **_: object) -> None:
        if self.refuse_with is not None:
            raise self.refuse_with
        with self._lock:
            self.places.append((topic, partition))
            self.held.append(on_delivery)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], partition: int) -> int:
        """Like the real one: what it does not take carries an error."""
        if isinstance(self.refuse_with, KafkaException):
            raise self.refuse_with
        self.groups.append(len(messages))
        self.places += [(topic, partition)] * len(messages)
        for message in messages:
            if self.refuse_with is not None:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL)
            else:
                with self._lock:
                    self.held.append(message["callback"])
        return sum("_error" not in message for message in messages)

    def poll(self, timeout: float) -> int:
        with self._lock:
            due, self.reports = self.reports, []
        for report in due:
            report()
        if self.raises:
            raise self.raises.pop()
        if self.is_purged and self.lose_on_purge:
            Clock.skipped_s += 1.0
        elif not due:
            threading.Event().wait(min(timeout, 0.005))
        return len(due)

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        assert in_queue
        assert in_flight
        assert not blocking, "the reports are served by `poll`"
        self.is_purged = True
        with self._lock:
            held, self.held = self.held, []
        if not self.lose_on_purge:
            self.report(held, KafkaError(self.purged_as))

    def report(self, deliveries: list[Callable[..., None]], error: KafkaError | None, offset: int = 0) -> None:
        with self._lock:
            self.reports += [
                lambda d=delivery, o=offset + i: d(error, Message(o)) for i, delivery in enumerate(deliveries)
            ]

    def fail_for_good(self) -> None:
        error = KafkaError(KafkaError._FATAL, "out of sequence", True)
        with self._lock:
            self.reports.append(lambda: self.config["error_cb"](error))


class Rig:
    def __init__(self, *, properties: dict[str, str] | None = None, **tuning: int) -> None:
        self.producers: list[ScriptedProducer] = []
        self.inbox = Inbox()
        self.failures: list[BaseException] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.unanswered: list[int] = []
        self.writer = LogWriter(
            ClientSettings("h:1", properties or {}, tuning=KafkaSettings.model_construct(**tuning)),
            NAMES,
            self._take,
            on_failure=self.failures.append,
            make_producer=self._make,
        )

    def _make(self, config: dict[str, Any]) -> ScriptedProducer:
        self.producers.append(ScriptedProducer(config))
        return self.producers[-1]

    def _take(self, report: Any) -> None:
        self.goes_on.wait(WAIT_S)
        self.unanswered.append(self.writer.unanswered)
        self.inbox.put(report)

    def append(self, *tokens: int) -> None:
        for token in tokens:
            self.writer.append(Append(token, Topic.CHANNEL, 0, b"k", b"v"))


@pytest.fixture
def rig() -> Any:
    rig = Rig()
    yield rig
    rig.writer.close(0.01)


def test_reports_carry_offset_and_session(rig: Rig) -> None:
    rig.append(1, 2)
    rig.producers[0].report(rig.producers[0].held, None, offset=40)
    assert rig.writer.flush(5)
    assert rig.inbox.inputs == [Appended(1, 40, 1), Appended(2, 41, 1)]


TOO_LARGE = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
REFUSALS = [(BufferError("full"), "_QUEUE_FULL"), (TOO_LARGE, "MSG_SIZE_TOO_LARGE"), (KafkaException(), "_QUEUE_FULL")]


@pytest.mark.parametrize(("refusal", "code"), REFUSALS)
def test_a_record_that_was_refused_before_queueing_was_never_written(rig: Rig, refusal: Exception, code: str) -> None:
    rig.producers[0].refuse_with = refusal
    rig.append(1)
    assert rig.writer.flush(5)
    (failed,) = rig.inbox.of(AppendFailed)
    assert (failed.token, failed.never_written, failed.code) == (1, True, code)


REFUSED = [
    (KafkaError.MSG_SIZE_TOO_LARGE, "MSG_SIZE_TOO_LARGE", RefusalReason.TOO_LARGE),
    (KafkaError.RECORD_LIST_TOO_LARGE, "RECORD_LIST_TOO_LARGE", RefusalReason.TOO_LARGE),
    (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TOPIC_AUTHORIZATION_FAILED", RefusalReason.DENIED),
    (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "CLUSTER_AUTHORIZATION_FAILED", RefusalReason.DENIED),
    (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", RefusalReason.DENIED),
    (KafkaError.INVALID_RECORD, "INVALID_RECORD", RefusalReason.INVALID),
    (KafkaError.INVALID_TIMESTAMP, "INVALID_TIMESTAMP", RefusalReason.INVALID),
    (KafkaError.INVALID_REQUIRED_ACKS, "INVALID_REQUIRED_ACKS", RefusalReason.INVALID),
    (KafkaError.POLICY_VIOLATION, "POLICY_VIOLATION", RefusalReason.INVALID),
    (KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, "UNSUPPORTED_FOR_MESSAGE_FORMAT", RefusalReason.INVALID),
]


@pytest.mark.parametrize(("code", "name", "reason"), REFUSED)
def test_a_permanent_refusal_by_kafka_is_reported_as_one_with_its_code(
    rig: Rig, code: int, name: str, reason: RefusalReason
) -> None:
    """An earlier try may be in the log all the same: the outcome stays unknown."""
    rig.append(1)
    rig.producers[0].report(rig.producers[0].held, KafkaError(code))
    (failed,) = rig.inbox.wait_answers(1)
    assert isinstance(failed, AppendFailed)
    assert (failed.code, failed.refusal.code, failed.refusal.reason, failed.refusal.topic) == (name, name, reason, "c")
    assert not failed.never_written


def test_what_the_client_refuses_for_its_size_names_the_limit_of_the_client() -> None:
    rig = Rig(properties={"message.max.bytes": "20000"})
    rig.producers[0].refuse_with = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    rig.append(1)
    (failed,) = rig.inbox.wait_answers(1)
    assert isinstance(failed, AppendFailed)
    assert "message.max.bytes = 20000" in failed.refusal.message
    assert failed.never_written
    rig.writer.close(0.01)


@pytest.mark.parametrize(
    "code",
    [KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT, KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.KAFKA_STORAGE_ERROR],
)
def test_what_may_pass_is_no_refusal(rig: Rig, code: int) -> None:
    rig.append(1)
    rig.producers[0].report(rig.producers[0].held, KafkaError(code))
    (failed,) = rig.inbox.wait_answers(1)
    assert isinstance(failed, AppendFailed)
    assert failed.refusal is None
    assert failed.code == KafkaError(code).name()


def test_a_client_that_kafka_lets_write_nothing_at_all_says_so_for_each_record(rig: Rig) -> None:
    rig.append(1)
    error = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no idempotence PID", True)
    rig.producers[0].lose_on_purge = True
    rig.producers[0].reports.append(lambda: rig.producers[0].config["error_cb"](error))
    (failed,) = rig.inbox.wait_answers(1)
    assert isinstance(failed, AppendFailed)
    assert failed.refusal.reason is RefusalReason.DENIED


@pytest.mark.parametrize("offset", [None, -1, -1001])
def test_a_success_that_names_no_offset_is_unknown_and_not_at_the_beginning(rig: Rig, offset: int | None) -> None:
    rig.append(1)
    (deliver,) = rig.producers[0].held
    rig.producers[0].reports.append(lambda: deliver(None, Message(offset)))
    (answer,) = rig.inbox.wait_answers(1)
    assert isinstance(answer, AppendFailed)
    assert (answer.token, answer.session, answer.never_written) == (1, 1, False)
    assert "without an offset" in answer.error


@pytest.mark.parametrize("lost", [False, True])
def test_a_fatal_error_ends_the_old_tokens_and_begins_a_session(rig: Rig, lost: bool) -> None:
    rig.append(1, 2)
    rig.producers[0].lose_on_purge = lost
    rig.producers[0].fail_for_good()
    answers = rig.inbox.wait_answers(2)
    assert [(a.token, a.session) for a in answers] == [(1, 1), (2, 1)]
    assert all(isinstance(a, AppendFailed) and not a.never_written for a in answers)
    assert rig.writer.session == 2
    rig.append(3)
    rig.producers[1].report(rig.producers[1].held, None, offset=7)
    assert rig.writer.flush(5)
    assert rig.inbox.inputs[-1] == Appended(3, 7, 2)


def test_more_than_a_few_wait_until_those_are_reported_and_leave_together(rig: Rig) -> None:
    producer = rig.producers[0]
    rig.append(*range(1, 11))
    assert len(producer.held) == 4
    producer.report(producer.held[:3], None, offset=0)
    rig.inbox.wait_answers(3)
    assert producer.groups == [], "one of those that were handed over is still without a report"
    producer.report(producer.held[3:4], None, offset=3)
    wait_until(lambda: producer.groups == [6])
    rig.append(11)
    producer.report(producer.held[4:], None, offset=4)
    wait_until(lambda: len(producer.held) == 11)
    producer.report(producer.held[10:], None, offset=10)
    assert rig.writer.flush(WAIT_S)
    assert rig.inbox.inputs == [Appended(token, token - 1, 1) for token in range(1, 12)]


def test_what_waits_goes_to_the_next_session(rig: Rig) -> None:
    rig.append(*range(1, 8))
    rig.producers[0].fail_for_good()
    assert [answer.token for answer in rig.inbox.wait_answers(4)] == [1, 2, 3, 4]
    wait_until(lambda: rig.producers[1].groups == [3])
    rig.producers[1].report(rig.producers[1].held, None, offset=9)
    assert rig.writer.flush(WAIT_S)
    assert rig.inbox.inputs[-3:] == [Appended(5, 9, 2), Appended(6, 10, 2), Appended(7, 11, 2)]


@pytest.mark.parametrize(("refusal", "code"), REFUSALS)
def test_of_a_group_each_record_that_the_client_does_not_take_was_never_written(
    rig: Rig, refusal: Exception, code: str
) -> None:
    rig.append(*range(1, 7))
    rig.producers[0].refuse_with = refusal
    rig.producers[0].report(rig.producers[0].held, None)
    assert rig.writer.flush(WAIT_S)
    failed = [(failed.token, failed.never_written, failed.code) for failed in rig.inbox.of(AppendFailed)]
    assert failed == [(5, True, code), (6, True, code)]


def test_records_of_a_group_reach_their_own_partitions(rig: Rig) -> None:
    producer = rig.producers[0]
    for token in range(1, 9):
        rig.writer.append(Append(token, Topic.CHANNEL, token % 2, b"k", b"v"))
    producer.report(producer.held, None, offset=0)
    wait_until(lambda: len(producer.held) == 8)
    assert producer.groups == [2, 2]
    assert producer.places[4:] == [("c", 1), ("c", 1), ("c", 0), ("c", 0)]


def test_records_of_other_topics_wait_for_none_of_the_channel(rig: Rig) -> None:
    producer = rig.producers[0]
    rig.append(*range(1, 7))
    rig.writer.append(Append(7, Topic.REGISTRY, 0, b"k", b"v"))
    assert producer.places == [("c", 0)] * 4 + [("r", 0)]
    assert rig.writer.unanswered == 7


def test_the_queue_is_bounded() -> None:
    rig = Rig(producer_queue_records=3)
    rig.append(*range(1, 10))
    failed = rig.inbox.wait_answers(2)
    expected = [(8, True), (9, True)]
    assert [(answer.token, answer.never_written) for answer in failed if isinstance(answer, AppendFailed)] == expected
    rig.writer.close(0.01)
    assert sorted(answer.token for answer in rig.inbox.inputs) == list(range(1, 10))


QUICK_MS = 100


def test_what_could_not_be_sent_for_the_time_of_a_delivery_was_never_written(quick: Rig) -> None:
    quick.append(1, 2, 3, 4, 5)
    failed = [answer for answer in quick.inbox.wait_answers(5) if isinstance(answer, AppendFailed)]
    expected = {1: False, 2: False, 3: False, 4: False, 5: True}
    assert {answer.token: answer.never_written for answer in failed} == expected


@pytest.fixture
def quick() -> Any:
    rig = Rig(delivery_timeout_ms=QUICK_MS)
    yield rig
    rig.writer.close(0.01)


def test_a_producer_is_replaced_before_a_record_times_out_in_it(quick: Rig) -> None:
    """Also where others are delivered all the time, and whether the client is stuck or Kafka slow."""
    quick.append(1)
    until_s = time.monotonic() + WAIT_S
    while quick.writer.session == 1 and time.monotonic() < until_s:
        quick.append(1_000 + len(quick.producers[0].held))
        quick.producers[0].report(quick.producers[0].held[-1:], None)
        time.sleep(QUICK_MS / 10_000)
    quick.inbox.wait_for(lambda inputs: any(isinstance(item, AppendFailed) for item in inputs))
    first = quick.inbox.of(AppendFailed)[0]
    assert (first.token, first.session, first.never_written) == (1, 1, False)
    assert quick.writer.session > 1


def test_a_record_that_timed_out_in_the_client_all_the_same_ends_the_session(rig: Rig) -> None:
    rig.append(1, 2)
    rig.producers[0].report(rig.producers[0].held[:1], KafkaError(KafkaError._MSG_TIMED_OUT))
    answers = rig.inbox.wait_answers(2)
    assert [(answer.token, answer.session) for answer in answers] == [(1, 1), (2, 1)]
    assert all(isinstance(answer, AppendFailed) and not answer.never_written for answer in answers)
    wait_until(lambda: rig.writer.session == 2)
    rig.append(3)
    rig.producers[1].report(rig.producers[1].held, None, offset=7)
    assert rig.writer.flush(WAIT_S)
    assert rig.inbox.inputs[-1] == Appended(3, 7, 2)


def test_a_producer_that_is_idle_is_kept(quick: Rig) -> None:
    time.sleep(3 * QUICK_MS / 1000)
    quick.append(1)
    quick.producers[0].report(quick.producers[0].held, None, offset=4)
    assert quick.writer.flush(WAIT_S)
    assert quick.inbox.inputs == [Appended(1, 4, 1)]


def test_a_producer_that_fails_otherwise_is_kept(rig: Rig) -> None:
    rig.append(1)
    rig.producers[0].report(rig.producers[0].held, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert rig.writer.flush(WAIT_S)
    rig.append(2)
    rig.producers[0].report(rig.producers[0].held[-1:], None, offset=4)
    assert rig.writer.flush(WAIT_S)
    assert rig.inbox.inputs[-1] == Appended(2, 4, 1)


def test_what_a_client_says_that_failed_before_does_not_end_the_next_session(rig: Rig) -> None:
    rig.append(1, 2)
    rig.producers[0].purged_as = KafkaError._MSG_TIMED_OUT
    rig.producers[0].fail_for_good()
    rig.inbox.wait_answers(2)
    rig.append(3)
    wait_until(lambda: len(rig.producers) > 1 and rig.producers[1].held)
    rig.producers[1].report(rig.producers[1].held, None, offset=7)
    assert rig.writer.flush(WAIT_S)
    assert rig.inbox.inputs[-1] == Appended(3, 7, 2)


FATAL = KafkaError(KafkaError._FATAL, "out of sequence", True)


@pytest.mark.parametrize(
    ("error", "session"),
    [(FATAL, 2), (KafkaError(KafkaError._FATAL), 2), (KafkaError(KafkaError._ALL_BROKERS_DOWN), 1)],
)
def test_of_the_clients_errors_only_a_fatal_one_ends_the_session(rig: Rig, error: KafkaError, session: int) -> None:
    rig.append(1)
    rig.producers[0].reports.append(lambda: rig.producers[0].config["error_cb"](error))
    rig.producers[0].report(rig.producers[0].held, None, offset=4)
    assert rig.writer.flush(WAIT_S)
    wait_until(lambda: rig.writer.session == session)
    rig.append(2)
    wait_until(lambda: rig.producers[session - 1].held)
    rig.producers[session - 1].report(rig.producers[session - 1].held[-1:], None, offset=5)
    assert rig.writer.flush(WAIT_S)
    assert rig.inbox.inputs[-1] == Appended(2, 5, session)


@pytest.mark.parametrize(
    ("raised", "session"),
    [(KafkaException(FATAL), 2), (KafkaException(KafkaError(KafkaError._TRANSPORT)), 1), (KafkaException("odd"), 1)],
)
def test_of_what_a_poll_raises_only_a_fatal_error_is_borne(rig: Rig, raised: Exception, session: int) -> None:
    rig.append(1)
    rig.producers[0].raises.append(raised)
    wait_until(lambda: rig.failures or rig.writer.session == 2)
    assert rig.writer.session == session
    assert rig.failures == ([] if session == 2 else [raised])


def test_an_old_client_that_fails_once_more_while_it_is_given_up_does_not_end_the_next(rig: Rig) -> None:
    rig.append(1)
    rig.producers[0].lose_on_purge = True
    rig.producers[0].raises += [KafkaException(FATAL), KafkaException(FATAL)]
    rig.inbox.wait_answers(1)
    rig.append(2)
    wait_until(lambda: len(rig.producers) > 1 and rig.producers[1].held)
    rig.producers[1].report(rig.producers[1].held, None, offset=7)
    assert rig.writer.flush(WAIT_S)
    assert rig.inbox.inputs[-1] == Appended(2, 7, 2)


@pytest.mark.parametrize("ends", ["reported", "refused"])
def test_who_waits_for_the_last_answer_is_woken_by_it(rig: Rig, ends: str) -> None:
    flushed: list[bool] = []
    rig.goes_on.clear()
    rig.producers[0].refuse_with = BufferError("full") if ends == "refused" else None
    rig.append(1)
    rig.producers[0].report(rig.producers[0].held, None)
    waiting = threading.Thread(target=lambda: flushed.append(rig.writer.flush(3_600.0)), daemon=True)
    waiting.start()
    time.sleep(0.02)
    rig.goes_on.set()
    waiting.join(WAIT_S)
    assert flushed == [True]


def test_what_a_client_took_that_is_given_up_counts_until_it_is_answered(rig: Rig) -> None:
    rig.producers[0].lose_on_purge = True
    rig.append(1, 2, 3)
    rig.producers[0].fail_for_good()
    rig.inbox.wait_answers(3)
    assert rig.unanswered == [3, 2, 1]


def test_a_flush_that_is_too_short_says_so(rig: Rig) -> None:
    rig.append(1)
    assert not rig.writer.flush(0.01)
    assert rig.writer.unanswered == 1


@pytest.mark.parametrize(
    ("key", "value", "size"), [(b"k", b"v" * 1_000, "1,001"), (None, b"v" * 999, "999"), (b"k" * 77, None, "77")]
)
def test_a_record_that_the_client_refuses_is_named_with_its_size(
    rig: Rig, key: bytes | None, value: bytes | None, size: str
) -> None:
    rig.producers[0].refuse_with = TOO_LARGE
    rig.writer.append(Append(1, Topic.CHANNEL, 0, key, value))
    (failed,) = rig.inbox.wait_answers(1)
    assert isinstance(failed, AppendFailed)
    assert f" {size} bytes" in failed.refusal.message


def test_no_process_waits_for_its_thread() -> None:
    before = set(threading.enumerate())
    rig = Rig()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    assert rig.writer.close(1.0)
    assert not thread.is_alive()


def test_a_report_that_comes_after_the_token_was_given_up_is_dropped(rig: Rig) -> None:
    rig.append(1)
    late = list(rig.producers[0].held)
    rig.producers[0].fail_for_good()
    rig.inbox.wait_answers(1)
    rig.writer._delivered(_session_of(late[0]), 1, None, Message(5))  # type: ignore[arg-type]
    assert len(rig.inbox.inputs) == 1


def _session_of(delivery: Any) -> Any:
    return delivery.args[0]


def test_close_answers_everything_and_refuses_what_comes_later(rig: Rig) -> None:
    rig.append(1, 2)
    assert rig.writer.close(0.05) is False
    assert [(a.token, a.never_written) for a in rig.inbox.of(AppendFailed)] == [(1, False), (2, False)]
    rig.append(3)
    last = rig.inbox.inputs[-1]
    assert isinstance(last, AppendFailed)
    assert (last.token, last.session, last.never_written) == (3, 1, True)
    assert rig.writer.unanswered == 0


def test_close_without_open_tokens_is_clean() -> None:
    assert Rig().writer.close(1.0) is True


def test_a_sink_that_raises_is_reported_and_stops_the_writer(rig: Rig) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("sink")

    rig.writer._sink = broken
    rig.append(1)
    rig.producers[0].report(rig.producers[0].held, None)
    rig.writer._thread.join(WAIT_S)
    assert [str(failure) for failure in rig.failures] == ["sink"]
