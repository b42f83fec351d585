"""Figures of runs: their formats for people, medians and worst values, and the significance of differences. Pure.

Significance is that of an exact sign test over runs on the same traces. Two contenders meet the same trace for each seed, so each
seed gives a pair of figures. Pairs that are equal are left out, as is usual. Of the `n` others let `k` be the number of pairs in
which the rarer of the two sides is ahead; if neither contender were better, each pair would be a toss of a coin, and a result at
least as lopsided would come with the probability

    p = min(1, 2 * (C(n, 0) + C(n, 1) + ... + C(n, k)) / 2**n)

It asks nothing of how figures are distributed, and cannot be led astray by one huge difference. Its price: unanimous pairs reach
p <= 0.05 from six on (p = 0.031), so five seeds are never `sure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from statistics import median
from typing import Final, NamedTuple

from pydantic import Field

from shedders.contest.outcome import ResultPart

FigureFormatter = Callable[[float | None], str]

NEVER: Final = "never"
_SHORT: Final = 100
"""Numbers from here on are shown without decimals."""


def ratio(number: float | None) -> str:
    """Two decimals, or three significant digits below 1. None or infinite: never."""
    if number is None or not math.isfinite(number):
        return NEVER
    if abs(number) >= _SHORT:
        return f"{number:,.0f}"
    return f"{number:.3g}" if abs(number) < 1 else f"{number:.2f}"


def count(number: float | None) -> str:
    """A count or a number of seconds; the median of two may be a half."""
    if number is None or not math.isfinite(number):
        return NEVER
    return f"{number:,.0f}" if number == int(number) or abs(number) >= _SHORT else f"{number:.1f}"


def share(number: float | None) -> str:
    return NEVER if number is None or not math.isfinite(number) else f"{100 * number:.1f} %"


_RATIOS: Final = frozenset({"max_over_mean", "max_over_mean_worst", "max_over_bound", "std", "bound_over_mean"})


def formatter_of(measure: str) -> FigureFormatter:
    if measure in _RATIOS:
        return ratio
    return share if "_share" in measure else count


class FigureSpread(ResultPart):
    median: float | None = Field(description="None: it never settled in half of the runs or more.")
    worst: float | None = Field(description="None: it never settled in at least one of them.")


class NumericBounds(NamedTuple):
    """Values of a figure as comparable numbers: never is infinite."""

    median: float
    worst: float


def spread_of(figures: Sequence[float | None], *, lower_is_better: bool = True) -> FigureSpread:
    numbers = [math.inf if figure is None else float(figure) for figure in figures]
    return FigureSpread(
        median=_or_none(median(numbers)), worst=_or_none(max(numbers) if lower_is_better else min(numbers))
    )


def bounds_of(spread: FigureSpread) -> NumericBounds:
    return NumericBounds(*(math.inf if figure is None else figure for figure in (spread.median, spread.worst)))


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None


SURE_P: Final = 0.05
LIKELY_PAIRS: Final = 3
_EQUAL: Final = 1e-9
"""Relative difference of figures that differ by rounding only."""


class Certainty(StrEnum):
    SURE = "sure"
    """p <= 0.05."""
    LIKELY = "likely"
    """All differing pairs, at least three, agree, but they are too few for `sure`."""
    UNSURE = "unsure"
    SAME = "same"
    """No pair differs."""


class PairedComparison(ResultPart):
    """A contender's figure against another one's, over the seeds that both have."""

    against: str
    difference: float | None = Field(
        description="Median over the pairs of this contender's figure less the other's; None: one of the two never settled."
    )
    lower: int = Field(description="Pairs in which this contender's figure is the lower, which is the better.")
    higher: int
    equal: int
    p: float = Field(description="Of the two-sided sign test; 1 where no pair differs.")
    certainty: Certainty


def sign_test(lower: int, higher: int) -> float:
    """Probability of a result at least as lopsided, were it all chance; two-sided, exact."""
    pairs = lower + higher
    rarer = min(lower, higher)
    ways = sum(math.comb(pairs, rank) for rank in range(rarer + 1))
    return min(1.0, math.ldexp(2.0 * ways, -pairs))


def certainty_of(lower: int, higher: int) -> Certainty:
    if not lower and not higher:
        return Certainty.SAME
    if sign_test(lower, higher) <= SURE_P:
        return Certainty.SURE
    if not min(lower, higher) and lower + higher >= LIKELY_PAIRS:
        return Certainty.LIKELY
    return Certainty.UNSURE


def marked(pairs: Sequence[tuple[float | None, float | None]], against: str) -> PairedComparison:
    """Compare figures, a pair for each seed: this contender's, the other's. None stands for endless, the worst there is."""
    ordered = [(_number(own), _number(other)) for own, other in pairs]
    differing = [(own, other) for own, other in ordered if not _equal(own, other)]
    lower = sum(own < other for own, other in differing)
    higher = len(differing) - lower
    middle = median([0.0 if own == other else own - other for own, other in ordered]) if ordered else 0.0
    return PairedComparison(
        against=against,
        difference=middle if math.isfinite(middle) else None,
        lower=lower,
        higher=higher,
        equal=len(ordered) - len(differing),
        p=sign_test(lower, higher),
        certainty=certainty_of(lower, higher),
    )


def _number(figure: float | None) -> float:
    return math.inf if figure is None else float(figure)


def _equal(own: float, other: float) -> bool:
    return own == other or (math.isfinite(own) and math.isclose(own, other, rel_tol=_EQUAL, abs_tol=1e-12))
