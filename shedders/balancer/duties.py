"""Duties of an extension: each in a task of its own, begun again with back-off when it fails. None can stop the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from shedders.model.cluster import Cluster
from shedders.model.plan import Left
from shedders.policies.contradictions import Contradiction
from shedders.policies.effective import EffectivePolicies
from statechannel.broker.exits import ChannelStoppedError
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.broker.changes import Change


_log = structlog.get_logger(__name__)

WORD = "contradiction"
TOLD_MAX = 20
"""In status and records; the number of all is told with them."""


class Contradicted:
    """See the module. In the loop's thread; what takes time is done in another one, on values that nothing changes.

    Args:
        cluster: As it is now, with the policies in it; None: this broker does not lead, or knows too little.
        standing: The policies; None before they were read.
        every_s: Time between two looks where nothing asks for one.

    Attributes:
        found: What cannot be kept, as of the last look.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster | None],
        standing: Callable[[], EffectivePolicies | None],
        every_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._standing = standing
        self._every_s = every_s
        self._wake = asyncio.Event()
        self.found: Sequence[Contradiction] = ()

    def wake(self) -> None:
        """Policies have changed: look soon."""
        self._wake.set()

    async def run(self) -> None:
        """Look for ever; ends by being cancelled."""
        while True:
            await self.look()
            self._wake.clear()
            try:
                async with asyncio.timeout(self._every_s()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Look once."""
        cluster, standing = self._cluster(), self._standing()
        # Where nobody is alive nobody can keep anything: that is no fault of the policies.
        if cluster is None or standing is None or not cluster.brokers:
            self.found = ()
            return
        found = tuple(await asyncio.to_thread(standing.contradictions, cluster))
        if [one.policies for one in found] != [one.policies for one in self.found] and found:
            _log.warning("policies-contradicted", count=len(found), first=sentence(found[0]))
        self.found = found

    def told(self) -> list[str]:
        """For the status: sentences."""
        more = len(self.found) - TOLD_MAX
        return [sentence(one) for one in self.found[:TOLD_MAX]] + ([f"and {more} more"] if more > 0 else [])

    def left(self) -> Sequence[Left]:
        """For decision records."""
        return [Left(one.witness, WORD, sentence(one)) for one in self.found[:TOLD_MAX]]


def sentence(one: Contradiction) -> str:
    """Which policies, and why."""
    return f"{', '.join(one.policies)}: {one.why}"


LOOK_S = 0.5
SLACK_S = 1.0
SLACK_SHARE = 0.02
"""The leader has to see that much time between the move and the report: it reads both later than they were written."""


class Renewal:
    """See the module. In the loop's thread.

    Args:
        broker: This broker.
        cool_down_s: Of the strategy in force; None: it has none.
        report: Reports now, whatever the figures say.
    """

    def __init__(
        self,
        broker: str,
        cool_down_s: Callable[[], float | None],
        report: Callable[[str], None],
        now_s: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._cool_down_s = cool_down_s
        self._report = report
        self._now_s = now_s
        self._moved_s: float | None = None

    def changed(self, change: Change) -> None:
        """A record was accepted."""
        if change.state is State.ASSIGNED and change.from_ != change.to and self._broker in (change.from_, change.to):
            self._moved_s = self._now_s()

    async def run(self) -> None:
        """Look for ever; ends by being cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Report if it is time for it."""
        cool_down_s = self._cool_down_s()
        if self._moved_s is None or cool_down_s is None:
            return
        if self._now_s() - self._moved_s >= cool_down_s * (1 + SLACK_SHARE) + SLACK_S:
            self._moved_s = None
            self._report("this broker has cooled down since its last move")


Duty = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _State:
    begun_s: float
    wait_s: float
    running: bool = True
    failures: int = 0
    error: str = ""


class BalancerTasks:
    """See the module. In the loop's thread.

    Args:
        first_wait_s: Before a duty that has failed begins again; doubled each time.
        longest_wait_s: Longest such wait; a duty that has run for so long has recovered.
        now_s: Monotonic.
        over: Whether the member has stopped, so that a duty that its absence ends does not begin again.
    """

    def __init__(
        self,
        *,
        first_wait_s: Callable[[], float],
        longest_wait_s: Callable[[], float],
        now_s: Callable[[], float],
        over: Callable[[], bool],
    ) -> None:
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._now_s = now_s
        self._over = over
        self._states: dict[str, _State] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, name: str, duty: Duty) -> None:
        """Do a duty from now on."""
        task = asyncio.get_running_loop().create_task(self._for_ever(name, duty), name=f"duty-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all of them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def failing(self) -> dict[str, str]:
        """The last error of each duty that waits to begin again, or has begun again a moment ago."""
        now_s = self._now_s()
        return {
            name: f"{state.error} (failed {state.failures} times)" if state.failures > 1 else state.error
            for name, state in sorted(self._states.items())
            if state.error and not (state.running and now_s - state.begun_s >= self._longest_wait_s())
        }

    async def _for_ever(self, name: str, duty: Duty) -> None:
        state = self._states[name] = _State(self._now_s(), self._first_wait_s())
        while True:
            state.begun_s, state.running = self._now_s(), True
            try:
                await duty()
                error: Exception = RuntimeError("it came to an end")
            except ChannelStoppedError as stopped:
                if self._over():
                    return
                error = stopped  # too many commands wait, for one
            except Exception as raised:
                error = raised
            if self._now_s() - state.begun_s >= self._longest_wait_s():
                state.wait_s, state.failures = self._first_wait_s(), 0
            state.running, state.failures, state.error = False, state.failures + 1, repr(error)
            _log.error("duty-failed", duty=name, again_in_s=state.wait_s, exc_info=error)
            await asyncio.sleep(state.wait_s)
            state.wait_s = min(self._longest_wait_s(), 2 * state.wait_s)
