"""Event loops of the test kit: virtual time, and processes that can be paused or killed, all in one thread.

What a simulated process does runs in a context of its own (`contextvars`), which tasks and timers inherit. The loop looks at the
context before each callback: one of a paused process is held back, one of a killed process never runs.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
import warnings
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NoReturn

from statechannel.errors import StateChannelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

TIME_LIMIT_S = 100_000.0
THREAD_PATIENCE_S = 1.0
_ROUNDING_S = 1e-9
_CANCELLED_MAX = 100
_CLOSES_MAX = 10
"""A coroutine may wait again when it is closed, such as in a `finally`."""


class KitError(StateChannelError):
    """The test kit cannot do what a test asks for."""


class RealIoError(KitError):
    """A hook or a test used a socket, a pipe, or a child process in virtual time."""

    def __init__(self, method: str) -> None:
        super().__init__(
            f"The event loop's {method}() was called in virtual time: what comes from outside does not come in virtual time.",
            hint="Give the hooks a store in memory, call blocking clients in threads (asyncio.to_thread), for which virtual time "
            "stands still, or run this test in real time: ChannelKit(real_time=True).",
        )


class NothingHappensError(KitError):
    """The test awaits something, and nothing is left that could bring it about."""

    def __init__(self) -> None:
        super().__init__(
            "The test waits, and nothing in its loop will ever happen: no timer, no callback, no thread.",
            hint="It awaits something that is never set, or a broker that was killed.",
        )


class TimeLimitError(KitError):
    """Virtual time reached its limit."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The test ran for {limit_s:,.0f} virtual seconds, and has not ended: what it awaits does not come.",
            hint="Await with a limit (asyncio.timeout), or raise the kit's `time_limit_s`.",
        )


class ProcessLife:
    """What a loop knows of one simulated process.

    Attributes:
        paused: Its callbacks are held back.
        killed: Its callbacks never run again.
    """

    def __init__(self) -> None:
        self.paused = False
        self.killed = False
        self._held: deque[asyncio.Handle] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()

    def context(self) -> Context:
        """A context whose callbacks, tasks and timers belong to this process."""
        context = copy_context()
        context.run(_process.set, self)
        return context

    @property
    def tasks(self) -> frozenset[asyncio.Task[Any]]:
        return frozenset(self._tasks)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback until the process goes on."""
        if not self.killed:
            self._held.append(handle)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Keep a task: one of a killed process is not closed, so that none of its `finally` blocks runs."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def resume(self) -> deque[asyncio.Handle]:
        """Go on; returns what was held back, in order."""
        self.paused = False
        held, self._held = self._held, deque()
        return held

    def kill(self) -> None:
        """Run nothing of it any more."""
        self.killed = True
        self._held.clear()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is pending for ever

    def close(self) -> None:
        """Close what a killed process had begun, once its kit is over: Python would in a later test, with warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines for which there is no loop any more
            for coroutine in [task.get_coro() for task in self._tasks]:
                for _ in range(_CLOSES_MAX):
                    try:
                        if coroutine is not None:
                            coroutine.close()
                        break
                    except (Exception, asyncio.CancelledError):  # noqa: S112 - of a `finally` without a loop
                        continue
        self._tasks.clear()


_process: ContextVar[ProcessLife | None] = ContextVar("statechannel_kit_process", default=None)


