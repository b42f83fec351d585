"""Makes the moves of a decision: a few at a time, each with an operation id of its own, each told how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog
from ulid import ULID

from statechannel.core import commands
from statechannel.runtime import outcomes
from statechannel.runtime.exits import ChannelStoppedError

if TYPE_CHECKING:
    from shedders.plan import Move
    from statechannel.core.commands import Command, Outcome

_log = structlog.get_logger(__name__)

REASON_MAX = 300


class Ticket(Protocol):
    """An operation under way."""

    async def outcome(self, timeout_s: float) -> Outcome:
        """How it ended."""
        ...


class Channel(Protocol):
    """What moving takes; `statechannel.api.StateChannel` has it."""

    async def ask(self, command: Command) -> Outcome:
        """Give a command and wait for its answer."""
        ...

    def ticket(self, operation: str) -> Ticket:
        """The ticket of an operation."""
        ...


class Ended(NamedTuple):
    """How a move ended.

    Attributes:
        result: A stable word: `done`, a reason of rejection, `unknown`, `timed-out`, `abandoned`.
        took_s: Since it was begun.
    """

    move: Move
    operation: str
    result: str
    why: str
    took_s: float

    @property
    def done(self) -> bool:
        """Whether the bundle is where it should be."""
        return self.result == "done"


@dataclass
class Movers:
    """Moves under way.

    Attributes:
        at_once: So many at the same time; the others wait for their turn.
        timeout_s: After so long nobody waits any more for the end of one.
    """

    channel: Channel
    at_once: int
    timeout_s: float
    now_s: Callable[[], float]

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.at_once)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        move: Move,
        *,
        why: str,
        only_unload: bool,
        still: Callable[[], bool],
        told: Callable[[Ended], None],
    ) -> str:
        """Begin a move; the id of its operation.

        Args:
            why: Goes into the records of the channel.
            only_unload: Let go without naming the destination.
            still: Asked when its turn comes: whether it is still wanted.
            told: Called once, with the end.
        """
        operation = str(ULID())
        reason = why[:REASON_MAX]
        command: Command
        if move.destination is None or only_unload:
            command = commands.Unload(move.bundle, operation, self.timeout_s, reason)
        else:
            command = commands.Transfer(move.bundle, move.destination, operation, self.timeout_s, reason)
        task = asyncio.get_running_loop().create_task(self._go(move, command, operation, still, told), name="move")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return operation

    async def close(self) -> None:
        """Wait for nothing more; what was begun on the channel goes on there."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _go(
        self,
        move: Move,
        command: Command,
        operation: str,
        still: Callable[[], bool],
        told: Callable[[Ended], None],
    ) -> None:
        async with self._slots:
            begun_s = self.now_s()
            try:
                result, why = await self._made(command, operation) if still() else _ABANDONED
            except ChannelStoppedError as error:
                result, why = "abandoned", str(error)
            except Exception as error:
                _log.exception("move-failed", bundle=move.bundle, operation=operation)
                result, why = "internal-error", f"{type(error).__name__}: {error}"
        told(Ended(move, operation, result, why, self.now_s() - begun_s))

    async def _made(self, command: Command, operation: str) -> tuple[str, str]:
        outcome = await self.channel.ask(command)
        if isinstance(outcome, commands.Started | commands.Unknown):
            outcome = await self.channel.ticket(operation).outcome(self.timeout_s)
        return word_of(outcome)


_ABANDONED = ("abandoned", "this broker leads no more; whoever leads decides anew")


def word_of(outcome: Outcome) -> tuple[str, str]:
    """A stable word and a sentence for how an operation ended."""
    match outcome:
        case commands.Done(result=result):
            return "done", result
        case commands.Rejected(reason=reason, detail=detail):
            return str(reason), detail
        case commands.NotFound(why=why):
            return "not-found", why
        case commands.Undetermined(why=why, detail=detail):
            return "timed-out", detail or why
        case commands.Unknown(detail=detail):
            return "unknown", detail
        case _:
            return "unknown", f"answered with {outcomes.name_of(outcome)}"
