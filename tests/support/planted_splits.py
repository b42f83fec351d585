"""Planted mistakes in splits and in storage."""

from collections.abc import Sequence

from statechannel.api import BrokerHooks
from statechannel.testing import HookPromise as P
from tests.support.hook_stores import Disk, Gate, RefusedError, Shards
from tests.support.planted import planted

# --- splits ---------------------------------------------------------------------------------------------------------


@planted("split", P.STOPS_WRITES_FOR_SPLIT)
class WritesOnInASplit(Gate):
    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        return


@planted("assigned", P.HAS_ON_SPLIT)
class KnowsNoSplits(Gate):
    on_split = BrokerHooks.on_split


@planted("split-by-channel", P.STOPS_ONLY_ITS_BUNDLE, P.SERVES, P.TAKES_WRITES)
class StopsAllWritesForASplit(Shards):
    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        await super().on_split(parent, children, generation)
        self.writable.clear()


@planted("split", P.PARENT_ENDS)
class ReadsTheParentForEver(Shards):
    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.disk.drop(parent)


@planted("split-given-up", P.SERVES, P.TAKES_WRITES)
class StaysFrozen(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.frozen: set[str] = set()

    async def on_serve(self, bundle: str, generation: int) -> None:
        if bundle not in self.frozen:
            self.serving[bundle] = generation

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.frozen.add(parent)
        self.serving.pop(parent, None)


@planted("split-given-up", P.SERVES)
class ChildrenWaitForTheEnd(Gate):
    """`on_split_done` may come after `on_serve` of the children."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[str] = set()

    async def on_serve(self, bundle: str, generation: int) -> None:
        if bundle not in self.waiting:
            self.serving[bundle] = generation

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.serving.pop(parent, None)
        self.waiting.update(children)

    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.waiting.difference_update(children)


@planted("split-given-up", P.RETURNS)
class SplitsOnlyOnce(Gate):
    def __init__(self) -> None:
        super().__init__()
        self.plans: dict[str, tuple[str, ...]] = {}

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.serving.pop(parent, None)
        if self.plans.setdefault(parent, tuple(children)) != tuple(children):
            raise RuntimeError("is being split already")


@planted("split-given-up", P.RETURNS, P.TAKES_WRITES, P.SERVES)
class FencesByAProposal(Shards):
    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        await super().on_split(parent, children, generation)
        self.disk.generations[parent] = generation - 1


@planted("split-by-channel", P.KEEPS_WRITES)
class DropsTheParentTooEarly(Shards):
    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        await super().on_split(parent, children, generation)
        self.disk.entries[parent] = {}


@planted("split-by-channel", P.KEEPS_WRITES)
class CopiesNothing(Shards):
    async def on_own(self, bundle: str, generation: int) -> None:
        self.disk.entries.setdefault(bundle, {})
        self.disk.generations.setdefault(bundle, 0)
        await super().on_own(bundle, generation)


@planted("split-by-channel", P.KEEPS_WRITES)
class DropsTheChildren(Shards):
    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        await super().on_split_done(parent, children, generation)
        for child in children:
            self.disk.entries[child].clear()


# --- storage --------------------------------------------------------------------------------------------------------


@planted("handed-over", P.KEEPS_WRITES)
class DropsAtARelease(Shards):
    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        await super().on_release(bundle, generation, destination)
        self.disk.entries.pop(bundle, None)
        self.disk.generations.pop(bundle, None)


@planted("handed-over", P.KEEPS_WRITES)
class OpensEmpty(Shards):
    async def on_own(self, bundle: str, generation: int) -> None:
        await super().on_own(bundle, generation)
        self.disk.entries[bundle] = {}


@planted("paused", P.FENCES)
class WritesWithoutAFence(Shards):
    async def put(self, bundle: str, topic: str, value: str) -> None:
        if bundle not in self.writable:
            raise RefusedError(bundle)
        self.disk.entries[bundle][topic] = value


@planted("paused", P.FENCES)
class FencesTheWrongWay(Shards):
    async def put(self, bundle: str, topic: str, value: str) -> None:
        if self.writable[bundle] > self.disk.generations[bundle]:
            raise RefusedError(bundle)
        self.disk.entries[bundle][topic] = value


@planted("handed-over", P.KEEPS_WRITES)
class KeepsWritesInMemory(Shards):
    """What is not yet on the disk is forgotten with the bundle."""

    def __init__(self, disk: Disk | None = None) -> None:
        super().__init__(disk)
        self.buffer: dict[str, dict[str, str]] = {}

    async def put(self, bundle: str, topic: str, value: str) -> None:
        if bundle not in self.writable:
            raise RefusedError(bundle)
        self.buffer.setdefault(bundle, {})[topic] = value

    async def get(self, bundle: str, topic: str) -> str | None:
        return self.buffer.get(bundle, {}).get(topic) or await super().get(bundle, topic)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        await super().on_release(bundle, generation, destination)
        self.buffer.pop(bundle, None)