class _ProcessAwareLoop(asyncio.BaseEventLoop):
    """An asyncio loop that runs each callback only while its process is neither paused nor killed."""

    callbacks = 0

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _timer_cancelled_count: int

    def create_task(self, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """As asyncio's; the task belongs to the process whose context it has."""
        context: Context | None = kwargs.get("context")
        process = _process.get() if context is None else context.get(_process)
        task = super().create_task(coro, **kwargs)
        if process is not None:
            process.own(task)
        return task

    def resume(self, process: ProcessLife) -> None:
        """Let a paused process go on with what was held back, in its order and before anything newer of it."""
        self._ready.extendleft(reversed(process.resume()))

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        self._drop_cancelled()
        if ready or self._stopping:
            self._pass_time(0.0)
        else:
            self._pass_time(scheduled[0].when() - self.time() if scheduled else None)
        due_s = self.time() + _ROUNDING_S
        while scheduled and scheduled[0].when() <= due_s:
            ready.append(self._unscheduled(heapq.heappop(scheduled)))
        self.callbacks += len(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(_process)  # type: ignore[attr-defined]  # noqa: SLF001
            if process is not None and (process.paused or process.killed):
                process.hold(handle)
            else:
                handle._run()  # noqa: SLF001

    @staticmethod
    def _unscheduled(timer: asyncio.TimerHandle) -> asyncio.TimerHandle:
        """As asyncio's loop does for a timer that leaves the queue: its cancellation is not counted any more."""
        timer._scheduled = False  # type: ignore[attr-defined]  # noqa: SLF001
        return timer

    def _drop_cancelled(self) -> None:
        """Cancelled timers, as of hooks that ended in time, must not make time pass, nor the queue grow."""
        scheduled = self._scheduled
        while scheduled and scheduled[0].cancelled():
            self._unscheduled(heapq.heappop(scheduled))
        if self._timer_cancelled_count > max(_CANCELLED_MAX, len(scheduled) // 2):
            for timer in scheduled:
                if timer.cancelled():
                    self._unscheduled(timer)
            scheduled[:] = [timer for timer in scheduled if not timer.cancelled()]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0

    def _pass_time(self, until_next_s: float | None) -> None:
        raise NotImplementedError


class RealTimeLoop(_ProcessAwareLoop, asyncio.SelectorEventLoop):
    """Asyncio's own loop, with processes that can be paused and killed."""

    def _pass_time(self, until_next_s: float | None) -> None:
        wait_s = None if until_next_s is None else max(0.0, until_next_s)
        self._process_events(self._selector.select(wait_s))  # type: ignore[attr-defined]


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(_self: object, *_: object, **__: object) -> NoReturn:
        raise RealIoError(name)

    return refuse


class VirtualLoop(_ProcessAwareLoop):
    """A loop whose time passes as soon as nothing is left to do now. It has no selector: nothing comes from outside but threads.

    Args:
        time_limit_s: Virtual time at which a test fails that has not ended.
        thread_patience_s: Longest real time for which virtual time waits for a call in a thread; one that hangs is late then, as
            it would be in a broker.
    """

    def __init__(self, *, time_limit_s: float = TIME_LIMIT_S, thread_patience_s: float = THREAD_PATIENCE_S) -> None:
        super().__init__()
        self._now_s = 0.0
        self.time_limit_s = time_limit_s
        self._thread_patience_s = thread_patience_s
        self._posted = threading.Event()
        self._calls: dict[asyncio.Future[Any] | Future[Any], float] = {}

    def time(self) -> float:
        return self._now_s

    def wait_for_thread(self, call: asyncio.Future[Any]) -> None:
        """Let virtual time stand still until this future, which a thread ends, is done."""
        self._calls[call] = time.monotonic() + self._thread_patience_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """As asyncio's; virtual time stands still meanwhile."""
        call = super().run_in_executor(executor, func, *args)
        self.wait_for_thread(call)
        return call

    def _pass_time(self, until_next_s: float | None) -> None:
        if until_next_s is not None and until_next_s <= 0:
            return
        if self._wait_for_threads():
            return
        if until_next_s is None:
            raise NothingHappensError
        self._now_s += until_next_s
        if self._now_s > self.time_limit_s:
            raise TimeLimitError(self.time_limit_s)

    def _wait_for_threads(self) -> bool:
        """Whether something came from a thread."""
        while not self._ready:
            self._posted.clear()
            now_s = time.monotonic()
            self._calls = {
                call: until_s for call, until_s in self._calls.items() if not call.done() and until_s > now_s
            }
            if self._ready:
                break
            if not self._calls:
                return False
            self._posted.wait(max(self._calls.values()) - now_s)
        return True

    def _write_to_self(self) -> None:
        """Called in other threads, after they put a callback."""
        self._posted.set()

    def _process_events(self, event_list: Any) -> None:
        """Nothing comes from outside."""


for _name in (
    "add_reader", "add_signal_handler", "add_writer", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe",
    "create_connection", "create_datagram_endpoint", "create_server", "create_unix_connection", "create_unix_server",
    "sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_sendall", "sock_sendfile",
    "sock_sendto", "start_tls", "subprocess_exec", "subprocess_shell",
):  # fmt: skip
    setattr(VirtualLoop, _name, _refused(_name))
