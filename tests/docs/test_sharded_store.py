"""The store of hooks.md, as it stands there, on a real channel: what is written while a bundle is split is not lost."""

import asyncio
import importlib.util
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from statechannel.api import BrokerHooks, BundleRange, Done, Owned, Rejected, StateChannel
from tests.docs.generate import ROOT
from tests.support.channels import created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

NAMESPACE = "store/orders"
WHOLE = f"{NAMESPACE}/0x00000000_0xffffffff"
TOPICS = [f"{NAMESPACE}/t{number}" for number in range(20)]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sharded_store", ROOT / "design/examples/sharded_store.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STORE = example()


class SlowStore(STORE.ShardedStore):  # type: ignore[name-defined,misc]
    """Leaves clients time to write in the middle of a split, and fails the first one if it is to."""

    def __init__(self, path: str, *, fails: bool) -> None:
        super().__init__(path)
        self.fails = fails
        self.calls: list[str] = []

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.calls.append("on_split")
        await asyncio.sleep(0.1)  # the parent still takes writes
        await super().on_split(parent, children, generation)

    async def on_own(self, bundle: str, generation: int) -> None:
        await super().on_own(bundle, generation)
        await asyncio.sleep(0.1)
        if bundle != WHOLE and self.fails:
            self.fails = False
            raise OSError("disk full")

    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        await super().on_split_done(parent, children, generation)
        self.calls.append("on_split_done")


async def test_a_process_that_was_paused_in_a_split_destroys_nothing_when_it_wakes(tmp_path: Path) -> None:
    """The bundle was given to another meanwhile, who has split it."""
    sleeper, other = STORE.ShardedStore(str(tmp_path / "store")), STORE.ShardedStore(str(tmp_path / "store"))
    halves = (f"{NAMESPACE}/0x00000000_0x80000000", f"{NAMESPACE}/0x80000000_0xffffffff")
    await sleeper.on_own(WHOLE, 2)
    await sleeper.on_serve(WHOLE, 2)
    sleeper.put(WHOLE, f"{NAMESPACE}/t", "kept")
    await other.on_own(WHOLE, 5)
    with pytest.raises(RuntimeError, match="has another owner"):
        await sleeper.on_split(WHOLE, halves, 4)
    await other.on_split(WHOLE, halves, 7)
    for half in halves:
        await other.on_own(half, 7)
        await other.on_serve(half, 7)
    await other.on_split_done(WHOLE, halves, 7)
    with pytest.raises(RuntimeError, match="has another owner"):
        await sleeper.on_split(WHOLE, halves, 4)
    await sleeper.on_split_done(WHOLE, halves, 4)
    (half,) = (half for half in halves if BundleRange.parse(half).contains(f"{NAMESPACE}/t"))
    assert other.get(half, f"{NAMESPACE}/t") == "kept"


def halves_of(bundle: str, at: int) -> tuple[str, str]:
    whole = BundleRange.parse(bundle)
    return (f"{NAMESPACE}/0x{whole.lower:08x}_0x{at:08x}", f"{NAMESPACE}/0x{at:08x}_0x{whole.upper:08x}")


async def given_up_in_the_middle(store: Any) -> None:
    """The calls of a broker whose second child cannot be prepared; what the parent comes back by is below what was proposed."""
    halves = halves_of(WHOLE, 0x80000000)
    await store.on_own(WHOLE, 3)
    await store.on_serve(WHOLE, 3)
    for topic in TOPICS:
        store.put(WHOLE, topic, "before")
    await store.on_split(WHOLE, halves, 6)
    await store.on_own(halves[0], 6)
    for half in halves:
        await store.on_release(half, 6, None)
    await store.on_own(WHOLE, 5)
    await store.on_serve(WHOLE, 5)
    for topic in TOPICS:
        store.put(WHOLE, topic, "after")


