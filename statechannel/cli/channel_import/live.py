"""Execution of an import on a live Kafka: reads the target, writes the missing records, and reads them back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from statechannel.audit.transfer.import_run import Importer, ImportStage, ImportWrite
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import open_tail
from statechannel.cli.kit.registry import read_registry
from statechannel.engine.effects import Append
from statechannel.engine.inputs import AppendFailed, Input
from statechannel.errors import ExitCode
from statechannel.kafka.writer import LogWriter
from statechannel.protocol.log import Topic

_AGAIN = "Run the same command again: it resumes the import."
_CLOSE_S = 5.0

Advance = Callable[[int], None]


def refuse_live_brokers(connection: Connection) -> None:
    """Refuse an import while brokers serve the channel.

    Raises:
        CommandError: A broker is alive.
    """
    alive = sorted(read_registry(connection).members.alive)
    if alive:
        raise CommandError(
            f"brokers are alive on this channel: {', '.join(alive)}",
            hint="Stop them, import, and start them again: live brokers would assign the bundles themselves.",
            code=ExitCode.REJECTED,
        )


def survey(connection: Connection, importer: Importer) -> None:
    """Read the target to its end as of now.

    Raises:
        ImportRefusedError: It is not empty, and its content is not this import.
    """
    for partition in range(len(importer.views)):
        with open_tail(connection, Topic.CHANNEL, partition) as tail:
            for record in tail.records(tail.span()):
                importer.take(record)
    importer.surveyed()


def carry_out(connection: Connection, importer: Importer, advance: Advance) -> None:
    """Write what is missing, one partition after the other, between marks in all of them.

    Args:
        advance: Called with the number of records of the plan that are present.

    Raises:
        ImportRefusedError: Another process writes to the channel.
        CommandError: Kafka refused a record, or its outcome is unknown.
    """
    with _Writing(connection, importer, advance).open() as writing:
        while importer.stage is not ImportStage.DONE:
            for partition in range(len(importer.views)):
                if importer.stage is ImportStage.RECORDS:
                    writing.records(partition)
                else:
                    writing.mark(partition)
            importer.go_on()


class _Writing:
    """A writer, and a reader of one partition at a time."""

    def __init__(self, connection: Connection, importer: Importer, advance: Advance) -> None:
        self._connection = connection
        self._importer = importer
        self._advance = advance
        self._failures: SimpleQueue[str] = SimpleQueue()
        self._tokens = 0
        self._window = connection.settings.limits.pending_max

    @contextmanager
    def open(self) -> Iterator[_Writing]:
        names = {Topic.CHANNEL: self._connection.topics.names[Topic.CHANNEL]}
        self._writer = LogWriter(
            self._connection.client, names, self._reported, on_failure=lambda error: self._failures.put(repr(error))
        )
        try:
            yield self
        finally:
            self._writer.close(_CLOSE_S)

    def records(self, partition: int) -> None:
        importer, window = self._importer, self._window
        self._until(partition, lambda: importer.writes(partition, window), lambda: importer.is_written(partition))

    def mark(self, partition: int) -> None:
        wanted = self._importer.marks(partition)
        if wanted is not None:
            mark = [wanted]
            self._until(
                partition, lambda: [mark.pop()] if mark else [], lambda: self._importer.marks(partition) is None
            )

    def _until(self, partition: int, writes: Callable[[], Iterable[ImportWrite]], done: Callable[[], bool]) -> None:
        """Write and read back until it is done."""
        importer, counts = self._importer, self._importer.counts
        if done():
            return
        progress_s, timeout_s = time.monotonic(), self._connection.timeout_s
        with open_tail(self._connection, Topic.CHANNEL, partition) as tail:
            self._append(writes())
            for batch in tail.follow(importer.position(partition)):
                for record in batch:
                    importer.take(record)
                self._advance(counts.present + counts.written)
                if done():
                    return
                self._append(writes())
                self._check()
                if batch:
                    progress_s = time.monotonic()
                elif time.monotonic() - progress_s > timeout_s:
                    raise CommandError(
                        f"Kafka at {self._connection.client.bootstrap_servers} has not returned the written records "
                        f"for {timeout_s:g} s",
                        hint=_AGAIN,
                        code=ExitCode.UNKNOWN,
                    )

    def _append(self, writes: Iterable[ImportWrite]) -> None:
        for write in writes:
            self._tokens += 1
            self._writer.append(Append(self._tokens, Topic.CHANNEL, *write))

    def _reported(self, report: Input) -> None:
        if isinstance(report, AppendFailed):
            self._failures.put(report.error)

    def _check(self) -> None:
        try:
            error = self._failures.get_nowait()
        except Empty:
            return
        raise CommandError(f"Kafka did not confirm a record: {error}", hint=_AGAIN, code=ExitCode.UNKNOWN)
