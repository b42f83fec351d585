"""Compares what a broker's hooks do with what the calls so far allow: a model of each bundle, and a probe that asks."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from statechannel.engine.effects import Hook
from statechannel.testing.promises import HINTS, HookFinding, HookPromise

if TYPE_CHECKING:
    from statechannel.testing.watched_hooks import HookCall

GRACE_S = 1.0
"""A hook may begin to serve by a task of its own: this long after `on_serve` a bundle may not be served yet."""
OBEYS_WITHIN_S = 1.0
_SHOWN_CALLS = 6
_ROUNDING_S = 0.001

H = TypeVar("H")
Serves = Callable[[H, str], int | None]


class InjectedError(Exception):
    """A failure that the check puts in the place of a hook."""


@dataclass(slots=True)
class FaultPlan:
    """Faults of the next calls.

    Attributes:
        fail: Hook and bundle (None: any) whose next call fails instead of being made.
        hold: The same, for a call whose first wait takes `hold_s` longer, so that it is late and cancelled; below 0 it is
            cancelled in that wait.
        fails, holds: Number of calls that are left for them.
    """

    fail: tuple[Hook, str | None] | None = None
    hold: tuple[Hook, str | None] | None = None
    fails: int = 0
    holds: int = 0
    hold_s: float = 0.0

    def take_fail(self, call: HookCall) -> bool:
        """Whether this call is to fail."""
        if self.fails and self.fail is not None and _means(self.fail, call):
            self.fails -= 1
            return True
        return False

    def take_hold_s(self, call: HookCall) -> float:
        """How long this call is held."""
        if self.holds and self.hold is not None and _means(self.hold, call):
            self.holds -= 1
            return self.hold_s
        return 0.0


def _means(planned: tuple[Hook, str | None], call: HookCall) -> bool:
    return planned[0] is call.hook and planned[1] in (None, call.bundle)


@dataclass(slots=True)
class _Bundle:
    """What the calls for one bundle allow.

    Attributes:
        served: Generation of the newest `on_serve`, until a release or the end of a split.
        before: That of the `on_serve` before, which may still be served for a moment.
        served_at_s: When the newest `on_serve` ended.
        prepared: Generation of the newest `on_own` after the last release.
        running: Hooks under way.
        written: Writes may be taken; False from `on_split` on.
        gone: Its split is done.
        unsure: Its release did not end by itself: nothing is expected until it is served again.
        released: It was served, and was released since.
        seen: The probe has said, since the last call, that it is served.
    """

    served: int | None = None
    before: int | None = None
    served_at_s: float = 0.0
    prepared: int | None = None
    running: set[Hook] = field(default_factory=set)
    written: bool = True
    gone: bool = False
    unsure: bool = False
    released: bool = False
    seen: bool = False
    last: Hook | None = None
    calls: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _OpenCall:
    """A call that has not returned."""

    call: HookCall
    began_s: float
    held: bool = False
    cancelled_s: float | None = None


class FindingList:
    """Findings of a whole check: each promise and hook once, with the first example."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[HookPromise, Hook | None], HookFinding] = {}
        self.order = ""
        self.calls = 0

    def add(self, code: HookPromise, message: str, *, hook: Hook | None, bundle: str) -> None:
        """Note that a promise broke."""
        with self._lock:
            known = self._found.get((code, hook))
            if known is None:
                text = f"{message} (order `{self.order}`)"
                known = HookFinding(code, text, HINTS[code], hook, bundle, self.order, 0)
            self._found[code, hook] = known._replace(times=known.times + 1)

    def all(self) -> tuple[HookFinding, ...]:
        """The findings, in the order in which they were made."""
        return tuple(self._found.values())


