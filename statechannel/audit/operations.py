"""Operations as the log tells them: which began, how each ended. The rules are `statechannel.engine.operations`'."""

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
    """What `Operations` wants of an engine when it only watches: limits, a clock that nobody reads, no listeners."""

    def __init__(self, operations_max: int) -> None:
        self.config = EngineConfig(operations_max=operations_max)
        self.now = Now(0.0, 0)

    def judges(self, partition: int) -> bool:  # noqa: ARG002 - it watches them all
        """Nobody listens, so nothing is told."""
        return False

    def emit(self, event: str, **facts: Any) -> None:
        """Nobody listens."""


@dataclass(slots=True)
class OperationTimes:
    """When an operation's first and newest accepted records were written (log time), and by whom the first was."""

    began_ms: int
    changed_ms: int
    by: str
    records: int = 1


class OperationsSeen:
    """Folds an audit's observations into operations.

    Args:
        operations_max: The newest so many are kept.
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
