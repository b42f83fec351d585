"""A copy of what a replica holds for accepted, taken bit by bit while records go on being read.

What a copy has is the state at one offset: that at which its last step ended. Nothing that was copied before and has changed
since is in it, because each accepted record has an offset of its own, and each key tells the offset that its state is of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from statechannel.protocol.digest import line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View

ROUNDS_MAX = 100


class ViewChangedError(RuntimeError):
    """The view changed faster than it was copied: nothing is wrong with it, try again."""


@dataclass(frozen=True, slots=True)
class ViewCopy:
    """The lines of the digest, as of one offset.

    Attributes:
        applied: Offset of the last record that the view had taken in.
        pieces: Lines, in no order.
    """

    partition: int
    applied: int
    pieces: Sequence[Sequence[bytes]]


class ViewCopier:
    """Copies one view. Between two steps the view may take in any number of records, in the same thread.

    Args:
        keys_a_step: Lines that one step writes at most; a step takes some microseconds for each. Besides, the last one looks
            at the offset of every key once.
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
        """Go on; the copy once it is there.

        Raises:
            ViewChangedError: Too many keys change again and again.
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
        """All is copied; what has changed meanwhile is copied anew, at once if it is little."""
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
