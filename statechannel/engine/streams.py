"""Where accepted records can be reported one by one, and where some of them are not seen one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.engine.effects import InterruptStream
from statechannel.protocol.replica import Phase
from statechannel.protocol.verdict import REJECTIONS

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.view import Judgement


class Streams:
    """The stream of accepted records of each partition; whole from when it is open until it is interrupted.

    A partition that is read again, for whatever reason, is judged in one sweep: what was accepted in the meantime is in its
    view, and is not reported. Where a cold start puts the history in doubt, what is accepted may not count in the end.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: set[int] = set()

    def check(self) -> None:
        """Open or interrupt each stream, as its partition is judged or not; after whatever may have changed that."""
        for replica in self._context.replicas:
            partition = replica.partition
            if self._context.judges(partition):
                self._open.add(partition)
            elif partition in self._open:
                self._open.discard(partition)
                self._context.perform(InterruptStream(partition, self._why(partition)))

    def closed_why(self) -> str | None:
        """Why the streams cannot be followed from here on without a gap; None where they can."""
        for replica in self._context.replicas:
            if replica.partition not in self._open:
                return f"partition {replica.partition} {self._why(replica.partition)}"
        return None

    def _why(self, partition: int) -> str:
        replica = self._context.replicas[partition]
        if replica.caught_up:
            return "is in doubt: a member started cold"
        if replica.phase in (Phase.STOPPED, Phase.BROKEN):
            return f"is read no further ({replica.why})"
        return "is being joined"


_REJECTED = frozenset(REJECTIONS)


def report_verdict(context: Context, read: RecordRead, judgement: Judgement) -> None:
    """Report the verdict on a record that was not accepted.

    A record concerns this broker if it wrote it, or if the accepted state of its key names this broker: then a
    rejection is a race that it lost, or one that another broker lost to it.
    """
    rejected = judgement.verdict in _REJECTED
    concerns = rejected and _concerns(context.identity.broker, judgement)
    if not concerns and not context.tells_all:
        return
    if rejected:
        winner = None if judgement.key is None else judgement.key.accepted_id
        context.emit("record.rejected", read=read, judgement=judgement, winner=winner, concerns=concerns)
    else:
        context.emit("record.unchanging", read=read, judgement=judgement)


def _concerns(me: str, judgement: Judgement) -> bool:
    record, key = judgement.record, judgement.key
    return (record is not None and record.broker == me) or (key is not None and me in (key.from_, key.to))
