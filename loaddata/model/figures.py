"""What counts as a figure: what is not finite, negative or absurdly large is dropped where it comes in. Pure."""

from __future__ import annotations

from typing import Final

FIGURE_MAX: Final = 2**53 - 1
"""Largest figure of any kind: whole numbers up to here are exact in every JSON reader."""

LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: a wall time behind it cannot even be shown."""


def is_figure(value: object) -> bool:
    """Whether this is a number from 0 to `FIGURE_MAX`; true and false are no numbers, NaN is none either."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= FIGURE_MAX


def is_count(value: object) -> bool:
    """Whether this is a whole number from 0 to `FIGURE_MAX`."""
    return isinstance(value, int) and is_figure(value)


def wall_ms(value: int) -> int:
    """A wall time that can be written: 1 where the clock is before 1970, the year 9999 where it is behind that.

    Wall times are for people. 0 stands for "never", so that a broken clock must not say it.
    """
    return min(max(1, value), LATEST_MS)
