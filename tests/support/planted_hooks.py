"""Planted mistakes in serving, releasing, repeating and time."""
# ruff: noqa: ASYNC251, RUF012, TRY300

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from statechannel.api import BrokerHooks, StateChannel
from statechannel.testing import HookPromise as P
from tests.support.hook_stores import Gate, Threads
from tests.support.planted import planted

# --- serving too early, too late, by the wrong generation -----------------------------------------------------------


@planted("assigned", P.WAITS_FOR_SERVE)
class ServesInOnOwn(Gate):
    async def on_own(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = generation


@planted("assigned", P.WAITS_FOR_SERVE)
class ServesSoonAfterOnOwn(Gate):
    async def on_own(self, bundle: str, generation: int) -> None:
        asyncio.get_running_loop().call_later(0.5, self.serving.__setitem__, bundle, generation)


@planted("assigned", P.SERVES)
class NeverServes(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        return


@planted("assigned", P.SERVES)
class ServesMuchLater(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        asyncio.get_running_loop().call_later(30.0, self.serving.__setitem__, bundle, generation)


@planted("assigned", P.CURRENT_GENERATION)
class ConstantGeneration(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = 1


@planted("resumed", P.CURRENT_GENERATION)
class KeepsFirstGeneration(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving.setdefault(bundle, generation)


@planted("split-given-up", P.CURRENT_GENERATION)
class KeepsHighestGeneration(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.highest: dict[str, int] = {}

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = self.highest[bundle] = max(generation, self.highest.get(bundle, 0))

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.highest[parent] = generation
        await super().on_split(parent, children, generation)


@planted("neighbours", P.CURRENT_GENERATION)
class OneGenerationForAll(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving = dict.fromkeys([*self.serving, bundle], generation)


@planted("resumed", P.RETURNS)
class ServesOnlyOnce(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        assert bundle not in self.serving, "served already"
        self.serving[bundle] = generation


@planted("handed-over", P.WAITS_FOR_SERVE, P.CURRENT_GENERATION)
class SharedClassAttribute(BrokerHooks):
    serving: dict[str, int] = {}

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = generation

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.serving.pop(parent, None)


class _ByNamespace(dict[str, int]):
    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key.rpartition("/")[0], default)

    def pop(self, key: str, default: Any = None) -> Any:
        return super().pop(key.rpartition("/")[0], default)

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key.rpartition("/")[0], value)


@planted("neighbours", P.WAITS_FOR_SERVE, P.STOPS_ONLY_ITS_BUNDLE)
class KeyedByNamespace(Gate):
    def __init__(self) -> None:
        self.serving = _ByNamespace()


@planted("released-at-once", P.STOPS)
class ServesAfterARelease(Gate):
    """Its task does not look whether the bundle was released meanwhile."""

    async def on_serve(self, bundle: str, generation: int) -> None:
        asyncio.get_running_loop().call_later(0.5, self.serving.__setitem__, bundle, generation)


@planted("assigned", P.SERVES)
class MisspeltState(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle.upper()] = generation


# --- releases -------------------------------------------------------------------------------------------------------


@planted("assigned", P.STOPS)
class ReleasesNothing(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        return


@planted("assigned", P.STOPS)
class ReleasesLater(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        asyncio.get_running_loop().call_later(2.0, self.serving.pop, bundle, None)


@planted("neighbours", P.STOPS_ONLY_ITS_BUNDLE, P.SERVES)
class ReleasesAll(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.clear()


@planted("undone", P.RETURNS)
class ReleasesWithKeyError(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        del self.serving[bundle]


@planted("undone", P.RETURNS)
class ReleasesWithAnAssertion(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        assert self.serving.get(bundle) == generation
        self.serving.pop(bundle)


@planted("resumed", P.STOPS)
class ReleasesFirstGenerationOnly(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, int] = {}

    async def on_own(self, bundle: str, generation: int) -> None:
        self.first.setdefault(bundle, generation)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        if self.first.get(bundle) == generation:
            self.serving.pop(bundle, None)


@planted("assigned", P.STOPS)
class ReleasesOnlyToADestination(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        if destination is not None:
            self.serving.pop(bundle, None)


@planted("assigned", P.RETURNS)
class NeedsADestination(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)
        print("redirect to " + destination)  # type: ignore[operator]


@planted("moved-and-back", P.RETURNS)
class KnowsItsDestinations(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)
        if destination is not None:
            _ = {"a": "tcp://a", "b": "tcp://b"}[destination]


@planted("neighbours", P.STOPS_ONLY_ITS_BUNDLE, P.SERVES)
class ReleasesByPrefix(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        prefix = bundle.rpartition("/")[0]
        self.serving = {key: value for key, value in self.serving.items() if not key.startswith(prefix)}


@planted("moved-and-back", P.STOPS)
class ProxiesForItsFormerBundle(Gate):
    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        self.serving[bundle] = 0


@planted("moved-and-back", P.RETURNS)
class NeedsAUrlOfTheNewOwner(Gate):
    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        print("redirect to", urls["pulsar"])


@planted("moved-and-back", P.RETURNS)
class NeedsANewOwner(Gate):
    async def on_moved(self, bundle: str, owner: str | None, urls: Mapping[str, str]) -> None:
        print("moved to", owner.upper())  # type: ignore[union-attr]


@planted("undone", P.RETURNS)
class BlockingKeyError(Threads):
    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        with self.lock:
            del self.serving[bundle]


# --- not idempotent -------------------------------------------------------------------------------------------------


@planted("resumed", P.RETURNS)
class OpensOnlyOnce(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.open: set[str] = set()

    async def on_own(self, bundle: str, generation: int) -> None:
        if bundle in self.open:
            raise FileExistsError(bundle)
        self.open.add(bundle)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)
        self.open.discard(bundle)


@planted("undone", P.RETURNS)
class RefusesTheSameGeneration(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    async def on_own(self, bundle: str, generation: int) -> None:
        if self.seen.get(bundle, -1) >= generation:
            raise ValueError("a late call")
        self.seen[bundle] = generation


@planted("killed", P.RETURNS)
class LeavesALockFile(Gate):
    """What a killed process has left keeps its bundle closed for ever."""

    locks: dict[str, int] = {}

    async def on_own(self, bundle: str, generation: int) -> None:
        if bundle in LeavesALockFile.locks:
            raise FileExistsError(bundle)
        LeavesALockFile.locks[bundle] = id(self)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)
        LeavesALockFile.locks.pop(bundle, None)


@planted("cancelled", P.RETURNS, P.ON_TIME)
class StaysLockedWhenCancelled(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.opening: set[str] = set()

    async def on_own(self, bundle: str, generation: int) -> None:
        if bundle in self.opening:
            raise RuntimeError("is being opened already")
        self.opening.add(bundle)
        await asyncio.sleep(0.01)
        self.opening.discard(bundle)


# --- time -----------------------------------------------------------------------------------------------------------


@planted("assigned", P.YIELDS)
class BlocksInOnOwn(Gate):
    async def on_own(self, bundle: str, generation: int) -> None:
        time.sleep(0.2)


@planted("assigned", P.YIELDS)
class BlocksInOnServe(Gate):
    async def on_serve(self, bundle: str, generation: int) -> None:
        await asyncio.sleep(0)
        time.sleep(0.2)
        self.serving[bundle] = generation


@planted("assigned", P.YIELDS)
class BlocksInOnRelease(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        until_s = time.monotonic() + 0.2
        while time.monotonic() < until_s:
            pass
        self.serving.pop(bundle, None)


@planted("split", P.YIELDS)
class BlocksInOnSplit(Gate):
    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.serving.pop(parent, None)
        time.sleep(0.2)


@planted("assigned", P.ON_TIME)
class NeverReturnsFromOnOwn(Gate):
    async def on_own(self, bundle: str, generation: int) -> None:
        await asyncio.Event().wait()


@planted("assigned", P.ON_TIME)
class TakesAMinute(Gate):
    async def on_own(self, bundle: str, generation: int) -> None:
        await asyncio.sleep(60)


@planted("assigned", P.ON_TIME)
class WaitsForItsClients(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)
        await asyncio.Event().wait()


@planted("cancelled", P.OBEYS_CANCELLATION)
class IgnoresItsCancellation(Gate):
    async def on_own(self, bundle: str, generation: int) -> None:
        for _ in range(100):
            try:
                await asyncio.sleep(0.01)
                return
            except asyncio.CancelledError:
                await asyncio.sleep(20)


@planted("cancelled", P.OBEYS_CANCELLATION)
class RetriesForEver(Gate):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)
        for _ in range(30):
            try:
                await asyncio.sleep(0.01)
                return
            except BaseException:
                with contextlib.suppress(BaseException):
                    await asyncio.sleep(10)


@planted("neighbours", P.ON_TIME)
class OneLockForAllBundles(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def on_own(self, bundle: str, generation: int) -> None:
        await self.lock.acquire()

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = generation
        self.lock.release()


@planted("handed-over", P.RETURNS, attach=True)
class CallsTheChannel(Gate):
    channel: StateChannel

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = generation
        if hasattr(self, "channel"):
            await self.channel.lookup(bundle)


@planted("handed-over", P.ON_TIME, attach=True)
class AwaitsATaskThatCallsTheChannel(Gate):
    channel: StateChannel

    async def on_own(self, bundle: str, generation: int) -> None:
        if hasattr(self, "channel"):
            await asyncio.create_task(self.channel.lookup(bundle, timeout_s=100))


@planted("cancelled", P.RETURNS)
class SharesAnOpeningThatWasCancelled(Gate):
    """The task that opens a bundle is kept, also one that was cancelled with the hook that awaited it."""

    def __init__(self) -> None:
        super().__init__()
        self.opening: dict[str, asyncio.Task[None]] = {}

    async def on_own(self, bundle: str, generation: int) -> None:
        if bundle not in self.opening:
            self.opening[bundle] = asyncio.create_task(asyncio.sleep(0.01))
        await self.opening[bundle]
