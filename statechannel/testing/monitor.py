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
        if self.fails and self.fail is not None and _matches(self.fail, call):
            self.fails -= 1
            return True
        return False

    def take_hold_s(self, call: HookCall) -> float:
        if self.holds and self.hold is not None and _matches(self.hold, call):
            self.holds -= 1
            return self.hold_s
        return 0.0


def _matches(planned: tuple[Hook, str | None], call: HookCall) -> bool:
    return planned[0] is call.hook and planned[1] in (None, call.bundle)


@dataclass(slots=True)
class _BundleExpectation:
    """What the calls for one bundle allow.

    Attributes:
        served: Generation of the newest `on_serve`, until a release or the end of a split.
        served_before: That of the `on_serve` before, which may still be served for a moment.
        served_at_s: When the newest `on_serve` ended.
        prepared: Generation of the newest `on_own` after the last release.
        writes_allowed: False from `on_split` on.
        split_done: It was split, and the split is committed.
        unknown: Its release did not end by itself: nothing is expected until it is served again.
        released: It was served, and was released since.
        confirmed: The probe has answered, since the last call, that it is served.
    """

    served: int | None = None
    served_before: int | None = None
    served_at_s: float = 0.0
    prepared: int | None = None
    running: set[Hook] = field(default_factory=set)
    writes_allowed: bool = True
    split_done: bool = False
    unknown: bool = False
    released: bool = False
    confirmed: bool = False
    last: Hook | None = None
    calls: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _OpenCall:
    call: HookCall
    began_s: float
    held: bool = False
    cancelled_s: float | None = None


