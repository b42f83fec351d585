"""Runs the hooks of a broker through all orders and stories."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from statechannel.broker.hook_runner import overridden
from statechannel.broker.hooks import BlockingBrokerHooks, BrokerHooks, ThreadedHooks
from statechannel.engine.effects import Hook
from statechannel.errors import StateChannelError
from statechannel.testing.kit import ChannelKit
from statechannel.testing.loop import KitError, VirtualLoop
from statechannel.testing.monitor import FindingList, Monitor, Serves
from statechannel.testing.orders import PLAIN_ORDERS, SPLIT_ORDERS, OrderStage
from statechannel.testing.promises import HookPromise, HookReport
from statechannel.testing.stories import DEADLINE_S, SPLIT_STORIES, STORIES, STORY_SETTINGS, HookProbes, StoryStage
from statechannel.testing.watched_hooks import watched

if TYPE_CHECKING:
    from statechannel.api import StateChannel
    from statechannel.testing.orders import Order
    from statechannel.testing.stories import Story

H = TypeVar("H", bound=BrokerHooks | BlockingBrokerHooks)

T = TypeVar("T")

HOOK_ORDERS = (*PLAIN_ORDERS, *SPLIT_ORDERS, *STORIES, *SPLIT_STORIES)
"""Names of all orders of calls, and of all stories with faults."""
BLOCKED_S = 0.1
_REPEATS = 3
_PATIENCE_S = 0.3


def check_hooks(
    make: Callable[[], H],
    *,
    serves: Serves[H] | None = None,
    accepts_writes: Serves[H] | None = None,
    write: Callable[[H, str, str, str], Awaitable[None] | None] | None = None,
    read: Callable[[H, str, str], Awaitable[str | None] | str | None] | None = None,
    attach: Callable[[H, StateChannel], None] | None = None,
    blocked_s: float = BLOCKED_S,
    only: Collection[str] | None = None,
) -> HookReport:
    """Run hooks through every order of calls that design/hooks.md promises, with faults in between; takes some seconds.

    Example:
        ```
        def test_my_hooks() -> None:
            check_hooks(MyHooks, serves=lambda hooks, bundle: hooks.serving.get(bundle)).require()
        ```

    Args:
        make: Makes the hooks of one broker process, as often as needed: their class, or a function that gives them one store.
        serves: Generation by which these hooks would serve a bundle at this moment, by their own state; None: they would not.
            Without it only what can be seen from outside is checked: raising, being late, blocking. A service that asks
            `guard` before each use has no such state, and needs none: `attach`, `write` and `read` check it.
        accepts_writes: The same for writes, where they are gated apart from reads; by default as `serves`.
        write: Writes `(hooks, bundle, topic, value)` as a client of this broker does, and raises if that is refused.
        read: Reads `(hooks, bundle, topic)`. With both, lost and late writes are found.
        attach: Gives hooks that need it the channel that they were opened with.
        blocked_s: A step of a hook that keeps the event loop for longer, in real time, blocks it.
        only: Names of the orders and stories to run (`HOOK_ORDERS`); None: all.

    Returns:
        The findings; `require()` fails a test.

    Raises:
        KitError: It was called inside an event loop; or `only` names what does not exist.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise KitError("check_hooks() was called inside an event loop.", hint="Call it in a plain function.")
    if unknown := sorted(set(only or ()) - set(HOOK_ORDERS)):
        raise KitError(f"No order or story {', '.join(unknown)} exists.", hint=f"There are {', '.join(HOOK_ORDERS)}.")
    probes = HookProbes(make, serves, accepts_writes or serves, write, read, attach)
    with _unprinted():
        return _Check(probes, blocked_s, set(HOOK_ORDERS if only is None else only)).run()


