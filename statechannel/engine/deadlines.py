"""Deadlines of many waiting things: what is due is found without looking at the others."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_SPARE = 1_000


class Deadlines:
    """A deadline for each token. Those that were dropped are skipped later, and swept out before they are most of the heap."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._at_s: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._at_s)

    def __contains__(self, token: int) -> bool:
        return token in self._at_s

    def add(self, token: int, at_s: float) -> None:
        self._at_s[token] = at_s
        heappush(self._heap, (at_s, token))

    def drop(self, token: int) -> None:
        if self._at_s.pop(token, None) is not None and len(self._heap) > 2 * len(self._at_s) + _SPARE:
            self._heap = [(at_s, waiting) for waiting, at_s in self._at_s.items()]
            heapify(self._heap)

    def due(self, now_s: float, limit: int) -> list[int]:
        """At most `limit` tokens whose time is over, the earliest first; they are dropped."""
        tokens: list[int] = []
        while self._heap and self._heap[0][0] <= now_s and len(tokens) < limit:
            at_s, token = heappop(self._heap)
            if self._at_s.get(token) == at_s:
                del self._at_s[token]
                tokens.append(token)
        return tokens
