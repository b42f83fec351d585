"""A pause of the garbage collector while a million objects are made: it would walk all of them again and again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pause:
    """Number of open sections of all threads, and whether the collector was enabled before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._open:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._open += 1

    def end(self, *, lasting: bool) -> None:
        with self._lock:
            self._open -= 1
            if lasting and self._was_enabled and not gc.get_freeze_count():
                # Both together move everything to the oldest generation, without looking at it. What others have
                # frozen would come back, too.
                gc.freeze()
                gc.unfreeze()
            if not self._open and self._was_enabled:
                gc.enable()


_pause = _Pause()


@contextmanager
def uncollected(*, lasting: bool = True) -> Iterator[None]:
    """No search for cycles meanwhile: of a large snapshot everything lives on, and the search took most of the time.

    For seconds only, and not around anything that waits. Where several threads do so at once, it ends with the last of them.

    Args:
        lasting: What was made lives on, and counts as old then, so that the next search does not begin with it. Not for what is
            done again and again: the collector's counts restart each time, so that it would never search everything.
    """
    _pause.begin()
    try:
        yield
    finally:
        _pause.end(lasting=lasting)
