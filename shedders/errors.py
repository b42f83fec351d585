"""Errors of the strategies; each says what happened, to what, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from statechannel.errors import ExitCode, StateChannelError
from statechannel.suggestions import nearest, shown


class UnknownStrategyError(StateChannelError):
    """No strategy of that name is installed."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        near = nearest(name, known)
        meant = f"did you mean {near[0]}? " if near else ""
        word = kind.removeprefix("shedders.")
        super().__init__(
            f"unknown {word}{' ' if word else ''}strategy `{shown(name)}`",
            hint=f"{meant}Known strategies: {', '.join(known) or 'none'}.",
            exit_code=ExitCode.BAD_SETTINGS,
        )


class StrategyFailedError(StateChannelError):
    """A strategy that is installed cannot be used."""

    def __init__(self, kind: str, name: str, why: str) -> None:
        super().__init__(
            f"{kind.removeprefix('shedders.')} strategy `{name}` {why}",
            hint="Correct or remove that package, or choose another strategy.",
        )
