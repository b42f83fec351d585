"""What the canary reports: a broker whose answer contradicts the log."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class CanaryReason(StrEnum):
    """How an answer contradicts the log.

    Attributes:
        NOT_SERVING: The recorded owner refuses the bundle, or serves it by an older generation.
        NO_ANSWER: The recorded owner does not answer at its address.
        SERVES_UNOWNED: A broker serves a bundle that has another owner.
    """

    NOT_SERVING = "not-serving"
    NO_ANSWER = "no-answer"
    SERVES_UNOWNED = "serves-unowned"


class CanaryFinding(NamedTuple):
    """A contradiction that was confirmed.

    Attributes:
        owner: By the log, with its generation.
        answered: The generation of the answer; None: it does not serve, or `error`.
        since_ms: Wall clock of the first answer of this kind; `at_ms` of the last.
    """

    reason: CanaryReason
    bundle: str
    broker: str
    owner: str
    generation: int
    answered: int | None
    error: str
    since_ms: int
    at_ms: int

    @property
    def message(self) -> str:
        """Both views, as a sentence."""
        by_log = f"by the log {self.owner} serves {self.bundle} at generation {self.generation}"
        if self.reason is CanaryReason.NO_ANSWER:
            return f"{by_log}, but does not answer: {self.error}"
        if self.reason is CanaryReason.SERVES_UNOWNED:
            return f"{by_log}, but {self.broker} serves it, too, at generation {self.answered}"
        answered = "it refuses" if self.answered is None else f"it serves at generation {self.answered}"
        return f"{by_log}, but when asked, {answered}"

    def fields(self) -> dict[str, Any]:
        """For heartbeats and events."""
        return {
            "bundle": self.bundle,
            "member": self.broker,
            "reason": self.reason.value,
            "message": self.message,
            "since_ms": self.since_ms,
            "at_ms": self.at_ms,
        }
