"""Keeps the cyclic garbage collector from walking every bundle again and again while a replay makes them.

A replay leaves hundreds of thousands of objects that live for good and no cycles. By its default thresholds the
collector walks them all every few thousand records: a tenth of the replay, and later a pause in the midst of a hand-over.
"""

from __future__ import annotations

import gc
import threading

REPLAY_THRESHOLDS = (50_000, 50, 1_000)

_lock = threading.Lock()
_replays = 0
_before = gc.get_threshold()


class ReplayCalm:
    """One replay; several members in one process may replay at the same time. Both methods may be called twice."""

    def __init__(self) -> None:
        self._running = False

    def begin(self) -> None:
        """Collect seldom from now on."""
        global _replays, _before  # noqa: PLW0603  (the collector is the process's own, too)
        with _lock:
            if self._running:
                return
            self._running = True
            _replays += 1
            if _replays == 1:
                _before = gc.get_threshold()
                gc.set_threshold(*REPLAY_THRESHOLDS)

    def end(self, *, keep: bool = True) -> None:
        """Collect as before; with `keep`, what lives now is taken out of the collector's walks for good."""
        global _replays  # noqa: PLW0603
        with _lock:
            if not self._running:
                return
            self._running = False
            _replays -= 1
            if _replays == 0:
                gc.set_threshold(*_before)
        if keep:
            gc.collect()
            gc.freeze()
