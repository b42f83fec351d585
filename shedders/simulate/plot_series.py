"""What a plot draws of a run: fewer points, the extremes kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shedders.simulate.outcome import Outcome

NOTHING: Final = float("nan")
"""A broker that is not there leaves a gap in its line."""
TICKS_MAX: Final = 240
"""Moves closer together than that part of the run are one tick."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Series of a run, thinned out.

    Attributes:
        hours: Time of each point.
        loads: By broker.
        lowest, lower, mean, upper, highest: Over the brokers that are there: `lower` to `upper` is their middle half.
        moves_h: Times of moves.
    """

    hours: list[float]
    loads: Mapping[str, list[float]]
    lowest: list[float]
    lower: list[float]
    mean: list[float]
    upper: list[float]
    highest: list[float]
    max_over_mean: list[float]
    max_over_bound: list[float]
    moves_h: list[float]


def drawn(outcome: Outcome, points: int) -> Drawn:
    """At most so many points; each stands for a stretch, and shows the moment at which its largest load was largest."""
    series = outcome.series
    count = len(series.at_s)
    chosen = [_worst(outcome, *stretch) for stretch in _stretches(count, points)]
    there = [sorted(_there(series.loads, at)) for at in chosen]
    return Drawn(
        hours=[series.at_s[at] / 3_600 for at in chosen],
        loads={
            name: [NOTHING if (load := loads[at]) is None else load for at in chosen]
            for name, loads in sorted(series.loads.items())
        },
        lowest=[one[0] if one else NOTHING for one in there],
        lower=[_quantile(one, 0.25) for one in there],
        mean=[sum(one) / len(one) if one else NOTHING for one in there],
        upper=[_quantile(one, 0.75) for one in there],
        highest=[one[-1] if one else NOTHING for one in there],
        max_over_mean=[series.max_over_mean[at] for at in chosen],
        max_over_bound=[series.max_over_bound[at] for at in chosen],
        moves_h=[one.at_s / 3_600 for one in outcome.moves],
    )


def ticks_of(one: Drawn) -> list[float]:
    """Times at which ticks stand for moves."""
    if not one.hours or not one.moves_h:
        return []
    width = max(one.hours[-1], one.moves_h[-1], 1e-9) / TICKS_MAX
    return [(number + 0.5) * width for number in sorted({int(at / width) for at in one.moves_h})]


def _stretches(count: int, points: int) -> list[tuple[int, int]]:
    """Parts of a series, the first and the last point on their own."""
    if count <= points:
        return [(at, at + 1) for at in range(count)]
    inner, parts = count - 2, max(1, points - 2)
    cuts = [1 + inner * part // parts for part in range(parts + 1)]
    middle = [(begin, end) for begin, end in pairwise(cuts) if begin < end]
    return [(0, 1), *middle, (count - 1, count)]


def _worst(outcome: Outcome, begin: int, end: int) -> int:
    over = outcome.series.max_over_mean
    return max(range(begin, end), key=lambda at: (over[at], -at))


def _there(loads: Mapping[str, Sequence[float | None]], at: int) -> list[float]:
    return [load for one in loads.values() if (load := one[at]) is not None]


def _quantile(ordered: Sequence[float], part: float) -> float:
    if not ordered:
        return NOTHING
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
