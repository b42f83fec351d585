"""Owners that are known without a step of the engine: lookups at the speed of memory, from any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statechannel.engine.commands import NotFound, Outcome, Owned
from statechannel.engine.freshness import current_until_s
from statechannel.engine.membership import Member
from statechannel.engine.names import locate_target, place
from statechannel.protocol.keys import KeyState
from statechannel.protocol.replica import Replica
from statechannel.protocol.view import View

if TYPE_CHECKING:
    from collections.abc import Callable

    from statechannel.engine.context import Context
    from statechannel.engine.controls import ClosingMarks
    from statechannel.engine.names import NameTarget
    from statechannel.engine.reactions import Reactions


BASES_MIN = 1_000
"""From this number on bases that do not hold any more are dropped; after that, each time as many were added as were kept."""


@dataclass(slots=True)
class OwnerBasis:
    """What answers about all bundles of a namespace with one owner were made from, checked once for all of them.

    Attributes:
        checked: The epoch in which it was looked at last, and until when it holds in that epoch (by the engine's clock); in
            one tuple, as several threads write it.
    """

    namespace: str
    broker: str
    own: bool
    replica: Replica
    view: View
    member: Member
    steady: Mapping[str, Any]
    checked: tuple[int, float] = (-1, 0.0)


@dataclass(slots=True)
class CachedOwner:
    """An answer, and all that it was made from: it holds as long as none of these has changed.

    Every accepted record of a bundle gives its state another offset, as do a split, and the end of the namespace.

    Attributes:
        epoch: The newest in which the state of the bundle was found as it was.
    """

    outcome: Owned
    key: KeyState
    offset: int
    basis: OwnerBasis
    epoch: int = -1


class OwnerCache:
    """Answers to lookups that are the same as those of a step at the same moment, or none.

    There is none while a step runs, or is due because time has passed (the process was paused, say), where the view is not
    current, and for all that is not simply owned. The caller then asks the engine.

    The engine's thread writes, any thread reads, without a lock: the epoch is odd while the engine changes anything, and what
    was read while the epoch changed is discarded. Within an epoch only time passes, so what entries have in common is checked
    once in each.

    Args:
        answer: What a step answers to a read-only lookup of this place; it changes nothing.

    Attributes:
        epoch: Counts the beginnings and the ends of steps.
    """

    def __init__(
        self,
        context: Context,
        reactions: Reactions,
        closing_marks: ClosingMarks,
        answer: Callable[[NameTarget], Outcome | None],
    ) -> None:
        self._context = context
        self._reactions = reactions
        self._closing_marks = closing_marks
        self._answer = answer
        self._owners: dict[str, CachedOwner] = {}
        self._bases: dict[tuple[str, str], OwnerBasis] = {}
        self._bases_max = BASES_MIN
        self.epoch = 0

    def find(self, now_s: float, name: str) -> Owned | None:
        """The owner of a topic or bundle; None: ask the engine.

        Args:
            now_s: By the engine's clock.
        """
        cached = self.entry(now_s, name)
        return None if cached is None else cached.outcome

    def entry(self, now_s: float, name: str) -> CachedOwner | None:
        """As `find`, with what the answer was made from."""
        cached = self._owners.get(name)
        if cached is not None:
            epoch, until_s = cached.basis.checked
            if epoch == self.epoch and now_s < until_s and (cached.epoch == epoch or self._is_unchanged(cached)):
                if self.epoch == epoch:
                    cached.epoch = epoch
                    return cached
        epoch, context, until_s = self.epoch, self._context, 0.0
        if epoch & 1 or now_s >= context.wake_at_s or context.stopped is not None:
            return None
        try:
            if cached is not None and self._is_unchanged(cached):
                until_s = self._until_s(cached.basis, epoch)
            if until_s <= now_s:
                cached = self._look_up(name)
                until_s = 0.0 if cached is None else self._until_s(cached.basis, epoch)
        except Exception:
            if self.epoch == epoch:
                raise
            return None  # a step changed what was being read
        if cached is None or self.epoch != epoch:
            return None
        self._keep(name, cached)
        cached.epoch = epoch
        return cached if now_s < until_s else None

    def _keep(self, name: str, owner: CachedOwner) -> None:
        if len(self._owners) >= self._context.config.lookup_cached_max and name not in self._owners:
            self._owners.clear()
            self._bases.clear()
        self._owners[name] = owner

    def _is_unchanged(self, cached: CachedOwner) -> bool:
        """Whether the bundle is as it was, whatever became of its broker."""
        key = cached.key
        return key.offset == cached.offset and (not cached.basis.own or self._reactions.serves(key))

    def _until_s(self, basis: OwnerBasis, epoch: int) -> float:
        """Until when the basis holds if no step is made; 0 if it does not."""
        checked_epoch, until_s = basis.checked
        if checked_epoch != epoch:
            context = self._context
            until_s = min(context.wake_at_s, current_until_s(context, basis.replica)) if self._holds(basis) else 0.0
            basis.checked = epoch, until_s
        return until_s

    def _holds(self, basis: OwnerBasis) -> bool:
        member = basis.member
        return (
            basis.replica.view is basis.view
            and self._context.members.alive.get(basis.broker) is member
            and member.steady is basis.steady
            and not self._closing_marks.mentions(basis.namespace)
            and self._context.bound_broker(basis.namespace) is None
        )

    def _look_up(self, name: str) -> CachedOwner | None:
        context = self._context
        target = place(name)
        key = target if isinstance(target, NotFound) else locate_target(context, target)
        if isinstance(target, NotFound) or isinstance(key, NotFound) or self._closing_marks.mentions(key.namespace):
            return None
        if key.owner is None:
            return None  # as in a storm: the answer of a step is no owner, and costs more
        outcome = self._answer(target)
        if not isinstance(outcome, Owned) or outcome.stale_age_s is not None:
            return None
        member = context.members.alive.get(outcome.broker)
        if member is None:
            return None
        return CachedOwner(outcome, key, key.offset, self._basis(key.namespace, outcome.broker, member))

    def _basis(self, namespace: str, broker: str, member: Member) -> OwnerBasis:
        basis = self._bases.get((namespace, broker))
        if basis is None or not self._holds(basis):
            context = self._context
            replica = context.replicas[context.partition_of(namespace)]
            own = broker == context.identity.broker
            basis = OwnerBasis(namespace, broker, own, replica, replica.view, member, member.steady)
            if len(self._bases) >= self._bases_max:
                self._drop_bases()
            self._bases[namespace, broker] = basis
        return basis

    def _drop_bases(self) -> None:
        """Drop the bases that do not hold: of brokers that are gone, with the views that they keep."""
        kept = {place: basis for place, basis in list(self._bases.items()) if self._holds(basis)}
        self._bases, self._bases_max = kept, max(BASES_MIN, 2 * len(kept))
