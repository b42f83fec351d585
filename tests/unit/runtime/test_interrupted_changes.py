"""A reader that is opened anew beneath a running member: whoever follows the changes hears of it, and who comes then waits."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from statechannel.api import StateChannel
from statechannel.broker.assembly import KafkaMemberLog, Opened, access
from statechannel.broker.changes import Change, ChangesError
from statechannel.broker.exits import Stopped
from statechannel.broker.hooks import BrokerHooks
from statechannel.broker.host import Host
from statechannel.broker.inbox import Inbox
from statechannel.broker.observe.metrics import Metrics
from statechannel.engine.effects import Append
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import Appended, LeadershipChanged, PartitionOpened, PositionReached
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings import to_engine, to_identity
from tests.support.channels import created
from tests.support.lone_engine import CREATED, NAMESPACE
from tests.support.lone_member import SilentLog, lone_settings
from tests.support.waits import WAIT_S, until


class MemoryLog(SilentLog):
    """Lists; what is written is read back at once, but for the channel while its reader is away."""

    registered = True

    def start(self, inbox: Inbox, on_end: object, last_progress_s: object = None) -> None:  # type: ignore[override]
        self.inbox = inbox
        self.lists: dict[Topic, list[RecordRead]] = {topic: [] for topic in Topic}
        self.away = False
        for topic in Topic:
            self.open(topic)

    def open(self, topic: Topic, records: int | None = None) -> None:
        """Read a topic from its beginning, or only so many records of it."""
        self.away = records is not None
        result = self.lists[topic]
        self.inbox.push(PartitionOpened(topic, 0, 0, len(result)))
        for record in result[:records]:
            self.inbox.push(record)
        if records is None:
            self.inbox.push(PositionReached(topic, 0, len(result)))

    def put(self, topic: Topic, key: bytes, value: bytes | None) -> int:
        result = self.lists[topic]
        result.append(RecordRead(topic, 0, len(result), time.time_ns() // 1_000_000, key, value))
        if topic is not Topic.CHANNEL or not self.away:
            self.inbox.push(result[-1])
        return len(result) - 1

    def append(self, effect: Append) -> None:  # type: ignore[override]
        self.inbox.push(Appended(effect.token, self.put(effect.topic, effect.key, effect.value), 1))

    def stand(self, *, stand: bool) -> None:
        self.inbox.push(LeadershipChanged(stand))


@asynccontextmanager
async def member() -> AsyncIterator[tuple[StateChannel, Host, MemoryLog]]:
    settings, log = lone_settings(), MemoryLog()
    engine = Engine(to_identity("b1"), to_engine(settings, partitions=1), None)
    host = Host(engine, log, BrokerHooks(), Metrics("test", "b1"))
    host.start()
    try:
        await host.wait_caught_up(WAIT_S)
        kafka = access(settings)
        opened = Opened(host, KafkaMemberLog(kafka, settings, partitions=1), kafka)
        yield StateChannel(opened, settings), host, log
    finally:
        host.stop(Stopped("closed", "the test is over"))
        await host.wait_stopped()


async def test_a_reader_opened_anew_ends_the_stream_and_the_next_one_is_whole() -> None:
    async with member() as (channel, host, log):
        seen: list[Change] = []

        async def follow() -> None:
            async for change in channel.changes():
                seen.append(change)

        following = asyncio.ensure_future(follow())
        watcher = channel.watch(10)
        await created(channel, "t/one", 1)
        assert (await watcher.next()).bundle == "t/one"

        log.open(Topic.CHANNEL, records=0)  # the reader's thread ended, and another one begins
        await until(lambda: not host.engine.caught_up)
        log.put(Topic.CHANNEL, NAMESPACE, CREATED)
        for stream in (watcher.next(), following):
            with pytest.raises(ChangesError, match="is being joined"):
                await stream
        assert [change.bundle for change in seen] == ["t/one"]

        with pytest.raises(ChangesError, match="is being joined"):
            channel.watch(10)
        with pytest.raises(ChangesError, match="is being joined"):
            await anext(channel.changes())

        log.open(Topic.CHANNEL)
        await until(lambda: host.engine.caught_up)
        again = channel.watch(10)
        await created(channel, "t/three", 1)
        assert (await again.next()).bundle == "t/three"


async def test_who_comes_after_the_end_hears_of_the_end() -> None:
    async with member() as (channel, host, _):
        host.stop(Stopped("closed", "over"))
        await host.wait_stopped()
        with pytest.raises(Exception, match="over"):
            await channel.watch(10).next()


async def test_who_has_read_more_than_this_member_gets_nothing_again() -> None:
    """It followed another member, which was ahead; what this one reads meanwhile is known to it."""
    async with member() as (channel, _, _log):
        since = channel.positions()[0] + 4
        first = asyncio.ensure_future(anext(channel.changes({0: since})))
        await asyncio.sleep(0)
        for number in range(6):
            await created(channel, f"t/n{number}", 1)
        assert (await first).offset >= since
