"""Orders of calls that design/hooks.md promises, called one by one on a fresh broker's hooks, without a channel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from statechannel.engine.effects import Hook
from statechannel.testing.monitor import GRACE_S

if TYPE_CHECKING:
    from statechannel.broker.hooks import BrokerHooks
    from statechannel.testing.monitor import Monitor

_REST_S = GRACE_S + 0.1
_CANCELLED_S = 60.0


class OrderStage:
    """One broker whose hooks are called by hand.

    Attributes:
        bundles: Eight bundles without an owner.
        halves, thirds: Children of the first bundle, by two different splits.
    """

    def __init__(self, hooks: BrokerHooks, monitor: Monitor[Any], namespace: str, deadline_s: float) -> None:
        self._hooks = hooks
        self.deadline_s = deadline_s
        self.monitor = monitor
        self.bundles = _cut(namespace, 0, 1 << 32, 8)
        self.halves = _cut(namespace, 0, 1 << 29, 2)
        self.thirds = _cut(namespace, 0, 1 << 29, 3)
        monitor.expect(*self.bundles)

    async def call(self, hook: Hook, bundle: str, *arguments: Any) -> None:
        """Call a hook as a channel does; what it raises is the monitor's affair."""
        task = asyncio.ensure_future(getattr(self._hooks, hook)(bundle, *arguments))
        _, late = await asyncio.wait({task}, timeout=self.deadline_s)
        if late:
            task.cancel()
            await asyncio.wait(late, timeout=_CANCELLED_S)
        if task.done() and not task.cancelled():
            task.exception()

    async def own(self, bundle: str, generation: int) -> None:
        await self.call(Hook.ON_OWN, bundle, generation)

    async def serve(self, bundle: str, generation: int) -> None:
        await self.call(Hook.ON_SERVE, bundle, generation)

    async def release(self, bundle: str, generation: int, destination: str | None = None) -> None:
        await self.call(Hook.ON_RELEASE, bundle, generation, destination)

    async def split(self, bundle: str, children: Sequence[str], generation: int) -> None:
        await self.call(Hook.ON_SPLIT, bundle, tuple(children), generation)
        for child in children:
            await self.own(child, generation)

    async def commit(self, bundle: str, children: Sequence[str], generation: int) -> None:
        """What comes once a split is in the log, at the same time."""
        await asyncio.gather(
            self.call(Hook.ON_SPLIT_DONE, bundle, tuple(children), generation),
            *(self.serve(child, generation) for child in children),
        )

    async def advance(self) -> None:
        await asyncio.sleep(_REST_S)
        self.monitor.probe_all()


