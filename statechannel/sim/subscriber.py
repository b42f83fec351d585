"""Who follows the accepted records of one process, and is held against the log: none is missing, or it was told so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.protocol.verdict import Verdict
from statechannel.sim.violation import Violation

if TYPE_CHECKING:
    from statechannel.protocol.log import RecordRead
    from statechannel.sim.process import SimProcess


class Subscriber:
    """Subscribes whenever it may; what it was told has to be what was accepted.

    Attributes:
        following: It is subscribed.
    """

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.following = False
        self._untold: dict[
            int, int
        ] = {}  # by partition, the first offset of which it does not know whether it is accepted

    def stepped(self) -> None:
        """The process took an input in, and everything that it tells of it was told."""
        engine = self._process.engine
        if engine.stopped is not None:
            return
        if self.following:
            for partition in self._untold:
                self._nothing_untold(partition, engine.replicas[partition].position)
        elif engine.streams.closed_why() is None:
            self.following = True
            self._untold = {replica.partition: replica.position for replica in engine.replicas}
            self._process.world.trace.count("subscriptions")

    def told(self, read: RecordRead) -> None:
        """A record was accepted."""
        if not self.following or read.offset < self._untold[read.partition]:
            return
        self._nothing_untold(read.partition, read.offset)
        self._untold[read.partition] = read.offset + 1

    def interrupted(self, partition: int) -> None:
        """From here on something may be missing."""
        if self.following:
            self._process.world.trace.count("streams interrupted")
            self._process.world.note(f"{self._process.name} interrupts the stream of partition {partition}")
        self.following = False

    def _nothing_untold(self, partition: int, end: int) -> None:
        world, process = self._process.world, self._process
        if world.checks.judges_by_another_history(process, partition):
            self._untold[partition] = max(self._untold[partition], end)
            return
        verdicts = world.truths[partition].verdicts
        while self._untold[partition] < min(end, len(verdicts)):
            offset = self._untold[partition]
            if verdicts[offset] is Verdict.ACCEPTED:
                raise Violation("stream", f"{process.name} never told of {offset}, which is accepted, and says nothing")
            self._untold[partition] = offset + 1
