"""Makes the moves of a decision: a few at a time, each with an operation id of its own, each told how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog
from ulid import ULID

from shedders.decision.booked_moves import on_the_way
from shedders.filters.chain import Filters
from shedders.filters.destinations import Takers
from statechannel.broker import outcomes
from statechannel.broker.exits import ChannelStoppedError
from statechannel.engine import commands

if TYPE_CHECKING:
    from shedders.decision.booked_moves import Booked
    from shedders.filters.rules import FilterSettings
    from shedders.model.cluster import Cluster
    from shedders.model.plan import BundleMove
    from statechannel.engine.cluster_view import ClusterView
    from statechannel.engine.commands import Command, Outcome


PRICE = 10.0
"""The cluster is not put together anew before so many times the time that it took, while nothing of it has changed."""


class Fresh:
    """The cluster of this moment. Moves come in bursts, and putting it together takes a while where there are many bundles.

    It is taken anew for each change of the channel, of the policies and of who accepts bundles; for load reports alone at most a
    tenth of the time.

    Args:
        cluster: Puts it together.
        policies: Those that stand.
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
        """The cluster; the one at hand if nothing but load has changed since and it is not too old."""
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
    """Why a move is not to be made any more; None if it is.

    That reports have lapsed since is no reason: moves of the same decision that were made before make them lapse, and what they
    brought is booked.

    Args:
        cluster: As it is now.
        booked: What is on its way, this move among it.
    """
    bundle = cluster.bundles.get(move.bundle)
    if bundle is None:
        return "there is no such bundle any more"
    if bundle.in_flight:
        return "it is on its way already, or being split"
    if bundle.owner != move.source:
        return f"{bundle.owner or 'nobody'} serves it, not {move.source}"
    if bundle.namespace in cluster.policies.excluded:
        return f"{bundle.namespace} is excluded"
    filters = Filters(cluster, settings, on_the_way(one for one in booked if one.bundle != move.bundle))
    if move.destination is None:
        return filters.cannot_leave(bundle)
    fault = Takers(cluster, settings.taker_max_age_s, lapsed=True).unknown(move.destination)
    return f"{move.destination}: {fault}" if fault is not None else filters.can_take(bundle, move.destination)


_log = structlog.get_logger(__name__)

REASON_MAX = 300


class MoveTicket(Protocol):
    """An operation under way."""

    async def outcome(self, timeout_s: float) -> Outcome:
        """How it ended."""
        ...


class MovingChannel(Protocol):
    """What moving takes; `statechannel.api.StateChannel` has it."""

    async def ask(self, command: Command) -> Outcome:
        """Give a command and wait for its answer."""
        ...

    def ticket(self, operation: str) -> MoveTicket:
        """The ticket of an operation."""
        ...


class EndedMove(NamedTuple):
    """How a move ended.

    Attributes:
        result: A stable word: `done`, a reason of rejection, `unknown`, `timed-out`, `abandoned`.
        took_s: Since it was begun.
    """

    move: BundleMove
    operation: str
    result: str
    why: str
    took_s: float

    @property
    def done(self) -> bool:
        """Whether the bundle is where it should be."""
        return self.result == "done"


def _nothing() -> None:
    return None


class _Wanted(NamedTuple):
    """A move that waits for its turn, or is under way; `after`: the operation that has to be done before."""

    move: BundleMove
    command: Command
    operation: str
    still: Callable[[], bool]
    told: Callable[[EndedMove], None]
    why_not: Callable[[], str | None]
    after: str | None


