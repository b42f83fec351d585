"""Incremental copy of a replica's accepted states while records are being read.

A copy is consistent at one offset: that of its last step. States that were copied before and have changed
since are copied again, as each accepted record has its own offset, and each key has the offset of its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from statechannel.protocol.digest import line

if TYPE_CHECKING:
    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View

ROUNDS_MAX: Final = 100


class ViewChangedError(Exception):
    """The view changed faster than it was copied; try again."""


@dataclass(frozen=True, slots=True)
class ViewCopy:
    """The lines of the digest, as of one offset.

    Attributes:
        applied: Offset of the last record that the view had applied.
        pieces: Lines, in no order.
    """

    partition: int
    applied: int
    pieces: Sequence[Sequence[bytes]]


class ViewCopier:
    """Copies one view. Between two steps the view may apply any number of records, in the same thread.

    Args:
        keys_a_step: Maximum number of lines per step; a step takes some microseconds for each. In addition, the last one checks
            the offset of every key once.
    """

    def __init__(self, view: View, *, keys_a_step: int = 2_000) -> None:
        self._view = view
        self._size = keys_a_step
        self._since = view.applied
        self._open: list[KeyState] = list(view.keys.values())
        self._place = 0
        self._lines: dict[KeyState, bytes] = {}
        self._rounds = 0

    def step(self) -> ViewCopy | None:
        """Perform one step; returns the copy once it is complete.

        Raises:
            ViewChangedError: Too many keys keep changing.
        """
        lines = self._lines
        end = self._place + self._size
        for key in self._open[self._place : end]:
            if key.state is not None:
                lines[key] = line(key)
        self._place = end
        if end < len(self._open):
            return None
        return self._ended()

    def _ended(self) -> ViewCopy | None:
        """Finish: keys that have changed meanwhile are copied again, at once if they are few."""
        view, since = self._view, self._since
        changed = [key for key in view.keys.values() if key.offset > since]
        if len(changed) > self._size:
            self._rounds += 1
            if self._rounds > ROUNDS_MAX:
                raise ViewChangedError(f"partition {view.partition} changed {self._rounds} times while it was copied")
            self._open, self._place, self._since = changed, 0, view.applied
            return None
        for key in changed:
            self._lines[key] = line(key)
        return ViewCopy(view.partition, view.applied, self._pieces())

    def _pieces(self) -> list[list[bytes]]:
        lines, size = self._lines, self._size
        rows = [lines[key] for key in self._view.keys.values() if key.state is not None]
        return [rows[start : start + size] for start in range(0, len(rows), size)]
