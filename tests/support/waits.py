"""How long tests wait for what has to happen: one bound for all of them.

A test waits for a condition, never for a time, and no assertion is about speed: a machine that is slow makes a test slow, not
red. Where the bound is reached something is wrong, or the machine is stopped; raise it there with `STATECHANNEL_TEST_WAIT_S`.
"""

import asyncio
import os
import time
from collections.abc import Callable

KNOWN_S = 20.0
"""So long a Kafka that is short of processors may take to know a topic that it has created (`kafka.topic_grace_s`)."""

WAIT_S = float(os.environ.get("STATECHANNEL_TEST_WAIT_S", "300"))


def wait_until(
    done: Callable[[], object], what: Callable[[], object] | str = "", *, wait_s: float = WAIT_S, pause_s: float = 0.1
) -> None:
    """Return when it holds.

    Args:
        done: Asked again and again.
        what: What did not come to be, for the failure's message; called only then.
        pause_s: Between two questions.

    Raises:
        AssertionError: It did not hold in time.
    """
    ends_s = time.monotonic() + wait_s
    while not done():
        assert time.monotonic() < ends_s, _message(what, wait_s)
        time.sleep(pause_s)


async def until(
    done: Callable[[], object], what: Callable[[], object] | str = "", *, wait_s: float = WAIT_S, pause_s: float = 0.01
) -> None:
    """The same, for tests with a loop."""
    ends_s = time.monotonic() + wait_s
    while not done():
        assert time.monotonic() < ends_s, _message(what, wait_s)
        await asyncio.sleep(pause_s)


def _message(what: Callable[[], object] | str, wait_s: float) -> str:
    message = what() if callable(what) else what
    return f"waited {wait_s:g} s; {message or 'it did not come to be'}"
