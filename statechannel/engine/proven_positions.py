"""How far members had read the channel, by what they left in the registry: a log that ends before that has lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statechannel.protocol.codec import MAX_INT

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFSET_MAX: Final = MAX_INT // 4
"""A record that names a higher one is junk: a log of a million records a second comes there after seventy years."""


class ProvenPositions:
    """Highest offset that was read of each partition.

    Args:
        log: Id of the topic that this process reads; empty where none is known.
        partitions: Of the channel; those of others are ignored.

    Attributes:
        same: By those that read this topic, or did not name one.
        foreign: By those that read another topic under the same name.
    """

    def __init__(self, log: str, partitions: int) -> None:
        self._log = log
        self._names: Mapping[object, int] = {str(number): number for number in range(partitions)}
        self.same: dict[int, int] = {}
        self.foreign: dict[int, int] = {}

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
        """A heartbeat of the registry."""
        log, applied = info.get("log"), info.get("applied")
        is_foreign = isinstance(log, str) and bool(self._log) and log != self._log
        positions = self.foreign if is_foreign else self.same
        for name, offset in applied.items() if isinstance(applied, dict) else ():
            if type(offset) is int and 0 <= offset <= OFFSET_MAX and name in self._names:
                number = self._names[name]
                positions[number] = max(offset, positions.get(number, -1))
