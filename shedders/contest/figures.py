"""Formats of figures, for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

Tell = Callable[[float | None], str]

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
    """A share, in percent."""
    return NEVER if number is None or not math.isfinite(number) else f"{100 * number:.1f} %"


_RATIOS: Final = frozenset({"max_over_mean", "max_over_mean_worst", "max_over_bound", "std", "bound_over_mean"})


def tell_of(measure: str) -> Tell:
    """Format of a measure of a run."""
    if measure in _RATIOS:
        return ratio
    return share if "_share" in measure else count


class FigureSpread(BaseModel):
    """Median and worst of a measure, over seeds or scenarios."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    median: float | None = Field(description="None: it never settled in half of the runs or more.")
    worst: float | None = Field(description="None: it never settled in at least one of them.")


class NumericBounds(NamedTuple):
    """The same as comparable numbers: never is infinite."""

    median: float
    worst: float


def spread_of(figures: Sequence[float | None], *, lower_is_better: bool = True) -> FigureSpread:
    """Median and worst; None among the figures counts as infinite."""
    numbers = [math.inf if figure is None else float(figure) for figure in figures]
    return FigureSpread(
        median=_or_none(median(numbers)),
        worst=_or_none(max(numbers) if lower_is_better else min(numbers)),
    )


def bounds_of(spread: FigureSpread) -> NumericBounds:
    """Comparable numbers of a spread."""
    return NumericBounds(*(math.inf if figure is None else figure for figure in (spread.median, spread.worst)))


def _or_none(number: float) -> float | None:
    return number if math.isfinite(number) else None
