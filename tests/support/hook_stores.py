"""Brokers that keep the promises of hooks, in several ways: what a check has to pass."""

import asyncio
import threading
from collections.abc import Sequence

from statechannel.api import BlockingBrokerHooks, BrokerHooks, BundleRange


class RefusedError(Exception):
    """The client looks the topic up again."""


class Disk:
    """Storage of all brokers: a shard a bundle, fenced by generation."""

    def __init__(self) -> None:
        self.generations: dict[str, int] = {}
        self.entries: dict[str, dict[str, str]] = {}

    def open(self, bundle: str, generation: int) -> None:
        known = self.generations.get(bundle)
        if known is not None and known > generation:
            raise RefusedError(f"{bundle} is owned by {known}")
        if known is None:
            self.entries[bundle] = self.copied(bundle, generation)
        self.generations[bundle] = generation

    def copied(self, bundle: str, generation: int) -> dict[str, str]:
        """What the smallest bundle around it has for it."""
        wanted = BundleRange.parse(bundle)
        around = [known for known in self.entries if BundleRange.parse(known).covers(wanted)]
        if not around:
            return {}
        parent = min(around, key=lambda key: BundleRange.parse(key).upper - BundleRange.parse(key).lower)
        if self.generations[parent] >= generation:
            raise RefusedError(f"{parent} has another owner")
        return {topic: value for topic, value in self.entries[parent].items() if wanted.contains(topic)}

    def drop_within(self, parent: str) -> None:
        """Drop what a split that was given up has left."""
        whole = BundleRange.parse(parent)
        for key in [key for key in self.entries if key != parent and whole.covers(BundleRange.parse(key))]:
            self.drop(key)

    def drop(self, bundle: str) -> None:
        self.entries.pop(bundle, None)
        self.generations.pop(bundle, None)

    def put(self, bundle: str, generation: int, topic: str, value: str) -> None:
        if self.generations.get(bundle) != generation:
            raise RefusedError(f"{bundle} has another owner")
        self.entries[bundle][topic] = value


class Shards(BrokerHooks):
    """A store with a shard a bundle, that reads on while it is split."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.serving: dict[str, int] = {}
        self.writable: dict[str, int] = {}

    async def on_own(self, bundle: str, generation: int) -> None:
        await asyncio.sleep(0.01)
        self.disk.open(bundle, generation)

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = self.writable[bundle] = generation

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.writable.pop(bundle, None)
        await asyncio.sleep(0.01)
        self.serving.pop(bundle, None)

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.writable.pop(parent, None)
        await asyncio.sleep(0.01)
        if self.disk.generations.get(parent, generation) >= generation:
            raise RefusedError(f"{parent} has another owner")
        self.disk.drop_within(parent)

    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.serving.pop(parent, None)
        self.disk.drop(parent)

    async def put(self, bundle: str, topic: str, value: str) -> None:
        if bundle not in self.writable:
            raise RefusedError(bundle)
        self.disk.put(bundle, self.writable[bundle], topic, value)

    async def get(self, bundle: str, topic: str) -> str | None:
        if bundle not in self.serving:
            raise RefusedError(bundle)
        return self.disk.entries[bundle].get(topic)


class Gate(BrokerHooks):
    """A broker without data: one dictionary."""

    def __init__(self) -> None:
        self.serving: dict[str, int] = {}

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.serving[bundle] = generation

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.serving.pop(bundle, None)

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.serving.pop(parent, None)


class Workers(Gate):
    """One task a bundle, which serves from a moment after `on_serve` on, until `on_release` has awaited its end."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def on_own(self, bundle: str, generation: int) -> None:
        await self._stop(bundle)
        await asyncio.to_thread(lambda: None)

    async def on_serve(self, bundle: str, generation: int) -> None:
        await self._stop(bundle)
        self.tasks[bundle] = asyncio.create_task(self._work(bundle, generation))

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        await self._stop(bundle)

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        await self._stop(parent)

    async def _work(self, bundle: str, generation: int) -> None:
        await asyncio.sleep(0.3)
        self.serving[bundle] = generation
        try:
            await asyncio.Event().wait()
        finally:
            del self.serving[bundle]

    async def _stop(self, bundle: str) -> None:
        task = self.tasks.pop(bundle, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})


class Threads(BlockingBrokerHooks):
    """Plain functions with a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.serving: dict[str, int] = {}
        self.prepared: set[str] = set()

    def on_own(self, bundle: str, generation: int) -> None:
        with self.lock:
            self.prepared.add(bundle)

    def on_serve(self, bundle: str, generation: int) -> None:
        with self.lock:
            self.serving[bundle] = generation

    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        with self.lock:
            self.serving.pop(bundle, None)
            self.prepared.discard(bundle)

    def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        with self.lock:
            self.serving.pop(parent, None)


class Locked(Gate):
    """Prepares one bundle after the other, slowly, and cleans up when it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()
        self.opening: set[str] = set()

    async def on_own(self, bundle: str, generation: int) -> None:
        async with self.lock:
            self.opening.add(bundle)
            try:
                await asyncio.sleep(0.2)
            finally:
                self.opening.discard(bundle)

    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        await asyncio.sleep(2.0)


class Blank(BrokerHooks):
    """Only prepares: a broker that asks the channel before each use."""

    async def on_own(self, bundle: str, generation: int) -> None:
        await asyncio.sleep(1.0)
