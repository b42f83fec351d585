"""Runner of hooks: with a deadline, one after the other for each bundle, never trusted to return."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import copy_context
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.broker.hooks import BrokerHooks, HookRunsOnError, ThreadedHooks, mark_caller
from statechannel.engine.effects import Hook
from statechannel.engine.inputs import HookFinished
from statechannel.logger import SafeLogger
from statechannel.printable import one_line
from statechannel.protocol.record import REASON_MAX

if TYPE_CHECKING:
    from statechannel.engine.effects import CallHook
    from statechannel.engine.inputs import Input


class BegunCoroutine(Coroutine[Any, Any, None]):
    """A coroutine whose first part runs at once, as in an eager task.

    A hook that waits for nothing has ended after it; in a task it would end two turns of the loop later, which
    would lengthen the gap between two owners. (Python 3.12 has `eager_start`.) The first step of the
    task takes the result of the first part.
    """

    __slots__ = ("_coroutine", "_raised", "_taken", "_waits_for", "ended")

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._raised: BaseException | None = None
        self._taken = False
        self.ended = False

    def run(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        """Run the first part; an exception is kept for the task."""
        _enter_task(loop, task)
        try:
            self._waits_for = self._coroutine.send(None)
        except BaseException as error:
            self._raised = error
            self.ended = isinstance(error, StopIteration) and not task.cancelling()
        finally:
            _leave_task(loop, task)

    def send(self, value: Any) -> Any:
        if self._taken:
            return self._coroutine.send(value)
        self._taken = True
        if self._raised is not None:
            raise self._raised
        return self._waits_for

    def throw(self, error: Any, _value: Any = None, _trace: Any = None, /) -> Any:
        """A step of the cancelled task; tasks pass one argument."""
        if self._taken:
            return self._coroutine.throw(error)
        self._taken = True
        if self._raised is not None:
            raise error if isinstance(self._raised, StopIteration) else self._raised
        if asyncio.isfuture(self._waits_for) and self._waits_for.cancel(*error.args):
            return self._waits_for  # as a task does: it ends what it waits for, and hears of that end
        return self._coroutine.throw(error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise TypeError("a coroutine that has begun is for its task only")


_log = SafeLogger(__name__)
_NAMED_MAX = 10
OBEYED_S = 1.0
"""A hook that ends by its cancellation within this time did not run on.