def _cut(namespace: str, lower: int, upper: int, parts: int) -> list[str]:
    bounds = [lower + (upper - lower) * number // parts for number in range(parts + 1)]
    ends = [min(bound, 0xFFFF_FFFF) for bound in bounds]
    return [f"{namespace}/0x{low:08x}_0x{high:08x}" for low, high in pairwise(ends)]


async def _assigned(stage: OrderStage) -> None:
    bundle = stage.bundles[0]
    await stage.own(bundle, 3)
    await stage.advance()
    await stage.serve(bundle, 3)
    await stage.advance()
    await stage.release(bundle, 3)
    await stage.advance()


async def _moved_and_back(stage: OrderStage) -> None:
    bundle = stage.bundles[0]
    await stage.own(bundle, 3)
    await stage.serve(bundle, 3)
    await stage.advance()
    await stage.release(bundle, 3, "another")
    await stage.call(Hook.ON_MOVED, bundle, "another", {"tcp": "tcp://another.example:1"})
    await stage.advance()
    await stage.own(bundle, 9)
    await stage.advance()
    await stage.serve(bundle, 9)
    await stage.advance()
    await stage.release(bundle, 9, "another")
    await stage.call(Hook.ON_MOVED, bundle, None, {})
    await stage.advance()


async def _undone(stage: OrderStage) -> None:
    bundle = stage.bundles[0]
    await stage.own(bundle, 3)
    await stage.release(bundle, 3)
    await stage.advance()
    await stage.own(bundle, 3)
    await stage.own(bundle, 4)
    await stage.serve(bundle, 4)
    await stage.advance()


async def _released_at_once(stage: OrderStage) -> None:
    for number, bundle in enumerate(stage.bundles[:3]):
        await stage.own(bundle, 3)
        await stage.serve(bundle, 3)
        await asyncio.sleep(number * 0.01)
        await stage.release(bundle, 3, "another")
    await stage.advance()


async def _release_of_an_unknown_bundle(stage: OrderStage) -> None:
    await stage.own(stage.bundles[1], 2)
    await stage.serve(stage.bundles[1], 2)
    await stage.advance()
    await stage.release(stage.bundles[0], 7)
    await stage.release(stage.bundles[0], 7, "another")
    await stage.advance()


async def _resumed(stage: OrderStage) -> None:
    bundle = stage.bundles[0]
    for generation in (3, 5, 6):
        await stage.own(bundle, generation)
        await stage.serve(bundle, generation)
        await stage.advance()
    await stage.release(bundle, 6)
    await stage.advance()


async def _neighbours(stage: OrderStage) -> None:
    await asyncio.gather(*(stage.own(bundle, 3) for bundle in stage.bundles))
    await asyncio.gather(*(stage.serve(bundle, 3) for bundle in stage.bundles))
    await stage.advance()
    first, second, *others = stage.bundles
    await stage.release(first, 3, "another")
    await stage.advance()
    await stage.own(second, 5)
    await stage.serve(second, 5)
    await stage.advance()
    await asyncio.gather(*(stage.release(bundle, 3) for bundle in others), stage.release(second, 5))
    await stage.advance()


async def _split(stage: OrderStage) -> None:
    parent, children = stage.bundles[0], stage.halves
    await stage.own(parent, 3)
    await stage.serve(parent, 3)
    await stage.advance()
    await stage.split(parent, children, 6)
    await stage.advance()
    await stage.commit(parent, children, 6)
    await stage.advance()
    await stage.release(children[0], 6, "another")
    await stage.call(Hook.ON_MOVED, children[0], "another", {})
    await stage.advance()


async def _split_given_up(stage: OrderStage) -> None:
    parent = stage.bundles[0]
    await stage.own(parent, 3)
    await stage.serve(parent, 3)
    await stage.advance()
    await stage.call(Hook.ON_SPLIT, parent, tuple(stage.halves), 9)
    await stage.own(stage.halves[0], 9)
    await stage.advance()
    await asyncio.gather(stage.release(stage.halves[0], 9), stage.own(parent, 5))
    await stage.serve(parent, 5)
    await stage.advance()
    await stage.split(parent, stage.thirds, 10)
    await asyncio.gather(*(stage.serve(child, 10) for child in stage.thirds))
    await stage.call(Hook.ON_SPLIT_DONE, parent, tuple(stage.thirds), 10)
    await stage.advance()


async def _split_in_an_expired_lease(stage: OrderStage) -> None:
    parent, children = stage.bundles[0], stage.halves
    await stage.own(parent, 3)
    await stage.serve(parent, 3)
    await stage.split(parent, children, 6)
    await asyncio.gather(stage.release(parent, 3), *(stage.release(child, 6) for child in children))
    await stage.advance()
    for child in children:
        await stage.own(child, 7)
        await stage.serve(child, 7)
    await stage.advance()


async def _cancelled(stage: OrderStage) -> None:
    plan = stage.monitor.plan
    faults = [(hook, hold_s) for hook in (Hook.ON_OWN, Hook.ON_RELEASE) for hold_s in (10 * stage.deadline_s, -1.0)]
    for first, bundle, (hook, hold_s) in zip(range(3, 100, 10), stage.bundles, faults, strict=False):
        plan.hold, plan.holds, plan.hold_s = (hook, bundle), 1, hold_s
        await stage.own(bundle, first)
        await stage.own(bundle, first + 1)
        await stage.serve(bundle, first + 1)
        await stage.advance()
        await stage.release(bundle, first + 1)
        await stage.advance()


Order = Callable[[OrderStage], Awaitable[None]]

PLAIN_ORDERS: dict[str, Order] = {
    "assigned": _assigned,
    "moved-and-back": _moved_and_back,
    "undone": _undone,
    "released-at-once": _released_at_once,
    "release-of-an-unknown-bundle": _release_of_an_unknown_bundle,
    "resumed": _resumed,
    "neighbours": _neighbours,
    "cancelled": _cancelled,
}
SPLIT_ORDERS: dict[str, Order] = {
    "split": _split,
    "split-given-up": _split_given_up,
    "split-in-an-expired-lease": _split_in_an_expired_lease,
}
