"""What members had read of the channel, by what they left in the registry: a log that ends before that has lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from statechannel.protocol.codec import MAX_INT
from statechannel.protocol.digest import version_bound_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from statechannel.protocol.replica import Replica

OFFSET_MAX: Final = MAX_INT // 4
"""A record that names a higher one is junk: a log of a million records a second comes there after seventy years."""


class ProvenPositions:
    """Highest offset that was read of each partition.

    Args:
        log: Id of the topic that this process reads; empty where none is known.
        partitions: Of the channel; those of others are ignored.

    Attributes:
        same: By those that read this topic, or did not name one.
        foreign: By those that read another topic under the same name, or wait as their log has lost records.
        versions_below: Above every version that was accepted.
    """

    def __init__(self, log: str, partitions: int) -> None:
        self._log = log
        self._names: Mapping[object, int] = {str(number): number for number in range(partitions)}
        self.same: dict[int, int] = {}
        self.foreign: dict[int, int] = {}
        self.versions_below = 0

    def take(self, info: Mapping[str, object]) -> None:
        """A heartbeat of the registry."""
        log, applied = info.get("log"), info.get("applied")
        is_foreign = isinstance(log, str) and bool(self._log) and log != self._log
        self._take(applied, self.foreign if is_foreign else self.same)
        self._take(info.get("known"), self.foreign)
        self.versions_below = max(self.versions_below, version_bound_in(info, "versions_below"))

    def _take(self, offsets: object, positions: dict[int, int]) -> None:
        for name, offset in offsets.items() if isinstance(offsets, dict) else ():
            if type(offset) is int and 0 <= offset <= OFFSET_MAX and name in self._names:
                number = self._names[name]
                positions[number] = max(offset, positions.get(number, -1))

    def fields(self, replicas: Sequence[Replica]) -> dict[str, Any]:
        """What a heartbeat says for those that start later: the registry forgets the heartbeats of members that are gone.

        A power of two: most heartbeats repeat the one before.
        """
        highest = max((replica.view.highest for replica in replicas), default=0)
        waiting = [replica for replica in replicas if not replica.caught_up and replica.is_headless]
        return {
            "known": {str(replica.partition): replica.known for replica in waiting if replica.known >= 0} or None,
            "versions_below": max(self.versions_below, 1 << highest.bit_length()),
        }
