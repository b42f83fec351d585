"""End of a member: its log lines, and the answers to waiting callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.broker.exits import Stopped
from statechannel.engine import commands
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from statechannel.engine.commands import Command, Outcome

_log = SafeLogger(__name__)

LOG_AWAY = "log-away"
GOODBYE_UNCONFIRMED = (
    "the log did not answer: this broker left, and its goodbye is not in the registry as far as it knows; "
    "the others notice when it expires"
)


def after_all(stopped: Stopped, *, registered: bool, left: str) -> Stopped:
    """Kafka may have come back while the clients closed: then the goodbye is in the registry, and the reason is `left`.

    Args:
        left: Bundles that were not handed over, as text; empty if none.
    """
    if not registered:
        return Stopped(stopped.reason, GOODBYE_UNCONFIRMED)
    if not left:
        return Stopped("closed", "this broker left on request; Kafka answered at the last moment")
    detail = f"Kafka was unavailable for too long, {left} were not handed over; the goodbye was written, the leader repairs them"
    return Stopped("shutdown-late", detail)


def log_end(stopped: Stopped, broker: str, serving: int) -> None:
    log = _log.info if stopped.clean else _log.error
    log("stopped", broker=broker, serving=serving, reason=stopped.reason, detail=stopped.detail)


def outcome_of_stopping(command: Command, stopped: Stopped) -> Outcome:
    """The answer to a caller whose command has none yet."""
    detail = f"this member stopped ({stopped.reason}) before the answer came"
    operation = getattr(command, "operation", None)
    if operation is not None:
        return commands.Unknown(operation, detail)
    return commands.Undetermined("stopped", detail)


def within_budget(limit_s: float, left_s: float | None, grace_s: float) -> float:
    """Time for hooks at the end: their own limit, and in a shutdown no more than the rest of its budget and a grace.

    Args:
        left_s: What is left of the budget of a shutdown; None without one.
    """
    return limit_s if left_s is None else min(limit_s, max(0.0, left_s) + grace_s)
