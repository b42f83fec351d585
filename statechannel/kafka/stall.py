"""Detection of a reader that receives nothing although the log grows.

A consumer of librdkafka may get nothing more after a Kafka broker was restarted, without any error, until it is recreated
(confluentinc/librdkafka#5153, fede1024/rust-rdkafka#597).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

DOUBLINGS_MAX = 5
"""Maximum number of times the patience doubles if a new consumer does not help either."""


@dataclass(slots=True)
class PollClock:
    """Runs only while a reader waits for messages: not while it is busy with them, nor while the process is stopped.

    Attributes:
        polled_s: How long all polls together have waited.
    """

    polled_s: float = 0.0

    def poll(self, consumer: Consumer, timeout_s: float) -> Message | None:
        """The consumer's next message, if one comes in time."""
        began_s = time.monotonic()
        message: Message | None = consumer.poll(timeout_s)
        self.polled_s += min(timeout_s, time.monotonic() - began_s)
        return message


def close_aside(consumer: Consumer) -> None:
    """Close a replaced consumer without waiting: closing may hang as its reading does."""
    threading.Thread(target=consumer.close, name="close-replaced-consumer", daemon=True).start()


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
            position: Next offset of the reader.
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
