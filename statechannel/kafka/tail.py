"""Access to partitions for commands and archives: reading up to the end, and appending with the answer awaited."""
# ruff: noqa: SLF001  (the client library's public error codes start with an underscore)

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from statechannel.kafka.admin import ask_patiently
from statechannel.kafka.client_settings import make_client
from statechannel.kafka.errors import (
    AppendOutcomeUnknownError,
    KafkaUnavailableError,
    is_topic_missing,
    is_transient,
    kafka_error_of,
    more_specific,
    translate,
)
from statechannel.kafka.partition_consumer import PartitionConsumer, headers_of
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.side_record import Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from confluent_kafka import Message

    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import ChannelTopics, SideTopic

_BATCH = 2_000
_POLL_S = 0.2
_REPORTS_S = 0.05
_HINT = "Check bootstrap.servers and that Kafka runs: `statechannel kafka status`."


@dataclass(frozen=True, slots=True)
class Span:
    """Range of a read.

    Attributes:
        low: First offset that the log still has.
        start: First offset that may be delivered.
        end: High watermark when the reading began; nothing at or above it is delivered.
    """

    low: int
    start: int
    end: int


class PartitionTail:
    """Reads one partition from a given start to its current end, or beyond.

    A context manager; not for more than one thread.

    Args:
        topic: Role that the records are given.
        group_id: librdkafka wants one; nothing is ever committed to it.
        timeout_s: Longest wait for Kafka without any progress.
        observe_headers: Called with the offset and the headers of each record that has some, before it is returned.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: Topic,
        name: str,
        partition: int,
        *,
        group_id: str,
        timeout_s: float = 20.0,
        observe_headers: Callable[[int, Headers], None] | None = None,
    ) -> None:
        self._observe_headers = observe_headers
        self._settings = settings
        self._topic = topic
        self._place = (name, partition)
        self._timeout_s = timeout_s
        self._error: KafkaError | None = None
        self._unknown = False
        self._consumer = PartitionConsumer(settings, group_id, self._on_error)

    def __enter__(self) -> PartitionTail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def span(self, *, start: int = 0, from_time_ms: int | None = None) -> Span:
        """Query the partition's first and end offset, and the offset of a time.

        Args:
            start: First offset wanted; ignored when a time is given.
            from_time_ms: Begin with the first record that the log took at this time or later.
        """
        low, high = self._ask("querying the end of", self._watermarks)
        if from_time_ms is not None:
            offset = self._ask("looking for a time in", lambda left_s: self._offset_at(from_time_ms, left_s))
            start = offset if offset >= 0 else high
        return Span(low=low, start=max(low, start), end=high)

    def end_of(self, partition: int) -> int:
        place = (self._place[0], partition)
        return int(self._ask("querying the end of", lambda left_s: self._consumer.watermarks(place, left_s))[1])

    def answers(self, timeout_s: float) -> bool:
        """Whether Kafka answers a query about the partition now; reads do not show it if nothing is written."""
        try:
            return self._watermarks(timeout_s) is not None
        except KafkaException as error:
            if is_transient(error) or is_topic_missing(error):
                return False
            raise translate(error, self._doing("querying the end of"), secrets=self._settings.secrets()) from error

    def _watermarks(self, timeout_s: float) -> tuple[int, int] | None:
        return self._consumer.watermarks(self._place, timeout_s)

    def _offset_at(self, time_ms: int, timeout_s: float) -> int:
        (answer,) = self._consumer.offsets_at([self._place], time_ms, timeout_s)
        if answer.error is not None:  # its offset is still the time that was asked for
            raise KafkaException(answer.error)
        return int(answer.offset)

    def records(self, span: Span) -> Iterator[RecordRead]:
        """The records of `span` in order; offsets may have gaps.

        Raises:
            KafkaUnavailableError: No progress for `timeout_s`.
        """
        for batch in self._batches(span.start, until=span.end):
            yield from batch

    def follow(self, start: int, stop: Callable[[], bool] = lambda: False) -> Iterator[list[RecordRead]]:
        """Batches of records from `start` on, without end; an empty one after each quiet moment.

        Args:
            stop: Asked between two batches.
        """
        for batch in self._batches(start, until=None):
            yield batch
            if stop():
                return

    def _batches(self, start: int, until: int | None) -> Iterator[list[RecordRead]]:
        if until is not None and start >= until:
            return
        patience_s = self._settings.tuning.stall_timeout_s
        if until is not None:  # a new consumer is to be tried before the time is up
            patience_s = min(patience_s, self._timeout_s / 2)
        self._consumer.start(self._place, start, patience_s=patience_s)
        progress_s = time.monotonic()
        try:
            while True:
                fetched = self._consumer.fetch(_BATCH, _POLL_S, known_end=until)
                if fetched.advanced:
                    progress_s = time.monotonic()
                self._check(fetched.errors)
                records = self._records(fetched.records, until)
                if records or until is None:
                    yield records
                if until is not None and self._consumer.position >= until:
                    return
                if self._unknown:
                    self._make_sure()
                if until is not None and time.monotonic() - progress_s > self._timeout_s:
                    raise self._away("reading")
        finally:
            self._consumer.stop()

    def _make_sure(self) -> None:
        """A broker did not know the topic: continue if Kafka does, which the library does not report a second time."""
        self._unknown = False
        self._ask("reading", self._watermarks)
        self._consumer.resume()

    def _check(self, errors: Sequence[KafkaError]) -> None:
        for error in errors:
            if is_topic_missing(error):
                self._unknown = True
            elif not is_transient(error):
                raise translate(error, self._doing("reading"), secrets=self._settings.secrets())

    def _records(self, messages: Sequence[Message], until: int | None) -> list[RecordRead]:
        topic, partition = self._topic, self._place[1]
        if self._observe_headers is not None:
            for message in messages:
                if headers := headers_of(message):
                    self._observe_headers(message.offset() or 0, headers)
        records = [
            RecordRead(topic, partition, m.offset() or 0, m.timestamp()[1], m.key(), m.value()) for m in messages
        ]
        if until is None or not records or records[-1].offset < until:
            return records
        return [record for record in records if record.offset < until]

    def _ask(self, doing: str, call: Callable[[float], Any]) -> Any:
        grace_s = self._settings.tuning.topic_grace_s
        try:
            answer = ask_patiently(call, timeout_s=self._timeout_s, topic_grace_s=grace_s)
        except KafkaException as error:
            cause = more_specific(kafka_error_of(error), self._error)
            raise translate(cause or error, self._doing(doing), secrets=self._settings.secrets()) from error
        if answer is None:
            raise self._away(doing)
        return answer

    def _away(self, doing: str) -> KafkaUnavailableError:
        cause = "" if self._error is None else f" ({self._error.str()})"
        return KafkaUnavailableError.silent(f"for {self._timeout_s:g} s while {self._doing(doing)}{cause}.", hint=_HINT)

    def _doing(self, doing: str) -> str:
        return f"{doing} {self._place[0]}-{self._place[1]}"

    def _on_error(self, error: KafkaError) -> None:
        self._error = error


def channel_tail(
    settings: ClientSettings,
    topics: ChannelTopics,
    topic: Topic,
    partition: int = 0,
    *,
    timeout_s: float,
    observe_headers: Callable[[int, Headers], None] | None = None,
) -> PartitionTail:
    return PartitionTail(
        settings,
        topic,
        topics.names[topic],
        partition,
        group_id=topics.reader_group,
        timeout_s=timeout_s,
        observe_headers=observe_headers,
    )


def side_tail(
    settings: ClientSettings,
    topic: SideTopic,
    timeout_s: float,
    observe_headers: Callable[[int, Headers], None] | None = None,
) -> PartitionTail:
    """A side topic, which has one partition; the role that its records are given is not used."""
    return PartitionTail(
        settings,
        Topic.REQUESTS,
        topic.name,
        0,
        group_id=topic.reader_group,
        timeout_s=timeout_s,
        observe_headers=observe_headers,
    )


@dataclass(slots=True)
class WriteResult:
    """Answers to the records of one write.

    Attributes:
        produced: Records for the client; the last of them it may have had no room for.
        offset: That of the last confirmed record; None if Kafka did not report it.
    """

    produced: int = 0
    written: int = 0
    failed: int = 0
    offset: int | None = None
    error: KafkaError | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def unanswered(self) -> int:
        """Records without an answer; they may be in the log or may not."""
        return self.produced - self.written - self.failed

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report; called by librdkafka inside `poll`, also inside that of another thread's write."""
        with self._lock:
            if error is None:
                self.written += 1
                self.offset = message.offset()
            else:
                self.failed += 1
                self.error = self.error or error


