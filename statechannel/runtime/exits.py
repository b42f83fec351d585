"""How a member of the channel ended, and the exit code of a process that ends with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from statechannel.errors import StateChannelError


class ExitCode(IntEnum):
    """Exit codes of a broker process; those of commands are in `statechannel.cli`."""

    DONE = 0
    STOPPED = 20  # the channel stopped this process, for the reason in the log
    KAFKA_AWAY = 10  # the shutdown could not reach the log: the leader will repair what was left
    ID_IN_USE = 15
    REPLACED = 16
    TOPIC_BROKEN = 17
    NEWER_FORMAT = 18
    SHUTDOWN_LATE = 19  # the budget ran out; some bundles are left to the leader's repair
    BUG = 70


_CODES = {
    "shutdown": ExitCode.DONE,
    "closed": ExitCode.DONE,
    "log-away": ExitCode.KAFKA_AWAY,
    "kafka-away": ExitCode.KAFKA_AWAY,
    "id-in-use": ExitCode.ID_IN_USE,
    "replaced": ExitCode.REPLACED,
    "partition-broken": ExitCode.TOPIC_BROKEN,
    "broken": ExitCode.TOPIC_BROKEN,
    "topic-broken": ExitCode.TOPIC_BROKEN,
    "newer-format": ExitCode.NEWER_FORMAT,
    "shutdown-late": ExitCode.SHUTDOWN_LATE,
    "invariant-violated": ExitCode.BUG,
    "stuck": ExitCode.BUG,
    "part-failed": ExitCode.BUG,
}


_HINTS = {
    "id-in-use": "`statechannel brokers` shows who is alive; stop that process, choose another --id, or use --take-over.",
    "replaced": "Nothing to do: the other process serves on under this id.",
    "newer-format": "Upgrade this broker to the version that the others run.",
    "topic-broken": "Look at the topic with `statechannel init`; a re-created or cut topic must not be read on.",
}


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a member stopped.

    Attributes:
        reason: A stable word.
        detail: A sentence with what to do next.
    """

    reason: str
    detail: str

    @property
    def exit_code(self) -> int:
        """Exit code of a process that was nothing but this member."""
        return int(_CODES.get(self.reason, ExitCode.STOPPED))

    @property
    def clean(self) -> bool:
        """Whether this is how a member is meant to end."""
        return self.exit_code == ExitCode.DONE


class ChannelStoppedError(StateChannelError):
    """This member of the channel has stopped, or stopped before it was ready."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(
            f"The channel stopped ({stopped.reason}): {stopped.detail}",
            hint=_HINTS.get(
                stopped.reason, "Start a new process once the reason is gone; what it owned is repaired by the others."
            ),
            exit_code=stopped.exit_code or ExitCode.STOPPED,
        )
        self.stopped = stopped


class JoinTimeoutError(StateChannelError):
    """The member did not catch up in time."""

    def __init__(self, waited_s: float, why: str) -> None:
        super().__init__(
            f"The channel was not caught up after {waited_s:g} s: {why}",
            hint="Check that Kafka answers and that another broker of the channel is alive, or wait longer "
            "(`join_timeout_s`).",
            exit_code=ExitCode.STOPPED,
        )
