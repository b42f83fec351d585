"""Where accepted records can be told one after the other, and where some of them are not seen one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core.effects import InterruptStream
from statechannel.core.replica import Phase

if TYPE_CHECKING:
    from statechannel.core.engine import Engine


class Streams:
    """The stream of accepted records of each partition; whole from when it is open until it is interrupted.

    A partition that is read anew, for whatever reason, is judged in one sweep: what was accepted in the meantime is in its
    view, and nobody is told. Where a cold start puts the history in doubt, what is accepted may not count in the end.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: set[int] = set()

    def check(self) -> None:
        """Open or interrupt each stream, as its partition is judged or not; after whatever may have changed that."""
        for replica in self._engine.replicas:
            partition = replica.partition
            if self._engine.judges(partition):
                self._open.add(partition)
            elif partition in self._open:
                self._open.discard(partition)
                self._engine.perform(InterruptStream(partition, self._why(partition)))

    def closed_why(self) -> str | None:
        """Why nobody can follow the streams from here on without missing anything; None where everybody can."""
        for replica in self._engine.replicas:
            if replica.partition not in self._open:
                return f"partition {replica.partition} {self._why(replica.partition)}"
        return None

    def _why(self, partition: int) -> str:
        replica = self._engine.replicas[partition]
        if replica.caught_up:
            return "is in doubt: somebody started cold"
        if replica.phase in (Phase.STOPPED, Phase.BROKEN):
            return f"is read no further ({replica.why})"
        return "is being joined"
