"""Execution of a decision's moves: a few at a time, each with its own operation id and a callback at its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ulid import ULID

from shedders.decision.booked_moves import on_the_way
from shedders.filters.chain import Filters
from shedders.filters.destinations import Takers
from statechannel.broker.exits import ChannelStoppedError
from statechannel.engine import commands
from statechannel.logger import SafeLogger
from statechannel.operations import outcomes

if TYPE_CHECKING:
    from shedders.decision.booked_moves import Booked
    from shedders.filters.rules import FilterSettings
    from shedders.model.cluster import Cluster
    from shedders.model.plan import BundleMove
    from statechannel.api.member import ChannelMember
    from statechannel.engine.cluster_view import ClusterView
    from statechannel.engine.commands import Command, Outcome


PRICE = 10.0  # an unchanged cluster is not rebuilt before this multiple of the time that it took to build


class ClusterCache:
    """Cache of the present cluster. Moves come in bursts, and building the cluster takes a while with many bundles.

    It is rebuilt at each change of the channel, of the policies and of the brokers that accept bundles; for load reports alone it
    takes at most a tenth of the time.
    """

    def __init__(
        self, cluster: Callable[[ClusterView], Cluster], policies: Callable[[], object], now_s: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._policies = policies
        self._now_s = now_s
        self._of: tuple[object, object, object] = (None, None, None)
        self._last: Cluster | None = None
        self._until_s = float("-inf")

    def of(self, picture: ClusterView) -> Cluster:
        """The cluster; the cached one if only load has changed since and it is not too old."""
        begun_s = self._now_s()
        bundles, policies = picture.bundles, self._policies()
        brokers = [(broker.broker, broker.incarnation, broker.accepting) for broker in picture.brokers]
        same = bundles is self._of[0] and policies is self._of[1] and brokers == self._of[2]
        if self._last is None or not same or begun_s >= self._until_s:
            self._last = self._cluster(picture)
            self._of = bundles, policies, brokers
            self._until_s = begun_s + PRICE * (self._now_s() - begun_s)
        return self._last


def why_not_now(move: BundleMove, cluster: Cluster, settings: FilterSettings, booked: Sequence[Booked]) -> str | None:
    """Why a move may not be made any more; None if it may.

    Stale reports do not prevent it: earlier moves of the same decision make them stale, and those are booked.

    Args:
        booked: Moves in flight, including this one.
    """
    bundle = cluster.bundles.get(move.bundle)
    if bundle is None:
        return "the bundle no longer exists"
    if bundle.in_flight:
        return "it is in flight already, or being split"
    if bundle.owner != move.source:
        return f"{bundle.owner or 'no broker'} serves it, not {move.source}"
    if bundle.namespace in cluster.policies.excluded:
        return f"{bundle.namespace} is excluded"
    filters = Filters(cluster, settings, on_the_way(booking for booking in booked if booking.bundle != move.bundle))
    if move.destination is None:
        return filters.cannot_leave(bundle)
    fault = Takers(cluster, settings.taker_max_age_s, lapsed=True).unknown(move.destination)
    return f"{move.destination}: {fault}" if fault is not None else filters.can_take(bundle, move.destination)


_log = SafeLogger(__name__)

REASON_MAX = 300


class EndedOperation(NamedTuple):
    """How a move or a split ended.

    Attributes:
        reason: Upstream's reason of the move or split.
        result: A stable word: `done`, a reason of rejection, `unknown`, `timed-out`, `abandoned`.
    """

    bundle: str
    reason: str
    operation: str
    result: str
    why: str
    took_s: float

    @property
    def done(self) -> bool:
        return self.result == "done"


class _QueuedMove(NamedTuple):
    """A move that is queued or under way; `after`: the operation that has to be done before."""

    move: BundleMove
    command: Command
    operation: str
    is_wanted: Callable[[], bool]
    on_end: Callable[[EndedOperation], None]
    why_not: Callable[[], str | None]
    after: str | None


class Movers:
    """Executor of moves. In the loop's thread.

    Attributes:
        at_once: Maximum number of concurrent moves; the others are queued. May be changed at any time.
        timeout_s: Maximum wait for the end of a move. Likewise.
    """

    def __init__(self, channel: ChannelMember, at_once: int, timeout_s: float, now_s: Callable[[], float]) -> None:
        self.channel = channel
        self.at_once = at_once
        self.timeout_s = timeout_s
        self._now_s = now_s
        self._waiting: deque[_QueuedMove] = deque()
        self._ahead: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._tasks)

    def begin(
        self,
        move: BundleMove,
        *,
        why: str,
        decision: str,
        only_unload: bool,
        is_wanted: Callable[[], bool],
        on_end: Callable[[EndedOperation], None],
        why_not: Callable[[], str | None] = lambda: None,
        after: str | None = None,
    ) -> str:
        """Make a move as soon as there is room; its operation id.

        Args:
            only_unload: Unload the bundle without naming a destination; the next lookup places it.
            is_wanted: Called when its turn comes: whether moves are still to be made.
            on_end: Called once with the result, later.
            why_not: Called when its turn comes: why this one may not be made any more; None if it may.
            after: An operation that has to be done before; if it ends otherwise this move is not made. One that has
                ended already counts as done.
        """
        operation = str(ULID())
        reason = why[:REASON_MAX]
        command: Command
        if move.destination is None or only_unload:
            command = commands.Unload(move.bundle, operation, self.timeout_s, reason, decision)
        else:
            command = commands.Transfer(move.bundle, move.destination, operation, self.timeout_s, reason, decision)
        self._waiting.append(_QueuedMove(move, command, operation, is_wanted, on_end, why_not, after))
        self._ahead.add(operation)
        self._fill()
        return operation

    async def close(self) -> None:
        """Stop waiting; operations that were started on the channel continue there. The callbacks are called."""
        while self._waiting:
            self._end(self._waiting.popleft(), *_ABANDONED, 0.0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fill(self) -> None:
        while len(self._tasks) < self.at_once:
            queued = next((queued for queued in self._waiting if queued.after not in self._ahead), None)
            if queued is None:
                return
            self._waiting.remove(queued)
            task = asyncio.get_running_loop().create_task(self._go(queued), name="move")
            self._tasks.add(task)
            task.add_done_callback(partial(self._gone, queued))

    def _gone(self, queued: _QueuedMove, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._end(queued, "unknown", _LEFT_ALONE, 0.0)
            return
        self._fill()

    async def _go(self, queued: _QueuedMove) -> None:
        begun_s = self._now_s()
        result, why = _unwanted(queued) or ("", "")
        if not result:
            result, why = await carried_out(self.channel, queued.command, queued.operation, self.timeout_s)
        self._end(queued, result, why, self._now_s() - begun_s)

    def _end(self, queued: _QueuedMove, result: str, why: str, took_s: float) -> None:
        """Report the result; if it failed, moves that depend on it are abandoned."""
        ended = EndedOperation(queued.move.bundle, queued.move.reason.value, queued.operation, result, why, took_s)
        _report(queued, ended)
        self._ahead.discard(queued.operation)
        if ended.done:
            return
        for follower in [other for other in self._waiting if other.after == queued.operation]:
            self._waiting.remove(follower)
            self._end(follower, "abandoned", f"it depended on {queued.move.bundle}, which ended with: {result}", 0.0)


async def carried_out(channel: ChannelMember, command: Command, operation: str, timeout_s: float) -> tuple[str, str]:
    """Send a command, and wait for the end of its operation; its `word_of`. Raises only when cancelled."""
    try:
        outcome = await channel.ask(command)
        if isinstance(outcome, commands.Started | commands.Unknown):
            outcome = await channel.ticket(operation).outcome(timeout_s)
    except ChannelStoppedError as error:
        return "abandoned", str(error)
    except Exception as error:
        _log.exception("operation-failed", command=type(command).__name__, operation=operation)
        return "internal-error", f"{type(error).__name__}: {error}"
    return word_of(outcome)


def _unwanted(queued: _QueuedMove) -> tuple[str, str] | None:
    """The result of a move that is not to be made any more; None if it is."""
    try:
        if not queued.is_wanted():
            return _ABANDONED
        why = queued.why_not()
    except Exception as error:
        _log.exception("move-not-asked-for", bundle=queued.move.bundle, operation=queued.operation)
        return "abandoned", f"it was not started: whether it may be is unknown: {error!r}"
    return None if why is None else ("abandoned", f"it was not started: {why}")


def _report(queued: _QueuedMove, ended: EndedOperation) -> None:
    try:
        queued.on_end(ended)
    except Exception:
        _log.exception("move-untold", bundle=queued.move.bundle, operation=queued.operation)


_ABANDONED = ("abandoned", "it was not started: this broker no longer leads, or may not move bundles any more")
_LEFT_ALONE = "this broker stopped while it was under way; the channel continues it"


def word_of(outcome: Outcome) -> tuple[str, str]:
    match outcome:
        case commands.Done(result=result):
            return "done", result
        case commands.Rejected(reason=reason, message=message):
            return str(reason), message
        case commands.NotFound(message=message):
            return "not-found", message
        case commands.Undetermined(reason=reason, message=message):
            return "timed-out", message or reason
        case commands.Unknown(message=message):
            return "unknown", message
        case _:
            return "unknown", f"answered with {outcomes.name_of(outcome)}"
