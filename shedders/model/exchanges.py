"""Exchanges of bundles between two brokers: their moves are made together or not at all. Pure.

A broker that gives away a bundle that is too heavy by itself gets lighter ones back (`BundleMove.swap`). Half of that may be
worse than nothing: with the return alone the overloaded broker only gains load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shedders.model.plan import BundleMove


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
