"""Plans of strategies: moves with reasons, exchanges, and brokers and bundles left alone with reasons. Pure.

A broker that gives away a bundle that is too heavy by itself gets lighter ones back (`BundleMove.swap`): an exchange. Its moves
are made together or not at all, since half of it may be worse than nothing: with the return alone the overloaded broker only
gains load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from shedders.model.amounts import BYTES, LoadUnit


class Label(StrEnum):
    """Upstream's `UnloadDecision.Label`."""

    SUCCESS = "Success"
    SKIP = "Skip"
    FAILURE = "Failure"


class Reason(StrEnum):
    """Upstream's `UnloadDecision.Reason`; the column by which runs can be compared with upstream's metrics."""

    OVERLOADED = "Overloaded"
    UNDERLOADED = "Underloaded"
    HIT_COUNT = "HitCount"
    NO_BUNDLES = "NoBundles"
    COOL_DOWN = "CoolDown"
    OUTDATED_DATA = "OutDatedData"
    NO_LOAD_DATA = "NoLoadData"
    NO_BROKERS = "NoBrokers"
    ADMIN = "Admin"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class BundleMove:
    """A bundle that should go.

    Attributes:
        destination: None if the placement is to choose (a plain unload).
        load: The part of the source's traffic that goes with it, in the strategy's own measure.
        load_unit: Its unit: bytes or messages a second.
        why: A sentence for people, with the numbers that decided.
        swap: It is returned in exchange for others.
    """

    bundle: str
    source: str
    destination: str | None
    reason: Reason
    load: float
    why: str
    swap: bool = False
    load_unit: LoadUnit = BYTES


DOUBTS: Final = frozenset({"doubted", "corrected", "slow", "memory-does-not-follow"})
"""Reasons of `Left`: a broker's figures are not taken as they are."""


@dataclass(frozen=True, slots=True)
class Left:
    """A broker or bundle that was considered and left alone.

    Attributes:
        name: Broker id or bundle key.
        reason: A stable word, listed in design/reference/decisions-topic.md and documented with the strategy.
    """

    name: str
    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class SplitWanted:
    """A bundle that is too large to be moved: its owner is asked to split it.

    Attributes:
        why: A sentence for people, with the numbers that decided.
    """

    bundle: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One decision.

    Attributes:
        label: Upstream's label; SUCCESS if there are moves.
        reason: Upstream's reason: of the moves, or why there are none.
        scores: Each broker's score as the strategy saw it.
        stats: The strategy's own figures (average, standard deviation, thresholds).
        memory: State for the next decision (hit counts, smoothed usage); JSON-able, sorted by key.
        splits: Bundles that their owners should split.
    """

    strategy: str
    label: Label
    reason: Reason
    why: str
    moves: Sequence[BundleMove] = ()
    left: Sequence[Left] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    splits: Sequence[SplitWanted] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a bundle goes.

    Attributes:
        broker: The choice; None if no broker may take it.
        best: Equally good brokers (upstream picks one of them at random), sorted.
        removed: Brokers that a filter removed, with the filter's name and the reason.
    """

    bundle: str
    broker: str | None
    why: str
    best: Sequence[str] = ()
    removed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A bundle that should be split, or was considered.

    Attributes:
        positions: Where to cut; empty if it is left whole.
        reason: Upstream's split reason (`Topics`, `Sessions`, `MsgRate`, `Bandwidth`, `Admin`), or the word for leaving it.
    """

    bundle: str
    positions: Sequence[int]
    reason: str
    why: str


class Turn(NamedTuple):
    """A move in the order in which moves are started.

    Attributes:
        after: The move that must be done first; if it fails, this one is not started.
        along: Moves that are started after it: if one of them may not be, this one is not started either.
    """

    move: BundleMove
    after: BundleMove | None = None
    along: Sequence[BundleMove] = ()


def together(moves: Sequence[BundleMove]) -> list[list[BundleMove]]:
    """The moves in groups of one, except that those of two brokers that exchange bundles form one group at the first's place."""
    pairs = {frozenset((move.source, move.destination)) for move in moves if move.swap}
    groups: dict[object, list[BundleMove]] = {}
    for place, move in enumerate(moves):
        pair = frozenset((move.source, move.destination))
        groups.setdefault(pair if pair in pairs else place, []).append(move)
    return list(groups.values())


def in_turn(moves: Sequence[BundleMove]) -> Iterator[Turn]:
    """The order in which moves are started: of an exchange the heaviest bundle first, those in return once it is done."""
    for group in together(moves):
        back = [move for move in group if move.swap]
        going = sorted((move for move in group if not move.swap), key=lambda move: (-move.load, move.bundle))
        if not back or not going:
            yield from (Turn(move) for move in group)
            continue
        yield Turn(going[0], along=back)
        yield from (Turn(move) for move in going[1:])
        yield from (Turn(move, after=going[0]) for move in back)
