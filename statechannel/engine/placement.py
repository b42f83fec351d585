"""Where a bundle goes: the port of placement, a simple default, and the choice among the brokers that may take the bundle.

Strategies join through entry points (package `shedders`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from statechannel.printable import one_line
from statechannel.protocol.record import REASON_MAX
from statechannel.protocol.states import Action, State

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.engine.troubles import NoBroker
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.record import Record


class Placement(Protocol):
    """Chooses a broker for a bundle."""

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        """One of the candidates, or None if none will do.

        Args:
            candidates: Brokers that are heard, caught up, accepting, and did not decline the bundle lately; sorted.
            load: Bundles that each broker has or is about to have, those in flight and not yet read back included.
        """
        ...

    def refusal(self, bundle: str) -> NoBroker | None:
        """Why the last choice for the bundle was None; None where that has no reason but a lack of candidates."""
        ...


class FewestBundles:
    """The broker with the fewest bundles; among equals the one that comes first after the bundle's place in the alphabet.

    Bundles in flight are counted, so a storm of assignments does not go to one broker (upstream counts none of them).
    """

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        if not candidates:
            return None
        start = sum(bundle.encode()) % len(candidates)
        turned = [*candidates[start:], *candidates[:start]]
        return min(turned, key=lambda broker: load.get(broker, 0))

    def refusal(self, bundle: str) -> NoBroker | None:  # noqa: ARG002 - it takes any candidate
        return None


LONE_TRIES_PART = 6
"""Where no other broker may take a bundle, one that declined it is asked again after this part of the memory of declines,
one broker at a time, and each after twice as long the next time. So a hook that raises once costs a client seconds."""


class Decliner(NamedTuple):
    """A broker that declined a bundle lately.

    Attributes:
        reason: By its record; empty without one.
        at_s, until_s: When that was, and when placement may choose it again (engine clock).
        alone_s: When it may do so where no other broker will do.
    """

    broker: str
    reason: str
    at_s: float
    until_s: float
    alone_s: float


class PendingAssignment(NamedTuple):
    """The broker that a record of this process chose for a bundle; the record was not read back yet."""

    broker: str | None
    at_s: float


class PendingAssignments:
    """The choices by bundle. How many go to each broker is kept: a storm asks that for every bundle."""

    def __init__(self) -> None:
        self._chosen: dict[str, PendingAssignment] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._chosen)

    def __contains__(self, bundle: str) -> bool:
        return bundle in self._chosen

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def add(self, bundle: str, chosen: PendingAssignment) -> None:
        self.drop(bundle)
        self._chosen[bundle] = chosen
        if chosen.broker is not None:
            self._counts[chosen.broker] = self._counts.get(chosen.broker, 0) + 1

    def drop(self, bundle: str) -> None:
        """The record was read back, or is given up."""
        chosen = self._chosen.pop(bundle, None)
        if chosen is None or chosen.broker is None:
            return
        left = self._counts[chosen.broker] - 1
        if left:
            self._counts[chosen.broker] = left
        else:
            del self._counts[chosen.broker]

    def drop_late(self, now_s: float, patience_s: float) -> bool:
        """Forget those that were written longer ago than this: the record is lost, or late. Whether there were any."""
        late = [bundle for bundle, chosen in self._chosen.items() if now_s - chosen.at_s > patience_s]
        for bundle in late:
            self.drop(bundle)
        return bool(late)

    def clear(self) -> None:
        self._chosen.clear()
        self._counts.clear()


class Placer:
    """Chooses among the brokers that may take a bundle, and counts what is already assigned to each."""

    def __init__(self, context: Context, placement: Placement | None = None) -> None:
        self._context = context
        self.placement: Placement = placement or FewestBundles()
        self._tables: list[PendingAssignments] = []
        self._decliners: dict[str, dict[str, Decliner]] = {}

    def new_table(self) -> PendingAssignments:
        table = PendingAssignments()
        self._tables.append(table)
        return table

    def choose(self, key: KeyState, *, without: str | None = None) -> str | None:
        """A broker for the bundle: heard, caught up, accepting; one that declined it lately only where no other will do."""
        context, name = self._context, key.name
        takers = context.members.takers(context.identity.broker, itself=context.accepting)
        if without is not None:
            takers = [broker for broker in takers if broker != without]
        own, alive = context.identity.broker, context.members.alive
        # A broker without a heartbeat for half of the expiry, counted from this broker's own newest one, may expire next.
        since_s = (alive[own].heard_at_s if own in alive else context.now.mono_s) - context.members.expiry_s / 2
        takers = [broker for broker in takers if broker == own or alive[broker].heard_at_s >= since_s] or takers
        decliners = self.decliners(name)
        if not decliners:
            return self.placement.choose(name, takers, self._load())
        declined = {decliner.broker for decliner in decliners}
        candidates = [broker for broker in takers if broker not in declined]
        chosen = self.placement.choose(name, candidates, self._load())
        if chosen is None:
            newest_s = decliners[-1].at_s
            again = {d.broker for d in decliners if self.again_s(d, newest_s) <= context.now.mono_s}
            candidates = [broker for broker in takers if broker in again or broker not in declined]
            if not again.isdisjoint(candidates):
                chosen = self.placement.choose(name, candidates, self._load())
        return chosen

    def refusal(self, key: KeyState) -> NoBroker | None:
        """Why the last choice for the bundle was None, as for `Placement`; heartbeats report it from now on."""
        refusal = self.placement.refusal(key.name)
        if refusal is not None:
            self._context.troubles.unplaced.note(key.name, refusal, self._context.now.wall_ms)
        return refusal

    def _load(self) -> dict[str, int]:
        load: dict[str, int] = {}
        tables = [table.counts for table in self._tables]
        for counts in (*(replica.view.load for replica in self._context.replicas), *tables):
            for broker, count in counts.items():
                load[broker] = load.get(broker, 0) + count
        return load

    def accepted(self, record: Record, key: KeyState) -> None:
        """Leave a broker that could not serve a bundle out of its placement for a while."""
        if record.from_ is None or record.forced:
            return
        declined = record.state is State.UNASSIGNED and key.was is State.ASSIGNING
        gave_up = record.state is State.RELEASING and record.text("action") == Action.DECLINE
        if declined or gave_up:  # the action of the second is a hint: an owner that could not resume
            now_s = self._context.now.mono_s
            reason = one_line((record.text("reason") or "")[:REASON_MAX])
            memory_s = self._context.config.decline_memory_s
            brokers = self._decliners.setdefault(key.name, {})
            before = brokers.pop(record.from_, None)  # the newest is the last
            pause_s = memory_s / LONE_TRIES_PART if before is None else 2 * (before.alone_s - before.at_s)
            brokers[record.from_] = Decliner(
                record.from_, reason, now_s, now_s + memory_s, now_s + min(pause_s, memory_s)
            )

    def decliners(self, bundle: str) -> list[Decliner]:
        """Brokers that declined a bundle and are not asked again yet; the newest last."""
        now_s = self._context.now.mono_s
        decliners = self._decliners.get(bundle)
        return [decliner for decliner in decliners.values() if decliner.until_s > now_s] if decliners else []

    def again_s(self, decliner: Decliner, newest_s: float) -> float:
        """When a decliner may be chosen where no other broker will do, by the newest decline of the bundle (engine clock)."""
        return max(decliner.alone_s, newest_s + self._context.config.decline_memory_s / LONE_TRIES_PART)

    def tick(self) -> None:
        """Forget the decliners whose time is over."""
        now_s = self._context.now.mono_s
        for name, brokers in list(self._decliners.items()):
            if all(decliner.until_s <= now_s for decliner in brokers.values()):
                del self._decliners[name]
