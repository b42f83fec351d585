"""Errors of the planner and the execution of plans."""

from __future__ import annotations

from statechannel.errors import ExitCode, StateChannelError


class PartitionsError(StateChannelError):
    """Base of all errors about plans of partitions."""


class RequestRefusedError(PartitionsError):
    """The inputs of a plan contradict the cluster or each other; nothing was planned."""

    exit_code = ExitCode.USAGE


class PlanUnusableError(PartitionsError):
    """A plan file cannot be read, or is for another cluster or an older layout."""

    exit_code = ExitCode.BAD_EXPORT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)


class ExecutionRefusedError(PartitionsError):
    """The state of the cluster does not allow the plan to be started or continued; nothing was done."""

    exit_code = ExitCode.REJECTED


class PlanUnknownError(ExecutionRefusedError):
    """The id of a plan is unknown."""

    exit_code = ExitCode.NOT_FOUND
