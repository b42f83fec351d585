"""Bundles that wait for their turn to be assigned, in an order that is this process's own."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from zlib import crc32


class InLine:
    """A storm asks every broker for the same bundles, often in the same order.

    If all of them began at its head, each bundle would be proposed by each broker and all records but one would come to
    nothing. So each broker takes them in an order of its own, and by the time it comes to a bundle mostly finds it assigned.

    Args:
        salt: What makes the order this process's own, such as its incarnation.
    """

    def __init__(self, salt: str) -> None:
        self._salt = crc32(salt.encode())
        self._line: list[tuple[int, str]] = []
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, bundle: str) -> bool:
        return bundle in self._names

    def add(self, bundle: str) -> None:
        """It waits from now on, once."""
        if bundle not in self._names:
            self._names.add(bundle)
            heappush(self._line, (crc32(bundle.encode(), self._salt), bundle))

    def take(self) -> str | None:
        """The next one, which waits no more; None if none does."""
        while self._line:
            bundle = heappop(self._line)[1]
            if bundle in self._names:
                self._names.discard(bundle)
                return bundle
        return None

    def drop(self, bundle: str) -> None:
        """Nobody waits for it any more."""
        self._names.discard(bundle)
        if len(self._line) > 2 * len(self._names) + 64:
            self._line = [one for one in self._line if one[1] in self._names]
            heapify(self._line)
