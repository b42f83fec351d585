"""Lookups: who serves a topic, answered from memory where the answer is sure, deferred where it is not.

A stale owner is never named: on time-out the answer is "undetermined". Source: PIP-192 "Bundle-Broker Ownership State";
upstream `getOwnerAsync`, which redirects to a destination before it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from zlib import crc32

from statechannel.engine.commands import BoundTo, Declined, Lookup, NotFound, Outcome, Owned, Undetermined, Unowned
from statechannel.engine.deadlines import Deadlines
from statechannel.engine.freshness import is_current, view_age_s
from statechannel.engine.log_head import RESTORE
from statechannel.engine.names import NameTarget, locate, locate_target, place
from statechannel.engine.owner_cache import OwnerCache
from statechannel.engine.placement import Decliner, PendingAssignment
from statechannel.engine.proposals import ProposalResult
from statechannel.protocol.replica import Phase
from statechannel.protocol.states import BETWEEN_OWNERS, Action, Flow, State

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.controls import ClosingMarks
    from statechannel.engine.placement import Placer
    from statechannel.engine.presence import Presence
    from statechannel.engine.proposals import Proposals
    from statechannel.engine.reactions import Reactions
    from statechannel.protocol.keys import KeyState


Peeked = TypeVar("Peeked")


class InLine:
    """A storm asks every broker for the same bundles, often in the same order.

    If all of them began at its head, each bundle would be proposed by each broker and all records but one would come to
    nothing. So each broker takes them in an order of its own, and by the time it comes to a bundle mostly finds it assigned.

    Args:
        salt: What makes the order this process's own, such as its incarnation.
    """

    def __init__(self, salt: str) -> None:
        self._salt = crc32(salt.encode())
        self._line: list[tuple[int, str]] = []
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, bundle: str) -> bool:
        return bundle in self._names

    def add(self, bundle: str) -> None:
        if bundle not in self._names:
            self._names.add(bundle)
            heappush(self._line, (crc32(bundle.encode(), self._salt), bundle))

    def take(self) -> str | None:
        while self._line:
            bundle = heappop(self._line)[1]
            if bundle in self._names:
                self._names.discard(bundle)
                return bundle
        return None

    def drop(self, bundle: str) -> None:
        self._names.discard(bundle)
        if len(self._line) > 2 * len(self._names) + 64:
            self._line = [place for place in self._line if place[1] in self._names]
            heapify(self._line)


TRIES_A_STEP = 500
"""Lookups that are tried again in one step; the others have their turn in the steps that follow at once."""
LOOKED_AT_A_TICK = 2_000
"""Bundles with waiting lookups that a tick looks at, in turn: whether an assignment can be begun, or nothing is left of them."""


DECLINERS_NAMED = 5
"""Brokers that the message of an answer names, the newest first; `Undetermined.declines` has all."""


class Wait(NamedTuple):
    """Why a lookup waits, in the words of the answer that it gets if nothing changes before its time is up.

    Attributes:
        in_vain: Only an operator can change it: it is answered at once.
    """

    message: str
    hint: str = "Try again."
    reason: str = "timed-out"
    in_vain: bool = False


_FINAL = Wait("")
_JOINING = Wait("joining", "Try again, or ask another broker.", "joining")
NO_BROKER = "no-broker"
_NO_BROKER_HINT = "Start a broker: `statechannel brokers` lists those that are heard."
_HAS_TO_RESUME = Wait("the owner has to resume")
_LEASE_RAN_OUT = Wait(
    "the owner is this broker, whose lease ran out: it serves nothing",
    "Ask another broker; this one serves again, or knows who does, once it reads and writes the log again.",
)
_NO_ROOM = Wait("too many records are in flight")
_BEGUN = Wait("being assigned")
_NONE_ACCEPTS = Wait("no broker accepts bundles", "Start a broker, or see in `status` why those that run accept none.")
_NONE_ALLOWED = "no-broker-allowed"
_CHANGE_POLICIES = "Change the policy or end the cordon that keeps the brokers out, or start a broker that they allow."


@dataclass(slots=True)
class Waiter:
    """A lookup that could not be answered yet.

    Attributes:
        target: What its name means.
        declined: The last decline of each broker while it waited: they are remembered for as long as most lookups wait.
    """

    token: int
    command: Lookup
    target: NameTarget
    deadline_s: float
    why: Wait = _FINAL
    bundle: str = ""
    declined: dict[str, Decliner] = field(default_factory=dict)


class Lookups:
    """All lookups that wait, by the bundle that they wait for (`""` where no bundle is known yet).

    However many wait, a step tries a bounded number of them: the loop has other things to do between two steps.

    Attributes:
        assigning: Bundles whose assignment is written and not read back, with the broker chosen.
        cache: Owners that are known without a step.
    """

    def __init__(
        self,
        context: Context,
        presence: Presence,
        proposals: Proposals,
        reactions: Reactions,
        placer: Placer,
        closing_marks: ClosingMarks,
    ) -> None:
        self._context = context
        self._presence = presence
        self._proposals = proposals
        self._reactions = reactions
        self._placer = placer
        self._closing_marks = closing_marks
        self._waiting: dict[str, dict[int, Waiter]] = {}
        self._by_token: dict[int, Waiter] = {}
        self._deadlines = Deadlines()
        self._again: dict[str, int] = {}
        self._turn: Iterator[str] = iter(())
        self.assigning = placer.new_table()
        self._in_line = InLine(context.identity.incarnation)
        self.cache = OwnerCache(
            context, reactions, closing_marks, lambda target: self._answer(target, read_only=True)[0]
        )
        self._later: set[str] | None = None

    def look_up(self, token: int, command: Lookup) -> None:
        """Answer now, or as soon as the channel says more."""
        context = self._context
        if len(self._by_token) >= context.config.lookup_waiting_max:
            context.complete(token, Undetermined("busy", "too many lookups wait (lookup_waiting_max)", "Try again."))
            return
        target = place(command.name)
        if isinstance(target, NotFound):
            context.complete(token, target)
            return
        self._try(Waiter(token, command, target, context.now.mono_s + command.timeout_s))

    def answer_now(self, name: str) -> Outcome:
        """What a read-only lookup would be answered that could not wait; it changes nothing.

        `Undetermined` says what it would wait for.
        """
        target = place(name)
        if isinstance(target, NotFound):
            return target
        outcome, _, why = self._answer(target, read_only=True)
        return _as_answer(name, why) if outcome is None else outcome

    def locate_now(self, name: str) -> str | NotFound:
        bundle = locate(self._context, name)
        return bundle if isinstance(bundle, NotFound) else bundle.name

    def peek(self, read: Callable[[str], Peeked], name: str) -> Peeked | None:
        """What a method of this class that changes nothing answers, from any thread.

        None while a step runs, which may change what is read.
        """
        epoch = self.cache.epoch
        if epoch & 1:
            return None
        try:
            seen = read(name)
        except Exception:
            if self.cache.epoch == epoch:
                raise
            return None
        return seen if self.cache.epoch == epoch else None

    def _try(self, waiter: Waiter) -> None:
        outcome, bundle, why = self._answer(waiter.target, read_only=waiter.command.read_only)
        if outcome is None and why.in_vain:
            outcome = _as_answer(waiter.command.name, why)
        token = waiter.token
        if outcome is not None:
            self._context.complete(token, outcome)
            if self._by_token.pop(token, None) is not None:
                self._deadlines.drop(token)
            return
        waiter.why, waiter.bundle = why, bundle
        for decliner in self._placer.decliners(bundle):
            waiter.declined[decliner.broker] = decliner
        self._waiting.setdefault(bundle, {})[token] = waiter
        if token not in self._by_token:
            self._by_token[token] = waiter
            self._deadlines.add(token, waiter.deadline_s)

    def _answer(self, target: NameTarget, *, read_only: bool) -> tuple[Outcome | None, str, Wait]:
        """The answer, or None with the bundle that the lookup waits for and why."""
        context = self._context
        bound = context.bound_broker(target.namespace)
        if bound is not None:
            return BoundTo(bound, context.urls_of(bound)), "", _FINAL
        replica = context.replicas[context.partition_of(target.namespace)]
        if not context.judges(replica.partition) and replica.phase is not Phase.STOPPED:
            return None, "", self._no_broker() if context.deserted else _JOINING
        key = locate_target(context, target)
        if isinstance(key, NotFound):
            return replace(key, stale_age_s=self._stale_age_s(target.namespace)), "", _FINAL
        if self._closing_marks.holds(target.namespace):
            return NotFound("being-deleted", f"namespace {target.namespace} is being deleted"), "", _FINAL
        if key.state is State.UNASSIGNED:
            return self._unassigned(key, read_only=read_only)
        if key.state in BETWEEN_OWNERS:
            return None, key.name, Wait(f"bundle is {key.state}")
        return self._owned(key)

    def _owned(self, key: KeyState) -> tuple[Outcome | None, str, Wait]:
        context = self._context
        owner = key.owner
        if owner is None or key.generation is None:
            return None, key.name, Wait("no owner")
        own = owner == context.identity.broker
        if own and not self._reactions.serves(key):
            return None, key.name, _LEASE_RAN_OUT if context.lease_ran_out else _HAS_TO_RESUME
        member = context.members.alive.get(owner)
        if member is None and (not own or self._presence.goodbye_heard):
            if context.deserted:
                return None, key.name, self._no_broker()
            # However old the view is: while Kafka is away nobody expires, so this one was lost, or left, before.
            message = f"owner {owner} is not heard; its bundles will be given to others"
            return None, key.name, Wait(message, reason="owner-not-heard")
        urls = context.urls_of(owner)
        age_s = self._stale_age_s(key.namespace)
        if own or age_s is not None:
            return Owned(key.name, owner, key.generation, urls, age_s), "", _FINAL
        if member is None or key.server is None or key.server.incarnation != member.incarnation:
            return None, key.name, _HAS_TO_RESUME
        return Owned(key.name, owner, key.generation, urls), "", _FINAL

    def _no_broker(self) -> Wait:
        last_ms = self._presence.last_ms
        ago_s = max(0.0, (self._context.now.wall_ms - last_ms) / 1_000)
        heard = f"the last one was heard {ago_s:.0f} s ago" if last_ms else "none was ever heard"
        lost = any(replica.is_headless for replica in self._context.replicas)
        hint = f"The log has lost records: {RESTORE}" if lost else _NO_BROKER_HINT
        return Wait(f"no broker is alive: {heard}", hint, NO_BROKER)

    def _stale_age_s(self, namespace: str) -> float | None:
        """Age of the view of a namespace; None where it is current."""
        context = self._context
        return None if is_current(context, namespace) else view_age_s(context, namespace, self._presence.silence_s)

    def _unassigned(self, key: KeyState, *, read_only: bool) -> tuple[Outcome | None, str, Wait]:
        if read_only:
            return Unowned(key.name, self._stale_age_s(key.namespace)), "", _FINAL
        if self._context.deserted:
            return None, key.name, self._no_broker()
        refusal = self._context.refusal()
        if refusal is not None:
            words = f"no broker owns it, and this one can choose none: {refusal.message}"
            return None, key.name, Wait(words, refusal.hint, "joining" if refusal.reason == "joining" else "timed-out")
        return None, key.name, self._assign(key)

    def _assign(self, key: KeyState) -> Wait:
        """Start an assignment, once; upstream publishes one for every lookup."""
        name = key.name
        if name in self.assigning:
            return _BEGUN
        if self._room <= 0:  # asked first: to choose a broker is the dearer part
            self._in_line.add(name)
            return _NO_ROOM
        self._in_line.drop(name)
        broker = self._placer.choose(key)
        if broker is None:
            return self._unplaced(key)

        def done(_: ProposalResult) -> None:
            self.assigning.drop(name)
            if key.state not in BETWEEN_OWNERS:
                self.recheck(name)
            self._next_in_line()

        written = self._proposals.propose(
            key,
            State.ASSIGNING,
            done,
            action=Action.OWN,
            flow=Flow.ASSIGNMENT,
            operation=self._proposals.new_id(),
            to=broker,
        )
        if written is None:
            return _NO_ROOM
        self.assigning.add(name, PendingAssignment(broker, self._context.now.mono_s))
        return _BEGUN

    def _unplaced(self, key: KeyState) -> Wait:
        refusal = self._placer.refusal(key)
        if refusal is None:
            return _NONE_ACCEPTS
        return Wait(refusal.message, _CHANGE_POLICIES, _NONE_ALLOWED, refusal.lasting)

    @property
    def _room(self) -> int:
        return min(self._proposals.room, self._context.config.assigning_max - len(self.assigning))

    def _next_in_line(self) -> None:
        """Begin those whose turn it is, as long as there is room; most were assigned by others meanwhile."""
        for _ in range(TRIES_A_STEP):
            if self._room <= 0:
                return
            name = self._in_line.take()
            if name is None:
                return
            key = self._context.key(name) if name in self._waiting else None
            if key is not None and key.state is State.UNASSIGNED and self._context.refusal() is None:
                self._assign(key)
        self._context.wake_soon(self._more)

    # --- when to look again -----------------------------------------------------------------------------------------

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Answer no lookup meanwhile; afterwards, try those that the change may concern."""
        later: set[str] = set()
        self._later = later
        try:
            yield
        finally:
            self._later = None
        for name in sorted(later):
            self._note(name)
        self._go_on()

    def changed(self, key: KeyState) -> None:
        """The state of a key changed; between two owners there is no answer."""
        if key.state is not State.UNASSIGNED:
            self._context.troubles.unplaced.forget(key.name)
        if key.state not in BETWEEN_OWNERS:
            self.recheck(key.name)

    def recheck(self, name: str) -> None:
        """There may be an answer for this bundle now."""
        if self._later is not None:
            self._later.add(name)
        elif name in self._waiting:
            self._note(name)
            self._try_again(name, TRIES_A_STEP)

    def recheck_all(self) -> None:
        if self._later is not None:
            self._later.update(self._waiting)
            return
        self._again = {name: len(waiters) for name, waiters in self._waiting.items()}
        self._go_on()

    def _note(self, name: str) -> None:
        """All that wait for this bundle now are to be tried again."""
        waiters = self._waiting.get(name)
        if waiters:
            self._again[name] = len(waiters)

    def _go_on(self) -> None:
        """As many of those that are to be tried again as a step may."""
        room = TRIES_A_STEP
        for name in list(islice(self._again, room)):
            if room <= 0:
                return
            if name in self._again:
                room -= self._try_again(name, room)

    def _try_again(self, name: str, most: int) -> int:
        """Try the first of those that wait for a bundle; how many. The rest is left noted."""
        waiters = self._waiting.pop(name, {})
        left = min(self._again.pop(name, 0), len(waiters))
        turn = list(islice(waiters.values(), min(left, most)))
        for waiter in turn:
            del waiters[waiter.token]
        if waiters:
            self._waiting[name] = waiters
        for waiter in turn:
            self._try(waiter)
        if left > len(turn):
            self._again[name] = left - len(turn)
            self._context.wake_soon(self._more)
        return max(1, len(turn))

    def tick(self) -> None:
        """Time-outs; and another try for those that wait for a broker or for room."""
        # Lost or late: another proposal does no harm, only one can be accepted.
        self.assigning.drop_late(self._context.now.mono_s, self._proposals.patience_s())
        self._more()

    def _more(self) -> None:
        self._time_out()
        self._go_on()
        self._next_in_line()
        self._look_around()

    def _time_out(self) -> None:
        late = self._deadlines.due(self._context.now.mono_s, TRIES_A_STEP)
        for token in late:
            waiter = self._by_token.pop(token)
            waiters = self._waiting[waiter.bundle]
            del waiters[token]
            if not waiters:
                del self._waiting[waiter.bundle]
            self._context.complete(token, self._undetermined(waiter))
        if len(late) == TRIES_A_STEP:
            self._context.wake_soon(self._more)

    def _undetermined(self, waiter: Waiter) -> Undetermined:
        name, now_s = waiter.command.name, self._context.now.mono_s
        decliners = self._decliners(waiter)
        if not decliners:
            refusal = self._proposals.refusal(waiter.bundle, waiter.command.timeout_s)
            if refusal is not None:
                return Undetermined(refusal.reason.value, f"{name}: {waiter.why.message}; {refusal.message}")
            return _as_answer(name, waiter.why)
        again_s, newest_s = self._placer.again_s, decliners[-1].at_s
        declines = tuple(
            Declined(d.broker, d.reason, now_s - d.at_s, max(0.0, again_s(d, newest_s) - now_s)) for d in decliners
        )
        sentences = [_sentence(declined) for declined in declines[: -DECLINERS_NAMED - 1 : -1]]
        if len(declines) > DECLINERS_NAMED:
            sentences.append(f"{len(declines) - DECLINERS_NAMED} more declined before")
        hint = "Mend the cause at that broker, or start another one; the first lookup after that time asks it again."
        return Undetermined("declined", f"{name}: {'; '.join(sentences)}", hint, declines)

    def _decliners(self, waiter: Waiter) -> list[Decliner]:
        """Who would be asked for the bundle now, or declined it; empty where something else keeps it from an owner."""
        context = self._context
        key = context.key(waiter.bundle) if waiter.bundle else None
        if key is None or key.state is not State.UNASSIGNED or context.refusal() is not None:
            return []
        decliners = [decliner for decliner in waiter.declined.values() if context.accepts(decliner.broker)]
        chosen = self._placer.choose(key) if decliners else None
        if chosen is not None and chosen not in waiter.declined:
            return []
        return sorted(decliners, key=lambda decliner: decliner.at_s)

    def _look_around(self) -> None:
        """Begin what could not be begun; and answer those that wait for a bundle that does not exist any more."""
        context, begun = self._context, len(self.assigning)
        may_begin = context.refusal() is None and self._room > 0
        # Where nothing can be begun there are only those to be found that wait for what has gone: no haste.
        for name in self._next_names(LOOKED_AT_A_TICK if may_begin else LOOKED_AT_A_TICK // 10):
            if len(self._again) >= TRIES_A_STEP:
                break  # a turn later comes round to it
            if not name or name not in self._waiting or name in self.assigning or name in self._in_line:
                continue
            key = context.key(name)
            if key is None or (may_begin and key.state is State.UNASSIGNED and self._room > 0):
                self._note(name)
        self._go_on()
        if len(self.assigning) > begun and self._room > 0:
            context.wake_soon(self._more)

    def _next_names(self, most: int) -> Iterator[str]:
        left = min(most, len(self._waiting))
        while left > 0:
            name = next(self._turn, None)
            if name is None:
                self._turn = iter(list(self._waiting))
                name = next(self._turn, "")
            left -= 1
            yield name

    @property
    def waiting(self) -> int:
        return len(self._by_token)


def _as_answer(name: str, wait: Wait) -> Undetermined:
    return Undetermined(wait.reason, f"{name}: {wait.message}", wait.hint)


def _sentence(declined: Declined) -> str:
    reason = f": {declined.reason}" if declined.reason else ""
    ago = f"{declined.broker} declined {declined.ago_s:.0f} s ago{reason}"
    return f"{ago}; asked again in {declined.again_in_s:.0f} s"
