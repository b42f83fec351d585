"""Bounded tables that keep their newest entries, so that foreign input cannot exhaust memory."""

from __future__ import annotations

from itertools import islice
from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_DROPPED: Final = 8
"""Of a full table the oldest eighth goes at once: to find the oldest entry of a dict costs as much as all that went before it."""


def remember(table: dict[Key, Value], key: Key, value: Value, limit: int) -> None:
    """Put an entry into a table as its newest; beyond the limit the oldest are dropped, an eighth of the limit at most."""
    table.pop(key, None)
    table[key] = value
    if len(table) > limit:
        for oldest in list(islice(table, max(1, limit // _DROPPED))):
            del table[oldest]
