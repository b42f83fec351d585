"""A figure over several seeds: its median and its worst. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class Spread(BaseModel):
    """One measure over seeds, or over scenarios."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    median: float | None = Field(description="None: it never settled in half of the runs or more.")
    worst: float | None = Field(description="None: it never settled in at least one of them.")


class Bounds(NamedTuple):
    """The same as numbers that can be compared: never is endless."""

    median: float
    worst: float


def spread_of(figures: Sequence[float | None], *, lower_is_better: bool = True) -> Spread:
    """Median and worst; None among the figures stands for endless."""
    numbers = [math.inf if one is None else float(one) for one in figures]
    return Spread(
        median=_told(median(numbers)),
        worst=_told(max(numbers) if lower_is_better else min(numbers)),
    )


def bounds_of(spread: Spread) -> Bounds:
    """To compare with."""
    return Bounds(*(math.inf if one is None else one for one in (spread.median, spread.worst)))


def _told(number: float) -> float | None:
    return number if math.isfinite(number) else None
