"""How far members had read the channel, by what they left in the registry: a log that ends before that has lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

POSITIONS_MAX: Final = 100_000


class ProvenPositions:
    """Highest offset that was read of each partition.

    Args:
        log: Id of the topic that this process reads; empty where none is known.

    Attributes:
        same: By those that read this topic, or did not name one.
        foreign: By those that read another topic under the same name.
    """

    def __init__(self, log: str) -> None:
        self._log = log
        self.same: dict[int, int] = {}
        self.foreign: dict[int, int] = {}

    def take(self, info: Mapping[str, object]) -> None:
        """A heartbeat of the registry."""
        log, applied = info.get("log"), info.get("applied")
        is_foreign = isinstance(log, str) and bool(self._log) and log != self._log
        positions = self.foreign if is_foreign else self.same
        for name, offset in applied.items() if isinstance(applied, dict) else ():
            if isinstance(name, str) and name.isascii() and name.isdigit() and type(offset) is int:
                number = int(name)
                if number in positions or len(positions) < POSITIONS_MAX:
                    positions[number] = max(offset, positions.get(number, -1))
