"""Waits for Kafka in commands: a slow answer is reported on the terminal, and errors name the address."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.output import say
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.kafka.tail import PartitionTail

NOTIFY_AFTER_S = 2.0
BEAT_S = 0.5
ANSWER_S = 1.5
"""A fetch waits for records for up to 0.5 s, and the client's next call waits behind it."""


@contextmanager
def notify_if_slow(connection: Connection) -> Iterator[None]:
    """Wrap a command's first calls to Kafka: report on standard error if they are slow.

    Raises:
        KafkaUnavailableError: As the calls raised it, with the address and what to do.
    """
    timer = threading.Timer(NOTIFY_AFTER_S, _notify, (connection,))
    timer.daemon = True
    timer.start()
    try:
        with naming_address(connection):
            yield
    finally:
        timer.cancel()


@contextmanager
def naming_address(connection: Connection) -> Iterator[None]:
    """Add the address to the error if Kafka is unreachable."""
    address = connection.client.bootstrap_servers
    try:
        yield
    except KafkaUnavailableError as error:
        if error.address:
            raise
        raise error.at(
            address,
            hint="Start one here with `statechannel kafka up`, or check the address: --bootstrap-servers, "
            "setting kafka.bootstrap_servers.",
        ) from error


class Pulse:
    """For a command that runs until interrupted: report on standard error when Kafka stops answering, and when it is back.

    Args:
        tail: Any reader of the command; queried every `BEAT_S`, with a timeout of `ANSWER_S`.
    """

    def __init__(self, connection: Connection, tail: PartitionTail) -> None:
        self._address = connection.client.bootstrap_servers
        self._tail = tail
        self._answered_s = self._asked_s = time.monotonic()
        self._notified = False

    def beat(self) -> None:
        """Call this repeatedly."""
        now_s = time.monotonic()
        if now_s - self._asked_s < BEAT_S:
            return
        answers = self._tail.answers(ANSWER_S)
        self._asked_s = time.monotonic()
        if answers:
            if self._notified:
                say(f"Kafka at {self._address} answers again, after {self._asked_s - self._answered_s:.0f} s")
            self._answered_s, self._notified = self._asked_s, False
        elif not self._notified and self._asked_s - self._answered_s >= NOTIFY_AFTER_S:
            self._notified = True
            say(
                f"Kafka at {self._address} does not answer; the display continues when it answers again (Ctrl-C ends it)"
            )


def _notify(connection: Connection) -> None:
    say(
        f"Kafka at {connection.client.bootstrap_servers} has not answered yet; "
        f"waiting for at most {connection.timeout_s:g} s (setting kafka.command_timeout_s)"
    )
