"""What a simulation throws when an invariant of the protocol does not hold."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818 - the simulator's finding, not a failure of the simulator
    """An invariant was broken.

    Attributes:
        kind: Stable word by which shrinking recognises the same finding.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
