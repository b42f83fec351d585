"""The stream of changes over fakes: it resumes, says what is missing, cuts off who is too slow, and follows once for all."""

import asyncio
import contextlib
import json
import threading
import time

import pytest

from statechannel.http_api.change_sources import ChangeSource, SourceEvent
from statechannel.http_api.change_stream import ChangesHub, parse_position
from statechannel.http_api.problems import ProblemError
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.kafka.tail import Span
from statechannel.protocol.log import RecordRead, Topic
from statechannel.router import ChangesGap
from tests.support.http_fakes import FakeCluster, change, http_settings
from tests.support.waits import until


@contextlib.asynccontextmanager
async def following(cluster_type=FakeCluster, sources=(), **http):
    settings = http_settings(**http)
    cluster = cluster_type(settings)
    hub = ChangesHub(cluster, settings.http, sources)
    hub.start()
    try:
        yield cluster, hub
    finally:
        await hub.close()


def events(part: bytes) -> list[tuple[str, str, dict]]:
    """Id, name and data of each."""
    lines = [
        dict(line.split(": ", 1) for line in block.split("\n"))
        for block in part.decode().split("\n\n")
        if "id: " in block
    ]
    return [(line["id"], line["event"], json.loads(line["data"])) for line in lines]


async def take(stream, count: int) -> list[tuple[str, str, dict]]:
    taken = []
    while len(taken) < count:
        taken += events(await anext(stream))
    return taken


@pytest.mark.parametrize(("text", "wanted"), [("7", {0: 7, 1: 7}), ("1:5", {0: 0, 1: 5}), ("0:1,1:2", {0: 1, 1: 2})])
def test_a_position_is_an_offset_or_one_a_partition(text, wanted):
    assert parse_position(text, [0, 1]) == wanted


@pytest.mark.parametrize("text", ["", "x", "-1", "2:1", "0:", "0:1,", "0:1;1:2", "9" * 40])
def test_other_positions_are_refused(text):
    with pytest.raises(ProblemError):
        parse_position(text, [0, 1])


async def test_a_stream_goes_on_where_the_last_one_ended():
    async with following() as (cluster, hub):
        stream = hub.stream(None)
        assert (await anext(stream)).startswith(b":")
        cluster.add(change(10), change(12))
        first, second = await take(stream, 2)
        assert (first[0], first[1], first[2]["key"], first[2]["to"]) == ("0:11", "change", cluster.row["bundle"], "b2")
        await stream.aclose()
        cluster.add(change(15))
        resumed = hub.stream(second[0])
        assert [event[2]["offset"] for event in await take(resumed, 1)] == [15]
        await resumed.aclose()
        assert hub.readers == 0


async def test_older_changes_come_first_each_once():
    async with following() as (cluster, hub):
        cluster.older = [change(offset) for offset in (2, 4, 8)]
        cluster.add(change(10))
        stream = hub.stream("3")
        assert [event[2]["offset"] for event in await take(stream, 3)] == [4, 8, 10]
        cluster.add(change(11))
        assert [event[2]["offset"] for event in await take(stream, 1)] == [11]


async def test_a_gap_is_an_event_and_moves_the_position():
    class Compacted(FakeCluster):
        async def past(self, since, ends):
            yield [ChangesGap(0, 3, 7, "compaction has removed them"), change(8)]

    async with following(Compacted) as (_, hub):
        gap, later = await take(hub.stream("3"), 2)
        assert (gap[0], gap[1]) == ("0:7", "gap")
        assert (gap[2]["first_offset"], gap[2]["next_offset"]) == (3, 7)
        assert later[2]["offset"] == 8


async def test_a_reader_that_is_too_slow_is_cut_off_and_resumes_without_loss():
    async with following(changes_max=100) as (cluster, hub):
        stream = hub.stream(None)
        await anext(stream)
        cluster.add(change(10))
        (first,) = await take(stream, 1)
        cluster.add(*(change(offset) for offset in range(11, 300)))
        await settled(hub, 300)
        (end,) = await take(stream, 1)
        assert (end[1], end[2]["reason"], end[2]["since"]) == ("cut-off", "too-slow", first[0])
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert hub.cut_off == 1
        resumed = await take(hub.stream(end[2]["since"]), 289)
        assert [event[2]["offset"] for event in resumed] == list(range(11, 300))


async def settled(hub: ChangesHub, position: int) -> None:
    await until(lambda: hub._followed.get(0, 0) >= position)


