"""Producer side: `Append` effects in, `Appended` and `AppendFailed` inputs out."""
# ruff: noqa: SLF001  (the client library's public error codes start with an underscore)

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from statechannel.engine.inputs import AppendFailed, delivery_report
from statechannel.kafka.client_settings import make_client, place_and_size
from statechannel.kafka.errors import describe, kafka_error_of
from statechannel.protocol.log import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka import Message

    from statechannel.engine.effects import Append
    from statechannel.engine.inputs import Input
    from statechannel.kafka.client_settings import ClientSettings

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_REPORTS_S = 0.02  # a verdict is read back, not reported: reports wait for each other, and wake two threads seldom
_IDLE_S = 0.2  # while no report is to come; the first record, and a refused one, end it
_UNREPORTED_MAX = 4
"""Records without a report up to which the next one is handed to the client at once.

No setting, like the next one: both divide the queue into groups, as measured; `kafka.tuning.producer_queue_records` bounds it.
"""
_GROUP_MAX = 2_000
"""Records of one group: callers of `append` wait for the lock while a group is handed over."""
_PURGE_S = 5.0
_SESSION_SHARE = 0.9
"""Part of the delivery time-out after which a session ends; the rest is for a poll thread that runs late."""
_FULL = KafkaError(KafkaError._QUEUE_FULL, "the producer's queue is full")
_CLOSED = KafkaError(KafkaError._DESTROY, "the writer is closed")


class _Session:
    """One producer, with its unanswered tokens, each with the time of its append."""

    __slots__ = ("number", "pending", "producer")

    def __init__(self, number: int, producer: Producer) -> None:
        self.number = number
        self.producer = producer
        self.pending: dict[int, float] = {}