class Movers:
    """Moves under way. In the loop's thread.

    Attributes:
        at_once: So many at the same time; the others wait for their turn. May be changed at any time.
        timeout_s: After so long nobody waits any more for the end of one. Likewise.
    """

    def __init__(self, channel: MovingChannel, at_once: int, timeout_s: float, now_s: Callable[[], float]) -> None:
        self.channel = channel
        self.at_once = at_once
        self.timeout_s = timeout_s
        self._now_s = now_s
        self._waiting: deque[_Wanted] = deque()
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
        still: Callable[[], bool],
        told: Callable[[EndedMove], None],
        why_not: Callable[[], str | None] = _nothing,
        after: str | None = None,
    ) -> str:
        """Make a move as soon as there is room; its operation id.

        Args:
            decision: Id of the decision that wants it.
            only_unload: Let the bundle go without naming a destination; the next lookup places it.
            still: Asked when its turn comes: whether the move is still to be made.
            told: Called once with the end, later.
            why_not: Asked then, too: why this one is not to be made any more; None if it is.
            after: An operation that has to be done before; if it comes to anything else this move is not made. One that has
                ended already counts as done.
        """
        operation = str(ULID())
        reason = why[:REASON_MAX]
        command: Command
        if move.destination is None or only_unload:
            command = commands.Unload(move.bundle, operation, self.timeout_s, reason, decision)
        else:
            command = commands.Transfer(move.bundle, move.destination, operation, self.timeout_s, reason, decision)
        self._waiting.append(_Wanted(move, command, operation, still, told, why_not, after))
        self._ahead.add(operation)
        self._fill()
        return operation

    async def close(self) -> None:
        """Wait for nothing more; what was begun on the channel goes on there. Who asked is told so."""
        while self._waiting:
            self._end(self._waiting.popleft(), *_ABANDONED, 0.0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fill(self) -> None:
        while len(self._tasks) < self.at_once:
            one = next((one for one in self._waiting if one.after not in self._ahead), None)
            if one is None:
                return
            self._waiting.remove(one)
            task = asyncio.get_running_loop().create_task(self._go(one), name="move")
            self._tasks.add(task)
            task.add_done_callback(partial(self._gone, one))

    def _gone(self, one: _Wanted, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._end(one, "unknown", _LEFT_ALONE, 0.0)
            return
        self._fill()

    async def _go(self, one: _Wanted) -> None:
        begun_s = self._now_s()
        result, why = _unwanted(one) or ("", "")
        if not result:
            result, why = await carried_out(self.channel, one.command, one.operation, self.timeout_s)
        self._end(one, result, why, self._now_s() - begun_s)

    def _end(self, one: _Wanted, result: str, why: str, took_s: float) -> None:
        """Tell how it ended; what was to follow it does not where it is not done."""
        ended = EndedMove(one.move, one.operation, result, why, took_s)
        _tell(one, ended)
        self._ahead.discard(one.operation)
        if ended.done:
            return
        for follower in [other for other in self._waiting if other.after == one.operation]:
            self._waiting.remove(follower)
            self._end(follower, "abandoned", f"it was to follow {one.move.bundle}, which came to: {result}", 0.0)


async def carried_out(channel: MovingChannel, command: Command, operation: str, timeout_s: float) -> tuple[str, str]:
    """Give a command, and wait for the end of its operation; `word_of` it. Never raises but when it is cancelled."""
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


def _unwanted(one: _Wanted) -> tuple[str, str] | None:
    """What a move comes to that is not to be made any more; None if it is."""
    try:
        if not one.still():
            return _ABANDONED
        why = one.why_not()
    except Exception as error:
        _log.exception("move-not-asked-for", bundle=one.move.bundle, operation=one.operation)
        return "abandoned", f"it was not begun: whether it may be cannot be told: {error!r}"
    return None if why is None else ("abandoned", f"it was not begun: {why}")


def _tell(one: _Wanted, ended: EndedMove) -> None:
    try:
        one.told(ended)
    except Exception:
        _log.exception("move-untold", bundle=one.move.bundle, operation=one.operation)


_ABANDONED = ("abandoned", "it was not begun: this broker leads no more, or is not to move bundles any more")
_LEFT_ALONE = "this broker stopped while it was under way; the channel goes on with it"


def word_of(outcome: Outcome) -> tuple[str, str]:
    """A stable word and a sentence for how an operation ended."""
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
