"""Supervision of a member: bounded restarts of failed parts, and a watchdog for the event loop."""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from statechannel.broker.exits import Stopped
from statechannel.broker.opening_process import opening_process
from statechannel.logger import SafeLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from statechannel.engine.inputs import Input
    from statechannel.settings.groups_engine import RuntimeSettings


_log = SafeLogger(__name__)

LOOP_CLOSED = Stopped(
    "loop-closed",
    "the event loop was closed while this member was open: it reads and writes no more, and its bundles have no owner until it "
    "counts as lost (membership.expiry_s); use `async with StateChannel.open(...)`, or `await channel.close()` before the loop "
    "ends",
)
_PROGRAM_ENDS = (
    "the program ends while this member is open: its bundles have no owner until it counts as lost (membership.expiry_s); use "
    "`async with StateChannel.open(...)`, `with BlockingStateChannel.open(...)`, or `close()`"
)
FINAL_LOG_S = 1.0


class _Stand(Protocol):
    def __call__(self, *, stand: bool) -> None: ...


class SeatRequest:
    """The engine's request to the election, which is suspended while the loop hangs. For any thread.

    Args:
        stand: Enters or leaves the election; returns at once.
    """

    def __init__(self, stand: _Stand) -> None:
        self._stand = stand
        self._lock = threading.Lock()
        self._wanted = False
        self._yielded = False

    def ask(self, *, stand: bool) -> None:
        with self._lock:
            self._wanted = stand
            self._stand(stand=stand)

    def yield_it(self) -> None:
        """Leave the election while the loop hangs, regardless of the engine's request."""
        with self._lock:
            self._yielded = True
            self._stand(stand=False)

    def resume(self) -> None:
        """Restore the engine's request: the loop makes progress again."""
        if not self._yielded:
            return
        with self._lock:
            self._yielded = False
            self._stand(stand=self._wanted)


class OpenMember:
    """A member from its start to its end. One that is left open is logged, once: when its loop was closed, else at exit.

    Args:
        serving: Number of bundles that it serves; called in any thread.
    """

    def __init__(self, broker: str, serving: Callable[[], int]) -> None:
        self.broker = broker
        self._serving = serving
        self._saying = threading.Lock()
        self._said = False
        self._loop_closed = False
        self._process = opening_process()

    def begin(self) -> None:
        _open_members.add(self)

    def end(self) -> None:
        _open_members.discard(self)

    def loop_closed(self) -> None:
        self._loop_closed = True

    def say(self) -> None:
        """Log that it is left open; the second call does nothing. In any thread."""
        if self._process.forked is not None or not self._saying.acquire(timeout=FINAL_LOG_S):
            return  # the child of a fork has no member
        try:
            if not self._said:
                self._said = True
                reason, detail = LOOP_CLOSED.reason, LOOP_CLOSED.detail
                if self._loop_closed:
                    _log.critical("stopped", broker=self.broker, serving=self._serving(), reason=reason, detail=detail)
                else:
                    _log.error("left-open", broker=self.broker, serving=self._serving(), detail=_PROGRAM_ENDS)
        finally:
            self._saying.release()


_open_members: set[OpenMember] = set()


@atexit.register
def _say_left_open() -> None:
    """Not in a separate thread, which cannot be started any more."""
    for member in list(_open_members):
        member.say()


def abandon(left: OpenMember, closing: Sequence[Callable[[], object]]) -> None:
    """Close the parts left by a closed loop, in a separate thread: nothing can be awaited any more.

    No goodbye is written: the member is lost for the others, and they repair.

    Args:
        closing: Functions that close the parts, in order; each has its own time limit.
    """
    left.loop_closed()

    def close_all() -> None:
        within(FINAL_LOG_S, left.say)
        for close in closing:
            try:
                close()
            except Exception:
                _log.exception("closing-failed", broker=left.broker)

    # At the interpreter's end no thread can be started: its sockets end with the process, and `_say_left_open` says it.
    with suppress(RuntimeError):
        threading.Thread(target=close_all, name="statechannel-abandoned", daemon=True).start()


