"""Rates, ages and numbers of things as people read them: in reasons, never in figures. Pure."""

from __future__ import annotations

from math import isfinite

BYTES, MESSAGES = "B/s", "messages/s"
_PREFIXES = ("", "k", "M", "G", "T", "P")
_STEP = 1_000.0
_ROUNDS_UP = 999.95
_SHORT_S = 10.0


def rate(value: float, unit: str = BYTES) -> str:
    """A rate with its unit: `33.0 MB/s`, `950 B/s`, `40000 messages/s` (messages are counted, so they have no prefixes)."""
    text, told = _told(value, unit)
    return f"{text} {told}"


def size(value_bytes: float) -> str:
    """An amount of data with its unit: `33.0 MB`, `950 B`."""
    text, told = _told(value_bytes, BYTES)
    return f"{text} {told.removesuffix('/s')}"


def told_rate(value: float, said: str) -> str:
    """The rate of a move with its unit: in messages where the move's sentence reckons in them, else in bytes.

    A move has a figure and a sentence; strategies reckon in bytes unless they are told to count messages, and say so there.
    """
    return rate(value, MESSAGES if f" {MESSAGES}" in said else BYTES)


def part_of(part: float, whole: float, unit: str = BYTES) -> str:
    """One rate of another one: `31.1 of the 33.0 MB/s`, or with two units where they are far apart."""
    (text, own), (other, told) = _told(part, unit), _told(whole, unit)
    return f"{text} of the {other} {told}" if own == told else f"{text} {own} of the {other} {told}"


def seconds(age_s: float) -> str:
    """An age: with one decimal below ten seconds, where whole ones would hide what is compared."""
    return f"{age_s:.1f} s" if age_s < _SHORT_S else f"{age_s:.0f} s"


def count(number: int, what: str) -> str:
    """A number of things in words: `1 bundle`, `2 bundles`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def are(number: int) -> str:
    """The verb that goes with a number."""
    return "is" if number == 1 else "are"


def were(number: int) -> str:
    """As `are`, of what is over."""
    return "was" if number == 1 else "were"


def _told(value: float, unit: str) -> tuple[str, str]:
    if unit != BYTES:
        return f"{value:.6g}", unit
    step = 0
    while isfinite(value) and abs(value) >= _ROUNDS_UP and step < len(_PREFIXES) - 1:
        value /= _STEP
        step += 1
    return (f"{value:.1f}" if step else f"{value:.0f}"), f"{_PREFIXES[step]}{unit}"