@contextmanager
def _unprinted() -> Iterator[None]:
    """Where a program has not set up logging, Python prints warnings to standard error: those of a check are planned."""
    log, handler = logging.getLogger("statechannel"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Check:
    def __init__(self, probes: HookProbes[Any], blocked_s: float, only: set[str]) -> None:
        self._only = only
        self._probes = probes
        self._blocked_s = blocked_s
        self._findings = FindingList()
        self._steps: list[dict[Hook, float]] = []
        self._failures: list[Exception] = []

    def run(self) -> HookReport:
        hooks = self._probes.make()
        wanted = _overridden(hooks)
        splits = bool(wanted & {Hook.ON_SPLIT, Hook.ON_SPLIT_DONE})
        orders = self._chosen({**PLAIN_ORDERS, **(SPLIT_ORDERS if splits else {})})
        stories = self._chosen({**STORIES, **(SPLIT_STORIES if splits else {})})
        if Hook.ON_RELEASE in wanted and Hook.ON_SPLIT not in wanted:
            name = type(hooks).__name__
            self._findings.add(
                HookPromise.HAS_ON_SPLIT, f"{name} overrides on_release, but not on_split", hook=None, bundle=""
            )
        for repeat in range(_REPEATS):
            for name, order in orders.items():
                self._run_order(name, order, f"check/{name}-{repeat}")
        self._check_steps()
        for name, story in stories.items():
            self._run_story(name, story)
        findings = self._findings.findings()
        if self._failures and not findings:
            raise self._failures[0]
        return HookReport(findings, (*orders, *stories), self._findings.calls)

    def _chosen(self, named: dict[str, T]) -> dict[str, T]:
        return {name: order for name, order in named.items() if name in self._only}

    def _run_order(self, name: str, order: Order, namespace: str) -> None:
        self._findings.order = name
        loop = VirtualLoop(thread_patience_s=_PATIENCE_S)
        hooks, probes = self._probes.make(), self._probes
        monitor: Monitor[Any] = Monitor(
            hooks, self._findings, probes.serves, probes.accepts_writes, loop.time, DEADLINE_S
        )
        member = watched(hooks, monitor, loop.wait_for_thread, all_hooks=True)

        async def run() -> None:
            await order(OrderStage(member, monitor, namespace, DEADLINE_S))
            await _end_tasks()

        try:
            loop.run_until_complete(run())
            monitor.finish()
        finally:
            loop.close()
        if isinstance(hooks, BrokerHooks):
            self._steps.append(monitor.steps)

    def _check_steps(self) -> None:
        """A busy machine makes a step long now and then; a hook that blocks does so each time that the same order is repeated."""
        for hook in Hook:
            runs = [steps[hook] for steps in self._steps if hook in steps]
            each = len(runs) // _REPEATS
            repeats = (runs[start : start + each] for start in range(0, each * _REPEATS, each or 1))
            longest_s = max(map(min, zip(*repeats, strict=True)), default=0.0)
            if longest_s > self._blocked_s:
                text = f"{hook} kept the event loop for {longest_s:.2f} s"
                self._findings.add(HookPromise.YIELDS, text, hook=hook, bundle="")

    def _run_story(self, name: str, story: Story) -> None:
        self._findings.order = name
        with ChannelKit(STORY_SETTINGS, thread_patience_s=_PATIENCE_S) as kit:
            stage = StoryStage(kit, self._probes, self._findings, f"check/{name}")

            async def run() -> None:
                watching = asyncio.create_task(stage.watch())
                try:
                    await story(stage)
                except StateChannelError as error:
                    self._failures.append(error)
                finally:
                    watching.cancel()
                    stage.finish()

            kit.run(run())


async def _end_tasks() -> None:
    """End what hooks have left behind in a loop that is closed now."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=1.0)


def _overridden(hooks: BrokerHooks | BlockingBrokerHooks) -> set[Hook]:
    port = ThreadedHooks(hooks) if isinstance(hooks, BlockingBrokerHooks) else hooks
    return {hook for hook in Hook if overridden(port, hook)}
