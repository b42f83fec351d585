"""Which bundles two brokers exchange, so that about so much traffic goes from the one to the other.

Upstream walks both lists once, smallest first, and stops at the first bundle that does not fit; this looks further
(design/decisions/0043).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shedders.cluster import Bundle

SLACK = 1e-9
"""Share of the target by which rounding may go beyond it."""


class Cargo(NamedTuple):
    """A bundle and its traffic in bytes a second."""

    bundle: Bundle
    load: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bundles that go, and bundles that come back for them."""

    going: Sequence[Cargo] = ()
    back: Sequence[Cargo] = ()

    @property
    def net(self) -> float:
        """Bytes a second by which the source becomes lighter."""
        return math.fsum((*(cargo.load for cargo in self.going), *(-cargo.load for cargo in self.back)))


@dataclass(frozen=True, slots=True)
class Aim:
    """What an exchange is to reach.

    Attributes:
        target: Bytes a second that should go; no exchange moves more than that.
        enough: With this share of the target reached nothing more is looked for; a swap has to bring this share of the rest.
        most_going: At most so many bundles may go, 0 or more.
        most: At most so many bundles in both directions together.
        swap: Bundles may come back.
    """

    target: float
    enough: float
    most_going: int
    most: int
    swap: bool


def exchange(
    mine: Sequence[Cargo],
    theirs: Callable[[], Sequence[Cargo]],
    aim: Aim,
    may_go: Callable[[Bundle], bool],
    may_come: Callable[[Bundle], bool],
) -> Exchange:
    """Find one.

    Heavy bundles are tried before light ones, so few are moved. If that brings too little, one bundle that is too heavy
    by itself goes as well, against bundles of the other broker that make up for it.

    Args:
        mine: Bundles of the source that could go.
        theirs: Gives the bundles of the destination that could come back; called only if a swap is looked for.
        may_go: Whether policies let a bundle go; asked only about bundles that fit.
        may_come: The same of those that would come back.
    """
    slack = aim.target * SLACK
    going: list[Cargo] = []
    moved, heavy = 0.0, []
    for cargo in sorted(mine, key=lambda one: (-one.load, one.bundle.name)):
        if cargo.load > aim.target + slack - moved:
            heavy.append(cargo)
        elif len(going) < min(aim.most, aim.most_going) and may_go(cargo.bundle):
            going.append(cargo)
            moved += cargo.load
    if aim.swap and moved < aim.enough * aim.target and len(going) < min(aim.most - 1, aim.most_going):
        found = _swap(heavy, theirs(), aim, len(going), moved, may_go, may_come)
        if found is not None:
            return Exchange((*going, *found.going), found.back)
    return Exchange(tuple(going))


def _swap(
    heavy: Sequence[Cargo],
    theirs: Sequence[Cargo],
    aim: Aim,
    taken: int,
    moved: float,
    may_go: Callable[[Bundle], bool],
    may_come: Callable[[Bundle], bool],
) -> Exchange | None:
    light_first = sorted(theirs, key=lambda one: (one.load, one.bundle.name))
    loads = [cargo.load for cargo in light_first]
    rest, slack = aim.target - moved, aim.target * SLACK
    best, best_key = None, (0.0, 0)
    for cargo in reversed(heavy):
        least, most = cargo.load - rest - slack, cargo.load - aim.enough * rest
        back = _make_up(light_first, loads, least, most, aim.most - taken - 1, may_come)
        if back is None:
            continue
        one = Exchange((cargo,), back)
        key = (-one.net, len(back))
        if (best is None or key < best_key) and may_go(cargo.bundle):
            best, best_key = one, key
    return best


def _make_up(
    light_first: Sequence[Cargo],
    loads: Sequence[float],
    least: float,
    most: float,
    slots: int,
    may_come: Callable[[Bundle], bool],
) -> tuple[Cargo, ...] | None:
    """Bundles that together have from `least` to `most`: one if possible, else the heaviest that still fit, one by one."""
    if slots < 1:
        return None
    for place in range(bisect_left(loads, least), bisect_right(loads, most)):
        if may_come(light_first[place].bundle):
            return (light_first[place],)
    back: list[Cargo] = []
    total, place = 0.0, len(loads)
    while len(back) < slots:
        place = min(place, bisect_right(loads, most - total)) - 1
        if place < 0:
            return None
        if may_come(light_first[place].bundle):
            back.append(light_first[place])
            total += loads[place]
            if total >= least:
                return tuple(back)
    return None
