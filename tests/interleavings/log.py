"""Logs as values: two logs with the same records are one, and what is true of a log is worked out once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import orjson

from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import Verdict
from statechannel.sim.truth import Truth

LOG_MS = 1_700_000_000_000


class Log:
    """A partition's records, by its last one; logs that share a beginning share it in memory.

    Attributes:
        before: The same log without its last record.
        end: Offset of the next record.
        uncleaned: Of a log that was cleaned up to here, the log as it was.
    """

    def __init__(self, before: Log | None, last: RecordRead | None, end: int) -> None:
        self.before = before
        self.last = last
        self.end = end
        self.uncleaned: Log | None = None
        self._next: dict[tuple[int, bytes | None, bytes | None], Log] = {}

    def append(self, topic: Topic, time_s: float, key: bytes | None, value: bytes | None) -> Log:
        """This log with one more record."""
        when_ms = LOG_MS + int(time_s * 1000)
        content = (when_ms, key, value)
        log = self._next.get(content)
        if log is None:
            log = self._next[content] = Log(self, RecordRead(topic, 0, self.end, when_ms, key, value), self.end + 1)
        return log

    def records(self, position: int = 0, end: int | None = None) -> list[RecordRead]:
        """Records from a position to the end."""
        newest_first: list[RecordRead] = []
        log = self.upto(self.end if end is None else end)
        while log.end > position and log.before is not None and log.last is not None:
            newest_first.append(log.last)
            log = log.before
        return newest_first[::-1]

    def upto(self, end: int) -> Log:
        """This log as it was when it ended there."""
        log = self
        while log.end > end and log.before is not None:
            log = log.before
        return log

    def clean(self) -> Log:
        """This log once the cleaner has removed each record that a later one of its key hides."""
        newest = {record.key: record.offset for record in self.records()}
        log = Log(None, None, 0)
        for record in self.records():
            if newest[record.key] == record.offset:
                log = Log(log, record, record.offset + 1)
        log.uncleaned = self
        return log

    def whole(self) -> list[RecordRead]:
        """Every record that was ever written."""
        if self.uncleaned is not None:
            return self.uncleaned.whole()
        if self.before is None or self.last is None:
            return []
        return [*self.before.whole(), self.last]

    @cached_property
    def truth(self) -> Truth:
        """What a reader of all that was ever written says about it."""
        truth = Truth(0, 1)
        for record in self.whole():
            truth.read(record)
        return truth

    @cached_property
    def operations(self) -> frozenset[str]:
        """Operations of which a record was accepted."""
        if self.uncleaned is not None:
            return self.uncleaned.operations
        if self.before is None or self.last is None:
            return frozenset()
        truth = self.truth
        if truth.verdicts[-1] is Verdict.ACCEPTED:
            operation = _operation(self.last)
            if operation is not None:
                return self.before.operations | {operation}
        return self.before.operations


def _operation(record: RecordRead) -> str | None:
    body: Any = orjson.loads(record.value or b"{}")
    operation = body.get("operation")
    return operation if isinstance(operation, str) else None


def empty_log() -> Log:
    return Log(None, None, 0)
