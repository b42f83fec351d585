"""Ordered departure: announce, hand over, resign, say goodbye, within a time budget; or all but the goodbye, ahead of it.

Upstream closes its load stores before it hands ownerships over, so that its choices are random; here placement works to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from statechannel.engine.commands import Done, Rejected
from statechannel.engine.placement import PendingAssignment
from statechannel.engine.proposals import SHUTDOWN, ProposalResult
from statechannel.protocol.replica import Phase
from statechannel.protocol.states import Action, Flow, State

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.placement import Placer
    from statechannel.engine.presence import Presence
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.reactions import Reactions
    from statechannel.protocol.replica import Replica

GOODBYE_WAIT_S = 3.0
_ENDED = (Phase.STOPPED, Phase.BROKEN)


class _Wait(NamedTuple):
    """A `PreStop` that is not answered yet."""

    token: int
    ends_s: float


class Departure:
    """The end of a process that leaves on purpose.

    After `prepare` it hands over and stays, for as long as it takes, until `begin`, or until `undo` takes it back.

    While a partition is joined again it is not known what is still this broker's own, and nothing can be handed over: the
    join is waited for, within the budget. Where a partition was never joined nothing was taken on, and nothing is waited for.

    It writes `Context.draining`.

    Attributes:
        pending: Bundles whose Releasing is written and not read back, with the destination chosen.
    """

    def __init__(
        self,
        context: Context,
        presence: Presence,
        proposals: Proposals,
        reactions: Reactions,
        placer: Placer,
        stop: Callable[[str, str], None],
    ) -> None:
        self._context = context
        self._presence = presence
        self._proposals = proposals
        self._reactions = reactions
        self._placer = placer
        self._stop = stop
        self._token = 0
        self._deadline_s = 0.0
        self.pending = placer.new_table()
        self._retry_at_s = 0.0
        self._full_for = 0
        self._todo: list[str] = []
        self._goodbye_at_s: float | None = None
        self._left = 0
        self._unsure = False
        self._judged: set[int] = set()
        self._stays = False
        self._from_s = 0.0
        self._began_with = 0
        self._waits: list[_Wait] = []

    def prepare(self, token: int, budget_s: float, notice_s: float) -> None:
        """Hand over and stay; answered when nothing is left, or after the budget, with what is left then."""
        context = self._context
        if context.draining and not self._stays:
            context.complete(token, Rejected("draining", "this broker is shutting down already"))
            return
        now_s = context.now.mono_s
        if not self._stays:
            self._from_s = now_s + notice_s
            self._began_with = len(self._mine()) if context.registered else 0
            self._stays = True
            self._announce(budget_s)
        # A later request may shorten the notice, such as one that was given by mistake.
        self._from_s = min(self._from_s, now_s + notice_s)
        self._waits.append(_Wait(token, now_s + budget_s))
        self.tick()

    def undo(self, token: int) -> None:
        """Stay after all. What is written already goes on: a bundle in flight arrives at its destination."""
        context = self._context
        if not context.draining:
            context.complete(token, Done("", "not-stopping"))
            return
        if not self._stays:
            context.complete(token, Rejected("shutting-down", "this broker is shutting down, which cannot be undone"))
            return
        self._answer_waits(inf, "undone")
        self._stays, self._todo = False, []
        context.draining = False
        context.emit("shutdown.undone", serving=self._reactions.serving_count)
        self._presence.announce_change()
        self._reactions.recheck()
        context.complete(token, Done("", "undone"))

    def begin(self, token: int, budget_s: float) -> None:
        """Start to leave; answered when all is handed over or the budget is used up."""
        context = self._context
        if context.draining and not self._stays:
            context.complete(token, Rejected("draining", "this broker is shutting down already"))
            return
        self._answer_waits(inf, "handed-over-in-part")
        self._stays, self._from_s = False, 0.0
        self._token = token
        self._deadline_s = context.now.mono_s + budget_s
        self._announce(budget_s)
        self.tick()

    def _announce(self, budget_s: float) -> None:
        """From here on this broker is not ready, and takes nothing."""
        context = self._context
        context.draining = True
        context.emit("shutdown.began", serving=self._reactions.serving_count, budget_s=budget_s)
        self._presence.announce_change()
        self._reactions.recheck()

    def _answer_waits(self, until_s: float, result: str) -> None:
        due = [wait for wait in self._waits if wait.ends_s <= until_s]
        if not due:
            return
        self._waits = [wait for wait in self._waits if wait.ends_s > until_s]
        left = len(self._mine()) if self._context.registered else 0
        handed_over = max(0, self._began_with - left)
        facts = {"began_with": self._began_with, "handed_over": handed_over, "left": left}
        for wait in due:
            self._context.complete(wait.token, Done("", result, facts))

    def tick(self) -> None:
        """Hand over a window of bundles at a time; then leave."""
        context = self._context
        self._judged.update(replica.partition for replica in context.replicas if context.judges(replica.partition))
        if not context.draining or context.stopped is not None:
            return
        now_s = context.now.mono_s
        if self._stays:
            self._answer_waits(now_s, "handed-over-in-part")
        if not context.announced:
            self._end_hand_over()
            return
        if now_s < self._from_s:
            return
        if self._goodbye_at_s is not None:
            if now_s - self._goodbye_at_s >= GOODBYE_WAIT_S or self._presence.goodbye_heard:
                self._leave()
            return
        self.pending.drop_late(now_s, self._proposals.patience_s())
        self._full_for = 0
        rejoining = self._rejoining()
        busy = bool(self._todo or self.pending or rejoining or self._moving())
        deadline_s = inf if self._stays else self._deadline_s
        if now_s < deadline_s and busy and (now_s < self._retry_at_s or (self._todo and not rejoining)):
            self.go_on()
            return
        # A walk over all bundles: at intervals, not for every record that is read back.
        self._retry_at_s = now_s + context.config.retry_interval_s
        # Before it hears itself it takes nothing on: what bears its name then is its predecessor's.
        self._todo = self._mine() if context.registered else []
        if now_s < deadline_s and (rejoining or (self._todo and not self._ended())):
            self.go_on()
            return
        if self._stays:
            self._end_hand_over()
            return
        self._left, self._unsure = len(self._todo), rejoining
        self._goodbye_at_s = now_s
        self._presence.say_goodbye()

    def _end_hand_over(self) -> None:
        """Nothing is left to hand over, or nothing can be."""
        if not self._stays:
            self._leave()
            return
        self._answer_waits(inf, "handed-over-in-part" if self._todo else "handed-over")

    def go_on(self) -> None:
        """A bundle left, or its record came to nothing: there may be room in the window for another one."""
        if self._todo and self._context.stopped is None and self._goodbye_at_s is None and self._context.may_write:
            self._hand_over()

    def _moving(self) -> int:
        me, replicas = self._context.identity.broker, self._context.replicas
        return sum(key.from_ == me for replica in replicas if replica.caught_up for key in replica.view.in_flight)

    def _ended(self) -> bool:
        """Whether a partition is read no further: nothing will be handed over any more."""
        return any(replica.phase in _ENDED for replica in self._context.replicas)

    def _rejoining(self) -> bool:
        """Whether it will be known again what is still this broker's own."""
        return not self._ended() and any(not self._context.judges(partition) for partition in self._judged)

    def _mine(self) -> list[str]:
        return [name for replica in self._context.replicas for name in self._mine_in(replica)]

    def _mine_in(self, replica: Replica) -> list[str]:
        """By the view where there is one, be it the last one known; else by what this process serves."""
        context = self._context
        me = context.identity.broker
        if not context.judges(replica.partition) and replica.phase not in _ENDED:
            places = ((name, context.partition_of(name.rpartition("/")[0])) for name in self._reactions.serving())
            return [name for name, partition in places if partition == replica.partition]
        if me not in replica.view.load and all(key.from_ != me for key in replica.view.in_flight):
            return []
        return [key.name for key in replica.view.live() if me in (key.owner, key.bound_for)]

    def _hand_over(self) -> None:
        if self._full_for > 0:
            self._full_for -= 1
            return
        context = self._context
        me = context.identity.broker
        window = context.config.handover_window
        moving = self._moving()
        too_many = moving + len(self.pending) - window // 2
        if too_many > 0:
            # Each hand-over that ends is a record of its own: before so many were read, half the window cannot be free.
            self._full_for = too_many - 1
            return
        while self._todo and moving + len(self.pending) < window:
            name = self._todo.pop()
            key = context.key(name)
            if key is None or key.state is not State.ASSIGNED or key.to != me or name in self.pending:
                continue
            destination = self._placer.choose(key, without=me)
            written = self._proposals.propose(
                key,
                State.RELEASING,
                self._written(name),
                action=Action.TRANSFER if destination is not None else Action.UNLOAD,
                flow=Flow.TRANSFER if destination is not None else Flow.SHUTDOWN,
                operation=self._proposals.new_id(),
                from_=me,
                to=destination,
                reason=SHUTDOWN,
            )
            if written is None:
                self._todo.append(name)  # too many records are in flight
                return
            self.pending.add(name, PendingAssignment(destination, context.now.mono_s))

    def _written(self, name: str) -> Callable[[ProposalResult], None]:
        def done(_: ProposalResult) -> None:
            self.pending.drop(name)
            self.go_on()

        return done

    @property
    def left_behind(self) -> str:
        """What was not handed over, for people; empty where nothing was left."""
        if self._unsure:
            return f"{self._left} bundles, and what else bears this broker's name (a partition was being joined),"
        return f"{self._left} bundles" if self._left else ""

    def _leave(self) -> None:
        context = self._context
        if context.announced and not self._presence.goodbye_heard:
            detail = "the log did not answer: this broker left without a goodbye, the others notice when it expires"
            context.complete(self._token, Rejected("log-away", detail))
            self._stop("log-away", detail)
        elif self.left_behind:
            detail = f"{self.left_behind} were not handed over within the budget; the leader repairs them"
            context.complete(self._token, Rejected("shutdown-late", detail))
            self._stop("shutdown-late", detail)
        else:
            context.complete(self._token, Done("", "closed"))
            self._stop("closed", "this broker left on request")
