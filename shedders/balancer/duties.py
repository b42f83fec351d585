"""Background tasks of the extension: each is restarted with back-off when it fails. None can stop the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shedders.model.cluster import Cluster
from shedders.model.plan import Left
from shedders.policies.contradictions import Contradiction
from shedders.policies.effective import EffectivePolicies
from statechannel.broker.exits import ChannelStoppedError
from statechannel.logger import SafeLogger
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.broker.changes import Change


_log = SafeLogger(__name__)

WORD = "contradiction"
SHOWN_MAX = 20  # maximum number in status and records, which also have the total


class ContradictionWatch:
    """Periodic check for contradictions among the policies. In the loop's thread; the check itself runs in another one.

    Args:
        cluster: The present cluster with its policies; None: this broker does not lead, or knows too little.
        effective: The policies in effect; None before they were read.
        every_s: Time between two checks without a request.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster | None],
        effective: Callable[[], EffectivePolicies | None],
        every_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._standing = effective
        self._every_s = every_s
        self._wake = asyncio.Event()
        self.found: Sequence[Contradiction] = ()

    def wake(self) -> None:
        """Request a check: policies have changed."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self.look()
            self._wake.clear()
            try:
                async with asyncio.timeout(self._every_s()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        cluster, effective = self._cluster(), self._standing()
        # Without any live broker every policy would be contradicted.
        if cluster is None or effective is None or not cluster.brokers:
            self.found = ()
            return
        present = tuple(await asyncio.to_thread(effective.contradictions, cluster))
        changed = [contradiction.policies for contradiction in present] != [
            contradiction.policies for contradiction in self.found
        ]
        if changed and present:
            _log.warning("policies-contradicted", count=len(present), first=sentence(present[0]))
        self.found = present

    def sentences(self) -> list[str]:
        more = len(self.found) - SHOWN_MAX
        return [sentence(contradiction) for contradiction in self.found[:SHOWN_MAX]] + (
            [f"and {more} more"] if more > 0 else []
        )

    def left(self) -> Sequence[Left]:
        return [Left(contradiction.witness, WORD, sentence(contradiction)) for contradiction in self.found[:SHOWN_MAX]]


def sentence(contradiction: Contradiction) -> str:
    return f"{', '.join(contradiction.policies)}: {contradiction.why}"


LOOK_S = 0.5
SLACK_S = 1.0
SLACK_SHARE = 0.02  # extra time between the move and the report: the leader reads both later than they were written


class ReportRenewal:
    """Load report at the end of a broker's cool-down after a move. In the loop's thread.

    Args:
        cool_down_s: Of the strategy in force; None: it has none.
        report: Reports at once, whatever the figures.
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
        if change.state is State.ASSIGNED and change.from_ != change.to and self._broker in (change.from_, change.to):
            self._moved_s = self._now_s()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
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
    """Supervisor of the background tasks. In the loop's thread.

    Args:
        first_wait_s: Back-off before a failed task is restarted; doubled each time.
        longest_wait_s: Longest back-off; a task that has run for this time has recovered.
        now_s: Monotonic.
        over: Whether the member has stopped, so that a task that fails for that reason is not restarted.
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
        task = asyncio.get_running_loop().create_task(self._for_ever(name, duty), name=f"duty-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def failing(self) -> dict[str, str]:
        """The last error of each task that waits to be restarted, or was restarted a moment ago."""
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
                error: Exception = RuntimeError("it ended")
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
