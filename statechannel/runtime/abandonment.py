"""The leader's seat of a member whose loop hangs, and the end of one whose loop was closed under it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from statechannel.logger import SafeLogger
from statechannel.runtime.exits import Stopped
from statechannel.runtime.supervision import within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = SafeLogger(__name__)

LOOP_CLOSED = Stopped(
    "loop-closed",
    "the event loop was closed while this member was open: it reads and writes no more, the others repair what it owned; "
    "close the channel before its loop ends",
)
LAST_WORDS_S = 1.0


class _Stand(Protocol):
    def __call__(self, *, stand: bool) -> None:
        """Enter or leave the election."""


class SeatRequest:
    """What the engine asks of the election, and whether a hung loop holds it back. For any thread.

    Args:
        stand: Enters or leaves the election; returns at once.
    """

    def __init__(self, stand: _Stand) -> None:
        self._stand = stand
        self._lock = threading.Lock()
        self._wanted = False
        self._yielded = False

    def ask(self, *, stand: bool) -> None:
        """The engine's own request."""
        with self._lock:
            self._wanted = stand
            self._stand(stand=stand)

    def yield_it(self) -> None:
        """The loop hangs: leave the election, whatever the engine asked for."""
        with self._lock:
            self._yielded = True
            self._stand(stand=False)

    def resume(self) -> None:
        """The loop goes on: ask again for what was given up."""
        if not self._yielded:
            return
        with self._lock:
            self._yielded = False
            self._stand(stand=self._wanted)


def abandon(stopped: Stopped, closing: Sequence[Callable[[], object]]) -> None:
    """Close what a closed loop left behind, in a thread of its own: nothing can be awaited any more.

    No goodbye is written: the others call the member lost, and repair.

    Args:
        closing: What closes the parts, in order; each is bounded by itself.
    """

    def close_all() -> None:
        within(LAST_WORDS_S, lambda: _log.critical("stopped", reason=stopped.reason, detail=stopped.detail))
        for close in closing:
            try:
                close()
            except Exception:
                _log.exception("closing-failed")

    threading.Thread(target=close_all, name="statechannel-abandoned", daemon=True).start()
