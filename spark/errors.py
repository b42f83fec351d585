"""What can go wrong in the Spark jobs: each error says what happened, to what, and what to do next."""

from __future__ import annotations

from statechannel.errors import ExitCode, StateChannelError


class SparkJobError(StateChannelError):
    """A job cannot go on."""


class TableFormatError(SparkJobError):
    """A folder does not hold what this version writes."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(
            f"{place} cannot be used: {why}",
            hint="Name another folder for the table, or bring back what was there.",
            exit_code=ExitCode.TABLE_UNUSABLE,
        )


class TableChangedError(SparkJobError):
    """Two writers are at work on one table."""

    def __init__(self, place: str, sequence: int | None) -> None:
        super().__init__(
            f"{place} was changed by another writer (its newest snapshot is {sequence}): nothing of this batch was published",
            hint="Only one job may write a table; end the other one, then start this one again.",
            exit_code=ExitCode.JOB_IN_USE,
        )


class NewerFormatError(SparkJobError):
    """The log goes on in a format that this version does not know."""

    def __init__(self, topic: str, partition: int, offset: int, newer: int) -> None:
        super().__init__(
            f"offset {offset} of {topic}-{partition} is written in format {newer}; all before it is judged and published",
            hint=f"Upgrade this package to a version that reads format {newer} and start the job again; it goes on there.",
            exit_code=ExitCode.NEWER_FORMAT,
        )


class TopicBrokenError(SparkJobError):
    """The topic is not the one that was read, or lost what was not read yet."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.TOPIC_BROKEN)
