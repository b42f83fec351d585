"""Asks Kafka again where its answer was "not yet": a partition without a leader, a topic that not every broker knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from statechannel.kafka.errors import is_topic_missing, is_transient

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_LEAST_S: Final = 0.001


def ask_patiently(ask: Callable[[float], Answer], *, timeout_s: float, topic_grace_s: float) -> Answer:
    """The first answer that is one; what the last try raised, if there is none in time.

    Args:
        ask: One try; it is given the seconds that are left for it, and raises what the client library raises.
        timeout_s: Bound of all tries together.
        topic_grace_s: For so long a topic that is said to be missing may be one that a broker has not heard of.
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
