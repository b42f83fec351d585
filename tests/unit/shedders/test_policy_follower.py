"""The follower of policies: what stands on while it reads anew, revival with back-off, and lapses without a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shedders.live.policy_follower import FollowerClocks, PolicyFollower
from shedders.live.policy_kinds import PolicyKind
from shedders.live.policy_record import PolicyRecord, encode, made_key
from shedders.live.policy_standing import Standing
from statechannel.kafka.light_topic import LightBatch, LightRecord
from statechannel.runtime.supervision import RestartPolicy


def cordon(broker: str, offset: int, until_ms: int | None = None) -> LightRecord:
    key = made_key(PolicyKind.CORDON, broker, override=until_ms is not None)
    return LightRecord(key.encode(), encode(PolicyRecord(key, {}, "ann", "", until_ms, 1)), (), offset, 1)


class Reader:
    """A reader whose thread is the test."""

    last_error = ""

    def __init__(self, sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> None:
        self.sink, self.failed = sink, failed
        self.closed = False

    def start(self) -> None:
        pass

    def close(self, timeout_s: float = 5.0) -> bool:
        self.closed = True
        return True

    async def hand(self, *records: LightRecord, opened: bool = False, caught_up: bool = True) -> None:
        await asyncio.to_thread(self.sink, LightBatch(records, opened, len(records), caught_up))
        await asyncio.sleep(0)


class World:
    """A follower with what it is made of."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.readers: list[Reader] = []
        self.refusals = 0
        self.told: list[Standing] = []
        self.follower = PolicyFollower(
            self._make,
            on_change=self.told.append,
            clocks=FollowerClocks(now_ms=lambda: self.now_ms),
            policy=RestartPolicy(limit=2, first_wait_s=0.01, longest_wait_s=0.05),
        )

    def _make(self, sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> Reader:
        if self.refusals:
            self.refusals -= 1
            raise OSError("no reader today")
        self.readers.append(Reader(sink, failed))
        return self.readers[-1]

    @property
    def cordons(self) -> list[str] | None:
        standing = self.follower.standing
        return None if standing is None else sorted(standing.policies.cordons)


@pytest.fixture
async def world() -> World:
    return World()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for is anything
            await asyncio.sleep(0.005)


async def test_nothing_is_known_before_the_topic_was_read_to_its_end(world: World) -> None:
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(opened=True, caught_up=False)
    await reader.hand(cordon("b1", 0), caught_up=False)
    assert world.cordons is None
    assert not await world.follower.wait_known(0.01)
    assert world.follower.status()["known"] is False
    await reader.hand(cordon("b2", 1))
    assert await world.follower.wait_known(1)
    assert world.cordons == ["b1", "b2"]
    assert [sorted(one.policies.cordons) for one in world.told] == [["b1", "b2"]]
    await world.follower.close()
    assert reader.closed


async def test_an_empty_topic_is_known_at_once(world: World) -> None:
    world.follower.start()
    await world.readers[0].hand(opened=True)
    assert world.cordons == []
    await world.follower.close()


async def test_what_was_known_stands_while_the_topic_is_read_anew(world: World) -> None:
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(cordon("b1", 7), opened=True)
    await reader.hand(opened=True, caught_up=False)
    await reader.hand(cordon("b2", 0), caught_up=False)
    assert world.cordons == ["b1"]
    await reader.hand(caught_up=True)
    assert world.cordons == ["b2"]
    await world.follower.close()


async def test_a_reader_that_fails_is_replaced_and_what_was_known_stands(world: World) -> None:
    world.follower.start()
    first = world.readers[0]
    await first.hand(cordon("b1", 0), opened=True)
    world.refusals = 1
    await asyncio.to_thread(first.failed, RuntimeError("thread"))
    await until(lambda: len(world.readers) == 2)
    assert world.cordons == ["b1"]
    assert world.follower.status()["failures"] == 2
    await first.hand(cordon("b9", 9))  # what the old one still says is not heard
    assert world.cordons == ["b1"]
    await world.readers[1].hand(cordon("b2", 1), opened=True)
    assert world.cordons == ["b2"]
    await world.follower.close()


async def test_it_goes_on_trying_beyond_the_limit(world: World) -> None:
    world.refusals = 6
    world.follower.start()
    await until(lambda: world.readers)
    assert world.follower.status()["failures"] == 6
    await world.follower.close()


async def test_a_lapse_is_told_without_a_record(world: World) -> None:
    world.follower.start()
    await world.readers[0].hand(cordon("b1", 0, until_ms=50), opened=True)
    assert world.cordons == ["b1"]
    world.now_ms = 50
    assert world.cordons == []
    await until(lambda: len(world.told) == 2)
    assert world.told[-1].policies.cordons == {}
    await world.follower.close()


async def test_a_listener_that_fails_does_not_end_it(world: World) -> None:
    def fail(_: Standing) -> None:
        raise ValueError("listener")

    world.follower._on_change = fail
    world.follower.start()
    await world.readers[0].hand(cordon("b1", 0), opened=True)
    await world.readers[0].hand(cordon("b2", 1))
    assert world.cordons == ["b1", "b2"]
    await world.follower.close()


async def test_junk_is_counted_and_told(world: World) -> None:
    world.follower.start()
    await world.readers[0].hand(LightRecord(b"pin/t/n", b"{", (), 0, 1), opened=True)
    status = world.follower.status()
    assert status["junk"] == {"not-json": 1}
    assert status["closed"]
    assert "offset 0" in status["last_junk"]
    await world.follower.close()


async def test_more_batches_than_it_has_room_for_wait_in_the_reader(world: World) -> None:
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(opened=True)
    waiting = [asyncio.create_task(reader.hand(cordon(f"b{number}", number))) for number in range(20)]
    await asyncio.gather(*waiting)
    assert len(world.cordons or ()) == 20
    await world.follower.close()


async def test_it_is_started_once(world: World) -> None:
    world.follower.start()
    with pytest.raises(RuntimeError):
        world.follower.start()
    await world.follower.close()
    await world.readers[0].hand(cordon("b1", 0), opened=True)
    assert world.told == []
