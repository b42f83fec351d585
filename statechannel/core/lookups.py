"""Lookups: who serves a topic, answered from memory where the answer is sure, deferred where it is not.

A stale owner is never named: on time-out the answer is "undetermined". Source: PIP-192 "Bundle-Broker Ownership State";
upstream `getOwnerAsync`, which redirects to a destination before it serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from statechannel.core.commands import BoundTo, Lookup, NotFound, Outcome, Owned, Undetermined, Unowned
from statechannel.core.names import place
from statechannel.core.proposals import Result
from statechannel.core.replica import Phase
from statechannel.core.states import Action, Flow, State

if TYPE_CHECKING:
    from statechannel.core.engine import Engine
    from statechannel.core.keys import KeyState
    from statechannel.core.record import Record

PATIENCE_RETRIES = 4


class Chosen(NamedTuple):
    """A bundle on its way to a broker by a record of ours that was not read back yet."""

    broker: str | None
    at_s: float

    def late(self, now_s: float, retry_interval_s: float) -> bool:
        """Whether it is time to write it again, whatever became of the record."""
        return now_s - self.at_s > PATIENCE_RETRIES * retry_interval_s


@dataclass(slots=True)
class Waiter:
    """A lookup that could not be answered yet."""

    token: int
    command: Lookup
    deadline_s: float
    why: str


class Lookups:
    """All lookups that wait, by the bundle that they wait for (`""` where no bundle is known yet)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[str, list[Waiter]] = {}
        self._count = 0
        self._assigning: dict[str, Chosen] = {}
        self._decliners: dict[str, dict[str, float]] = {}
        self._later: set[str] | None = None

    def look_up(self, token: int, command: Lookup) -> None:
        """Answer now, or as soon as the channel says more."""
        engine = self._engine
        if self._count >= engine.config.lookup_waiting_max:
            engine.complete(token, Undetermined("busy", "too many lookups wait (lookup_waiting_max); try again"))
            return
        self._try(Waiter(token, command, engine.now.mono_s + command.timeout_s, "new"))

    def _try(self, waiter: Waiter) -> None:
        outcome, bundle, why = self._answer(waiter.command)
        if outcome is not None:
            self._engine.complete(waiter.token, outcome)
            return
        waiter.why = why
        self._waiting.setdefault(bundle, []).append(waiter)
        self._count += 1

    def _answer(self, command: Lookup) -> tuple[Outcome | None, str, str]:
        """The answer, or None with the bundle that the lookup waits for and why."""
        engine = self._engine
        found_place = place(command.name)
        if isinstance(found_place, NotFound):
            return found_place, "", ""
        bound = engine.bound_broker(found_place.namespace)
        if bound is not None:
            return BoundTo(bound, engine.presence.members.alive[bound].urls), "", ""
        replica = engine.replicas[engine.partition_of(found_place.namespace)]
        if not engine.judges(replica.partition) and replica.phase is not Phase.STOPPED:
            return None, "", "joining"
        found = engine.locate(command.name)
        if isinstance(found, NotFound):
            return found, "", ""
        if engine.closing(found_place.namespace):
            return NotFound(f"namespace {found_place.namespace} is being deleted"), "", ""
        if found.state is State.UNASSIGNED:
            return self._unassigned(found, command)
        if found.state in (State.ASSIGNING, State.RELEASING):
            return None, found.name, f"bundle is {found.state}"
        return self._owned(found)

    def _owned(self, key: KeyState) -> tuple[Outcome | None, str, str]:
        engine = self._engine
        owner = key.owner
        if owner is None or key.generation is None:
            return None, key.name, "no owner"
        member = engine.presence.members.alive.get(owner)
        if not engine.current(key.namespace):
            urls = member.urls if member is not None else {}
            age_s = engine.view_age_s(key.namespace)
            return Owned(key.name, owner, key.generation, urls, age_s), "", ""
        if owner == engine.identity.broker:
            if not engine.reactions.serves(key):
                return None, key.name, "the owner has to resume"
        elif member is None:
            return None, key.name, f"owner {owner} is not heard; its bundles will be given to others"
        elif key.server is None or key.server.incarnation != member.incarnation:
            return None, key.name, "the owner has to resume"
        return Owned(key.name, owner, key.generation, member.urls if member is not None else {}), "", ""

    def _unassigned(self, key: KeyState, command: Lookup) -> tuple[Outcome | None, str, str]:
        if command.read_only:
            return Unowned(key.name), "", ""
        refusal = self._engine.refusal()
        if refusal is not None:
            return None, key.name, refusal.reason
        return None, key.name, self._assign(key)

    def _assign(self, key: KeyState) -> str:
        """Start an assignment, once; upstream publishes one for every lookup."""
        name = key.name
        if name in self._assigning:
            return "being assigned"
        engine = self._engine
        broker = self.choose(key)
        if broker is None:
            return "no broker accepts bundles"

        def done(_: Result) -> None:
            self._assigning.pop(name, None)
            self.recheck(name)

        written = engine.proposals.propose(
            key,
            State.ASSIGNING,
            done,
            action=Action.OWN,
            flow=Flow.ASSIGNMENT,
            operation=engine.proposals.new_id(),
            to=broker,
        )
        if written is None:
            return "too many records are on their way"
        self._assigning[name] = Chosen(broker, engine.now.mono_s)
        return "being assigned"

    # --- placement --------------------------------------------------------------------------------------------------

    def choose(self, key: KeyState, *, without: str | None = None) -> str | None:
        """A broker for the bundle: alive, caught up, accepting, and not one that declined it lately."""
        engine = self._engine
        now_s = engine.now.mono_s
        declined = self._decliners.get(key.name, {})
        candidates = sorted(
            broker
            for broker, member in engine.presence.members.alive.items()
            if broker != without
            and declined.get(broker, 0.0) <= now_s
            and (member.accepting or (broker == engine.identity.broker and engine.accepting))
        )
        return engine.placement.choose(key.name, candidates, self._load())

    def _load(self) -> dict[str, int]:
        load: dict[str, int] = {}
        for replica in self._engine.replicas:
            for broker, count in replica.view.load.items():
                load[broker] = load.get(broker, 0) + count
        engine = self._engine
        for table in (self._assigning, engine.repair.on_their_way, engine.departure.on_their_way):
            for chosen in table.values():
                if chosen.broker is not None:
                    load[chosen.broker] = load.get(chosen.broker, 0) + 1
        return load

    def accepted(self, record: Record, key: KeyState) -> None:
        """A broker that could not serve a bundle is left out by its placement for a while."""
        if record.from_ is None or record.forced:
            return
        declined = record.state is State.UNASSIGNED and key.was is State.ASSIGNING
        gave_up = record.state is State.RELEASING and record.text("action") == Action.DECLINE
        if declined or gave_up:  # the action of the second is a hint: an owner that could not resume
            self._declined(key.name, record.from_)

    def _declined(self, name: str, broker: str) -> None:
        until_s = self._engine.now.mono_s + self._engine.config.decline_memory_s
        self._decliners.setdefault(name, {})[broker] = until_s

    # --- when to look again -----------------------------------------------------------------------------------------

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Meanwhile nobody is answered; afterwards all are who might have been."""
        later: set[str] = set()
        self._later = later
        try:
            yield
        finally:
            self._later = None
        for name in sorted(later):
            self.recheck(name)

    def recheck(self, name: str) -> None:
        """The state of this bundle changed."""
        if self._later is not None:
            self._later.add(name)
            return
        waiters = self._waiting.pop(name, None)
        if waiters:
            self._count -= len(waiters)
            for waiter in waiters:
                self._try(waiter)

    def recheck_all(self) -> None:
        """Membership, mode or the view itself changed."""
        for name in list(self._waiting):
            self.recheck(name)

    def tick(self) -> None:
        """Time-outs; and another try for those that wait for a broker or for room."""
        now_s = self._engine.now.mono_s
        for name in [n for n, one in self._assigning.items() if one.late(now_s, self._engine.config.retry_interval_s)]:
            # Lost or slow: another proposal does no harm, only one can be accepted.
            del self._assigning[name]
        for name, waiters in list(self._waiting.items()):
            late = [waiter for waiter in waiters if now_s >= waiter.deadline_s]
            if late:
                self._count -= len(late)
                rest = [waiter for waiter in waiters if now_s < waiter.deadline_s]
                self._waiting[name] = rest
                if not rest:
                    del self._waiting[name]
                for waiter in late:
                    detail = f"{waiter.command.name}: {waiter.why}"
                    self._engine.complete(waiter.token, Undetermined(_word(waiter.why), detail))
            if name and name in self._waiting and name not in self._assigning:
                key = self._engine.key(name)
                if key is None or key.state is State.UNASSIGNED:
                    self.recheck(name)
        for name, brokers in list(self._decliners.items()):
            if all(until_s <= now_s for until_s in brokers.values()):
                del self._decliners[name]

    @property
    def waiting(self) -> int:
        """Number of lookups that wait."""
        return self._count


def _word(why: str) -> str:
    return "joining" if why == "joining" else "timed-out"