class LogWriter:
    """Appends records by an idempotent producer (acks=all, linger 0) with its own poll thread.

    Every token that `append` took ends exactly once: as `Appended` with the offset in the log, or
    as `AppendFailed`. `never_written` is True only for records that the client did not take.
    All else is unknown (protocol.md section 7), also what is purged from the producer's queue:
    librdkafka puts records back there between two tries, so that one of them may be in the log
    already. So is a success that names no offset.

    A few records are handed to the client one by one, as they come. More wait in a queue here until those are reported, and
    leave as one group: with more requests in flight than an idempotent producer may have, and records behind them,
    librdkafka's thread runs in a circle until the next answer comes, which costs a quarter of all that a storm costs. Records of
    other topics never wait: a heartbeat for the registry must not be late because the channel is busy.

    A new session (see `Appended.session`) begins when a producer fails fatally, and before a record times out in it. So each
    record is in the log at most once: no session takes over records of another, whereas a producer in which one has timed out
    goes on under a new epoch, and sends again, in each epoch, all that it has no answer for; Kafka recognises a copy within
    an epoch only. A producer that hangs for ever after a restart of Kafka, as librdkafka may, is replaced thereby, too.

    Args:
        sink: Takes the inputs; called from the poll thread, one at a time, in the order of the
            delivery reports (after `close`, from the thread that still appends). It must not
            block for long: no other report is served meanwhile.
        on_failure: Called once from the poll thread if that thread ends by an exception.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic_names: Mapping[Topic, str],
        sink: Callable[[Input], None],
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        make_producer: Callable[..., Producer] = Producer,
    ) -> None:
        self._settings = settings
        self._names = dict(topic_names)
        self._sink = sink
        self._on_failure = on_failure
        self._make_producer = make_producer
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._reporting = threading.Lock()
        self._refused: deque[AppendFailed] = deque()
        self._queued: deque[tuple[Append, float]] = deque()
        self._fatal: KafkaError | None = None
        self._closed = False
        self._ended = False
        self._stopping = False
        self._wake = threading.Event()
        self._session = self._open(1)
        self._retiring: _Session | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def session(self) -> int:
        return self._session.number

    @property
    def unanswered(self) -> int:
        with self._lock:
            return self._owed()

    @property
    def _patience_s(self) -> float:
        return _SESSION_SHARE * self._settings.tuning.delivery_timeout_ms / 1000

    def _owed(self) -> int:
        old = self._retiring
        owed = len(self._session.pending) + len(self._refused) + len(self._queued)
        return owed if old is None else owed + len(old.pending)

    def append(self, effect: Append) -> None:
        """Queue one record; never blocks, never raises for what Kafka does.

        Records of one partition reach the log in the order of the calls. When the producer's
        queue is full, or the writer is closed, the append is reported as failed, never written.
        """
        with self._lock:
            session = self._session
            if self._closed:
                self._refuse(effect, _CLOSED)
                if not self._ended:
                    return
            else:
                self._take(session, effect)
                return
        self._report_refused()  # there is no poll thread any more

    def _take(self, session: _Session, effect: Append) -> None:
        if effect.topic is not Topic.CHANNEL or (not self._queued and len(session.pending) < _UNREPORTED_MAX):
            first = not session.pending
            self._produce(session, effect)
            if first:
                self._wake.set()
        elif len(self._queued) >= self._settings.tuning.producer_queue_records:
            self._refuse(effect, KafkaError(KafkaError._QUEUE_FULL, "the writer's queue is full"))
        else:
            self._queued.append((effect, time.monotonic()))
            if len(self._queued) == 1:
                self._wake.set()

    def _produce(self, session: _Session, effect: Append) -> None:
        session.pending[effect.token] = time.monotonic()
        try:
            session.producer.produce(
                self._names[effect.topic],
                value=effect.value,
                key=effect.key,
                partition=effect.partition,
                on_delivery=partial(self._delivered, session, effect.token),
            )
        except (BufferError, KafkaException) as error:
            session.pending.pop(effect.token, None)
            self._refuse(effect, kafka_error_of(error) or _FULL)

    def _produce_group(self) -> None:
        """Hand over what waits, once all that was handed over before is reported; what waited for too long is given up."""
        with self._lock:
            session, now_s = self._session, time.monotonic()
            while self._queued and now_s - self._queued[0][1] >= self._patience_s:
                late = f"it could not be sent within {self._patience_s:g} s"
                self._refuse(self._queued.popleft()[0], KafkaError(KafkaError._TIMED_OUT_QUEUE, late))
            if session.pending or not self._queued:
                return
            group = [self._queued.popleft()[0] for _ in range(min(len(self._queued), _GROUP_MAX))]
            session.pending.update((effect.token, now_s) for effect in group)
            places: dict[tuple[Topic, int], list[Append]] = {}
            for effect in group:
                places.setdefault((effect.topic, effect.partition), []).append(effect)
            for (topic, partition), effects in places.items():
                self._produce_all(session, self._names[topic], partition, effects)

    def _produce_all(self, session: _Session, name: str, partition: int, effects: Sequence[Append]) -> None:
        entries: list[dict[str, Any]] = [
            {"key": effect.key, "value": effect.value, "callback": partial(self._delivered, session, effect.token)}
            for effect in effects
        ]
        try:
            session.producer.produce_batch(name, entries, partition=partition)
        except (BufferError, KafkaException) as refusal:
            for entry in entries:
                entry.setdefault("_error", refusal)
        for effect, entry in zip(effects, entries, strict=True):
            if "_error" in entry:
                session.pending.pop(effect.token, None)
                self._refuse(effect, kafka_error_of(entry["_error"]) or _FULL)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append is answered; False if the time ran out first.

        Not to be called from the sink.
        """
        with self._idle:
            return self._idle.wait_for(lambda: not self._owed(), timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Flush, then give up on what is left and stop; True if nothing was left.

        When it returns, every token has been answered. Later appends are refused.
        """
        with self._lock:
            self._closed = True
        clean = self.flush(timeout_s) if self._thread.is_alive() else False
        self._stopping = True
        self._wake.set()
        self._thread.join(_PURGE_S + 1.0)
        return clean

    def _refuse(self, effect: Append, error: KafkaError) -> None:
        """The client did not take the record. The report leaves from the poll thread, like all reports."""
        size_bytes, settings = len(effect.key or b"") + len(effect.value or b""), self._settings
        refusal = settings.refusal(error, self._names[effect.topic], size_bytes, by_client=True)
        text, session = describe(error, settings.secrets()), self._session.number
        self._refused.append(AppendFailed(effect.token, text, session, True, error.name(), refusal))
        self._wake.set()

    def _open(self, number: int) -> _Session:
        config = {**self._settings.producer_config(), "error_cb": self._on_error}
        return _Session(number, make_client(self._make_producer, config, self._settings, "making the producer"))

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._fatal = error

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._queued:
                    self._poll(self._session.producer, _REPORTS_S)
                else:
                    self._wake.wait(_REPORTS_S if self._session.pending else _IDLE_S)
                    self._poll(self._session.producer, 0)
                self._wake.clear()
                self._produce_group()
                self._report_refused()
                reason = self._fatal or self._overdue()
                if reason is not None:
                    self._replace(reason)
            self._give_up(self._session, _CLOSED)
            with self._lock:
                while self._queued:
                    self._refuse(self._queued.popleft()[0], _CLOSED)
                self._ended = True
            self._report_refused()
        except BaseException as error:  # the thread's end must not pass unseen
            _log.exception("the log writer's thread ended")
            with self._lock:
                self._closed = True
            if self._on_failure is None:
                raise
            self._on_failure(error)

    def _poll(self, producer: Producer, timeout_s: float = _POLL_S) -> None:
        """Serve delivery reports; a fatal error is raised here as well as passed to `error_cb`."""
        try:
            producer.poll(timeout_s)
        except KafkaException as error:
            cause = kafka_error_of(error)
            if cause is None or not cause.fatal():
                raise
            if producer is self._session.producer:
                self._fatal = cause

    def _report_refused(self) -> None:
        with self._reporting:
            while self._refused:
                self._sink(self._refused[0])
                with self._idle:
                    self._refused.popleft()
                    self._idle.notify_all()

    def _delivered(self, session: _Session, token: int, error: KafkaError | None, msg: Message) -> None:
        """Delivery report; called by librdkafka inside `poll`."""
        if token not in session.pending:  # given up before; each token ends once
            return
        if error is None:
            self._sink(delivery_report(token, msg.offset(), session.number))
        else:
            if session is self._session and (error.fatal() or error.code() == KafkaError._MSG_TIMED_OUT):
                self._fatal = error
            self._sink(self._unknown(session, token, error, msg))
        self._answered(session, token)

    def _overdue(self) -> KafkaError | None:
        """Why the session has to end now; None: its oldest record has time left."""
        with self._lock:
            oldest_s = next(iter(self._session.pending.values()), None)
        if oldest_s is None or time.monotonic() - oldest_s < self._patience_s:
            return None
        return KafkaError(KafkaError._MSG_TIMED_OUT, f"a record was not delivered within {self._patience_s:g} s")

    def _unknown(self, session: _Session, token: int, error: KafkaError, record: Message | None = None) -> AppendFailed:
        """The report on a record that may be in the log.

        Args:
            record: None if Kafka did not answer for this one, but the session ends.
        """
        refusal = self._settings.refusal(error, *place_and_size(record))
        text = describe(error, self._settings.secrets())
        return AppendFailed(token, text, session.number, never_written=False, code=error.name(), refusal=refusal)

    def _answered(self, session: _Session, token: int) -> None:
        with self._idle:
            session.pending.pop(token, None)
            if not session.pending:
                self._idle.notify_all()

    def _replace(self, reason: KafkaError) -> None:
        """Answer the open tokens of a producer that failed, then continue with a new one."""
        text = describe(reason, self._settings.secrets())
        _log.error("producer session %d failed: %s", self._session.number, text)
        old = self._session
        new = self._open(old.number + 1)
        with self._lock:  # from here on appends go to the new one; nothing is added to the old
            self._session, self._retiring = new, old
            self._fatal = None
        self._give_up(old, reason)
        self._retiring = None

    def _give_up(self, session: _Session, reason: KafkaError) -> None:
        """Purge the producer, serve its last reports, and answer what is still open."""
        producer = session.producer
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        deadline_s = time.monotonic() + _PURGE_S
        while session.pending and time.monotonic() < deadline_s:
            self._poll(producer)
        for token in sorted(session.pending):
            self._sink(self._unknown(session, token, reason))
            self._answered(session, token)
