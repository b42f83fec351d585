"""What a member knows now, read from any thread while its loop goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from statechannel.engine.commands import NotFound, Undetermined

if TYPE_CHECKING:
    from collections.abc import Callable

    from statechannel.engine.commands import Outcome
    from statechannel.engine.engine import Engine

PEEKS_MAX = 200
PEEK_PAUSE_S = 0.0002
"""A thread that reads while the loop changes the view tries again after this pause, at most `PEEKS_MAX` times."""
Peeked = TypeVar("Peeked")


class Peeks:
    """Reads that wait for no turn of the loop: 40 ms at most, while it changes the view."""

    def __init__(self, engine: Engine) -> None:
        self._lookups = engine.lookups

    def answer(self, name: str) -> Outcome:
        """See `Lookups.answer_now`; `Undetermined`, `busy`, where the view changes all the time."""
        return self._peek(self._lookups.answer_now, name)

    def bundle(self, name: str) -> str | NotFound | Undetermined:
        """The live bundle that a topic's or bundle's name means."""
        return self._peek(self._lookups.locate_now, name)

    def _peek(self, read: Callable[[str], Peeked], name: str) -> Peeked | Undetermined:
        for _ in range(PEEKS_MAX):
            seen = self._lookups.peek(read, name)
            if seen is not None:
                return seen
            time.sleep(PEEK_PAUSE_S)
        return Undetermined("busy", f"{name}: the view changes all the time", "Try again.")
