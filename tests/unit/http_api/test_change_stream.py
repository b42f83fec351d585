"""The stream of changes over fakes: it resumes, says what is missing, cuts off who is too slow, and follows once for all."""

import asyncio
import contextlib
import json

import pytest

from statechannel.http_api.change_stream import ChangesHub, parse_position
from statechannel.http_api.problems import ProblemError
from statechannel.router import ChangesGap
from tests.support.http_fakes import FakeCluster, change, http_settings
from tests.support.waits import until


@contextlib.asynccontextmanager
async def following(cluster_type=FakeCluster, **http):
    settings = http_settings(**http)
    cluster = cluster_type(settings)
    hub = ChangesHub(cluster, settings.http)
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

    async with following(Endless, catch_ups_max=1) as (_, hub):
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
