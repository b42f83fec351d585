"""Operations in a log, with their ends, by the rules of `statechannel.engine.operations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from statechannel.engine.config import EngineConfig
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import Now
from statechannel.engine.operations import Operation, Operations
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement


class _Onlooker:
    """Stand-in for an engine: limits, an unused clock, and no listeners."""

    def __init__(self, operations_max: int) -> None:
        self.config = EngineConfig(operations_max=operations_max)
        self.now = Now(0.0, 0)

    def judges(self, partition: int) -> bool:  # noqa: ARG002 - it watches them all
        """Ignore events: there are no listeners."""
        return False

    def emit(self, event: str, **facts: Any) -> None:
        """Ignore answers: there are no listeners."""


@dataclass(slots=True)
class OperationTimes:
    """Log times of an operation's first and newest accepted records, and the writer of the first."""

    began_ms: int
    changed_ms: int
    by: str
    records: int = 1


class OperationsSeen:
    """Folds an audit's observations into operations.

    Args:
        operations_max: Number of newest operations that are kept.
    """

    def __init__(self, operations_max: int = 10_000) -> None:
        self._fold = Operations(cast("Engine", _Onlooker(operations_max)))
        self.times: dict[str, OperationTimes] = {}

    @property
    def known(self) -> dict[str, Operation]:
        """Operations by id, in the order in which they began."""
        return self._fold.known

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Apply one judged record."""
        decoded, key = judgement.record, judgement.key
        if judgement.verdict is not Verdict.ACCEPTED or decoded is None or key is None:
            return
        self._fold.accepted(decoded, key, record.partition, record.offset)
        if key.operation is None:
            return
        times = self.times.get(key.operation)
        if times is None:
            self.times[key.operation] = OperationTimes(record.timestamp_ms, record.timestamp_ms, decoded.broker)
        else:
            times.changed_ms = max(times.changed_ms, record.timestamp_ms)
            times.records += 1
