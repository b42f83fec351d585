"""Requests that extensions answer: what comes through the requests topic for them, in tasks of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from statechannel.engine import commands
from statechannel.engine.commands import Rejected, Undetermined, Unknown
from statechannel.logger import SafeLogger
from statechannel.operations.table import ExtensionAsk

if TYPE_CHECKING:
    from statechannel.engine.commands import Outcome
    from statechannel.operations.request_record import Request

_log = SafeLogger(__name__)


Handler = Callable[[ExtensionAsk], Awaitable["Outcome"]]
"""Answers a request. Its exceptions become `internal-error`; it is cancelled when the member stops."""
RequestCheck = Callable[["Request"], "Outcome | None"]
"""Why a request must not be executed; None: it may be. Its exceptions become `internal-error`."""
Report = Callable[["Outcome"], None]
ANSWER_MAX_S = 7_200.0
"""A request waits at most an hour; one that others joined meanwhile may take that long again."""


@dataclass(slots=True)
class _Answering:
    """One request in progress, with its callbacks."""

    task: asyncio.Task[Outcome]
    reports: list[Report] = field(default_factory=list)


class Handlers:
    """The handlers of one member, by extension. In the loop's thread only.

    Args:
        running_max: Maximum number of concurrent requests; more are refused.
        answer_max_s: A handler that takes longer is cancelled: it would occupy its place for ever.
        broker: Of the member, for log lines.
        promised: Checks that other brokers and clients rely on, from before their extension has started.
    """

    def __init__(
        self, running_max: int, answer_max_s: float = ANSWER_MAX_S, *, broker: str = "", promised: Collection[str] = ()
    ) -> None:
        self._log = _log.bound(broker=broker)
        self._handlers: dict[str, Handler] = {}
        self._checks: dict[str, RequestCheck] = dict.fromkeys(promised, _not_started)
        self._answer_max_s = answer_max_s
        self._running_max = running_max
        self._running: dict[str, _Answering] = {}

    def __len__(self) -> int:
        return len(self._running)

    def register(self, extension: str, handler: Handler) -> None:
        self._handlers[extension] = handler

    def check_before(self, check: str, refusal: RequestCheck) -> None:
        self._checks[check] = refusal

    def refusal(self, request: Request) -> Outcome | None:
        """Why this broker must not execute a request, by the checks of its command; None: it may."""
        checks = [self._checks[name] for name in request.checks if name in self._checks]
        return next((outcome for check in checks if (outcome := check(request)) is not None), None)

    def give(self, ask: ExtensionAsk, report: Report) -> None:
        """Start a request; `report` is called once, later, with the outcome."""
        running = self._running.get(ask.operation)
        if running is not None:
            # The requests topic was read again, with this broker's claim: the request is not started a second time.
            running.reports.append(report)
            return
        handler = self._handlers.get(ask.extension)
        if handler is None:
            report(Rejected("no-extension", f"this broker runs no extension {ask.extension}"))
        elif len(self._running) >= self._running_max:
            report(
                Rejected("busy", f"{self._running_max} requests to extensions are being answered", "Try again later.")
            )
        else:
            task = asyncio.get_running_loop().create_task(
                _answer(handler, ask, self._answer_max_s, self._log), name=f"ask-{ask.extension}"
            )
            self._running[ask.operation] = _Answering(task, [report])
            task.add_done_callback(lambda _: self._answered(ask))

    def close(self) -> None:
        for running in list(self._running.values()):
            running.task.cancel()

    def _answered(self, ask: ExtensionAsk) -> None:
        running = self._running.pop(ask.operation)
        if running.task.cancelled():
            outcome: Outcome = Unknown(ask.operation, "the broker that executed it has stopped", "Ask again.")
        else:
            outcome = running.task.result()
        for report in running.reports:
            try:
                report(outcome)
            except Exception:
                self._log.exception("extension-answer-untold", extension=ask.extension, operation=ask.operation)


def _not_started(_: Request) -> Outcome:
    return Rejected("policies-unread", "this broker has not read the policies yet", "Try again in a moment.")


async def _answer(handler: Handler, ask: ExtensionAsk, within_s: float, log: SafeLogger) -> Outcome:
    limit = asyncio.timeout(within_s)
    try:
        async with limit:
            outcome: object = await handler(ask)
    except Exception as error:  # one bad request must not stop a broker
        if isinstance(error, TimeoutError) and limit.expired():
            detail = f"{ask.extension} did not answer {ask.ask} within {within_s:g} s"
            return Undetermined("timed-out", detail)
        log.exception("extension-request-failed", extension=ask.extension, ask=ask.ask, operation=ask.operation)
        return Rejected("internal-error", f"{type(error).__name__}: {error}")
    if isinstance(outcome, commands.Outcome):
        return outcome
    log.error("extension-answer-refused", extension=ask.extension, ask=ask.ask, found=type(outcome).__name__)
    return Rejected("internal-error", f"{ask.extension} answered {ask.ask} with {type(outcome).__name__}")