class BlockingWriter:
    """Writes records to one topic and waits for Kafka's answers. May be called from any thread.

    Args:
        doing: Activity with its object: "appending to bundle-state-requests-0".
        timeout_s: Bound of the delivery of a record.
        properties: Properties of the client that differ from those of the channel's own producer.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        doing: str,
        *,
        timeout_s: float,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._doing = doing
        self._timeout_s = timeout_s
        self.last_error: KafkaError | None = None
        config = {
            **settings.producer_config(),
            "delivery.timeout.ms": max(1, int(timeout_s * 1_000)),
            "error_cb": self._on_error,
            **(properties or {}),
        }
        self._producer: Producer = make_client(Producer, config, settings, "making the producer")

    def write(self, records: Iterable[tuple[int, bytes | None, bytes | None]], headers: Headers = ()) -> WriteResult:
        """Write records (partition, key, value), in bounded memory; a little more than `timeout_s` without progress ends it.

        Raises:
            KafkaAdapterError: The client refused a record, or failed for good.
        """
        result = WriteResult()
        self.last_error = None
        try:
            for record in records:
                if not self._produce(result, *record, headers=headers):
                    break
            deadline_s = time.monotonic() + self._timeout_s + 1.0
            while result.unanswered and time.monotonic() < deadline_s:
                self._producer.poll(_REPORTS_S)
        except KafkaException as error:
            raise translate(error, self._doing, secrets=self._settings.secrets()) from error
        return result

    def _produce(
        self, result: WriteResult, partition: int, key: bytes | None, value: bytes | None, *, headers: Headers
    ) -> bool:
        """Hand a record to the client; False if its queue stays full."""
        result.produced += 1
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=value,
                    key=key,
                    partition=partition,
                    on_delivery=result.delivered,
                    headers=list(headers),
                )
            except BufferError:
                if self._producer.poll(_REPORTS_S):
                    deadline_s = time.monotonic() + self._timeout_s
                elif time.monotonic() > deadline_s:
                    return False
            else:
                return True

    def require(self, result: WriteResult) -> None:
        """Refuse a result unless every record was confirmed.

        Raises:
            AppendOutcomeUnknownError: No answer in time: the records may or may not be in the log.
            KafkaAdapterError: Kafka refused one.
        """
        secrets = self._settings.secrets()
        error = result.error
        if error is not None and error.code() not in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT):
            self._settings.refusal(error, self._topic)
            raise translate(error, self._doing, secrets=secrets)
        if error is not None or result.unanswered:
            cause = self.last_error or error or KafkaError(KafkaError._MSG_TIMED_OUT)
            reason = translate(cause, self._doing, secrets=secrets)
            raise AppendOutcomeUnknownError(
                f"Kafka did not confirm in {self._timeout_s:g} s while {self._doing}; the record may still appear. {reason}",
                hint=reason.hint,
            )

    def close(self, timeout_s: float) -> None:
        """Wait for outstanding answers, and give up the rest."""
        if self._producer.flush(timeout_s):
            self._producer.purge()

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error


def append_and_wait(
    settings: ClientSettings,
    name: str,
    partition: int,
    *,
    key: bytes | None,
    value: bytes | None,
    timeout_s: float = 20.0,
    repeatable: bool = False,
    headers: Headers = (),
) -> int:
    """Append one record and wait until the log has it.

    Args:
        repeatable: A second copy of the record does no harm. Then the client needs no id from Kafka, for which librdkafka
            waits half a second.

    Returns:
        Its offset.

    Raises:
        AppendOutcomeUnknownError: No answer in time: the record may or may not be in the log. Or Kafka confirmed it but
            did not report its offset.
        KafkaAdapterError: Kafka refused it.
    """
    doing = f"appending to {name}-{partition}"
    properties = {
        "request.timeout.ms": max(1, min(int(timeout_s * 1_000), settings.tuning.request_timeout_ms)),
        "enable.idempotence": not repeatable,
    }
    writer = BlockingWriter(settings, name, doing, timeout_s=timeout_s, properties=properties)
    result = writer.write([(partition, key, value)], headers)
    if result.unanswered:
        writer.close(0)
    writer.require(result)
    if result.offset is None or result.offset < 0:
        raise AppendOutcomeUnknownError(
            f"Kafka confirmed the record without its offset, while {doing}.",
            hint="Check whether it was applied before you write it again.",
        )
    return result.offset
