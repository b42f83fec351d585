"""Validity of figures: those that are not finite, negative or absurdly large are dropped on input. Pure."""

from __future__ import annotations

from typing import Final

FIGURE_MAX: Final = 2**53 - 1  # largest figure of any kind: whole numbers up to here are exact in every JSON reader
LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: a later wall time cannot even be displayed."""


def is_figure(value: object) -> bool:
    """Whether this is a number from 0 to `FIGURE_MAX`; booleans and NaN are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= FIGURE_MAX


def is_count(value: object) -> bool:
    """Whether this is a whole number from 0 to `FIGURE_MAX`."""
    return isinstance(value, int) and is_figure(value)


def wall_ms(value: int) -> int:
    """A wall time within the valid range: 1 if the clock is before 1970, the end of the year 9999 if it is later.

    Wall times are for people. 0 means "never", so that a wrong clock must not give it.
    """
    return min(max(1, value), LATEST_MS)