No setting: it only decides about a line of the log; `hooks.deadline_s` is the limit of a hook.
"""


class HookCounts(NamedTuple):
    """Hooks of one member.

    Attributes:
        running: Calls that have not ended, including late ones.
        late: Calls that run past their deadline.
        owed: Releases past their deadline that wait for a late hook of their bundle.
        threads: Maximum number of concurrent calls; None without a limit.
    """

    running: int
    late: int
    owed: int
    threads: int | None

    def to_json(self) -> dict[str, int]:
        return {"running_hooks": self.running, "late_hooks": self.late, "owed_releases": self.owed}

    @property
    def exhausted(self) -> bool:
        """Whether late hooks occupy all threads, so that no other can be called."""
        return self.threads is not None and self.late >= self.threads


class _Call:
    """One call of a hook: queued behind another of the same bundle, running, or late."""

    __slots__ = ("asked_s", "began", "effect", "reported", "task", "timer")

    def __init__(self, effect: CallHook) -> None:
        self.effect = effect
        self.asked_s = asyncio.get_running_loop().time()
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.began = False
        self.reported = False
        """Whether its end, or its lateness, was reported."""


class _Lane:
    """The calls of one bundle: the running one, and the queued ones in order."""

    __slots__ = ("running", "waiting")

    def __init__(self, first: _Call) -> None:
        self.running = first
        self.waiting: deque[_Call] = deque()


class HookRunner:
    """Runs hooks as tasks and reports their ends to the engine; those of one bundle one after the other.

    A hook that has not returned by its deadline counts as failed and is cancelled. It keeps its turn until it actually
    returns: a thread, or a coroutine that ignores its cancellation, may continue, and no other hook of its bundle is called
    meanwhile. Queued calls end at their own deadlines without being called, except `on_release`: it is
    called afterwards, so that it is the last call of a generation. `on_own` takes its turn in any class, also in one that has
    none: behind a late hook it fails, and the bundle is declined, instead of being assigned to a broker whose `on_serve`
    could not be called.

    Args:
        urls_of: Registered listeners of a broker, for `on_moved`.
        on_problem: Called with each failed call and its error.
        on_end: Called with each ended call, the seconds since its request, its failure as text, and what it raised.
    """

    def __init__(
        self,
        hooks: BrokerHooks,
        *,
        feed: Callable[[Input], None],
        urls_of: Callable[[str], Mapping[str, str]],
        on_problem: Callable[[CallHook, str], None] | None = None,
        on_end: Callable[[CallHook, float, str | None, BaseException | None], None] | None = None,
        broker: str = "",
    ) -> None:
        self._hooks = hooks
        self._feed = feed
        self._urls_of = urls_of
        self._on_problem = on_problem
        self._on_end = on_end
        self._broker = broker
        self._open: set[_Call] = set()
        self._late: set[_Call] = set()
        self._owed: set[_Call] = set()
        self._merged: set[_Call] = set()
        self._lanes: dict[str, _Lane] = {}
        self._changed = asyncio.Event()
        self._closed = False
        self._wanted = frozenset(hook for hook in Hook if overridden(hooks, hook))

    @property
    def counts(self) -> HookCounts:
        """Numbers of running and late calls; may be read from any thread."""
        threads = self._hooks.threads if isinstance(self._hooks, ThreadedHooks) else None
        owed = len(self._owed | self._merged)
        return HookCounts(len(self._open) + len(self._late), len(self._late), owed, threads)

    def call_of(self, task: asyncio.Task[Any] | None) -> CallHook | None:
        """The call that a task runs, if it runs one; may be called from any thread while the loop is blocked."""
        lanes = [] if task is None else list(self._lanes.values())
        return next((lane.running.effect for lane in lanes if lane.running.task is task), None)

    def call(self, effect: CallHook) -> None:
        """Call a hook; one that is not overridden ends at once, unless it is `on_own` and no other hook could be called now."""
        lane = self._lanes.get(effect.bundle)
        if effect.hook not in self._wanted and not (
            effect.hook is Hook.ON_OWN and (lane is not None or self.counts.exhausted)
        ):
            self._notify_engine(effect, None)
            return
        if lane is not None and _is_repeated(lane, effect):
            return
        call = _Call(effect)
        self._open.add(call)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + effect.deadline_s
        if lane is not None:
            lane.waiting.append(call)
            self._merge(lane)
        else:
            self._lanes[effect.bundle] = _Lane(call)
            if asyncio.current_task() is None and loop.get_task_factory() is None:
                self._start_at_once(call)
            else:
                self._start(call)
        if call in self._open:
            call.timer = loop.call_at(ends_s, self._overran, call)

    def _start_at_once(self, call: _Call) -> None:
        """As `_start`, but the hook runs to its first wait before this returns.

        Only for asyncio's own tasks: an embedder's task factory may treat coroutines differently.
        """
        loop, context = asyncio.get_running_loop(), copy_context()
        call.began = True
        begun = BegunCoroutine(self._marked(call.effect))
        name = f"statechannel {call.effect.hook} {call.effect.bundle}"
        call.task = task = loop.create_task(begun, name=name, context=context)
        context.run(begun.run, loop, task)
        if begun.ended and call in self._open:
            self._report(call, None)
            self._over(call)
        else:
            task.add_done_callback(lambda task: self._returned(call, task))

    def _start(self, call: _Call) -> None:
        name = f"statechannel {call.effect.hook} {call.effect.bundle}"
        call.began = True
        call.task = asyncio.get_running_loop().create_task(self._marked(call.effect), name=name)
        call.task.add_done_callback(lambda task: self._returned(call, task))

    def _returned(self, call: _Call, ended: asyncio.Future[None]) -> None:
        raised = None if ended.cancelled() else ended.exception()  # taken in any case, or asyncio complains
        if isinstance(raised, HookRunsOnError):
            if not call.reported:  # the task was cancelled from outside
                self._report(call, f"{call.effect.hook} was cancelled")
                self._late.add(call)
            raised.ended.add_done_callback(lambda ended: self._returned(call, ended))
            return
        effect = call.effect
        if not call.reported:
            if ended.cancelled():
                self._report(call, f"{effect.hook} was cancelled")
            elif raised is not None:
                self._report(call, f"{effect.hook} raised {_words_of(raised)}", raised)
            else:
                self._report(call, None)
        self._over(call, raised, obeyed=ended.cancelled())

    def _overran(self, call: _Call) -> None:
        effect = call.effect
        if call.task is not None:
            self._late.add(call)
            call.task.cancel()
            self._report(call, f"{effect.hook} did not return within {effect.deadline_s:g} s")
            return
        lane, later = self._lanes[effect.bundle], effect.hook is Hook.ON_RELEASE
        uncalled = f"{effect.hook} was not called: the hook before it did not return in time"
        self._report(call, f"{uncalled}; it is called once that returns" if later else uncalled)
        if later:
            self._owed.add(call)
        else:
            lane.waiting.remove(call)
        self._merge(lane)

    def _merge(self, lane: _Lane) -> None:
        """Merge two releases without another call in between, once the first is late.

        So at most one of them waits behind a hook that never returns, however often its bundle moves. It
        names the older generation: the embedder was never notified of the newer one.
        """
        for place in range(len(lane.waiting) - 1):
            older, newer = lane.waiting[place], lane.waiting[place + 1]
            if older in self._owed and newer.effect.hook is Hook.ON_RELEASE:
                self._owed.discard(older)
                self._merged.discard(older)
                self._merged.add(newer)  # before its own deadline it is not late, but the older one is owed by it
                newer.effect = replace(newer.effect, generation=older.effect.generation)
                del lane.waiting[place]
                return

    def _report(self, call: _Call, error: str | None, raised: BaseException | None = None) -> None:
        """Report the end of a call, or its failure although it still runs."""
        effect = call.effect
        call.reported = True
        self._open.discard(call)
        if call.timer is not None:
            call.timer.cancel()
        if error is not None and self._on_problem is not None:
            self._on_problem(effect, error)
        if self._on_end is not None:
            self._on_end(effect, asyncio.get_running_loop().time() - call.asked_s, error, raised)
        self._notify_engine(effect, error)
        self._changed.set()

    def _over(self, call: _Call, raised: BaseException | None = None, *, obeyed: bool = False) -> None:
        """A call has actually returned: start the next one of its bundle.

        Args:
            obeyed: It ended by its cancellation, which its failure has said already, unless that took a while.
        """
        effect = call.effect
        if call in self._late:
            self._late.discard(call)
            took_s = asyncio.get_running_loop().time() - call.asked_s
            if not obeyed or took_s - effect.deadline_s >= OBEYED_S:
                _log.warning(
                    "late-hook-returned",
                    broker=self._broker,
                    hook=effect.hook,
                    bundle=effect.bundle,
                    generation=effect.generation,
                    took_s=round(took_s, 3),
                    exc_info=raised,
                )
        lane = self._lanes[effect.bundle]
        if lane.waiting and not self._closed:
            lane.running = lane.waiting.popleft()
            self._merged.discard(lane.running)
            if lane.running in self._owed:
                self._owed.discard(lane.running)
                self._late.add(lane.running)
            self._start(lane.running)
        else:
            del self._lanes[effect.bundle]
        self._changed.set()

    def _notify_engine(self, effect: CallHook, error: str | None) -> None:
        if effect.hook_id:
            self._feed(HookFinished(effect.hook_id, error))

    async def _marked(self, effect: CallHook) -> None:
        mark_caller()
        await self._coroutine(effect)

    def _coroutine(self, effect: CallHook) -> Awaitable[None]:
        hooks, bundle, generation = self._hooks, effect.bundle, effect.generation
        match effect.hook:
            case Hook.ON_OWN:
                return hooks.on_own(bundle, generation)
            case Hook.ON_SERVE:
                return hooks.on_serve(bundle, generation)
            case Hook.ON_RELEASE:
                return hooks.on_release(bundle, generation, effect.peer)
            case Hook.ON_MOVED:
                urls = {} if effect.peer is None else self._urls_of(effect.peer)
                return hooks.on_moved(bundle, effect.peer, urls)
            case Hook.ON_SPLIT:
                return hooks.on_split(bundle, effect.children, generation)
            case Hook.ON_SPLIT_DONE:
                return hooks.on_split_done(bundle, effect.children, generation)

    async def close(self, timeout_s: float) -> None:
        """Wait for running and queued calls, each at most to its deadline; then cancel the rest.

        Args:
            timeout_s: Total time limit, also for releases that wait behind a late hook.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while self._open or self._owed:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed.wait()
            except TimeoutError:
                break
        self._closed = True
        uncalled = [call.effect.bundle for lane in self._lanes.values() for call in lane.waiting]
        if uncalled or self._late or self._open:
            running = [f"{lane.running.effect.hook} of {bundle}" for bundle, lane in self._lanes.items()]
            _log.warning(
                "hooks-left",
                broker=self._broker,
                running=len(running),
                not_returned=running[:_NAMED_MAX],
                not_called=len(uncalled),
                bundles=uncalled[:_NAMED_MAX],
            )
        for call in [*self._open, *self._late]:
            if call.timer is not None:
                call.timer.cancel()
            if call.task is not None:
                call.task.cancel()
        self._open.clear()