class Monitor(Generic[H]):
    """Watches the hooks of one broker process; a `HookWatcher`. Hooks that are plain functions call it in their threads.

    Args:
        serves, accepts_writes: Probes; None: not probed.
        now_s: Virtual time.
        deadline_s: Of each hook.

    Attributes:
        active: False while its process is paused or dead: nothing is expected of it.
        steps: Longest real time of a step by hook.
    """

    def __init__(
        self,
        hooks: H,
        findings: FindingList,
        serves: Serves[H] | None,
        accepts_writes: Serves[H] | None,
        now_s: Callable[[], float],
        deadline_s: float,
    ) -> None:
        self.hooks = hooks
        self.plan = FaultPlan()
        self.active = True
        self.steps: dict[Hook, float] = defaultdict(float)
        self._findings = findings
        self._serves = serves
        self._accepts_writes = accepts_writes
        self._now_s = now_s
        self._deadline_s = deadline_s
        self._bundles: dict[str, _Bundle] = defaultdict(_Bundle)
        self._open: dict[int, _OpenCall] = {}
        self._lock = threading.RLock()

    # --- calls ------------------------------------------------------------------------------------------------------

    def began(self, call: HookCall) -> None:
        """See `HookWatcher`."""
        with self._lock:
            self._findings.calls += 1
            if self.plan.take_fail(call):
                raise InjectedError("a failure that the check has planned")
            self.look()
            self._open[id(call)] = _OpenCall(call, self._now_s())
            bundle = self._bundles[call.bundle]
            bundle.running.add(call.hook)
            bundle.last = call.hook
            generation = "" if call.generation is None else f"({call.generation})"
            bundle.calls = [*bundle.calls[-_SHOWN_CALLS:], f"{call.hook}{generation}"]
            bundle.seen = False
            if call.hook is Hook.ON_SERVE:
                bundle.before, bundle.served = bundle.served, call.generation
                bundle.unsure = False

    def holds_s(self, call: HookCall) -> float:
        """See `HookWatcher`."""
        held_s = self.plan.take_hold_s(call)
        if held_s and id(call) in self._open:
            self._open[id(call)].held = True
        return held_s

    def stepped(self, call: HookCall, took_s: float) -> None:
        """See `HookWatcher`."""
        self.steps[call.hook] = max(self.steps[call.hook], took_s)

    def cancelling(self, call: HookCall) -> None:
        """See `HookWatcher`."""
        if id(call) in self._open:
            self._open[id(call)].cancelled_s = self._now_s()

    def ended(self, call: HookCall, raised: BaseException | None) -> None:
        """See `HookWatcher`."""
        with self._lock:
            self._check_end(call, raised)
            bundle = self._bundles[call.bundle]
            bundle.running.discard(call.hook)
            match call.hook:
                case Hook.ON_OWN if raised is None:
                    bundle.prepared = call.generation
                case Hook.ON_SERVE:
                    bundle.served_at_s, bundle.written, bundle.gone = self._now_s(), True, False
                    bundle.prepared = call.generation
                case Hook.ON_RELEASE:
                    bundle.released = bundle.released or bundle.served is not None
                    bundle.served = bundle.before = bundle.prepared = None
                    bundle.written = True
                    bundle.unsure = raised is not None
                case Hook.ON_SPLIT if raised is None:
                    bundle.written = False
                case Hook.ON_SPLIT_DONE:
                    bundle.served = bundle.before = bundle.prepared = None
                    bundle.gone = True
                case _:
                    pass
            self.look(call)

    def _check_end(self, call: HookCall, raised: BaseException | None) -> None:
        opened = self._open.pop(id(call), None)
        if opened is None or not self.active:
            return
        self._check_time(opened)
        if raised is None or (isinstance(raised, asyncio.CancelledError) and opened.cancelled_s is not None):
            return
        if opened.cancelled_s is None:
            self._add(HookPromise.RETURNS, call, f"{call.hook} raised {_shown(raised)}")
        elif not isinstance(raised, TimeoutError):
            self._add(HookPromise.RETURNS, call, f"{call.hook} raised {_shown(raised)} when it was cancelled")

    def _check_time(self, opened: _OpenCall) -> None:
        now_s, hook = self._now_s(), opened.call.hook
        if not opened.held and now_s - opened.began_s > self._deadline_s + _ROUNDING_S:
            self._add(HookPromise.ON_TIME, opened.call, f"{hook} did not return within {self._deadline_s:g} s")
        elif not opened.held and opened.cancelled_s is not None and now_s - opened.began_s >= self._deadline_s:
            self._add(HookPromise.ON_TIME, opened.call, f"{hook} was cancelled after {self._deadline_s:g} s")
        if opened.cancelled_s is not None and now_s - opened.cancelled_s > OBEYS_WITHIN_S:
            text = f"{hook} ran on for {now_s - opened.cancelled_s:.1f} s after its cancellation"
            self._add(HookPromise.OBEYS_CANCELLATION, opened.call, text)

    def finish(self) -> None:
        """The story is over: what still runs should have ended, if its time is up."""
        with self._lock:
            if self.active:
                for opened in list(self._open.values()):
                    self._check_time(opened)
            self.active = False

    # --- state ------------------------------------------------------------------------------------------------------

    def expect(self, *bundles: str) -> None:
        """Probe these bundles too, although no hook was called for them."""
        for bundle in bundles:
            self._bundles[bundle]

    def look(self, after: HookCall | None = None) -> None:
        """Compare what each bundle's probe says with what is allowed now."""
        if not self.active:
            return
        with self._lock:
            for name, bundle in list(self._bundles.items()):
                self._look_at(name, bundle, after)

    def _look_at(self, name: str, bundle: _Bundle, after: HookCall | None) -> None:
        if bundle.unsure:
            return
        serves = self._ask(self._serves, name, bundle)
        if serves is not None:
            self._compare_served(name, bundle, serves.value, after, marks=self._accepts_writes is self._serves)
        writes = None if self._accepts_writes is self._serves else self._ask(self._accepts_writes, name, bundle)
        if writes is not None:
            self._compare_served(name, bundle, writes.value, after)
        last = writes or serves
        splitting = not bundle.written and not bundle.running & {Hook.ON_SERVE, Hook.ON_SPLIT}
        if last is not None and last.value is not None and splitting and bundle.served is not None:
            text = f"it takes writes by generation {last.value} after on_split"
            self._break(HookPromise.STOPS_WRITES_FOR_SPLIT, name, bundle, text)

    def _compare_served(
        self, name: str, bundle: _Bundle, value: int | None, after: HookCall | None, *, marks: bool = True
    ) -> None:
        if value is not None and bundle.served is None:
            code = HookPromise.PARENT_ENDS if bundle.gone else HookPromise.WAITS_FOR_SERVE
            if bundle.released and bundle.prepared is None and Hook.ON_OWN not in bundle.running and not bundle.gone:
                code = HookPromise.STOPS
            self._break(code, name, bundle, f"it is served by generation {value}")
            return
        grace = self._now_s() - bundle.served_at_s < GRACE_S or Hook.ON_SERVE in bundle.running
        if value is not None:
            if value not in ({bundle.served, bundle.before} if grace else {bundle.served}):
                text = f"it is served by generation {value}, and on_serve came with {bundle.served}"
                self._break(HookPromise.CURRENT_GENERATION, name, bundle, text)
            bundle.seen = bundle.seen or (value == bundle.served and marks)
            return
        resuming = (bundle.prepared or 0) > (bundle.served or 0)
        if bundle.served is None or bundle.running or resuming or not bundle.written or (grace and not bundle.seen):
            return
        others = after is not None and after.bundle != name and bundle.seen
        code = HookPromise.STOPS_ONLY_ITS_BUNDLE if others else HookPromise.SERVES
        self._break(code, name, bundle, "it is not served, although it was not released")

    def _ask(self, probe: Serves[H] | None, name: str, bundle: _Bundle) -> _Answer | None:
        if probe is None:
            return None
        try:
            return _Answer(probe(self.hooks, name))
        except Exception as error:
            self._break(HookPromise.PROBE, name, bundle, f"the probe raised {_shown(error)}")
            return None

    def _break(self, code: HookPromise, name: str, bundle: _Bundle, what: str) -> None:
        calls = ", ".join(bundle.calls) or "none"
        self._findings.add(code, f"{name}: {what}; calls so far: {calls}", hook=bundle.last, bundle=name)

    def _add(self, code: HookPromise, call: HookCall, what: str) -> None:
        self._break(code, call.bundle, replace(self._bundles[call.bundle], last=call.hook), what)


@dataclass(frozen=True, slots=True)
class _Answer:
    value: int | None


def _shown(error: BaseException) -> str:
    text: Any = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
