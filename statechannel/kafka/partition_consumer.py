"""Consumer of one partition that is replaced when it stalls; the detection of a stall, and how fresh a position is.

A consumer of librdkafka may get nothing more after a Kafka broker was restarted, without any error, until it is recreated
(confluentinc/librdkafka#5153, fede1024/rust-rdkafka#597).
"""
# ruff: noqa: SLF001  (the client library's public error codes start with an underscore)

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from statechannel.kafka.client_settings import make_client
from statechannel.kafka.topic_watch import TopicWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.kafka.admin import Place
    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.protocol.side_record import Headers

_log = logging.getLogger(__name__)

LOST_POSITION = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION})
"""Errors by which the log has no record at the position any more, or another one."""
_ANSWER_S = 2.0

DOUBLINGS_MAX = 5
"""Maximum number of times the patience doubles if a new consumer does not help either."""


def assignment(place: Place, position: int, leader_epoch: int) -> TopicPartition:
    """What a consumer is to read.

    Without the epoch a new consumer goes on behind a truncation as if nothing had happened, once the log is as long as before.

    Args:
        leader_epoch: Of the last record read; below 0 where none was, or Kafka did not tell.
    """
    return TopicPartition(*place, position, "", leader_epoch) if leader_epoch >= 0 else TopicPartition(*place, position)


@dataclass(slots=True)
class PollClock:
    """Runs only while a reader waits for messages: not while it is busy with them, nor while the process is stopped.

    Attributes:
        polled_s: How long all polls together have waited.
    """

    polled_s: float = 0.0

    def poll(self, consumer: Consumer, timeout_s: float) -> Message | None:
        began_s = time.monotonic()
        message: Message | None = consumer.poll(timeout_s)
        self.polled_s += min(timeout_s, time.monotonic() - began_s)
        return message


def headers_of(message: Message) -> Headers:
    """Headers in order; empty if their names are not text: no client of ours wrote such a record."""
    try:
        headers = message.headers() or []
    except (UnicodeError, ValueError):
        return ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)


def close_aside(consumer: Consumer) -> None:
    """Close a replaced consumer without waiting: closing may hang as its reading does."""
    threading.Thread(target=consumer.close, name="close-replaced-consumer", daemon=True).start()


class SeenEnds:
    """Freshness of a position: the newest moment at which the log is known not to extend beyond it.

    The client tells where the log ended in the broker's last answer, but neither when that arrived nor when the broker wrote
    it: a connection may delay an answer without limit. But the client sends the next request only after the answer. So a new
    end is at least as new as the arrival of the end before it, and that arrived after the look before it was seen.
    While more comes all the time the end is never reached, but a moment later the position is where the end was.

    Args:
        now_s: The time before the first look.

    Attributes:
        newest_s: The last answer.
    """

    def __init__(self, now_s: float) -> None:
        self._looked_s = self._asked_s = now_s
        self._end = -1
        self._awaited: tuple[int, float] | None = None
        self._newest: tuple[int, float] | None = None
        self.newest_s: float | None = None

    def look(self, now_s: float, end: int) -> None:
        """The client says where the log ended."""
        if end > self._end:
            self._end, self._newest = end, (end, self._asked_s)
            self._asked_s = self._looked_s
            self._awaited = self._awaited or self._newest
        self._looked_s = now_s

    def confirm(self, asked_s: float, end: int, position: int) -> bool:
        """Kafka was asked for the end, and answered; whether the position is as of a later moment thereby.

        Of a quiet log nothing else is known: each fetch is answered as the one before.
        """
        if position < max(end, self._end) or (self.newest_s is not None and asked_s <= self.newest_s):
            return False
        self.newest_s = asked_s
        return True

    def as_of_s(self, position: int) -> float | None:
        for mark in (self._awaited, self._newest):
            if mark is not None and position >= mark[0]:
                self.newest_s, self._awaited = max(mark[1], self.newest_s or mark[1]), None
        if self._newest is not None and position < self._newest[0]:
            self._awaited = self._awaited or self._newest
        return self.newest_s