def _is_repeated(lane: _Lane, effect: CallHook) -> bool:
    """Whether a release that no reaction waits for is the lane's last call already: the end of a member meets one that runs."""
    last = (lane.waiting[-1] if lane.waiting else lane.running).effect
    releases = effect.hook is Hook.ON_RELEASE and effect.hook_id == 0
    return releases and (last.hook, last.generation) == (effect.hook, effect.generation)


def overridden(hooks: BrokerHooks, hook: str) -> bool:
    if isinstance(hooks, ThreadedHooks):
        return hooks.overrides(hook)
    method = getattr(hooks, hook)
    return getattr(method, "__func__", method) is not getattr(BrokerHooks, hook)


def warn_of_hooks(hooks: BrokerHooks, broker: str) -> None:
    """Warn of a class without any hook, and of one that closes what it serves in `on_release` only.

    A split does not call `on_release` of its parent, but `on_split`.
    """
    name = hooks.name if isinstance(hooks, ThreadedHooks) else type(hooks).__name__
    if type(hooks) is not BrokerHooks and not any(overridden(hooks, hook) for hook in Hook):
        _log.warning(
            "hooks.none",
            broker=broker,
            hooks=name,
            why="the class of the hooks overrides none: this broker is not notified of the bundles that it gets and loses",
            hint=f"Override some of {', '.join(Hook)}; open without `hooks` if none is wanted.",
        )
    if overridden(hooks, Hook.ON_RELEASE) and not overridden(hooks, Hook.ON_SPLIT):
        _log.warning(
            "hooks.no-on-split",
            broker=broker,
            hooks=name,
            why="a split calls no on_release for its parent: writes that it takes while its parts are prepared may be lost",
            hint="Override on_split: take no more writes to the parent there. One that does nothing ends this warning.",
        )


def _words_of(raised: BaseException) -> str:
    """Type and text of a hook's error in one line, bounded; the hook's line where there is no text, as of a `TimeoutError`.

    An error whose text raises must not keep its bundle's lane for ever.
    """
    try:
        text = one_line(str(raised)[: 2 * REASON_MAX])
    except Exception:
        text = "its text cannot be shown"
    words = f": {text}" if text else _place_of(raised)
    return f"{type(raised).__name__}{words}"[:REASON_MAX]


def _place_of(raised: BaseException) -> str:
    """Where in the embedder's code a hook raised, as far as the traceback has it."""
    trace = raised.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith(_NOT_THE_HOOKS):
            return f" in {code.co_name} ({PurePath(code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return ""


_NOT_THE_HOOKS = ("statechannel.", "asyncio.", "concurrent.")
