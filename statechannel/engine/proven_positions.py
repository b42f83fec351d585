"""What members had read of the channel, by what they left in the registry: a log without that has lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from statechannel.protocol.bounded import remember
from statechannel.protocol.codec import MAX_INT
from statechannel.protocol.digest import version_bound_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from statechannel.protocol.replica import Replica

OFFSET_MAX: Final = MAX_INT // 4
"""A record that names a higher one is junk: a log of a million records a second comes there after seventy years."""

EPOCHS_MAX: Final = 1_000
"""Leaders of a partition that are remembered."""


class LeaderEpochs:
    """Where the records of each leader begin in a partition, as far as it was read."""

    def __init__(self) -> None:
        self._begins: list[tuple[int, int]] = []

    def begin(self, offset: int, epoch: int) -> None:
        """Note a record of another leader than the one before; what was read above it before lies there no more."""
        while self._begins and self._begins[-1][0] >= offset:
            self._begins.pop()
        self._begins.append((offset, epoch))
        del self._begins[:-EPOCHS_MAX]

    def at(self, offset: int) -> int:
        """Of the last record at or below an offset; -1 if none is known."""
        return next((epoch for begin, epoch in reversed(self._begins) if begin <= offset), -1)


class ProvenPositions:
    """Highest offset that was read of each partition.

    Args:
        log: Id of the topic that this process reads; empty where none is known.

    Attributes:
        same: By those that read this topic, or did not name one.
        foreign: By those that read another topic under the same name, or wait as their log has lost records.
        epochs: Of Kafka's leaders, in the log that this process reads.
        versions_below: Above every version that was accepted.
    """

    def __init__(self, log: str, partitions: int) -> None:
        self._log = log
        self._names: Mapping[object, int] = {str(number): number for number in range(partitions)}
        self.same: dict[int, int] = {}
        self.foreign: dict[int, int] = {}
        self.epochs = {number: LeaderEpochs() for number in range(partitions)}
        self.versions_below = 0
        self._read: dict[int, dict[int, int]] = {}

    def lost(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Highest offset that was read and that this topic does not have, by partition. In any thread.

        Args:
            ends: End offsets, asked after the registry was read.
        """
        lost = {number: offset for number, offset in list(self.same.items()) if offset >= ends.get(number, offset + 1)}
        for number, offset in list(self.foreign.items()):
            lost[number] = max(offset, lost.get(number, -1))
        return lost

    def take(self, info: Mapping[str, object]) -> None:
        log, applied, epochs = info.get("log"), info.get("applied"), info.get("epochs")
        is_foreign = isinstance(log, str) and bool(self._log) and log != self._log
        positions = self.foreign if is_foreign else self.same
        for number, offset in self._offsets(applied):
            positions[number] = max(offset, positions.get(number, -1))
            epoch = epochs.get(str(number)) if isinstance(epochs, dict) and not is_foreign else None
            if type(epoch) is int and epoch >= 0:
                read = self._read.setdefault(number, {})
                remember(read, epoch, max(offset, read.get(epoch, -1)), EPOCHS_MAX)
        for number, offset in self._offsets(info.get("known")):
            self.foreign[number] = max(offset, self.foreign.get(number, -1))
        self.versions_below = max(self.versions_below, version_bound_in(info, "versions_below"))

    def _offsets(self, by_name: object) -> Iterator[tuple[int, int]]:
        """Offsets by partition; what has not this form is left out."""
        for name, offset in by_name.items() if isinstance(by_name, dict) else ():
            if type(offset) is int and 0 <= offset <= OFFSET_MAX and name in self._names:
                yield self._names[name], offset

    def truncated(self, partition: int) -> int:
        """The highest offset that members had read where a later leader's records lie now; -1 if there is none.

        The epoch of the record at an offset never changes: where it is higher now, Kafka has truncated the log below that offset.
        """
        epochs, read = self.epochs[partition], self._read.get(partition, {})
        return max((offset for epoch, offset in read.items() if epochs.at(offset) > epoch), default=-1)

    def fields(self, replicas: Sequence[Replica]) -> dict[str, Any]:
        """What a heartbeat says of records that may be lost, for processes that start when others' heartbeats are gone.

        `versions_below` is a power of two, so that most heartbeats repeat the one before.
        """
        highest = max((replica.view.highest for replica in replicas), default=0)
        waiting = [replica for replica in replicas if not replica.caught_up and replica.is_headless]
        return {
            "kept": {str(each.partition): each.kept.applied for each in replicas if each.kept is not None} or None,
            "epochs": {str(each.partition): self.epochs[each.partition].at(each.applied) for each in replicas},
            "known": {str(replica.partition): replica.known for replica in waiting if replica.known >= 0} or None,
            "versions_below": max(self.versions_below, 1 << highest.bit_length()),
        }