class Restarts:
    """Counts the failures of one part. Not for more than one thread."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._failures: deque[float] = deque()
        self.total = 0

    def failed(self, now_s: float) -> float | None:
        """Note a failure; returns seconds to wait before the restart, or None beyond the limit."""
        settings = self._settings
        self.total += 1
        self._failures.append(now_s)
        while self._failures and self._failures[0] < now_s - settings.restart_window_s:
            self._failures.popleft()
        count = len(self._failures)
        if count > settings.restarts_max:
            return None
        return min(settings.restart_longest_wait_s, settings.restart_first_wait_s * 2.0 ** (count - 1))


class Watchdog:
    """A thread that detects when the loop makes no progress.

    Time counts only while this thread itself runs, so that a process that was suspended as a whole (SIGSTOP, a
    suspended laptop) is not considered stuck.

    Args:
        beats: A number that grows while the loop makes progress.
        limit_s: Time without progress after which the loop is stuck.
        on_stuck: Called once, in this thread; again after a recovery.
        blocked_s: Shorter time without progress, after which `on_blocked` is called once with the seconds.
        loop_lives: Called in this thread each time; False if the loop was closed, which ends the watch.
    """

    def __init__(
        self,
        beats: Callable[[], int],
        *,
        limit_s: float,
        on_stuck: Callable[[], None],
        loop_lives: Callable[[], bool] = lambda: True,
        blocked_s: float = math.inf,
        on_blocked: Callable[[float], None] | None = None,
    ) -> None:
        self._beats = beats
        self._limit_s = limit_s
        self._on_stuck = on_stuck
        self._loop_lives = loop_lives
        self._blocked_s = blocked_s
        self._on_blocked = on_blocked
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statechannel-watchdog", daemon=True)
        self.stuck = False

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        self.end()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        interval_s = min(self._limit_s / 10, self._blocked_s / 4)
        blocked = False
        seen, still_s, looked_s = self._beats(), 0.0, time.monotonic()
        while not self._stopping.wait(interval_s) and self._loop_lives():
            now_s = time.monotonic()
            still_s += min(now_s - looked_s, 2 * interval_s)
            looked_s = now_s
            count = self._beats()
            if count != seen:
                seen, still_s, self.stuck, blocked = count, 0.0, False, False
                continue
            if still_s > self._blocked_s and not blocked and self._on_blocked is not None:
                blocked = True
                with suppress(
                    Exception
                ):  # a warning that cannot be given, as without a free thread, must not end the watch
                    self._on_blocked(still_s)
            if still_s > self._limit_s and not self.stuck:
                self.stuck = True
                self._on_stuck()


def within(limit_s: float, act: Callable[[], None]) -> bool:
    """Call a function that may block for ever, such as a write to an unread pipe; False if it has not ended."""
    thread = threading.Thread(target=act, name="statechannel-last-words", daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()


def stack_of(thread: int) -> str:
    """Current stack of a thread, the innermost call first; without the lines of the sources (`_calls_from`)."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way, for debuggers
    return _shown_calls(_calls_from(frame)) or "(the thread has ended)"


def _shown_calls(calls: Iterable[tuple[str, int, str]]) -> str:
    """In one line, as log lines have it."""
    return " < ".join(f"{file}:{line} in {name}" for file, line, name in calls)


class CodePlace(NamedTuple):
    """Where a thread was.

    Attributes:
        calls: Its innermost calls, the innermost first.
        innermost: The same of one call, without folders, for records that others read; at most `_CODE_MAX` characters.
    """

    calls: str
    innermost: str


def place_of(thread: int) -> CodePlace:
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - as above
    calls = list(islice(_calls_from(frame), _CALLS_SHOWN))
    innermost = f"{Path(calls[0][0]).name}:{calls[0][1]} in {calls[0][2]}" if calls else ""
    return CodePlace(_shown_calls(calls), innermost[:_CODE_MAX])


def _calls_from(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    """File, line and name of the calls that led to a frame, the innermost first.

    Not by `traceback`, which reads the files: the disk may be what the loop hangs on, and then the watchdog would hang as well.
    """
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name
        frame = frame.f_back


_CALLS_SHOWN = 4
_CODE_MAX = 200


def log_evidence(error: BaseException, inputs: Sequence[Input], broker: str) -> None:
    """Log the inputs before a violated invariant, one line each, the newest last."""
    for place, item in enumerate(inputs, start=-len(inputs)):
        _log.error("evidence", broker=broker, place=place, input=_shown(item))
    _log.critical("invariant-violated", broker=broker, error=repr(error), exc_info=error)


def _shown(item: Input) -> str:
    text = repr(item)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


_SHOWN_CHARACTERS = 2_000
