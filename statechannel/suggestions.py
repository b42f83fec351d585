"""What somebody may have meant by a name that does not exist, and how such a name is shown. Pure.

Names come from requests and topics, too, where they may be nearly a megabyte long: comparing one of those with what is known
would take seconds, and an error that repeats it would not fit into the answer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

COMPARED_MAX: Final = 100
"""No name of ours is longer: what is longer is no slip of the pen."""
SHOWN_MAX: Final = 100


def nearest(text: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The known name that is nearest, if one is near enough; at most one.

    Args:
        cutoff: How alike they must be, from 0 to 1.
    """
    return [] if len(text) > COMPARED_MAX else difflib.get_close_matches(text, [*known], 1, cutoff)


def shown(text: str) -> str:
    """The text as an error repeats it: its beginning, where it is long."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters)"
