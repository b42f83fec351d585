"""What this broker must do about a bundle whose state names it: one table for live records and for the end of a join.

| state | this broker is | it does |
|---|---|---|
| Assigning | named | prepares (`on_own`), then Assigned; or declines |
| Assigned | the owner, by a record that this process did not write | prepares, then resumes at the next generation |
| Releasing | the source | lets go (`on_release`), then Assigning or Unassigned; takes back if the destination is lost |
| Splitting | the source and serving | `on_split`, prepares the children, then Deleted; else gives up |

Source: PIP-192 "Bundle State Change Examples"; upstream `ServiceUnitStateChannelImpl.handle*Event`, which does not resume
in-flight states of a restarted actor and waits for the leader's monitor instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.freshness import keeps_up
from statechannel.engine.proposals import SHUTDOWN, ProposalResult, ProposalStatus
from statechannel.protocol.bundle import bounds_of, bundle_key, children_of, even_bounds
from statechannel.protocol.states import Action, Flow, State

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.inputs import HookFinished
    from statechannel.engine.presence import Presence
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.provenance import Provenance
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View


RETRIES_A_TICK = 500
"""Reactions that one tick takes up again; the others have their turn at the next."""


class DueReaction(StrEnum):
    """What a state asks of this broker."""

    RETURN = "return"
    DECLINE = "decline"
    RESUME = "resume"
    LET_GO = "let-go"
    TAKE_BACK = "take-back"
    COMMIT_SPLIT = "commit-split"
    GIVE_UP = "give-up"
    UNLOAD_ITSELF = "unload-itself"


_ENDS_SERVICE = (DueReaction.DECLINE, DueReaction.LET_GO, DueReaction.UNLOAD_ITSELF)
"""What is due also while nothing may be served."""
_INHERITS = (DueReaction.RESUME, DueReaction.GIVE_UP, DueReaction.TAKE_BACK, DueReaction.LET_GO)
"""What a process may have to do about a bundle that its predecessor served."""


@dataclass(slots=True)
class ServedBundle:
    """A bundle that the embedding broker serves or prepares.

    Attributes:
        generation: Generation served; None while only preparing.
        prepared: Generation prepared for; None if none is.
        parent: The bundle that is being split here, for a part of it that is prepared; else None.
        ending: Its Releasing or Splitting record was read: reads may go on, writes may not.
    """

    generation: int | None = None
    prepared: int | None = None
    parent: str | None = None
    ending: bool = False


@dataclass(slots=True)
class ReactionTask:
    """One due reaction to one accepted state.

    Attributes:
        freezing: The parent of a split is asked to take no more writes; its children are prepared after that.
        failed: A hook failed, and what is due has yet to change: it waits while the partition is not judged.
        why: The failure of a hook that changed what is due; None without one. The record of the reaction carries it.
    """

    due: DueReaction
    version: int
    accepted_id: str | None
    started_at_s: float
    hooks: dict[int, Hook] = field(default_factory=dict)
    deadline_s: float = 0.0
    children: tuple[int, ...] = ()
    freezing: bool = False
    ready: bool = False
    sent: bool = False
    sent_at_s: float = 0.0
    retry_at_s: float = 0.0
    failed: bool = False
    why: str | None = None


class Reactions:
    """The bundles of this process and its open reactions."""

    def __init__(self, context: Context, presence: Presence, provenance: Provenance, proposals: Proposals) -> None:
        self._context = context
        self._presence = presence
        self._provenance = provenance
        self._proposals = proposals
        self.holdings: dict[str, ServedBundle] = {}
        self.tasks: dict[str, ReactionTask] = {}
        self._hook_tasks: dict[int, str] = {}
        self._next_hook = 0

    def serving(self) -> dict[str, int]:
        return {name: held.generation for name, held in self.holdings.items() if held.generation is not None}

    @property
    def serving_count(self) -> int:
        return sum(1 for held in self.holdings.values() if held.generation is not None)

    def generation(self, name: str) -> int | None:
        """By which this process serves a bundle; None if it does not."""
        holding = self.holdings.get(name)
        return None if holding is None else holding.generation

    def writing_generation(self, name: str) -> int | None:
        """By which this process takes writes to a bundle; None if it does not. May be called from any thread."""
        holding = self.holdings.get(name)
        return None if holding is None or holding.ending else holding.generation

    def serves(self, key: KeyState) -> bool:
        """Whether this process serves the bundle at the generation that its state says."""
        holding = self.holdings.get(key.name)
        return holding is not None and holding.generation is not None and holding.generation == key.generation

    # --- entry points -----------------------------------------------------------------------------------------------

    def state_changed(self, view: View, key: KeyState) -> None:
        """An accepted record changed this key (and what is derived from it)."""
        me = self._context.identity.broker
        if key.is_namespace:
            if key.state is State.DELETED:
                self._namespace_gone(key.namespace)
            return
        name = key.name
        if name in self.holdings or name in self.tasks or me in (key.from_, key.to):
            self._settle(name, key)
            if key.state is State.DELETED and key.bounds is not None:
                for index in range(len(key.bounds) - 1):
                    child = view.get(bundle_key(key.namespace, key.bounds[index], key.bounds[index + 1]))
                    if child is not None:
                        self._settle(child.name, child)
                        self._react(child.name, child)
            self._react(name, key)

    def view_replaced(self, view: View) -> None:
        """The partition was joined (again): act on every state that names this broker, exactly as if it were new."""
        for name in [n for n in self.holdings if self._lies_in(view, n)]:
            self._settle(name, view.get(name))
        for name in [n for n in self.tasks if self._lies_in(view, n)]:
            held = view.get(name)
            if held is None:
                self._discard(name)
            else:
                # It may have moved on unseen, to a state that asks nothing of this broker.
                self._react(name, held)
        me = self._context.identity.broker
        for key in view.live():
            if me in (key.from_, key.to):
                self._react(key.name, key)

    def _lies_in(self, view: View, name: str) -> bool:
        return self._context.partition_of(name.rpartition("/")[0]) == view.partition

    def _namespace_gone(self, namespace: str) -> None:
        prefix = namespace + "/"
        for name in [n for n in {*self.holdings, *self.tasks} if n.startswith(prefix)]:
            self._settle(name, None)
            self._discard(name)

    # --- what is held ----------------------------------------------------------------------------------------------

    def _settle(self, name: str, key: KeyState | None) -> None:
        """Bring a holding in line with the accepted state: start serving, go on, or stop."""
        holding = self.holdings.get(name)
        if holding is None or self._awaits_split(holding):
            return
        me = self._context.identity.broker
        if key is not None:
            if key.state is State.ASSIGNED and key.to == me:
                if holding.prepared == key.version and self._provenance.is_own(key):
                    holding.generation, holding.prepared, holding.parent = key.version, None, None
                    holding.ending = False  # last: other threads read it first
                    self._call(Hook.ON_SERVE, name, key.version)
                    return
                if holding.generation == key.version:
                    return
            source = key.state in (State.RELEASING, State.SPLITTING) and key.from_ == me
            if source and holding.generation is not None and holding.generation == key.version - 1:
                holding.ending = True
                return
            waiting = key.state in (State.ASSIGNING, State.ASSIGNED) and key.to == me
            if (waiting or source) and holding.generation is None and holding.prepared == key.version + 1:
                return
            if key.state is State.DELETED and self._provenance.is_own(key) and self._replaced_by_children(holding, key):
                # The split is committed: the children are served by this process in its place.
                del self.holdings[name]
                if self._context.config.split_hooks:
                    children = tuple(f"{key.namespace}/{child}" for child in key.children or ())
                    self._call(Hook.ON_SPLIT_DONE, name, key.version + 1, children=children)
                return
        self._let_go_of(name, key.owner or key.bound_for if key is not None else None)

    def _awaits_split(self, holding: ServedBundle) -> bool:
        """Whether it is a part of a bundle whose split is under way: no state names it before the split is committed."""
        task = None if holding.parent is None else self.tasks.get(holding.parent)
        if task is None or holding.parent is None or task.due is not DueReaction.COMMIT_SPLIT:
            return False
        key = self._context.key(holding.parent)
        return key is not None and (key.version, key.accepted_id) == (task.version, task.accepted_id)

    def _replaced_by_children(self, parent: ServedBundle, key: KeyState) -> bool:
        """Whether this process served the parent of a split and holds all its parts: only then may the data be dropped."""
        parts = [self.holdings.get(f"{key.namespace}/{child}") for child in key.children or ()]
        held = all(part is not None and key.version + 1 in (part.prepared, part.generation) for part in parts)
        return parent.generation is not None and held

    def _let_go_of(self, name: str, peer: str | None) -> None:
        """Stop serving or preparing at once; the hook is called and not waited for."""
        holding = self.holdings.pop(name, None)
        if holding is None:
            return
        generation = holding.generation if holding.generation is not None else holding.prepared
        peer = None if peer == self._context.identity.broker else peer
        self._call(Hook.ON_RELEASE, name, generation or 0, peer)

    def release_all(self) -> None:
        """The lease ran out, or the process ends: stop serving everything."""
        for name in list(self.holdings):
            self._let_go_of(name, None)
        for name in list(self.tasks):
            self._discard(name)

    # --- what is due ------------------------------------------------------------------------------------------------

    def due(self, key: KeyState) -> DueReaction | None:
        """The reaction that a state asks of this process; the table at the top of this page."""
        me = self._context.identity.broker
        if key.state is State.ASSIGNING and key.to == me:
            return DueReaction.DECLINE if self._context.draining else DueReaction.RETURN
        if key.state is State.ASSIGNED and key.to == me:
            # Also where this process serves but nobody can know that any more (a cold start on an assert).
            return None if self.serves(key) and key.server == self._context.writer else DueReaction.RESUME
        if key.state is State.RELEASING and key.from_ == me:
            return DueReaction.TAKE_BACK if self._comes_back(key) else DueReaction.LET_GO
        if key.state is State.SPLITTING and key.from_ == me:
            whole = self.serves(key) and self.holdings[key.name].prepared is None  # no on_own since it is served
            return DueReaction.COMMIT_SPLIT if whole else DueReaction.GIVE_UP
        return None

    def _comes_back(self, key: KeyState) -> bool:
        """Whether a bundle that is released for a destination that is gone stays here."""
        context = self._context
        lost = key.to is not None and context.is_lost(key.to)
        return lost and not context.draining and not context.lease_ran_out

    def _react(self, name: str, key: KeyState) -> None:
        task = self.tasks.get(name)
        due = self.due(key)
        if task is not None:
            if due is not None and task.version == key.version and task.accepted_id == key.accepted_id:
                return
            self._discard(name)
        context = self._context
        if context.lease_ran_out and due not in _ENDS_SERVICE:
            return  # whatever is still asked for then is begun when the lease is taken up again
        if due is not None and context.registered and context.judges(context.partition_of(key.namespace)):
            self._start(name, key, due)

    def _start(self, name: str, key: KeyState, due: DueReaction) -> None:
        now_s = self._context.now.mono_s
        task = ReactionTask(due, key.version, key.accepted_id, now_s)
        self.tasks[name] = task
        deadline = self._context.config.hook_deadline_s
        task.deadline_s = now_s + deadline
        if due in (DueReaction.RETURN, DueReaction.RESUME, DueReaction.TAKE_BACK, DueReaction.GIVE_UP):
            holding = self.holdings.setdefault(name, ServedBundle())
            holding.prepared = key.version + 1
            self._wait_for(name, task, Hook.ON_OWN, key.version + 1)
        elif due is DueReaction.LET_GO and name in self.holdings:
            self._wait_for(name, task, Hook.ON_RELEASE, key.version - 1, peer=key.to)
        elif due is DueReaction.COMMIT_SPLIT:
            self._prepare_children(task, key)
        else:
            task.ready = True
        self._advance(name, task)

    def _prepare_children(self, task: ReactionTask, key: KeyState) -> None:
        bounds = bounds_of(key.intent) if key.intent else None
        fits = bounds is not None and bounds[0] == key.lower and bounds[-1] == key.upper and len(bounds) > 2  # noqa: PLR2004
        if key.intent is not None and len(key.intent) > self._context.config.split_parts_max:
            self._give_up(task, key)  # a step may not last, and no honest broker asks for so many
            return
        if bounds is not None and fits:
            task.children = tuple(bounds)
        elif key.upper - key.lower > 1:
            task.children = tuple(even_bounds(2, key.lower, key.upper))
        else:
            self._give_up(task, key)
            return
        if self._context.config.split_hooks:
            task.freezing = True
            children = tuple(self._child_names(key.namespace, task.children))
            self._wait_for(key.name, task, Hook.ON_SPLIT, key.version + 2, children=children)
        else:
            self._own_children(task, key)

    def _own_children(self, task: ReactionTask, key: KeyState) -> None:
        """The hooks of a split share one deadline: a bundle that is in flight for too long is repaired."""
        task.freezing = False
        left_s = max(0.0, task.deadline_s - self._context.now.mono_s)
        for child in self._child_names(key.namespace, task.children):
            self.holdings[child] = ServedBundle(prepared=key.version + 2, parent=key.name)
            self._wait_for(key.name, task, Hook.ON_OWN, key.version + 2, bundle=child, deadline_s=left_s)

    def _give_up(self, task: ReactionTask, key: KeyState) -> None:
        task.due = DueReaction.GIVE_UP
        self.holdings.setdefault(key.name, ServedBundle()).prepared = key.version + 1
        self._wait_for(key.name, task, Hook.ON_OWN, key.version + 1)

    @staticmethod
    def _child_names(namespace: str, bounds: tuple[int, ...]) -> list[str]:
        return [bundle_key(namespace, bounds[index], bounds[index + 1]) for index in range(len(bounds) - 1)]

    # --- hooks ------------------------------------------------------------------------------------------------------

    def moved(self, state: State, key: KeyState) -> None:
        """Notify the source where its bundle went, so that it can send its clients on."""
        me = self._context.identity.broker
        if state is State.ASSIGNED and key.from_ == me and key.to != me:
            self._call(Hook.ON_MOVED, key.name, key.version, key.to)

    def _call(
        self,
        hook: Hook,
        bundle: str,
        generation: int,
        peer: str | None = None,
        hook_id: int = 0,
        *,
        children: tuple[str, ...] = (),
        deadline_s: float | None = None,
    ) -> None:
        deadline_s = self._context.config.hook_deadline_s if deadline_s is None else deadline_s
        self._context.perform(CallHook(hook_id, hook, bundle, generation, peer, deadline_s, children))

    def _wait_for(
        self,
        name: str,
        task: ReactionTask,
        hook: Hook,
        generation: int,
        *,
        bundle: str | None = None,
        peer: str | None = None,
        children: tuple[str, ...] = (),
        deadline_s: float | None = None,
    ) -> None:
        bundle = bundle or name
        self._next_hook += 1
        task.hooks[self._next_hook] = hook
        self._hook_tasks[self._next_hook] = name
        self._call(hook, bundle, generation, peer, self._next_hook, children=children, deadline_s=deadline_s)

    def hook_finished(self, event: HookFinished) -> None:
        name = self._hook_tasks.pop(event.hook_id, None)
        task = self.tasks.get(name) if name is not None else None
        if name is None or task is None or event.hook_id not in task.hooks:
            return
        del task.hooks[event.hook_id]
        if event.error is not None:
            self._hooks_failed(name, task, event.error)
            return
        self._advance(name, task)

    def about(self, hook_id: int) -> dict[str, Any]:
        """The reaction that waits for a hook, and the record that asks for it; empty if none waits."""
        name = self._hook_tasks.get(hook_id)
        task = None if name is None else self.tasks.get(name)
        return {} if name is None or task is None else self._about(name, task)

    def _about(self, name: str, task: ReactionTask) -> dict[str, Any]:
        key = self._context.key(name)
        operation, offset = (None, -1) if key is None else (key.operation, key.offset)
        return {"due": task.due, "version": task.version, "operation": operation, "offset": offset}

    def _hooks_failed(self, name: str, task: ReactionTask, error: str) -> None:
        """A hook raised or hung. In the middle of a join that is not forgotten: what follows from it waits for the view."""
        task.why = error if task.why is None else f"{task.why}; then {error}"
        for hook_id in task.hooks:
            self._hook_tasks.pop(hook_id, None)
        task.hooks.clear()
        task.failed = True
        self._advance(name, task)

    def _turn(self, name: str, task: ReactionTask, key: KeyState) -> None:
        """The documented way out for each reaction whose hook failed, never a stuck bundle."""
        task.failed = False
        match task.due:
            case DueReaction.RETURN:
                self._let_go_of(name, None)
                task.due = DueReaction.DECLINE
            case DueReaction.RESUME:
                self._let_go_of(name, None)
                task.due = DueReaction.UNLOAD_ITSELF
            case DueReaction.TAKE_BACK:
                self._let_go_of(name, key.to)
                task.due = DueReaction.LET_GO
                task.ready = True
            case DueReaction.COMMIT_SPLIT:
                self._drop_children(task, key.namespace)
                task.deadline_s = self._context.now.mono_s + self._context.config.hook_deadline_s
                self._give_up(task, key)
            case DueReaction.GIVE_UP:
                # Splitting can only end in Assigned or Deleted: it is given up, and the resumption that follows decides.
                self._let_go_of(name, None)
        self._advance(name, task)

    def _drop_children(self, task: ReactionTask, namespace: str) -> None:
        for child in self._child_names(namespace, task.children):
            # One with a task is a bundle by now, and prepared again: another process committed the split in this broker's name.
            if child not in self.tasks and self.holdings.get(child, ServedBundle(generation=0)).generation is None:
                self._let_go_of(child, None)
        task.children = ()

    def _discard(self, name: str) -> None:
        task = self.tasks.pop(name, None)
        if task is None:
            return
        for hook_id in task.hooks:
            self._hook_tasks.pop(hook_id, None)
        if task.children:
            key = self._context.key(name)
            committed = key is not None and key.state is State.DELETED and self._provenance.is_own(key)
            if not committed:
                self._drop_children(task, name.rpartition("/")[0])

    # --- records ----------------------------------------------------------------------------------------------------

    def _advance(self, name: str, task: ReactionTask) -> None:
        """Write the record once everything it waits for is there."""
        if task.hooks or self._context.now.mono_s < task.retry_at_s:
            return
        key = self._context.key(name)
        if key is None or self.tasks.get(name) is not task:
            return
        if task.failed:
            self._turn(name, task, key)
            return
        if task.freezing and task.due is DueReaction.COMMIT_SPLIT:
            self._own_children(task, key)
            return
        wait_s = self._lease_wait_s(key, task.due)
        if self._context.now.mono_s < task.started_at_s + wait_s:
            task.retry_at_s = task.started_at_s + wait_s
            return
        if task.due is DueReaction.LET_GO:
            # Let go within the deadline, then write in any case: storage fences by generation.
            self.holdings.pop(name, None)
            if self._comes_back(key) and not task.ready:
                task.due = DueReaction.TAKE_BACK
                task.ready = True
                task.deadline_s = self._context.now.mono_s + self._context.config.hook_deadline_s
                self.holdings[name] = ServedBundle(prepared=key.version + 1)
                self._wait_for(name, task, Hook.ON_OWN, key.version + 1)
                return
        # Who has let go decides nothing by saying so: where only the registry is away, nobody waits for it to come back.
        # But what a process that came later under this broker's id served is not ours to let go of: that one is not heard.
        served = task.due is DueReaction.LET_GO and key.server == self._context.writer
        if not self._context.may_write and not (served and keeps_up(self._context, key.namespace)):
            task.retry_at_s = self._context.now.mono_s + self._context.config.retry_interval_s
            return
        self._write(name, task, key)

    def _lease_wait_s(self, key: KeyState, due: DueReaction) -> float:
        """How long a broker that is forced in, or takes over, waits before it serves: the other's lease has to expire."""
        config = self._context.config
        if config.lease_s is None:
            return 0.0
        forced_in = due is DueReaction.RETURN and key.forced
        inherits = due in _INHERITS and not self.serves(key)
        if inherits and key.server is not None and self._presence.may_be_replaced_by(key.server):
            return config.lease_s + config.tick_interval_s  # by then a tick has seen whether the own lease lasts
        return config.lease_s if forced_in or (config.take_over and inherits) else 0.0

    def _write(self, name: str, task: ReactionTask, key: KeyState) -> None:
        me = self._context.identity.broker
        flow, reason = key.flow, task.why
        if task.due is DueReaction.DECLINE and self._context.draining:
            flow, reason = Flow.SHUTDOWN, reason or SHUTDOWN  # the leader gives it to another broker
        propose = partial(self._proposals.propose, carried=key.more, flow=flow, operation=key.operation, reason=reason)

        def done(result: ProposalResult) -> None:
            self._written(name, task, result)

        if task.due is DueReaction.RETURN:
            written = propose(key, State.ASSIGNED, done, action=Action.RETURN, from_=key.from_, to=me)
        elif task.due is DueReaction.DECLINE:
            written = propose(key, State.UNASSIGNED, done, action=Action.DECLINE, from_=me)
        elif task.due is DueReaction.UNLOAD_ITSELF:
            written = propose(key, State.RELEASING, done, action=Action.DECLINE, flow=Flow.UNLOAD, from_=me)
        elif task.due is DueReaction.LET_GO:
            state = State.UNASSIGNED if key.to is None else State.ASSIGNING
            action = Action.UNLOAD if key.to is None else Action.TRANSFER
            written = propose(key, state, done, action=action, from_=me, to=key.to)
        elif task.due is DueReaction.COMMIT_SPLIT:
            children = children_of(task.children)
            written = propose(key, State.DELETED, done, action=Action.SPLIT, from_=me, children=children)
        else:
            lost = self._predecessor(key)
            written = propose(key, State.ASSIGNED, done, action=Action.RESUME, to=me, lost=lost)
        task.sent = written is not None
        task.sent_at_s = self._context.now.mono_s
        task.retry_at_s = task.sent_at_s + self._context.config.retry_interval_s

    def _predecessor(self, key: KeyState) -> dict[str, Any] | None:
        """What is known of the process before this one that served the bundle: since when it did not, people want to know."""
        server, me = key.server, self._context.identity
        if server is None or server.incarnation == me.incarnation:
            return None
        heard_ms = self._presence.predecessor_heard_ms(server.incarnation)
        if heard_ms is None:
            return None
        return {"broker": me.broker, "incarnation": server.incarnation, "last_heard_ms": heard_ms}

    def _written(self, name: str, task: ReactionTask, result: ProposalResult) -> None:
        if result.status is ProposalStatus.ACCEPTED or self.tasks.get(name) is not task:
            return
        # The state still asks for it: again, with a new id, after a while.
        task.sent = False

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Deadlines of hooks, and records to be written again."""
        context = self._context
        room = RETRIES_A_TICK
        patience_s = self._proposals.patience_s(2) if self.tasks else 0.0
        for name, task in list(self.tasks.items()):
            if self.tasks.get(name) is not task or not self._is_due(task, patience_s):
                continue
            key = context.key(name)
            if key is None:
                continue
            room -= 1
            if room < 0:
                return
            if task.hooks and context.now.mono_s >= task.deadline_s:
                context.emit("hook.late", bundle=name, **self._about(name, task))
                late = ", ".join(dict.fromkeys(task.hooks.values()))
                self._hooks_failed(name, task, f"{late} did not return within {context.config.hook_deadline_s:g} s")
            else:
                # If it was sent, its end is still open: writing it again does no harm, only one of the two can be accepted.
                task.sent = False
                self._advance(name, task)

    def _is_due(self, task: ReactionTask, patience_s: float) -> bool:
        """Whether a tick has something to do about it; asked first, since thousands may be open.

        Args:
            patience_s: Time after its record was written.
        """
        now_s = self._context.now.mono_s
        if task.hooks and now_s >= task.deadline_s:
            return True
        if task.sent:
            return now_s >= task.sent_at_s + patience_s
        return not task.hooks and now_s >= task.retry_at_s

    def recheck(self) -> None:
        """Membership or draining changed: what is due may have changed too."""
        for name, task in list(self.tasks.items()):
            key = self._context.key(name)
            if key is None:
                continue
            if task.due is DueReaction.RETURN and self._context.draining and not task.sent:
                self._discard(name)
                self._let_go_of(name, None)
                self._react(name, key)
