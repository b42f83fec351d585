"""Retries of calls to Kafka for transient errors: a partition without a leader, a topic that not every broker knows yet."""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaException
from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from statechannel.kafka.errors import is_access_denied, is_topic_missing, is_transient

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from confluent_kafka import KafkaError

Answer = TypeVar("Answer")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_LEAST_S: Final = 0.001
_LOOK_S: Final = 0.1
REFUSED_AFTER_S: Final = 3.0
"""Limit of retries after a refused authentication: a starting Kafka broker may not know its users yet."""


class Refusals:
    """Detects that Kafka refuses this client, which the library treats as an outage and retries for ever.

    Attributes:
        last: The client's last error.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self.last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """The client's error callback."""
        self.last = error
        if is_access_denied(error) and self._since_s is None:
            self._since_s = time.monotonic()

    def wait(self, future: Future[Any], timeout_s: float, poll: Callable[[], object]) -> Any:
        """Result of a call.

        Args:
            poll: Serves the client's error callback.

        Raises:
            KafkaException: As the call raised it; or the refusal, once it has lasted for `REFUSED_AFTER_S`.
            concurrent.futures.TimeoutError: The time is up.
        """
        ends_s = time.monotonic() + timeout_s
        while True:
            left_s = ends_s - time.monotonic()
            try:
                return future.result(timeout=min(_LOOK_S, max(_LEAST_S, left_s)))
            except FutureTimeoutError:
                if left_s <= _LOOK_S:
                    raise
            poll()
            refused = self._since_s is not None and time.monotonic() - self._since_s > REFUSED_AFTER_S
            if refused and self.last is not None and is_access_denied(self.last):
                raise KafkaException(self.last)


def ask_patiently(ask: Callable[[float], Answer], *, timeout_s: float, topic_grace_s: float) -> Answer:
    """The first answer that is one; what the last try raised, if there is none in time.

    Args:
        ask: One attempt; receives the remaining seconds, and raises errors of the client library.
        timeout_s: Bound of all tries together.
        topic_grace_s: Time during which a topic reported as missing may be unknown to that broker only.
    """
    began_s = time.monotonic()

    def passes(problem: BaseException) -> bool:
        known = time.monotonic() - began_s < topic_grace_s
        return is_transient(problem) or (known and is_topic_missing(problem))

    tries = Retrying(
        retry=retry_if_exception(passes),
        stop=stop_before_delay(timeout_s),
        wait=wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        reraise=True,
    )
    return tries(lambda: ask(max(_LEAST_S, began_s + timeout_s - time.monotonic())))
