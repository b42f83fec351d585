"""Tuning of the cyclic garbage collector: avoids repeated walks over all bundles during and after a replay.

A replay creates hundreds of thousands of permanent objects without cycles. By its default thresholds the
collector walks them all every few thousand records: a tenth of the replay, and later a pause during hand-overs.

A storm creates as many: 100,000 waiting callers are half a million objects, and a walk over them blocks the loop for
too long. So objects that survive a long walk are excluded from the next ones. They are still freed when
unreferenced; only cycles stay, and so that they do not stay for ever (the
embedding broker's objects are included), a rare walk covers everything.
"""

from __future__ import annotations

import gc
import os
import threading
import time

Thresholds = tuple[int, int, int]

LONG_WALK_S = 0.01
THAW_S = 900.0
"""Time after which the next full walk covers everything: excluded objects may be unreferenced cycles."""
REPLAY_THRESHOLDS: Thresholds = (50_000, 50, 1_000)
MEMBER_THRESHOLDS: Thresholds = (5_000, 5, 10)
"""While a member runs. The default, (700, 10, 10), costs a storm a tenth of its time; more makes single walks longer."""

_lock = threading.RLock()
# A child of a fork opens members of its own: another thread of its parent must not hold the lock for ever in it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class HeldThresholds:
    """The thresholds of the process: the rarest that is held, and the embedder's own while none is.

    An embedder that walks more rarely, or has switched the collector off, keeps its own.
    """

    def __init__(self) -> None:
        self._held: list[Thresholds] = []
        self._before: Thresholds = (0, 0, 0)

    def hold(self, thresholds: Thresholds) -> int:
        """Returns how often these are held now."""
        with _lock:
            if not self._held:
                self._before = gc.get_threshold()
            self._held.append(thresholds)
            self._apply()
            return self._held.count(thresholds)

    def release(self, thresholds: Thresholds) -> None:
        with _lock:
            self._held.remove(thresholds)
            self._apply()

    def _apply(self) -> None:
        off = self._before[0] == 0
        gc.set_threshold(*(self._before if off else max([self._before, *self._held])))


_thresholds = HeldThresholds()


class ReplayGcPause:
    """One replay; several members in one process may replay at the same time. Both methods may be called twice.

    Args:
        tunes: False leaves the collector as it is.
    """

    def __init__(self, *, tunes: bool = True) -> None:
        self._running = False
        self._tunes = tunes

    def begin(self) -> None:
        """Collect rarely from now on."""
        with _lock:
            if self._running or not self._tunes:
                return
            self._running = True
            if _thresholds.hold(REPLAY_THRESHOLDS) == 1:
                gc.unfreeze()  # objects of a view that is read again may be freed

    def end(self, *, keep: bool = True) -> None:
        """Collect as before; with `keep`, current objects are excluded from the collector's walks permanently."""
        with _lock:
            if not self._running:
                return
            self._running = False
            _thresholds.release(REPLAY_THRESHOLDS)
        if keep:
            gc.collect()
            gc.freeze()


class GcExclusion:
    """After a long full collection, excludes the survivors from the next ones. One for the whole process."""

    def __init__(self) -> None:
        self._users = 0
        self._tunes = False
        self._began_s = 0.0
        self._thawed_s = 0.0

    def begin(self, *, tunes: bool = True) -> None:
        """One more member runs in this process.

        Args:
            tunes: False leaves the thresholds as they are; the first member's counts.
        """
        with _lock:
            self._users += 1
            if self._users == 1:
                self._thawed_s = time.monotonic()
                gc.callbacks.append(self._on_collection)
                self._tunes = tunes
                if tunes:
                    _thresholds.hold(MEMBER_THRESHOLDS)

    def end(self) -> None:
        with _lock:
            self._users -= 1
            if self._users == 0:
                gc.callbacks.remove(self._on_collection)
                if self._tunes:
                    _thresholds.release(MEMBER_THRESHOLDS)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == _OLDEST:
            now_s = time.monotonic()
            if phase == "start":
                self._began_s = now_s
            elif now_s - self._thawed_s > THAW_S:
                self._thawed_s = now_s
                gc.unfreeze()
            elif now_s - self._began_s > LONG_WALK_S:
                gc.freeze()


_OLDEST = 2
gc_exclusion = GcExclusion()
