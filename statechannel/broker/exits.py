"""Reasons for the end of a member, with the exit codes of its process."""

from __future__ import annotations

from dataclasses import dataclass

from statechannel.errors import ExitCode, StateChannelError

_CODES = {
    "shutdown": ExitCode.OK,
    "closed": ExitCode.OK,
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


STOP_REASONS = {
    "closed": "it was closed or shut down on request, and all bundles were handed over",
    "shutdown-late": "it was shut down, and the time ran out: the leader repairs the remaining bundles",
    "log-away": "it was shut down while Kafka was away: the leader repairs its bundles once it has expired",
    "id-in-use": "another live process has its broker id",
    "replaced": "a later process has taken over its broker id",
    "topic-broken": "a topic was re-created or truncated",
    "part-failed": "a reader, the writer or the election failed for good",
    "loop-closed": "the event loop was closed while the channel was open",
    "forked": "this process is a child by fork of the one that opened it, where it runs on",
    "invariant-violated": "a bug",
    "stuck": "the event loop is stuck, and `broker run` ended its process",
    "killed": "a test kit ended it as `kill -9` would",
    "busy": "no end: too many calls wait for an answer, try again",
}
"""Why a member stops, by the stable word."""

_CLOSED = "It was closed on request, and nothing is left to be repaired; `StateChannel.open` opens a new one."
HINTS: dict[str, str] = {
    "shutdown": _CLOSED,
    "closed": _CLOSED,
    "id-in-use": "Stop that process (`statechannel brokers` shows who is alive), choose another id, or take over: "
    "`membership={'take_over': True}`, --take-over.",
    "replaced": "Nothing to do: the other process serves on under this id.",
    "newer-format": "Upgrade this broker to the version that the others run.",
    "forked": "Open one in each worker, after the fork: in gunicorn's `post_fork`, Celery's `worker_process_init`, or the "
    "function that `multiprocessing` calls (design/processes.md).",
    "topic-broken": "Look at the topic with `statechannel init`. Started again, a broker waits where records are missing that "
    "others had read, and says what to do (log.restatement-awaited).",
}


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why a member stopped.

    Attributes:
        reason: A stable word, one of `STOP_REASONS`.
        detail: A sentence with what to do next.
    """

    reason: str
    detail: str

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a process that only ran this member."""
        return _CODES.get(self.reason, ExitCode.BROKER_STOPPED)

    @property
    def clean(self) -> bool:
        """Whether this is a regular end."""
        return self.exit_code == ExitCode.OK


class ChannelStoppedError(StateChannelError):
    """This member of the channel has stopped, or stopped before it was ready."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(
            f"The channel stopped ({stopped.reason}): {stopped.detail}",
            hint=HINTS.get(
                stopped.reason, "Start a new process once the reason is gone; what it owned is repaired by the others."
            ),
            exit_code=stopped.exit_code or ExitCode.BROKER_STOPPED,
        )
        self.stopped = stopped


class TooManyCommandsError(ChannelStoppedError):
    """Too many commands are waiting."""

    retryable = True

    def __init__(self, limit: int) -> None:
        super().__init__(Stopped("busy", f"{limit} commands wait for an answer already; try again later"))


class JoinTimeoutError(StateChannelError):
    """The member did not catch up in time."""

    retryable = True

    def __init__(self, waited_s: float, why: str) -> None:
        super().__init__(
            f"The channel was not caught up after {waited_s:g} s: {why}",
            hint="Check that Kafka answers and that another broker of the channel is alive, or wait longer "
            "(`join_timeout_s`).",
            exit_code=ExitCode.BROKER_STOPPED,
        )
