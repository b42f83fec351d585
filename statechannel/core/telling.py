"""What is told of records that changed nothing: to who listens that closely, of each; else of those that concern this broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core.verdict import REJECTIONS

if TYPE_CHECKING:
    from statechannel.core.engine import Engine
    from statechannel.core.inputs import RecordRead
    from statechannel.core.operations import Operation
    from statechannel.core.view import Judgement

_REJECTED = frozenset(REJECTIONS)


def tell_verdict(engine: Engine, read: RecordRead, judgement: Judgement) -> None:
    """Tell the verdict on a record that was not accepted.

    A record concerns this broker if it wrote it, or if the accepted state of its key names this broker: then a
    rejection is a race that it lost, or one that somebody else lost to it.
    """
    rejected = judgement.verdict in _REJECTED
    concerns = rejected and _concerns(engine.identity.broker, judgement)
    if not concerns and not engine.tells_all:
        return
    if rejected:
        winner = None if judgement.key is None else judgement.key.accepted_id
        engine.emit("record.rejected", read=read, judgement=judgement, winner=winner, concerns=concerns)
    else:
        engine.emit("record.unchanging", read=read, judgement=judgement)


def tell_began(engine: Engine, operation: Operation) -> None:
    """Tell of the first record of an operation; not of what a replay comes by."""
    if engine.judges(operation.partition):
        engine.emit(
            "operation.began",
            operation=operation.id,
            flow=operation.flow,
            bundle=operation.name,
            offset=operation.offset,
        )


def tell_ended(engine: Engine, operation: Operation) -> None:
    """Tell how an operation ended; not of what a replay comes by."""
    if engine.judges(operation.partition):
        engine.emit(
            "operation.ended",
            operation=operation.id,
            flow=operation.flow,
            bundle=operation.name,
            result=operation.result,
            offset=operation.changed_offset,
        )


def _concerns(me: str, judgement: Judgement) -> bool:
    record, key = judgement.record, judgement.key
    return (record is not None and record.broker == me) or (key is not None and me in (key.from_, key.to))
