"""Text forms of rates, ages and counts for sentences, and tables independent of how they are shown. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Final, Literal

LoadUnit = Literal["B/s", "messages/s"]
BYTES: Final = "B/s"
MESSAGES: Final = "messages/s"
_PREFIXES = ("", "k", "M", "G", "T", "P")
_STEP = 1_000.0
_ROUNDS_UP = 999.95
_SHORT_S = 10.0


def rate(value: float, unit: str = BYTES) -> str:
    """A rate with its unit: `33.0 MB/s`, `950 B/s`, `40000 messages/s` (messages are counted, so they have no prefixes)."""
    text, scaled_unit = _scaled(value, unit)
    return f"{text} {scaled_unit}"


def size(value_bytes: float) -> str:
    """An amount of data with its unit: `33.0 MB`, `950 B`."""
    text, scaled_unit = _scaled(value_bytes, BYTES)
    return f"{text} {scaled_unit.removesuffix('/s')}"


def part_of(part: float, whole: float, unit: str = BYTES) -> str:
    """A rate as a part of another one: `31.1 of the 33.0 MB/s`, or with two units if they differ."""
    (text, own), (total, total_unit) = _scaled(part, unit), _scaled(whole, unit)
    return f"{text} of the {total} {total_unit}" if own == total_unit else f"{text} {own} of the {total} {total_unit}"


def seconds(age_s: float) -> str:
    """An age: with one decimal below ten seconds."""
    return f"{age_s:.1f} s" if age_s < _SHORT_S else f"{age_s:.0f} s"


def count(number: int, what: str) -> str:
    """A number of things in words: `1 bundle`, `2 bundles`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """The verb that goes with a number."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    return "was" if number == 1 else "were"


def _scaled(value: float, unit: str) -> tuple[str, str]:
    if unit != BYTES:
        return f"{value:.6g}", unit
    step = 0
    while isfinite(value) and abs(value) >= _ROUNDS_UP and step < len(_PREFIXES) - 1:
        value /= _STEP
        step += 1
    return (f"{value:.1f}" if step else f"{value:.0f}"), f"{_PREFIXES[step]}{unit}"


@dataclass(frozen=True, slots=True)
class Grid:
    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
