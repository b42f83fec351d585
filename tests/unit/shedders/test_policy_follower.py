"""The follower of policies: what stands on while it reads anew, revival with back-off, and lapses without a record."""

import asyncio
from collections.abc import Callable

import pytest

from shedders.policies.book import BookBounds
from shedders.policies.effective import EffectivePolicies
from shedders.policies.follower import FollowerClocks, PolicyFollower, TopicWatchSettings
from shedders.policies.kinds import CLUSTER, PolicyKind
from shedders.policies.record import PolicyRecord, encode, made_key
from shedders.policies.topic import TopicSeen
from statechannel.kafka.light_topic import LightBatch
from statechannel.protocol.side_record import SideRecord
from statechannel.settings.groups_engine import RuntimeSettings
from tests.support.waits import until


def cordon(broker: str, offset: int, until_ms: int | None = None) -> SideRecord:
    key = made_key(PolicyKind.CORDON, broker, override=until_ms is not None)
    return SideRecord(key.encode(), encode(PolicyRecord(key, {}, "ann", "", until_ms, 1)), (), offset, 1)


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

    async def hand(self, *records: SideRecord, opened: bool = False, caught_up: bool = True) -> None:
        await asyncio.to_thread(self.sink, LightBatch(records, opened, len(records), caught_up))
        await asyncio.sleep(0)


class World:
    """A follower with what it is made of."""

    def __init__(self, policies_max: int = 100) -> None:
        self.seen: TopicSeen | Exception = TopicSeen("T1", 100)
        self.looks = 0
        self.now_ms = 0
        self.readers: list[Reader] = []
        self.refusals = 0
        self.changes: list[EffectivePolicies] = []
        self.follower = PolicyFollower(
            self._make,
            on_change=self.changes.append,
            clocks=FollowerClocks(now_ms=lambda: self.now_ms),
            runtime=RuntimeSettings(restarts_max=2, restart_first_wait_s=0.01, restart_longest_wait_s=0.05),
            watched=TopicWatchSettings("T1", self._look, lambda: 0.05),
            bounds=BookBounds(policies_max=policies_max),
        )

    def _make(self, sink: Callable[[LightBatch], None], failed: Callable[[BaseException], None]) -> Reader:
        if self.refusals:
            self.refusals -= 1
            raise OSError("no reader today")
        self.readers.append(Reader(sink, failed))
        return self.readers[-1]

    def _look(self) -> TopicSeen:
        self.looks += 1
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen

    async def looked(self) -> None:
        """A look that was begun after this has been made."""
        before = self.looks
        await until(lambda: self.looks >= before + 2)
        await asyncio.sleep(0.02)

    @property
    def cordons(self) -> list[str] | None:
        effective = self.follower.effective
        return None if effective is None else sorted(effective.policies.cordons)


@pytest.fixture
async def world() -> World:
    return World()


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
    assert [sorted(change.policies.cordons) for change in world.changes] == [["b1", "b2"]]
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
    await until(lambda: world.cordons == ["b2"])
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
    await until(lambda: world.cordons == ["b2"])
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
    await until(lambda: len(world.changes) == 2)
    assert world.changes[-1].policies.cordons == {}
    await world.follower.close()


async def test_a_listener_that_fails_does_not_end_it(world: World) -> None:
    def fail(_: EffectivePolicies) -> None:
        raise ValueError("listener")

    world.follower._on_change = fail
    world.follower.start()
    await world.readers[0].hand(cordon("b1", 0), opened=True)
    await world.readers[0].hand(cordon("b2", 1))
    assert world.cordons == ["b1", "b2"]
    await world.follower.close()


async def test_junk_is_counted_and_told(world: World) -> None:
    world.follower.start()
    await world.readers[0].hand(SideRecord(b"pin/t/n", b"{", (), 0, 1), opened=True)
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
    assert world.changes == []


# --- a topic that may have forgotten --------------------------------------------------------------------------------


def shedding(offset: int, *, on: bool = True) -> SideRecord:
    key = made_key(PolicyKind.SHEDDING, CLUSTER)
    return SideRecord(key.encode(), encode(PolicyRecord(key, {"on": on}, "ann", "", None, 1)), (), offset, 1)


async def test_a_topic_made_anew_opens_nothing_until_somebody_says_so(world: World) -> None:
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(cordon("b1", 7), shedding(8), opened=True)
    world.seen = OSError("not now")
    await reader.hand(opened=True)
    world.seen = TopicSeen("T2", 50)
    await until(lambda: world.follower.doubt)
    assert world.cordons == ["b1"]
    assert "deleted and created again" in world.follower.doubt
    assert world.follower.status()["doubt"] == world.follower.doubt
    count = len(world.changes)
    await reader.hand(cordon("b2", 0))
    assert (world.cordons, bool(world.follower.doubt)) == (["b1"], True)
    await reader.hand(shedding(1, on=False))
    assert (world.cordons, world.follower.doubt) == (["b2"], "")
    assert not world.follower.effective.shedding_on
    assert len(world.changes) > count
    await world.looked()
    assert world.follower.doubt == ""
    await world.follower.close()


