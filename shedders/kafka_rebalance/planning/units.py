"""Formats of the quantities that goals measure, for people."""

from __future__ import annotations

from loaddata.samples.loads import CPU_UNITS
from shedders.model.amounts import count, rate, size


def amount(value: float, unit: str) -> str:
    """A value without the name of its unit of count: `33.0 MB`, `12`, `31.4%`."""
    if unit == "bytes":
        return size(value)
    if unit == "bytes/s":
        return rate(value)
    if unit == "millionths of CPU":
        return f"{value / CPU_UNITS:.1%}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.2f}"


def compared(value: int, bound: int, unit: str) -> tuple[str, str]:
    """A value with its unit, and its bound: exact if both would read the same."""
    text, other = amount(value, unit), amount(bound, unit)
    if text == other:
        return f"{value} {unit}", str(bound)
    if unit == "millionths of CPU":
        return f"{text} of CPU", other
    return (count(value, unit.removesuffix("s")) if text == str(value) else text), other
