"""Moves of bundles within the last minutes: who came and went, and which bundles change their owner again and again. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from enum import StrEnum
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from statechannel.protocol.states import Action, Flow, State

if TYPE_CHECKING:
    from statechannel.http_api.page.bundle_table import BundleStep

FLAPS: Final = 4
"""Changes of owner of one bundle within MOVES_WINDOW_MS, made by the balancer or after failures, that are too many."""
MOVES_WINDOW_MS: Final = 300_000
FLAPPING_MAX: Final = 5
MOVES_MAX: Final = 5_000
"""Moves that are counted by broker and bundle, at most: more come only in a storm."""


class SeenMoveCause(StrEnum):
    """Who or what began a move.

    PLANNED are drains, requests of people, shutdowns and first lookups: they are no sign of trouble.
    """

    BALANCER = "balancer"
    FAILURE = "failure"
    PLANNED = "planned"


class MoveSeen(NamedTuple):
    """A bundle that got another owner.

    Attributes:
        key: Of the bundle, in the table.
        decision: Of the balancer, that began it.
    """

    at_ms: int
    key: int
    source: str | None
    target: str | None
    cause: SeenMoveCause
    decision: str | None


class Flapping(NamedTuple):
    """Moves of one bundle within the window."""

    key: int
    balancer: int
    failure: int
    planned: int


class BundleMovesSeen:
    """Counts moves by broker and by bundle, until they are older than the window.

    Attributes:
        came, went: Number of moves by broker.
    """

    def __init__(self) -> None:
        self._moves: deque[MoveSeen] = deque()
        self._begun: dict[int, tuple[SeenMoveCause, str | None]] = {}
        self._counted = Counter[int]()  # by key, those that are not planned
        self.came = Counter[str | None]()
        self.went = Counter[str | None]()

    def clear(self) -> None:
        for known in (self._moves, self._begun, self._counted, self.came, self.went):
            known.clear()

    def keys(self) -> set[int]:
        """Of all bundles that are named here."""
        return {move.key for move in self._moves} | self._begun.keys()

    def take(self, step: BundleStep) -> None:
        """A change, in the order of the log."""
        before, after = step.before, step.after
        cause, decision = begun = _cause_of(step, self._begun.get(step.key))
        if (
            after is None
            or (after.owner is not None and after.state is State.ASSIGNED)
            or cause is SeenMoveCause.PLANNED
        ):
            self._begun.pop(step.key, None)
        else:
            self._begun[step.key] = begun
        if after is not None and after.owner is not None and (before is None or before.owner != after.owner):
            source = before.owner or before.source if before is not None else None
            self._moves.append(MoveSeen(step.at_ms, step.key, source, after.owner, cause, decision))
            self._count(self._moves[-1], 1)
            if len(self._moves) > MOVES_MAX:
                self._count(self._moves.popleft(), -1)

    def forget_before(self, at_ms: int) -> None:
        """Moves before this time do not count any more."""
        while self._moves and self._moves[0].at_ms < at_ms:
            self._count(self._moves.popleft(), -1)

    def _count(self, move: MoveSeen, by: int) -> None:
        for counts, name in ((self.came, move.target), (self.went, move.source)):
            counts[name] += by
            if not counts[name]:
                del counts[name]
        if move.cause is not SeenMoveCause.PLANNED:
            self._counted[move.key] += by
            if not self._counted[move.key]:
                del self._counted[move.key]

    def flapping(self, drains: Collection[str]) -> list[Flapping]:
        """Bundles that move too often, the worst first.

        Args:
            drains: Decisions that belong to a drain: their moves are planned.
        """
        suspects = {key for key, times in self._counted.items() if times >= FLAPS}
        if not suspects:
            return []
        causes: dict[int, Counter[SeenMoveCause]] = {key: Counter() for key in suspects}
        for move in self._moves:
            if move.key in suspects:
                causes[move.key][SeenMoveCause.PLANNED if move.decision in drains else move.cause] += 1
        counts = [
            (
                own[SeenMoveCause.BALANCER] + own[SeenMoveCause.FAILURE],
                Flapping(key, *(own[cause] for cause in SeenMoveCause)),
            )
            for key, own in causes.items()
        ]
        worst = nlargest(FLAPPING_MAX, (pair for pair in counts if pair[0] >= FLAPS), key=itemgetter(0))
        return [flapping for _, flapping in worst]


def _cause_of(step: BundleStep, begun: tuple[SeenMoveCause, str | None] | None) -> tuple[SeenMoveCause, str | None]:
    """By the record that begins the move; those that follow it have only its operation and flow."""
    note = step.note
    if note.lost is not None or note.flow == Flow.REPAIR or note.action in (Action.REPAIR, Action.DECLINE):
        return SeenMoveCause.FAILURE, None
    if note.decision is not None:
        return SeenMoveCause.BALANCER, note.decision
    if begun is None or (step.after is not None and step.after.state is State.RELEASING):
        return SeenMoveCause.PLANNED, None
    return begun