async def test_a_topic_made_anew_that_the_reader_did_not_notice_is_read_from_its_beginning(world: World) -> None:
    world.follower.start()
    await world.readers[0].hand(cordon("b1", 7), opened=True)
    world.seen = TopicSeen("T2", 50)
    await until(lambda: len(world.readers) == 2)
    await until(lambda: world.readers[0].closed)
    await world.readers[1].hand(shedding(0), cordon("b2", 1), opened=True)
    await until(lambda: world.cordons == ["b2"])
    assert world.follower.doubt == ""
    await world.follower.close()


async def test_a_topic_that_was_cut_off_wants_a_word_said_afterwards(world: World) -> None:
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(shedding(3), cordon("b1", 7), opened=True)
    world.seen = OSError("not now")
    await reader.hand(shedding(3), opened=True)
    world.seen = TopicSeen("T1", 5)
    await until(lambda: world.follower.doubt)
    assert "ends at offset 5, and had been read to 7" in world.follower.doubt
    assert world.cordons == ["b1"]
    world.seen = TopicSeen("T1", 6)
    await reader.hand(shedding(5))
    assert (world.cordons, world.follower.doubt) == ([], "")
    await world.follower.close()


async def test_a_topic_whose_first_records_were_deleted_wants_a_word_said_afterwards(world: World) -> None:
    world.seen = TopicSeen("T1", 8, first=2)  # deleted before it was read for the first time
    world.follower.start()
    await world.readers[0].hand(shedding(3), cordon("b1", 7), opened=True)
    await world.looked()
    assert (world.cordons, world.follower.doubt) == (["b1"], "")
    world.seen = TopicSeen("T1", 8, first=8)
    await until(lambda: len(world.readers) == 2)
    assert "begins at offset 8" in world.follower.doubt
    await world.readers[1].hand(opened=True)
    await world.looked()
    assert world.cordons == ["b1"]
    world.seen = TopicSeen("T1", 10, first=8)
    await world.readers[1].hand(cordon("b2", 8), shedding(9))
    await until(lambda: world.cordons == ["b2"])
    assert world.follower.doubt == ""
    await world.looked()
    assert world.follower.doubt == ""
    await world.follower.close()


async def test_a_topic_with_settings_that_will_not_do_is_doubted_until_they_are_mended(world: World) -> None:
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(cordon("b1", 7), opened=True)
    world.seen = TopicSeen("T1", 100, "cleanup.policy is delete")
    await until(lambda: "cleanup.policy is delete" in world.follower.doubt)
    await reader.hand(cordon("b2", 8))
    assert world.cordons == ["b1", "b2"], "nothing is forgotten by who has read it"
    world.seen = TopicSeen("T1", 100)
    await until(lambda: world.follower.doubt == "")
    # Read anew it may lack what was there.
    await reader.hand(cordon("b2", 8), opened=True)
    await until(lambda: "may have lost records" in world.follower.doubt)
    assert world.cordons == ["b1", "b2"]
    await reader.hand(shedding(9))
    assert (world.cordons, world.follower.doubt) == (["b2"], "")
    await world.follower.close()


async def test_a_topic_that_is_gone_takes_nothing_back(world: World) -> None:
    world.follower.start()
    await world.readers[0].hand(cordon("b1", 7), opened=True)
    world.seen = TopicSeen("", 0, "the topic is gone")
    await until(lambda: world.follower.doubt == "the topic is gone")
    assert world.cordons == ["b1"]
    await world.follower.close()


async def test_while_nobody_can_look_what_was_known_stands(world: World) -> None:
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(cordon("b1", 7), opened=True)
    world.seen = OSError("Kafka is away")
    await reader.hand(cordon("b2", 7), opened=True)
    await world.looked()
    assert (world.cordons, world.follower.doubt) == (["b1"], "")
    world.seen = TopicSeen("T1", 8)
    await until(lambda: world.cordons == ["b2"])
    await world.follower.close()


# --- too many -------------------------------------------------------------------------------------------------------


async def test_too_many_policies_from_the_start_are_none_that_are_known() -> None:
    world = World(policies_max=3)
    world.follower.start()
    await world.readers[0].hand(*[cordon(f"b{number}", number) for number in range(4)], opened=True)
    assert world.cordons is None
    assert "more policies than this broker can hold" in world.follower.doubt
    await world.follower.close()


async def test_too_many_policies_are_read_again_when_some_were_deleted() -> None:
    world = World(policies_max=3)
    world.follower.start()
    reader = world.readers[0]
    await reader.hand(*[cordon(f"b{number}", number) for number in range(3)], opened=True)
    await reader.hand(cordon("b3", 3))
    assert world.cordons == ["b0", "b1", "b2"]
    assert "more policies than this broker can hold" in world.follower.doubt
    await reader.hand(cordon("b0", 4)._replace(value=None))
    assert world.cordons == ["b1", "b2"]
    await until(lambda: len(world.readers) == 2)
    await world.readers[1].hand(cordon("b1", 1), cordon("b2", 2), cordon("b3", 3), opened=True)
    await until(lambda: world.cordons == ["b1", "b2", "b3"])
    assert world.follower.doubt == ""
    assert reader.closed
    await world.follower.close()
