"""Operations as the log shows them: which began, how each ended. The rules are in `statechannel.engine.operation_fold`."""

from __future__ import annotations

from dataclasses import dataclass

from statechannel.engine.operation_fold import Operation, OperationFold
from statechannel.protocol.log import RecordRead
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement


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
        self._fold = OperationFold(operations_max)
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
