"""Requests that extensions answer: what comes through the requests topic for them, in tasks of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from statechannel.core.commands import Rejected, Unknown

if TYPE_CHECKING:
    from statechannel.core.commands import Outcome

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExtensionAsk:
    """What somebody wants of an extension.

    Attributes:
        extension: Its name.
        ask: A word of the extension's own.
        args: All arguments of the request; not checked yet.
        operation: Id of the request: a second broker may be given the same one after the death of the first.
        timeout_s: After so long nobody waits for the answer any more.
    """

    extension: str
    ask: str
    args: Mapping[str, Any]
    operation: str
    timeout_s: float


Handler = Callable[[ExtensionAsk], Awaitable["Outcome"]]
"""Answers a request. What it raises is answered as `internal-error`; it is cancelled when the member stops."""


class Handlers:
    """The handlers of one member, by extension. In the loop's thread only.

    Args:
        running_max: Requests that may be answered at the same time; more are refused.
    """

    def __init__(self, running_max: int) -> None:
        self._handlers: dict[str, Handler] = {}
        self._running_max = running_max
        self._tasks: set[asyncio.Task[None]] = set()

    def register(self, extension: str, handler: Handler) -> None:
        """From now on this handler answers for the extension."""
        self._handlers[extension] = handler

    def give(self, ask: ExtensionAsk, tell: Callable[[Outcome], None]) -> None:
        """Have a request answered; `tell` is called once, later."""
        handler = self._handlers.get(ask.extension)
        if handler is None:
            detail = f"this broker runs no extension {ask.extension}"
            tell(Rejected("no-extension", detail))
        elif len(self._tasks) >= self._running_max:
            tell(Rejected("busy", f"{self._running_max} requests to extensions are being answered; try again later"))
        else:
            task = asyncio.get_running_loop().create_task(_answer(handler, ask, tell), name=f"ask-{ask.extension}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Answer nothing more."""
        for task in list(self._tasks):
            task.cancel()


async def _answer(handler: Handler, ask: ExtensionAsk, tell: Callable[[Outcome], None]) -> None:
    try:
        tell(await handler(ask))
    except asyncio.CancelledError:
        tell(Unknown(ask.operation, "the broker that executed it has stopped; ask again"))
        raise
    except Exception as error:  # one bad request must not stop a broker
        _log.exception("extension-request-failed", extension=ask.extension, ask=ask.ask, operation=ask.operation)
        tell(Rejected("internal-error", f"{type(error).__name__}: {error}"))
