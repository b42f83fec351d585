"""Driver of one engine: inputs in, effects performed in order, on one asyncio loop.

The driver is a callback of the loop, not a task: an input is processed in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextvars import copy_context
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from statechannel.broker.host_platform import BEAT_S, HostClocks
from statechannel.broker.inbox import Inbox
from statechannel.broker.observe.stalls import Stalls
from statechannel.broker.opening_process import opening_process
from statechannel.engine.inputs import Tick
from statechannel.protocol.log import RecordRead, RecordsRead
from statechannel.settings.groups_engine import LimitSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.engine.effects import Effect
    from statechannel.engine.engine import Engine
    from statechannel.engine.inputs import Input, Now

_BATCH = 256
_TIMER_SLACK_S = 0.001
_TICK = Tick()
_VALUE = attrgetter("value")


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """Bounds of a driver.

    Attributes:
        limits: The inbox is one of them: beyond it the reader of the log is blocked.
        slice_s: Longest time before other callbacks of the loop get their turn.
        beat_s: Longest time between two clock readings; the watchdog counts these beats.
        evidence: Inputs kept to explain a violated invariant, before the one that shows it; that one is kept whole,
            even a portion of a replay with more records than this.
        evidence_bytes: Larger values are truncated to this size.
    """

    limits: LimitSettings = field(default_factory=LimitSettings)
    slice_s: float = 0.005
    beat_s: float = BEAT_S
    evidence: int = 300
    evidence_bytes: int = 4_096


class Driver:
    """One engine, one inbox, one loop.

    Args:
        perform: Performs one effect; called in the loop's thread, in the engine's order.
        divert: Receives each input first; True keeps it from the engine (records of the requests topic).
        on_progress: Called after each burst of steps.
        on_failure: Called once if a step or an effect raises; nothing is stepped after that.
        on_loop_closed: Called in the thread that detects that the loop was closed while the driver runs.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        perform: Callable[[Effect], None],
        on_failure: Callable[[Exception, Sequence[Input]], None],
        divert: Callable[[Input], bool] | None = None,
        on_progress: Callable[[], None] | None = None,
        on_loop_closed: Callable[[], None] | None = None,
        options: DriverOptions | None = None,
        clocks: HostClocks | None = None,
    ) -> None:
        self._engine = engine
        self._perform = perform
        self._divert = divert
        self._on_progress = on_progress
        self._on_loop_closed = on_loop_closed
        self._on_failure = on_failure
        self._options = options or DriverOptions()
        clocks = clocks or HostClocks()
        self._now, self._mono_s = clocks.now, clocks.mono_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._process = opening_process()
        self._recent: deque[Input] = deque(maxlen=self._options.evidence)
        self._current: Sequence[Input] = ()
        self._context = copy_context()  # not that of the thread that wakes us
        self._running = False
        self._ending = threading.Lock()
        self._scheduled = False
        self._taken: deque[Input] = deque()
        self._effects: deque[Effect] = deque()
        limits = self._options.limits
        self.inbox = Inbox(limits.inbox_max, self._wake, limits.inbox_max_mib * 2**20)
        self.stalls = Stalls(clocks.mono_s)
        self.beats = 0
        self.steps = 0
        self.last_progress_s = self._mono_s()

    @property
    def running(self) -> bool:
        return self._running

    def _alive(self) -> bool:
        return self._running

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._running = True
        self._context = copy_context()
        self._wake()

    def stop(self) -> None:
        self._running = False
        self.inbox.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def now_s(self) -> float:
        """The engine's clock now, which may be ahead of the engine; from any thread."""
        return self._now().mono_s

    def unperformed(self) -> list[Effect]:
        """Effects of the last step that were not performed; after `stop` they are not performed."""
        effects = list(self._effects)
        self._effects.clear()
        return effects

    def _wake(self) -> None:
        """Request a turn; several requests are merged. In any thread."""
        loop = self._loop
        if loop is None or self._scheduled:
            return
        self._scheduled = True
        self.stalls.due(loop.time())
        # In its own thread without the detour through the loop's socket.
        call = loop.call_soon if threading.get_ident() == self._thread else loop.call_soon_threadsafe
        try:
            call(self._pump, context=self._context)
        except RuntimeError:  # the embedder closed its loop under us
            self.check_loop()

    def check_loop(self) -> bool:
        """Whether the loop can still run; reports a closed one. In any thread.

        A turn requested before the loop was closed never comes, and no other is requested: this must be checked actively.
        """
        loop = self._loop
        if loop is None or not loop.is_closed():
            return True
        if self._running and self._end() and self._on_loop_closed is not None:
            self._on_loop_closed()
        return False

    def _end(self) -> bool:
        """Stop processing; True for the first caller."""
        with self._ending:
            first, self._running = self._running, False
        self.inbox.close()
        return first

    def _pump(self) -> None:
        """Process queued inputs for at most one time slice."""
        self._scheduled = False  # inputs put from here on request another turn
        if not self._running or self._process.forked is not None:
            return
        self.stalls.begin()
        try:
            more = self._burst()
            if self._on_progress is not None:
                self._on_progress()
        except Exception as error:
            self._fail(error)
            return
        self.stalls.end()
        if not self._alive():
            return
        self.beats += 1
        if more:
            self._wake()
        else:
            self._set_timer()

    def _burst(self) -> bool:
        """Whether inputs are left. The slice is checked after each input and effect: one may be large, or many."""
        until_s = self._mono_s() + self._options.slice_s
        while self._alive():
            if not self._perform_until(until_s):
                return True
            now = self._now()
            self.last_progress_s = self._mono_s()
            if now.mono_s >= self._engine.wake_at_s:
                self._step(now, _TICK)
            elif self._taken:
                self._step(now, self._taken.popleft())
            else:
                self._taken += self.inbox.take(_BATCH)
                if not self._taken:
                    return False
            if self._mono_s() > until_s:
                return True
        return False

    def _perform_until(self, until_s: float) -> bool:
        """Perform the effects of the last step, in their order; False if some are left at the end of the slice."""
        effects = self._effects
        while effects:
            self._perform(effects.popleft())
            if not self._alive():
                effects.clear()
            elif effects and self._mono_s() > until_s:
                return False
        return True

    def _step(self, now: Now, item: Input) -> None:
        self._remember(self._current)
        self._current = item.records if isinstance(item, RecordsRead) else (item,)
        self.steps += 1
        if item is _TICK or self._divert is None or not self._divert(item):
            self._effects += self._engine.step(now, item)

    def _remember(self, items: Sequence[Input]) -> None:
        """Keep the newest inputs as evidence, with large values truncated."""
        limit, items = self._options.evidence_bytes, items[-self._options.evidence :]
        if len(items) > 1 and max(map(len, filter(None, map(_VALUE, items))), default=0) <= limit:
            self._recent.extend(items)  # a portion of a replay: no line of Python for a single record
            return
        for item in items:
            if item.__class__ is RecordRead and len(item.value or b"") > limit:
                item = item._replace(value=item.value[:limit])  # type: ignore[index]  # noqa: PLW2901
            self._recent.append(item)

    def _set_timer(self) -> None:
        """Set the timer for the engine's next deadline or the next beat; an earlier one is kept."""
        if self._loop is None:
            return
        due_s = self._loop.time() + max(0.0, min(self._options.beat_s, self._engine.wake_at_s - self.now_s()))
        if self._timer is not None:
            if self._timer_s <= due_s + _TIMER_SLACK_S:
                return
            self._timer.cancel()
        # Not `TimerHandle.when`, which the handles of other loops do not always have.
        self._timer, self._timer_s = self._loop.call_at(due_s, self._timed, context=self._context), due_s
        self.stalls.due(due_s)

    def _timed(self) -> None:
        self._timer = None
        self._pump()

    def _fail(self, error: Exception) -> None:
        self.stop()
        self._on_failure(error, (*self._recent, *self._current))
