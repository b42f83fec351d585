"""Asks the canary's questions: through the embedder's hook, or at the endpoints of the brokers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import orjson

from statechannel.broker.changes import ChangesError
from statechannel.broker.hook_runner import overridden
from statechannel.broker.hooks import ProbesBusyError
from statechannel.engine.canary import RECENT_MAX, Canary, CanaryAnswer
from statechannel.engine.inputs import CanaryJudged
from statechannel.logger import SafeLogger
from statechannel.printable import one_line
from statechannel.protocol.bounded import remember
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.broker.changes import Watcher
    from statechannel.broker.hooks import BrokerHooks
    from statechannel.broker.host import Host
    from statechannel.engine.canary import CanaryQuestion
    from statechannel.settings.groups_engine import CanarySettings

_log = SafeLogger(__name__)

PROBE = "probe_owner"
PATH = "/serves"
ANSWER_MAX_BYTES = 10_000
CHANGES_MAX = 100_000
ASKED_AT_ONCE = 8
LATE_S = 0.5
"""Beyond the time-out by this much, this process was suspended: a missing answer says nothing about the broker."""


class CanaryRunner:
    """A task of a member's loop, from `start` until the member stops.

    Args:
        hooks: Those of the broker; one that overrides `probe_owner` asks by it.
    """

    def __init__(self, host: Host, hooks: BrokerHooks, settings: CanarySettings) -> None:
        self._host = host
        self._hooks = hooks
        self._settings = settings
        self._by_hook = overridden(hooks, PROBE)
        context = host.engine.context
        self._canary = Canary(context, random.randrange, confirm_s=settings.confirm_s, by_hook=self._by_hook)
        self._owners: dict[str, str] = {}
        self._watcher: Watcher | None = None
        self._asking: set[asyncio.Task[None]] = set()
        # Threads of its own: waiting for one of the loop's would look like a broker that does not answer.
        self._threads = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="statechannel-canary")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask; on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._ask_repeatedly()
        finally:
            for asking in self._asking:
                asking.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask_repeatedly(self) -> None:
        host, pause_s = self._host, 1.0 / self._settings.questions_per_second_max
        while host.stopped is None:
            await asyncio.sleep(pause_s)
            try:
                self._take_moves()
                self._review()
                if len(self._asking) < ASKED_AT_ONCE and (question := self._canary.next(host.now_s())) is not None:
                    asking = asyncio.get_running_loop().create_task(self._ask(question))
                    self._asking.add(asking)
                    asking.add_done_callback(self._asking.discard)
            except Exception:
                _log.exception("canary-failed", broker=host.engine.identity.broker)

    def _take_moves(self) -> None:
        """Take in moves since the last turn; bundles whose changes were missed are only asked about in the random order."""
        if self._watcher is None:
            with contextlib.suppress(ChangesError):
                self._watcher = self._host.live.watch(CHANGES_MAX)
            return
        try:
            for change in self._watcher.take():
                if change.state is State.ASSIGNED:
                    self._canary.moved(
                        self._host.now_s(), change.bundle, change.to, self._owners.pop(change.bundle, None)
                    )
                elif change.state is State.RELEASING and change.from_ is not None:
                    remember(self._owners, change.bundle, change.from_, RECENT_MAX)
                elif change.lost is not None and isinstance(lost := change.lost.get("broker"), str):
                    remember(self._owners, change.bundle, lost, RECENT_MAX)
        except ChangesError:
            self._watcher = None

    async def _ask(self, question: CanaryQuestion) -> None:
        """Ask one question and judge the answer; never raises."""
        try:
            answer = await (self._by_probe(question) if self._by_hook else self._by_endpoint(question))
        except Exception as error:
            answer = CanaryAnswer(error=f"{type(error).__name__}: {one_line(str(error))}")
        host, metrics = self._host, self._host.metrics
        if host.stopped is not None or answer is None:
            return
        self._canary.judge(host.now_s(), host.engine.now.wall_ms, question, answer)
        kind = "none" if answer.error else "refuses" if answer.generation is None else "serves"
        metrics.counted("canary_answers", kind)
        self._review()

    def _review(self) -> None:
        """Report new findings, and publish those in force."""
        host, metrics = self._host, self._host.metrics
        for finding in self._canary.review(host.engine.now.wall_ms):
            metrics.log.emit(
                "canary.contradiction",
                bundle=finding.bundle,
                member=finding.broker,
                reason=finding.reason,
                generation=finding.generation,
                why=finding.message,
            )
        findings = tuple(self._canary.findings.values())
        if findings != host.engine.context.troubles.canary:
            host.feed(CanaryJudged(findings))
            metrics.set("canary_findings", len(findings))

    async def _by_probe(self, question: CanaryQuestion) -> CanaryAnswer | None:
        """None where the broker was not asked, or its answer may have been missed."""
        timeout_s, begun_s = self._settings.timeout_s, self._host.now_s()
        try:
            async with asyncio.timeout(timeout_s):
                generation = await self._hooks.probe_owner(question.bundle, question.broker, question.urls)
        except ProbesBusyError:
            return None
        except TimeoutError:
            missed = self._host.now_s() - begun_s > timeout_s + LATE_S
            return None if missed else CanaryAnswer(error=f"no answer within {timeout_s:g} s")
        if generation is not None and type(generation) is not int:
            raise TypeError(f"probe_owner returned {type(generation).__name__}, not a generation or None")
        return CanaryAnswer(generation)

    async def _by_endpoint(self, question: CanaryQuestion) -> CanaryAnswer | None:
        url = f"{question.http}{PATH}?{quote(question.bundle)}"
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _fetch, url, question, self._settings.timeout_s)


def _fetch(url: str, question: CanaryQuestion, timeout_s: float) -> CanaryAnswer | None:
    """The answer; None from a broker of a version that cannot be asked."""
    from statechannel.http_client import HttpRefusedError, get  # noqa: PLC0415 - httpx takes long to load

    try:
        body = orjson.loads(get(url, timeout_s=timeout_s, max_bytes=ANSWER_MAX_BYTES))
    except HttpRefusedError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    if (body["broker"], body["incarnation"]) != (question.broker, question.incarnation):
        return CanaryAnswer(error=f"{question.http} is another process: {body['broker']}, {body['incarnation']}")
    generation = body["generation"]
    return CanaryAnswer(generation if type(generation) is int else None)
