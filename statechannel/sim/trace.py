"""What happened in a run: its lines, as text and as a digest that shows determinism, and the violation that ended it."""

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
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        if self._keep:
            self.lines.append(line)

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Violation(Exception):  # noqa: N818 - the simulator's finding, not a failure of the simulator
    """An invariant was broken.

    Attributes:
        kind: Stable word by which shrinking recognises the same finding.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
