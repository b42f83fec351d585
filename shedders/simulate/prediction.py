"""How far a live run is from what the simulator has foretold for the same trace. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Final

from shedders.simulate.outcome import Outcome

CLOSE: Final = 0.05
"""The largest load is no further above the mean than this part of a machine: it has settled."""


@dataclass(frozen=True, slots=True)
class Run:
    """Loads over time, live or simulated.

    Attributes:
        at_s: Ascending.
        loads: By broker; None where nothing is known.
        moved_s: Time of each move.
    """

    at_s: Sequence[float]
    loads: Mapping[str, Sequence[float | None]]
    moved_s: Sequence[float]

    @classmethod
    def of(cls, outcome: Outcome, begun_s: float = 0.0) -> Run:
        """A run of the simulator.

        Args:
            begun_s: When it began, by the time of the run that it is held against.
        """
        at_s = [begun_s + one for one in outcome.series.at_s]
        return cls(at_s, outcome.series.loads, [begun_s + one.at_s for one in outcome.moves])

    def at(self, at_s: float) -> dict[str, float]:
        """Each broker's load at a time: as it was last known then."""
        place = bisect_right(self.at_s, at_s) - 1
        if place < 0:
            return {}
        return {name: load for name, loads in self.loads.items() if (load := loads[place]) is not None}


@dataclass(frozen=True, slots=True)
class Differences:
    """Loads are parts of a machine; differences are means over time of what they are at each moment, without sign.

    Attributes:
        by_rank: Between the busiest brokers of both, the second busiest, and so on.
        by_broker: Between the same brokers.
        largest: Between the largest loads.
        apart_live, apart_foretold: Largest over smallest load at the end, as a difference.
        moves_live, moves_foretold: Since `since_s`.
        settle_live_s, settle_foretold_s: From `since_s` until the largest load stays close to the mean; None: it never does.
    """

    by_rank: float
    by_broker: float
    largest: float
    apart_live: float
    apart_foretold: float
    moves_live: int
    moves_foretold: int
    settle_live_s: float | None
    settle_foretold_s: float | None


def differences(live: Run, foretold: Run, since_s: float) -> Differences:
    """Compare, at the moments of the live run.

    Args:
        since_s: When balance was upset: moves and the time to settle are counted from then.

    Raises:
        ValueError: The runs have no moment in common.
    """
    moments = [(live.at(at_s), foretold.at(at_s)) for at_s in live.at_s]
    both = [(one, other) for one, other in moments if one and one.keys() == other.keys()]
    if not both:
        raise ValueError("there is no moment at which the loads of all brokers are known of both runs")
    ranks = [_apart(sorted(one.values()), sorted(other.values())) for one, other in both]
    brokers = [_apart(list(one.values()), [other[name] for name in one]) for one, other in both]
    return Differences(
        by_rank=_mean(ranks),
        by_broker=_mean(brokers),
        largest=_mean([abs(max(one.values()) - max(other.values())) for one, other in both]),
        apart_live=_spread(both[-1][0]),
        apart_foretold=_spread(both[-1][1]),
        moves_live=sum(at_s >= since_s for at_s in live.moved_s),
        moves_foretold=sum(at_s >= since_s for at_s in foretold.moved_s),
        settle_live_s=settled_s(live, since_s),
        settle_foretold_s=settled_s(foretold, since_s),
    )


def settled_s(run: Run, since_s: float) -> float | None:
    """Seconds from a time until the largest load stays close to the mean (`CLOSE`); None: it does not to the end."""
    found: float | None = None
    for at_s in run.at_s:
        loads = run.at(at_s)
        if at_s < since_s or not loads:
            continue
        if max(loads.values()) - _mean(list(loads.values())) > CLOSE:
            found = None
        elif found is None:
            found = at_s - since_s
    return found


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return _mean([abs(a - b) for a, b in zip(one, other, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _spread(loads: Mapping[str, float]) -> float:
    return max(loads.values()) - min(loads.values())
