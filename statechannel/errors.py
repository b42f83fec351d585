"""Base class of this package's errors, and the exit codes of its commands."""

from __future__ import annotations

import re
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command, a broker or a job. Stable: scripts rely on the numbers (cli.md)."""

    OK = 0
    FAILED = 1  # anything that has no number of its own
    USAGE = 2  # wrong arguments; nothing was done
    REJECTED = 3  # the cluster refused it, with a reason
    UNDETERMINED = 4  # not known within the time allowed
    NOT_FOUND = 5  # the namespace, bundle, broker or operation does not exist, or is not served
    NO_BROKER = 6  # no broker is alive, or none took up the request in time
    BAD_EXPORT = 7  # a malformed export file or snapshot, or one that cannot be read or written
    BAD_SETTINGS = 8
    LOCAL_KAFKA = 9  # the embedded broker: no Java, no jars, port in use, disk full
    KAFKA_AWAY = 10
    KAFKA_DENIED = 11  # authentication or ACLs
    TOPIC_REFUSED = 12  # missing, or of the wrong policy
    UNKNOWN = 13  # the record may be in the log or not; or the operation goes on
    KAFKA_FAILED = 14
    ID_IN_USE = 15  # another live process has this broker id
    REPLACED = 16  # another process has taken this broker id over
    TOPIC_BROKEN = 17  # re-created, or cut short
    NEWER_FORMAT = 18  # the log holds records of a newer format
    SHUTDOWN_LATE = 19  # the budget ran out; the leader repairs what is left
    BROKER_STOPPED = 20  # a broker ended for another reason, which it names
    JOB_IN_USE = 21  # another Spark job works on this checkpoint or table
    TABLE_UNUSABLE = 22  # a folder cannot be read or written, or does not hold what this version of the jobs writes
    SPARK_FAILED = 23  # Spark did not start, or ended the query; the message says why
    SPARK_MISSING = 24  # the extra `spark`, Java or the connector's jars are not there
    EXTRA_MISSING = 25  # the command needs libraries of an extra that is not installed
    DOCTOR_WARNING = 30  # what `doctor` has found, at worst
    DOCTOR_ERROR = 31
    DOCTOR_CRITICAL = 32
    BUG = 70
    INTERRUPTED = 130

    @property
    def code(self) -> str:
        """Its name as a stable code: `kafka-away`."""
        return self.name.lower().replace("_", "-")


class StateChannelError(Exception):
    """An operation failed; the message says what happened, and to what (design/reference/errors.md lists all errors).

    Attributes:
        code: Stable code of the class: its name without `Error`, in words with hyphens.
        retryable: Whether the same call may succeed later, unchanged, and does no harm if it is repeated.
        hint: Next step, as a sentence; may be empty. A traceback shows it, too.
        exit_code: Exit code of a command that ends with this error: that of the class, where none is passed.
    """

    code: str = "state-channel"
    retryable: bool = False
    exit_code: ExitCode = ExitCode.FAILED

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, *, hint: str = "", exit_code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)
        if exit_code is not None:
            self.exit_code = exit_code


class NotFoundError(StateChannelError):
    """What a question is about does not exist."""

    exit_code = ExitCode.NOT_FOUND


class UsageError(StateChannelError):
    """A question has a parameter that makes no sense."""

    exit_code = ExitCode.USAGE
