"""What the planner and its execution refuse, with what to do next."""

from __future__ import annotations

from statechannel.errors import ExitCode, StateChannelError


class PartitionsError(StateChannelError):
    """Something about a plan of partitions cannot be done."""


class RequestRefusedError(PartitionsError):
    """The inputs of a plan contradict the cluster or each other; nothing was planned."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.USAGE)


class PlanUnusableError(PartitionsError):
    """A plan file cannot be read, or is for another cluster or an older layout."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.BAD_EXPORT)


class ExecutionRefusedError(PartitionsError):
    """The cluster is not in a state in which the plan may be begun or gone on with; nothing was done."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=ExitCode.REJECTED)


class PlanUnknownError(ExecutionRefusedError):
    """No plan has this id."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.exit_code = ExitCode.NOT_FOUND