class FindingList:
    """Findings of a whole check: each promise and hook once, with the first example."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_promise: dict[tuple[HookPromise, Hook | None], HookFinding] = {}
        self.order = ""
        self.calls = 0

    def add(self, code: HookPromise, message: str, *, hook: Hook | None, bundle: str) -> None:
        with self._lock:
            known = self._by_promise.get((code, hook))
            if known is None:
                text = f"{message} (order `{self.order}`)"
                known = HookFinding(code, text, HINTS[code], hook, bundle, self.order, 0)
            self._by_promise[code, hook] = known._replace(times=known.times + 1)

    def findings(self) -> tuple[HookFinding, ...]:
        return tuple(self._by_promise.values())


class Monitor(Generic[H]):
    """Watches the hooks of one broker process; a `HookWatcher`. Hooks that are plain functions call it in their threads.

    Args:
        serves, accepts_writes: Probes; None: not probed.

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
        self._bundles: dict[str, _BundleExpectation] = defaultdict(_BundleExpectation)
        self._open: dict[int, _OpenCall] = {}
        self._lock = threading.RLock()

    # --- calls ------------------------------------------------------------------------------------------------------

    def began(self, call: HookCall) -> None:
        with self._lock:
            self._findings.calls += 1
            if self.plan.take_fail(call):
                raise InjectedError("a failure that the check has planned")
            self.probe_all()
            self._open[id(call)] = _OpenCall(call, self._now_s())
            bundle = self._bundles[call.bundle]
            bundle.running.add(call.hook)
            bundle.last = call.hook
            generation = "" if call.generation is None else f"({call.generation})"
            bundle.calls = [*bundle.calls[-_SHOWN_CALLS:], f"{call.hook}{generation}"]
            bundle.confirmed = False
            if call.hook is Hook.ON_SERVE:
                bundle.served_before, bundle.served = bundle.served, call.generation
                bundle.unknown = False

    def holds_s(self, call: HookCall) -> float:
        held_s = self.plan.take_hold_s(call)
        if held_s and id(call) in self._open:
            self._open[id(call)].held = True
        return held_s

    def stepped(self, call: HookCall, took_s: float) -> None:
        self.steps[call.hook] = max(self.steps[call.hook], took_s)

    def cancelling(self, call: HookCall) -> None:
        if id(call) in self._open:
            self._open[id(call)].cancelled_s = self._now_s()

    def ended(self, call: HookCall, raised: BaseException | None) -> None:
        with self._lock:
            self._check_end(call, raised)
            bundle = self._bundles[call.bundle]
            bundle.running.discard(call.hook)
            match call.hook:
                case Hook.ON_OWN if raised is None:
                    bundle.prepared = call.generation
                case Hook.ON_SERVE:
                    bundle.served_at_s, bundle.writes_allowed, bundle.split_done = self._now_s(), True, False
                    bundle.prepared = call.generation
                case Hook.ON_RELEASE:
                    bundle.released = bundle.released or bundle.served is not None
                    bundle.served = bundle.served_before = bundle.prepared = None
                    bundle.writes_allowed = True
                    bundle.unknown = raised is not None
                case Hook.ON_SPLIT if raised is None:
                    bundle.writes_allowed = False
                case Hook.ON_SPLIT_DONE:
                    bundle.served = bundle.served_before = bundle.prepared = None
                    bundle.split_done = True
                case _:
                    pass
            self.probe_all(call)

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
        """Check the calls that are still open, and stop checking."""
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

    def probe_all(self, after: HookCall | None = None) -> None:
        """Compare what each bundle's probe says with what is allowed now."""
        if not self.active:
            return
        with self._lock:
            for name, bundle in list(self._bundles.items()):
                self._probe_bundle(name, bundle, after)

    def _probe_bundle(self, name: str, bundle: _BundleExpectation, after: HookCall | None) -> None:
        if bundle.unknown:
            return
        serves = self._ask(self._serves, name, bundle)
        if serves is not None:
            self._compare_served(name, bundle, serves.value, after, marks=self._accepts_writes is self._serves)
        writes = None if self._accepts_writes is self._serves else self._ask(self._accepts_writes, name, bundle)
        if writes is not None:
            self._compare_served(name, bundle, writes.value, after)
        last = writes or serves
        splitting = not bundle.writes_allowed and not bundle.running & {Hook.ON_SERVE, Hook.ON_SPLIT}
        if last is not None and last.value is not None and splitting and bundle.served is not None:
            text = f"it takes writes by generation {last.value} after on_split"
            self._add_finding(HookPromise.STOPS_WRITES_FOR_SPLIT, name, bundle, text)

    def _compare_served(
        self, name: str, bundle: _BundleExpectation, value: int | None, after: HookCall | None, *, marks: bool = True
    ) -> None:
        if value is not None and bundle.served is None:
            code = HookPromise.PARENT_ENDS if bundle.split_done else HookPromise.WAITS_FOR_SERVE
            if (
                bundle.released
                and bundle.prepared is None
                and Hook.ON_OWN not in bundle.running
                and not bundle.split_done
            ):
                code = HookPromise.STOPS
            self._add_finding(code, name, bundle, f"it is served by generation {value}")
            return
        grace = self._now_s() - bundle.served_at_s < GRACE_S or Hook.ON_SERVE in bundle.running
        if value is not None:
            if value not in ({bundle.served, bundle.served_before} if grace else {bundle.served}):
                text = f"it is served by generation {value}, and on_serve came with {bundle.served}"
                self._add_finding(HookPromise.CURRENT_GENERATION, name, bundle, text)
            bundle.confirmed = bundle.confirmed or (value == bundle.served and marks)
            return
        resuming = (bundle.prepared or 0) > (bundle.served or 0)
        if (
            bundle.served is None
            or bundle.running
            or resuming
            or not bundle.writes_allowed
            or (grace and not bundle.confirmed)
        ):
            return
        after_another = after is not None and after.bundle != name and bundle.confirmed
        code = HookPromise.STOPS_ONLY_ITS_BUNDLE if after_another else HookPromise.SERVES
        self._add_finding(code, name, bundle, "it is not served, although it was not released")

    def _ask(self, probe: Serves[H] | None, name: str, bundle: _BundleExpectation) -> _Answer | None:
        if probe is None:
            return None
        try:
            return _Answer(probe(self.hooks, name))
        except Exception as error:
            self._add_finding(HookPromise.PROBE, name, bundle, f"the probe raised {_shown(error)}")
            return None

    def _add_finding(self, code: HookPromise, name: str, bundle: _BundleExpectation, what: str) -> None:
        calls = ", ".join(bundle.calls) or "none"
        self._findings.add(code, f"{name}: {what}; calls so far: {calls}", hook=bundle.last, bundle=name)

    def _add(self, code: HookPromise, call: HookCall, what: str) -> None:
        self._add_finding(code, call.bundle, replace(self._bundles[call.bundle], last=call.hook), what)


@dataclass(frozen=True, slots=True)
class _Answer:
    value: int | None


def _shown(error: BaseException) -> str:
    text: Any = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