@pytest.mark.parametrize("generation", [6, 7, 9])
@pytest.mark.parametrize("at", [0x80000000, 0x10000000, 0xF0000000])
async def test_after_a_split_that_was_given_up_another_process_owns_and_splits_the_parent(
    tmp_path: Path, generation: int, at: int
) -> None:
    """Its generation may be the one that was proposed for the children; its cut may lie elsewhere."""
    first, second = STORE.ShardedStore(str(tmp_path / "store")), STORE.ShardedStore(str(tmp_path / "store"))
    await given_up_in_the_middle(first)
    await second.on_own(WHOLE, generation)
    await second.on_serve(WHOLE, generation)
    with pytest.raises(STORE.NotServedError, match="has another owner"):
        first.put(WHOLE, TOPICS[0], "late")
    parts = [WHOLE]
    for cut in (at, at // 2, at + (0xFFFFFFFF - at) // 2):
        (parent,) = (p for p in parts if BundleRange.parse(p).lower < cut < BundleRange.parse(p).upper)
        generation += 3
        await second.on_split(parent, halves_of(parent, cut), generation)
        for half in halves_of(parent, cut):
            await second.on_own(half, generation)
            await second.on_serve(half, generation)
        await second.on_split_done(parent, halves_of(parent, cut), generation)
        parts = [*(p for p in parts if p != parent), *halves_of(parent, cut)]
    for topic in TOPICS:
        (part,) = (p for p in parts if BundleRange.parse(p).contains(topic))
        assert second.get(part, topic) == "after"


async def test_a_child_is_copied_from_no_parent_that_another_process_owns_by_now(tmp_path: Path) -> None:
    sleeper, other = STORE.ShardedStore(str(tmp_path / "store")), STORE.ShardedStore(str(tmp_path / "store"))
    halves = halves_of(WHOLE, 0x80000000)
    await sleeper.on_own(WHOLE, 3)
    await sleeper.on_serve(WHOLE, 3)
    await sleeper.on_split(WHOLE, halves, 6)
    await other.on_own(WHOLE, 6)  # forced in: the number that the split proposed
    with pytest.raises(RuntimeError, match="has another owner"):
        await sleeper.on_own(halves[0], 6)


class TopicFencedStore(BrokerHooks):
    """Fences by topic, as hooks.md says: by what is served, not by what a split proposes.

    Attributes:
        fences: Highest generation by topic, in storage that all processes share.
    """

    def __init__(self, fences: dict[str, int]) -> None:
        self.fences = fences
        self.children: set[str] = set()

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.children |= set(children)

    async def on_own(self, bundle: str, generation: int) -> None:
        if bundle not in self.children:
            self._fence(bundle, generation)

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.children.discard(bundle)
        self._fence(bundle, generation)

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.children.discard(bundle)

    def put(self, bundle: str, topic: str, value: str) -> None:
        """The tests of the sharded store write through it."""

    def _fence(self, bundle: str, generation: int) -> None:
        for topic in TOPICS:
            if BundleRange.parse(bundle).contains(topic):
                if self.fences.get(topic, 0) > generation:
                    raise RuntimeError(f"{topic} is fenced by {self.fences[topic]}, which is above {generation}")
                self.fences[topic] = generation


async def test_a_store_that_fences_by_topic_takes_the_parent_back_also_in_another_process() -> None:
    fences: dict[str, int] = {}
    first, second = TopicFencedStore(fences), TopicFencedStore(fences)
    await given_up_in_the_middle(first)
    await second.on_own(WHOLE, 6)
    await second.on_serve(WHOLE, 6)
    assert fences == dict.fromkeys(TOPICS, 6)
    with pytest.raises(RuntimeError, match="fenced by 6"):
        await first.on_own(WHOLE, 5)


class Client:
    """Writes all the time, to one new topic after the other, and remembers what was acknowledged."""

    def __init__(self, channel: StateChannel, store: Any) -> None:
        self.acknowledged: dict[str, str] = {}
        self.count = 0
        self._channel, self._store = channel, store

    async def bundle_of(self, topic: str) -> str:
        async with asyncio.timeout(WAIT_S):
            while not isinstance(found := await self._channel.lookup(topic, WAIT_S), Owned):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found.bundle

    async def write(self) -> None:
        while True:
            topic, value = f"{NAMESPACE}/topic-{self.count}", str(self.count)
            try:
                self._store.put(await self.bundle_of(topic), topic, value)
            except STORE.NotServedError:
                await asyncio.sleep(0.005)
                continue
            self.acknowledged[topic] = value
            self.count += 1
            await asyncio.sleep(0.002)

    async def written(self, more: int) -> None:
        wanted = self.count + more
        async with asyncio.timeout(WAIT_S):
            while self.count < wanted:  # noqa: ASYNC110 - a plain number is looked at
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("fails", [False, True], ids=["committed", "given up, then committed"])
async def test_no_write_is_lost_by_a_split(kafka: Kafka, topic_prefix: str, tmp_path: Path, fails: bool) -> None:
    path = str(tmp_path / "store.db")
    store = SlowStore(path, fails=fails)
    settings = make_settings(kafka.bootstrap_servers, f"{topic_prefix}-store")
    async with StateChannel.open(settings, broker="b1", hooks=store, create_topics=True) as channel:
        await created(channel, NAMESPACE, 1)
        client = Client(channel, store)
        writing = asyncio.create_task(client.write())
        await client.written(50)
        if fails:
            given_up = await (await channel.split(WHOLE)).outcome(WAIT_S)
            assert isinstance(given_up, Rejected)
            assert given_up.reason == "given-up"
            assert "on_own raised OSError: disk full" in given_up.message
            await client.written(50)  # the parent takes writes again: the copies at the children are old now
        assert isinstance(await (await channel.split(WHOLE)).outcome(WAIT_S), Done)
        await client.written(50)
        writing.cancel()
        await asyncio.wait({writing})
        found = {topic: store.get(await client.bundle_of(topic), topic) for topic in client.acknowledged}
        assert found == client.acknowledged
        assert {await client.bundle_of(topic) for topic in client.acknowledged} == set(channel.serving())
        assert store.calls == [*["on_split"] * (1 + fails), "on_split_done"]
    with sqlite3.connect(path) as file:
        shards = {key for (key,) in file.execute("SELECT bundle FROM shard")}
        assert shards == {f"{NAMESPACE}/0x00000000_0x7fffffff", f"{NAMESPACE}/0x7fffffff_0xffffffff"}
        entries = file.execute("SELECT bundle, topic FROM entry").fetchall()
    assert len(entries) == len(client.acknowledged)
    assert all(BundleRange.parse(bundle).contains(topic) for bundle, topic in entries)