async def test_two_hundred_readers_share_one_follower():
    class Counted(FakeCluster):
        followers = 0

        async def changes(self, since):
            Counted.followers += 1
            async for batch in super().changes(since):
                yield batch

    async with following(Counted, readers_max=200) as (cluster, hub):
        streams = [hub.stream(None) for _ in range(200)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(ProblemError) as refused:
            await anext(hub.stream(None))
        assert refused.value.reason == "too-busy"
        cluster.add(*(change(offset) for offset in range(10, 30)))
        offsets = [[event[2]["offset"] for event in await take(stream, 20)] for stream in streams]
        assert offsets == [list(range(10, 30))] * 200
        assert Counted.followers == 1
        for stream in streams:
            await stream.aclose()
        assert hub.readers == 0


async def test_few_read_older_changes_at_once():
    class Endless(FakeCluster):
        async def past(self, since, ends):
            yield [change(5)]
            await asyncio.Event().wait()

    async with following(Endless, catch_ups_max=1, answer_timeout_s=0.1) as (_, hub):
        first = hub.stream("1")
        await take(first, 1)
        (end,) = await take(hub.stream("1"), 1)
        assert (end[1], end[2]["reason"]) == ("cut-off", "too-busy")
        assert end[2]["since"] == "0:1"


async def test_a_quiet_stream_has_comments():
    async with following(heartbeat_s=0.01) as (_, hub):
        stream = hub.stream(None)
        await anext(stream)
        assert (await anext(stream)) == b": quiet\n\n"


async def test_a_follower_that_fails_goes_on_where_it_was():
    class Failing(FakeCluster):
        failed = False

        async def changes(self, since):
            async for batch in super().changes(since):
                yield batch
                if not self.failed:
                    self.failed = True
                    raise OSError("gone")

    async with following(Failing) as (cluster, hub):
        stream = hub.stream(None)
        await anext(stream)
        cluster.add(change(10))
        await take(stream, 1)
        cluster.add(change(11), change(12))
        assert [event[2]["offset"] for event in await take(stream, 2)] == [11, 12]


async def test_a_process_that_stops_says_so():
    async with following() as (_, hub):
        stream = hub.stream(None)
        await anext(stream)
        waiting = asyncio.ensure_future(take(stream, 1))
        await asyncio.sleep(0)
        await hub.close()
        ((_, name, data),) = await waiting
        assert (name, data["reason"]) == ("cut-off", "stopped")


class FakeTopic:
    """A topic of one partition in memory, and readers of it."""

    def __init__(self, low: int = 0) -> None:
        self.low = low
        self.records: list[RecordRead] = []
        self.opened = 0

    def add(self, *values: bytes) -> None:
        for value in values:
            offset = self.low + len(self.records)
            self.records.append(RecordRead(Topic.REQUESTS, 0, offset, 1_000 + offset, None, value))

    def source(self, name: str = "event", lead_in_max: int = 0) -> ChangeSource:
        def fold():
            before = [None]

            def document(record):
                came, before[0] = record.value.decode(), record.value.decode()
                return {"value": came, "offset": record.offset} if came else None

            return document

        def opened():
            self.opened += 1
            return FakeTail(self)

        return ChangeSource(name, opened, fold, lead_in_max)


class FakeTail:
    def __init__(self, topic: FakeTopic) -> None:
        self.topic = topic

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        return

    def span(self) -> Span:
        return Span(self.topic.low, self.topic.low, self.topic.low + len(self.topic.records))

    def records(self, span: Span):
        return (record for record in list(self.topic.records) if span.start <= record.offset < span.end)

    def follow(self, start: int, stop):
        while not stop():
            batch = [record for record in list(self.topic.records) if record.offset >= start]
            start += len(batch)
            yield batch
            if not batch:
                time.sleep(0.005)


async def test_sources_are_events_with_a_place_in_the_position():
    topic = FakeTopic()
    topic.add(b"before", b"")
    async with following(sources=[topic.source()]) as (cluster, hub):
        stream = hub.stream(None)
        await anext(stream)
        topic.add(b"first", b"")
        (first,) = await take(stream, 1)
        assert (first[0], first[1], first[2]["value"]) == ("0:10,event:3", "event", "first")
        cluster.add(change(12))
        (second,) = await take(stream, 1)
        assert (second[1], second[0].split(",")[0]) == ("change", "0:13")
        await stream.aclose()
        assert not hub._followers

        topic.add(b"later")
        resumed = hub.stream(first[0])
        came = sorted(await take(resumed, 2), key=lambda event: event[1])
        assert [(event[1], event[2]["offset"]) for event in came] == [("change", 12), ("event", 4)]
        await resumed.aclose()


async def test_only_some_events_and_ids_of_before():
    topic = FakeTopic()
    async with following(sources=[topic.source()]) as (cluster, hub):
        changes, events_only = hub.stream("0:10", frozenset({"change"})), hub.stream("event:0", frozenset({"event"}))
        await anext(changes)
        await anext(events_only)
        topic.add(b"one")
        cluster.add(change(11))
        assert [event[1] for event in await take(events_only, 1)] == ["event"]
        assert [event[1] for event in await take(changes, 1)] == ["change"]
        topic.add(b"two")
        # An id without the source begins there now: what came before is nothing that it lost.
        old = hub.stream("0:11")
        assert [event[1] for event in await take(old, 1)] == ["change"]
        with pytest.raises(ProblemError) as refused:
            await anext(hub.stream(None, frozenset({"weather"})))
        assert refused.value.reason == "bad-request"
        with pytest.raises(ProblemError):
            await anext(hub.stream("weather:1"))
        for stream in (changes, events_only, old):
            await stream.aclose()


async def test_what_a_stopped_follower_has_still_to_say_is_not_taken_for_that_of_the_next():
    topic, opens = FakeTopic(), threading.Event()
    topic.add(b"0", b"1", b"2", b"3")
    source = topic.source()
    gated = source._replace(open_tail=lambda: opens.wait(30) and source.open_tail())
    opens.set()
    async with following(sources=[gated]) as (_, hub):
        stream = hub.stream(None, frozenset({"event"}))
        await anext(stream)
        former = hub._followers["event"]
        opens.clear()
        # It speaks, its last reader leaves, and another one comes, before the loop comes to what it said.
        resumed = hub.stream("event:1", frozenset({"event"}))
        begun = asyncio.ensure_future(anext(resumed))
        former._call(former._deliver, "event", [SourceEvent("event", 2, b"{}")], 3)
        await stream.aclose()
        await asyncio.wait({begun}, timeout=0.05)
        opens.set()
        await begun
        async with asyncio.timeout(20):
            assert [event[2]["offset"] for event in await take(resumed, 3)] == [1, 2, 3]
        await resumed.aclose()


async def test_what_retention_has_removed_of_a_source_is_a_gap():
    topic = FakeTopic(low=7)
    topic.add(b"seven")
    async with following(sources=[topic.source(lead_in_max=100)]) as (_, hub):
        gap, event = await take(hub.stream("0:10,event:3"), 2)
        assert (gap[0], gap[1], gap[2]["first_offset"], gap[2]["next_offset"]) == ("0:10,event:7", "gap", 3, 7)
        assert event[2]["value"] == "seven"


async def test_a_source_that_cannot_be_read_is_said():
    def refuse():
        raise KafkaUnavailableError("no answer", hint="Wait.")

    source = ChangeSource("event", refuse, lambda: lambda _: None)
    async with following(sources=[source]) as (cluster, hub):
        stream = hub.stream(None)
        ((_, name, data),) = await take(stream, 1)
        assert (name, data["source"]) == ("unavailable", "event")
        cluster.add(change(10))
        assert [event[1] for event in await take(stream, 1)] == ["change"]
        with pytest.raises(ProblemError) as refused:
            await anext(hub.stream(None, frozenset({"event"})))
        assert refused.value.reason == "not-current"
        await stream.aclose()


async def test_who_takes_slowly_gives_way_to_who_waits():
    class Endless(FakeCluster):
        async def past(self, since, ends):
            for offset in range(since[0], ends[0]):
                yield [change(offset)]

    async with following(Endless, catch_ups_max=1, receive_timeout_s=0.2) as (cluster, hub):
        cluster.applied = {0: 1_000_000}
        await until(hub._started.is_set)
        slow, waits = hub.stream("1"), hub.stream("1")
        await take(slow, 1)

        async def dribble():
            while True:
                await asyncio.sleep(0.05)
                ((_, name, data),) = await take(slow, 1)
                if name == "cut-off":
                    return data["reason"]

        dribbling = asyncio.ensure_future(dribble())
        assert [event[2]["offset"] for event in await take(waits, 3)] == [1, 2, 3]
        assert await dribbling == "too-slow"
        await waits.aclose()
