"""What happened in a run, as text for people and as a digest that shows determinism."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256


class SimTrace:
    """Lines of one run; all of them go into the digest.

    Attributes:
        counts: How often each thing of interest happened, so that nothing is silently never reached.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self._keep = keep
        self._hash = sha256()

    def add(self, line: str) -> None:
        """Record one line."""
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        if self._keep:
            self.lines.append(line)

    def count(self, name: str, number: int = 1) -> None:
        """Note that something worth counting happened."""
        self.counts[name] += number

    @property
    def digest(self) -> str:
        """SHA-256 over all lines so far."""
        return self._hash.hexdigest()
