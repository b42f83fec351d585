"""Repair by the leader: of bundles that a lost broker owns, or that a shutdown left (protocol.md sections 2, 8, 10).

Upstream: `ServiceUnitStateChannelImpl.monitorOwnerships` and `doCleanup` (one after the other, up to 180 s late).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from statechannel.engine.placement import PendingAssignment
from statechannel.engine.proposals import ProposalResult
from statechannel.protocol.states import Action, Flow, State, is_left_by_shutdown

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.controls import ClosingMarks
    from statechannel.engine.membership import LostMember
    from statechannel.engine.placement import Placer
    from statechannel.engine.proposals import Proposals
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View

MASS_LOSS_AT_LEAST = 2
LOOKED_AT_A_TICK = 5_000
"""Bundles that one step looks at; the next one, at once, goes on."""
FORCED_A_STEP = 128
"""Bundles that one step forces on; the next one, soon, goes on."""
THROTTLED_BATCH = 16
"""Repairs in flight while a quota of Kafka throttles this process: the next ones wait until these are read back."""
HOMELESS_AGAIN_ROUNDS = 3
"""After this number of rounds a bundle that no broker could take is looked at again: each choice may read policies and load."""


class Repair:
    """Finds orphans and forces them on; what a shutdown left Unassigned is assigned by an ordinary move.

    It writes `Context.repair_paused` and `Context.repair_resumes_at_ms`.

    Attributes:
        pending: Bundles whose repair is written and not read back, with the broker chosen.
    """

    def __init__(self, context: Context, proposals: Proposals, placer: Placer, closing_marks: ClosingMarks) -> None:
        self._context = context
        self._proposals = proposals
        self._placer = placer
        self._closing_marks = closing_marks
        self.pending = placer.new_table()
        self._paused_until_s = 0.0
        self._losses: list[tuple[float, str]] = []
        self._next_s = 0.0
        self._next_scan_s = 0.0
        self._scan_wanted = True
        self._scan: Iterator[KeyState] | None = None
        self._in_flight_since: dict[str, tuple[int, float]] = {}
        self._on_duty = False

    def members_lost(self, lost: list[LostMember]) -> None:
        """Brokers expired: look at everything soon, unless the number of losses suggests that this process is the one cut off."""
        context = self._context
        now_s = context.now.mono_s
        window_s = context.config.mass_loss_window_s
        self._losses = [loss for loss in self._losses if now_s - loss[0] <= window_s]
        self._losses.extend((now_s, member.broker) for member in lost)
        self._scan_wanted = True
        gone = {broker for _, broker in self._losses} - set(context.members.alive)
        before = len(context.members.alive) + len(gone)
        if len(gone) >= MASS_LOSS_AT_LEAST and len(gone) > before * context.config.mass_loss_fraction:
            self._paused_until_s = now_s + context.config.mass_loss_pause_s
            context.repair_paused = (
                f"{len(gone)} of {before} brokers vanished within {window_s:g} s ({', '.join(sorted(gone))}); "
                f"repair waits {context.config.mass_loss_pause_s:g} s or until told to resume"
            )
            context.repair_resumes_at_ms = context.now.wall_ms + round(context.config.mass_loss_pause_s * 1_000)
            context.emit("repair.paused", why=context.repair_paused)

    def resume(self) -> None:
        """Go on with repair, before its time or because its time is over."""
        if self._context.repair_paused is not None:
            self._context.repair_paused = self._context.repair_resumes_at_ms = None
            self._scan_wanted = True
            self._context.emit("repair.resumed")

    def wanted(self) -> None:
        """Membership or leadership changed: look at everything at the next round."""
        self._scan_wanted = True
        self._next_s = 0.0

    def accepted(self, key: KeyState) -> None:
        """A state was accepted: what a shutdown left is looked for at the next round."""
        if is_left_by_shutdown(key.state, key.flow):
            self._scan_wanted = True

    def tick(self) -> None:
        """One round, if this process leads, or acts for a leader that is not heard, and may."""
        context = self._context
        now_s = context.now.mono_s
        if context.repair_paused is not None:
            waiting = any(loss[1] not in context.members.alive for loss in self._losses)
            if now_s >= self._paused_until_s or not waiting:
                self.resume()
        acting = context.acts_as_leader and context.may_write and context.repair_paused is None
        self._report_duty(acting=acting)
        if not acting or (now_s < self._next_s and self._scan is None):
            return
        if not context.knows_absence():
            self._scan_wanted = True
            return
        if self.pending.drop_late(now_s, self._proposals.patience_s()):
            self._scan_wanted = True
        due = now_s >= self._next_s
        if due:
            self._next_s = now_s + context.config.repair_interval_s
            self._forget()
            if self._scan is None and (self._scan_wanted or now_s >= self._next_scan_s):
                self._scan_wanted = False
                self._next_scan_s = now_s + context.config.scan_interval_s
                self._scan = self._live()
        if self._scan is None and due:
            self._scan = self._over_steps(lambda view: view.in_flight)
        if self._scan is not None:
            self._go_on(self._scan)

    def _report_duty(self, *, acting: bool) -> None:
        if acting is not self._on_duty:
            self._on_duty = acting
            if acting:
                self._context.emit("repair.began", term=self._context.term)
            else:
                self._context.emit(
                    "repair.ended", why=self._context.repair_paused or "this broker does not lead, or cannot write"
                )

    def _live(self) -> Iterator[KeyState]:
        """Every live bundle, over several steps: a hundred thousand keys are more than one step may look at."""
        for key in self._over_steps(lambda view: view.keys.values()):
            if key.lower >= 0 and key.state is not None and key.state is not State.DELETED:
                yield key

    def _over_steps(self, keys_of: Callable[[View], Iterable[KeyState]]) -> Iterator[KeyState]:
        for replica in self._context.replicas:
            view = replica.view
            for key in list(keys_of(view)) if replica.caught_up else ():
                if replica.view is not view:
                    break  # joined again meanwhile, and then a scan is wanted
                yield key

    def _go_on(self, scan: Iterator[KeyState]) -> None:
        """As much of a scan as one step may look at, and force on."""
        looked = forced = 0
        while looked < LOOKED_AT_A_TICK and forced < FORCED_A_STEP and self._room > 0:
            key = next(scan, None)
            if key is None:
                self._scan = None
                return
            looked += 1
            why = self._orphaned(key)
            if why is not None and key.name not in self.pending:
                self._force(key, why)
                forced += 1
        if self._room > 0:
            self._context.wake_soon(self.tick)  # else the records that are read back make room, or are late

    @property
    def _room(self) -> int:
        return max(0, min(self._batch_max - len(self.pending), self._proposals.room))

    @property
    def _batch_max(self) -> int:
        batch_max = self._context.config.repair_batch_max
        throttled = self._context.troubles.kafka.throttled is not None
        return min(batch_max, THROTTLED_BATCH) if throttled else batch_max

    def _forget(self) -> None:
        views = [replica.view for replica in self._context.replicas if replica.caught_up]
        if len(self._in_flight_since) > 2 * sum(len(view.in_flight) for view in views) + 64:
            names = {key.name for view in views for key in view.in_flight}
            for name in [n for n in self._in_flight_since if n not in names]:
                del self._in_flight_since[name]

    def _orphaned(self, key: KeyState) -> str | None:
        """Why a bundle cannot go on by itself; None if it can."""
        context = self._context
        if is_left_by_shutdown(key.state, key.flow):
            if context.members.takers(context.identity.broker, itself=context.accepting):
                return "a shutdown left it without an owner"
            self._look_again_soon()  # not a choice for each of many thousand while the last broker shuts down
            return None
        if key.state is None or key.state is State.UNASSIGNED:
            return None
        role, broker = _responsible(key)
        if broker is None:
            # No correct member writes this, but a cold start may have had to take it for the truth.
            return f"{key.state} names no {role}"
        if context.is_lost(broker):
            return f"{role} {broker} is lost"
        member = context.members.alive.get(broker)
        mute = key.state in (State.RELEASING, State.SPLITTING) and member is not None and not member.writable
        if key.state is State.ASSIGNING or mute:
            # A destination that is heard but does not answer; a source that is heard ends its part by its deadlines, unless
            # it cannot write.
            version, since_s = self._in_flight_since.get(key.name, (-1, 0.0))
            if version != key.version:
                self._in_flight_since[key.name] = (key.version, context.now.mono_s)
            elif context.now.mono_s - since_s > context.config.in_flight_limit_s:
                return f"{role} {broker} did not answer within {context.config.in_flight_limit_s:g} s"
        return None

    def _look_again_soon(self) -> None:
        """No broker may have a bundle just now."""
        context = self._context
        again_s = context.now.mono_s + HOMELESS_AGAIN_ROUNDS * context.config.repair_interval_s
        self._next_scan_s = min(self._next_scan_s, again_s)

    def _force(self, key: KeyState, why: str) -> None:
        context = self._context
        if context.key(key.name) is not key:
            return  # of a view that this partition had before it was joined again
        left = key.state is State.UNASSIGNED
        holder = key.owner or (key.to if key.state is State.ASSIGNING else None)
        closing = self._closing_marks.holds(key.namespace)
        named = key.to if key.state is State.RELEASING and not closing else None
        finish = named is not None and context.accepts(named)
        # The destination of an interrupted transfer lives: the operation ends as it was asked for.
        chosen = named if finish else None if closing else self._placer.choose(key, without=holder)
        if chosen is None and (left or (not closing and holder is not None and context.is_lost(holder))):
            # Unassigned it would wait for a lookup, which may never come.
            if not closing:
                self._placer.refusal(key)
            self._look_again_soon()
            return
        lost = context.members.lost.get(holder) if holder is not None else None
        name = key.name

        def done(_: ProposalResult) -> None:
            self.pending.drop(name)
            # Whatever came of it, the next round looks at the state again.
            self._scan_wanted = True
            if self._scan is not None and self._room >= self._batch_max // 2:
                context.wake_soon(self.tick)

        about = None
        if holder is not None and context.is_lost(holder):
            about = {
                "broker": holder,
                "incarnation": lost.incarnation if lost is not None else None,
                "last_heard_ms": lost.last_heard_ms if lost is not None else None,
            }
        written = self._proposals.propose(
            key,
            State.UNASSIGNED if chosen is None else State.ASSIGNING,
            done,
            action=Action.OWN if left else Action.REPAIR,
            flow=key.flow if finish else Flow.REPAIR,
            operation=key.operation if finish else self._proposals.new_id(),
            from_=holder,
            to=chosen,
            forced=None if left else True,
            lost=about,
            carried=key.more if finish else None,
            reason=why,
        )
        if written is not None:
            self.pending.add(name, PendingAssignment(chosen, context.now.mono_s))


def _responsible(key: KeyState) -> tuple[str, str | None]:
    """Who has to act for the bundle to go on, and in which role."""
    if key.state is State.ASSIGNED:
        return "owner", key.to
    return ("destination", key.to) if key.state is State.ASSIGNING else ("source", key.from_)