class Stall:
    """Detects a stalled reader of one partition.

    Only time in which the reader polls counts: one that is busy with what it was given waits for nothing.

    Args:
        patience_s: Time of polling, with something to read, after which the consumer has to be recreated.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._position = -1
        self._since_s: float | None = None
        self._renewals = 0

    def look(self, polled_s: float, position: int, end: int | None) -> bool:
        """Whether the consumer has to be recreated.

        Args:
            polled_s: How long the reader has polled in all.
            end: Where the log ends, as Kafka answered just now; None if it did not.
        """
        if position != self._position:
            self._position, self._since_s, self._renewals = position, None, 0
        if end is None or end <= position:
            self._since_s = None
            return False
        if self._since_s is None:  # from now on it is known that there is something to read
            self._since_s = polled_s
            return False
        if polled_s - self._since_s < self._patience_s * 2 ** min(self._renewals, DOUBLINGS_MAX):
            return False
        self._since_s = polled_s
        self._renewals += 1
        return True


class EndWatch:
    """Never blocks its reader, and uses its own client: the reader's may be the stuck one.

    That client is created at the first query; a reader that receives records makes none.

    Args:
        patience_s: See `Stall`. Half of it passes before the first query and between two.
    """

    def __init__(self, settings: ClientSettings, place: Place, patience_s: float) -> None:
        self._settings = settings
        self._place = place
        self._stall = Stall(patience_s)
        self._pause_s = patience_s / 2
        self._position, self._since_s = -1, 0.0
        self._watch: TopicWatch | None = None

    def stalled(self, polled_s: float, position: int, known_end: int | None = None) -> bool:
        """Whether the client must be replaced; to be called after each poll.

        Args:
            polled_s: Reading of the reader's `PollClock`.
            known_end: End offset of the partition before the reading began.
        """
        if position != self._position:
            self._position, self._since_s = position, polled_s
            self._stall.look(polled_s, position, known_end)
        if polled_s - self._since_s < self._pause_s:
            return False
        if self._watch is None:
            self._watch = TopicWatch(self._settings, (), interval_s=self._pause_s, timeout_s=_ANSWER_S)
        findings = self._watch.poll(time.monotonic(), {self._place: position})
        return findings is not None and self._stall.look(polled_s, position, findings.ends.get(self._place))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()


class FetchResult(NamedTuple):
    """What one poll brought.

    Attributes:
        errors: Errors about the partition, its end not among them.
        advanced: Records came, or the end of the partition.
    """

    records: Sequence[Message]
    errors: Sequence[KafkaError]
    advanced: bool


class PartitionConsumer:
    """Reads one partition at a time from an offset on, and replaces a stalled client. For one thread.

    Args:
        group_id: librdkafka requires one; nothing is ever committed to it.
        on_error: Callback for asynchronous client errors.
        doing: Activity for the error of a refused property.
        gather_ms: See `ClientSettings.consumer_config`.

    Raises:
        KafkaAdapterError: A client property is refused.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        on_error: Callable[[KafkaError], None],
        *,
        doing: str = "making the consumer",
        gather_ms: int = 0,
    ) -> None:
        self._settings = settings
        self._config = {**settings.consumer_config(group_id, gather_ms), "error_cb": on_error}
        self._doing = doing
        self._polls = PollClock()
        self._place: Place = ("", 0)
        self._watch: EndWatch | None = None
        self.position = 0
        self._leader_epoch = -1
        self._client = self._make()

    def _make(self) -> Consumer:
        return make_client(Consumer, self._config, self._settings, self._doing)

    def watermarks(self, place: Place, timeout_s: float) -> tuple[int, int] | None:
        """First offset and end offset, as Kafka answers; None if it does not. Raises `KafkaException`."""
        marks: tuple[int, int] | None
        marks = self._client.get_watermark_offsets(TopicPartition(*place), timeout=timeout_s)
        return marks

    def offsets_at(self, places: Sequence[Place], time_ms: int, timeout_s: float) -> list[TopicPartition]:
        """First offset of each partition at this time or later, below 0 if there is none. Raises `KafkaException`."""
        asked = [TopicPartition(*place, time_ms) for place in places]
        return list(self._client.offsets_for_times(asked, timeout=timeout_s))

    def start(self, place: Place, offset: int, *, patience_s: float | None = None) -> None:
        """Read a partition from an offset on, in place of the former one.

        Args:
            patience_s: Time after which a stalled client is replaced; None: that of the settings.
        """
        self.stop()
        self._place = place
        self._watch = EndWatch(self._settings, place, patience_s or self._settings.tuning.stall_timeout_s)
        self.move_to(offset)

    def move_to(self, offset: int) -> None:
        self.position, self._leader_epoch = offset, -1
        self.resume()

    def resume(self) -> None:
        """Continue behind what was read, if that is still there."""
        self._client.assign([assignment(self._place, self.position, self._leader_epoch)])

    def stop(self) -> None:
        """Read nothing until the next `start`."""
        if self._watch is not None:
            self._client.unassign()
            self._watch.close()
            self._watch = None

    def fetch(self, count: int, timeout_s: float, *, known_end: int | None = None) -> FetchResult:
        """The next records, at most `count`; waits up to `timeout_s` for the first.

        Args:
            known_end: End offset of the partition before the reading began.
        """
        first = self._polls.poll(self._client, timeout_s)
        messages = [] if first is None else [first, *self._client.consume(count - 1, 0)]
        result = self._sort(messages)
        if self._watch is not None and self._watch.stalled(self._polls.polled_s, self.position, known_end):
            self._replace_client()
        return result

    def _sort(self, messages: Sequence[Message]) -> FetchResult:
        records = [message for message in messages if message.error() is None]
        if records:
            self.position = (records[-1].offset() or 0) + 1
            epoch = records[-1].leader_epoch()
            self._leader_epoch = -1 if epoch is None else epoch
        errors: list[KafkaError] = []
        at_end = False
        for message in messages if len(records) < len(messages) else ():
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                at_end = True
                self.position = max(self.position, message.offset() or 0)
            elif error is not None:
                errors.append(error)
        return FetchResult(records, errors, bool(records) or at_end)

    def _replace_client(self) -> None:
        _log.warning(
            "%s-%d: nothing arrives from offset %d on although the log goes on: recreating the consumer",
            *self._place,
            self.position,
        )
        replaced, self._client = self._client, self._make()
        self.resume()
        close_aside(replaced)

    def close(self) -> None:
        self._client.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
