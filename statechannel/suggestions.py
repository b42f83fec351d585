"""Suggestions for unknown names, and their display in errors. Pure.

Names also come from requests and topics, where they may be nearly a megabyte long: comparing such a name with known ones
would take seconds, and an error that repeats it would not fit into the answer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

COMPARED_MAX: Final = 100
"""Known names are shorter: longer input is not a typo."""
SHOWN_MAX: Final = 100


def nearest(text: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The nearest known name, if one is close enough; at most one.

    Args:
        cutoff: Required similarity, from 0 to 1.
    """
    return [] if len(text) > COMPARED_MAX else difflib.get_close_matches(text, [*known], 1, cutoff)


def shown(text: str) -> str:
    """The text for an error message, truncated if long."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters)"
