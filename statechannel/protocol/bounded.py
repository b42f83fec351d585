"""Bounded tables that keep their newest entries, so that foreign input cannot exhaust memory."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def remember(table: dict[Key, Value], key: Key, value: Value, limit: int) -> None:
    """Put an entry into a table as its newest; beyond the limit the oldest is dropped."""
    table.pop(key, None)
    table[key] = value
    if len(table) > limit:
        del table[next(iter(table))]
