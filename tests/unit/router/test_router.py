"""A router in virtual time: whom it names while all is well, while Kafka is away and after its end, and its stream of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from statechannel.api import (
    ArgumentTypeError,
    ArgumentValueError,
    ChannelStoppedError,
    NotFound,
    Redirect,
    Undetermined,
    Unowned,
)
from statechannel.broker.changes import Change
from statechannel.router import ChangesGap, Route, Router
from statechannel.testing import ChannelKit

NAMESPACE = "test/kit"
HTTP = {"http": "http://a:1"}


async def routed(kit: ChannelKit) -> tuple[Router, str, str]:
    """A router of a channel in which broker `a` serves the first bundle, and nobody the second; both bundles."""
    await kit.broker("a", listeners=HTTP)
    served, unowned, *_ = await kit.namespace()
    await kit.own(served, "a")
    router = await kit.router()
    return router, served, unowned


async def test_it_names_the_owner_and_how_old_that_is(channel_kit: ChannelKit) -> None:
    router, served, unowned = await routed(channel_kit)
    route = router.lookup(served)
    assert isinstance(route, Route)
    assert (route.bundle, route.broker, route.urls, route.stale) == (served, "a", HTTP, False)
    assert route.generation == channel_kit.brokers["a"].serves(served)
    assert (route.partition, route.as_of) == (0, router.positions()[0])
    assert 0.0 <= route.age_s < 5.0
    assert router.lookup(served)[:5] == route[:5], "from memory, as the first time"
    assert isinstance(router.lookup(unowned), Unowned)
    assert isinstance(router.lookup("no/such/topic"), NotFound)
    with pytest.raises(ArgumentTypeError):
        router.lookup(b"test/kit/topic")  # type: ignore[arg-type]


async def test_while_kafka_is_away_the_last_owner_is_named_as_stale_and_ever_older(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    channel_kit.log.lose()
    await channel_kit.advance(60)
    first = router.lookup(served)
    await channel_kit.advance(10)
    second = router.lookup(served)
    assert isinstance(first, Route)
    assert isinstance(second, Route)
    assert (first.broker, first.stale, second.stale) == ("a", True, True)
    assert 40.0 < first.age_s < 70.0
    assert second.age_s == pytest.approx(first.age_s + 10, abs=1.0)
    channel_kit.log.restore()
    await channel_kit.settle()
    again = router.lookup(served)
    assert isinstance(again, Route)
    assert not again.stale
    assert again.age_s < 5.0


async def test_a_router_whose_loop_stood_still_calls_its_first_answer_stale(channel_kit: ChannelKit) -> None:
    """Its engine has not heard yet of the time that went by; an answer from memory says so all the same."""
    router, served, _ = await routed(channel_kit)
    assert isinstance(router.lookup(served), Route)
    loop = channel_kit.loop
    loop._now_s += 100.0  # type: ignore[union-attr]
    late = router.lookup(served)
    assert isinstance(late, Route)
    assert late.stale
    assert late.age_s > 90.0


async def test_who_dies_is_named_no_more(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    await channel_kit.broker("b")
    await channel_kit.settle()
    assert isinstance(router.lookup(served), Route)
    channel_kit.brokers["a"].kill()
    await channel_kit.settle()
    await channel_kit.advance(1)
    assert [seen.broker for seen in router.brokers()] == ["b"]
    assert router.owned_by("a") == []
    answer = await router.wait(served, 30.0, assign=True)
    assert isinstance(answer, Route)
    assert answer.broker == "b"


async def test_a_closed_router_answers_nothing_not_even_from_memory(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    assert isinstance(router.lookup(served), Route)
    assert router.stopped is None
    stopped = await router.close()
    assert stopped.reason == "closed"
    assert router.stopped == stopped == await router.wait_stopped()
    with pytest.raises(ChannelStoppedError) as caught:
        router.lookup(served)
    assert caught.value.stopped == stopped
    for ask in (router.bundles, router.brokers, lambda: router.owned_by("a"), lambda: router.follow(served, _ahead())):
        with pytest.raises(ChannelStoppedError):
            ask()
    with pytest.raises(ChannelStoppedError):
        await router.wait(served)


async def test_a_redirect_is_followed_only_to_a_newer_owner(channel_kit: ChannelKit) -> None:
    router, served, unowned = await routed(channel_kit)
    known = router.lookup(served)
    assert isinstance(known, Route)
    ahead = router.follow(served, _ahead(served, known.generation + 1))
    assert isinstance(ahead, Route)
    assert (ahead.bundle, ahead.broker, ahead.urls) == (served, "b9", {"http": "http://b9"})
    assert (ahead.generation, ahead.stale, ahead.age_s) == (known.generation + 1, False, 0.0)
    assert (ahead.partition, ahead.as_of) == (known.partition, known.as_of)
    for generation in (known.generation, known.generation - 1):
        answer = router.follow(served, _ahead(served, generation))
        assert isinstance(answer, Route)
        assert answer.broker == "a"
    assert isinstance(router.follow(unowned, Redirect("no-owner", "nobody")), Unowned)
    unknown = router.follow(unowned, _ahead(unowned, 0))
    assert isinstance(unknown, Route), "what the server knows is more than nothing"
    assert (unknown.broker, unknown.partition, unknown.as_of) == ("b9", -1, -1)


def _ahead(bundle: str = "", generation: int = 9) -> Redirect:
    return Redirect("other-owner", "b9 serves it", bundle, "b9", {"http": "http://b9"}, generation)


async def test_it_waits_for_an_owner_and_may_have_one_assigned(channel_kit: ChannelKit) -> None:
    router, served, unowned = await routed(channel_kit)
    assert isinstance(await router.wait(served, 0.5), Route)
    assert isinstance(await router.wait("no/such/topic", 0.5), NotFound)
    began_s = channel_kit.now_s
    nobody = await router.wait(unowned, 3.0)
    assert isinstance(nobody, Undetermined)
    assert nobody.reason == "timed-out"
    assert channel_kit.now_s - began_s == pytest.approx(3.0, abs=0.5)
    assert isinstance(router.lookup(unowned), Unowned), "nobody was asked to assign it"
    route = await router.wait(unowned, 30.0, assign=True)
    assert isinstance(route, Route)
    assert (route.bundle, route.broker, route.stale) == (unowned, "a", False)
    with pytest.raises(ArgumentValueError):
        await router.wait(served, -1.0)


async def test_closing_ends_what_waits(channel_kit: ChannelKit) -> None:
    router, _, unowned = await routed(channel_kit)
    waiting = asyncio.create_task(router.wait(unowned, 60.0))
    await channel_kit.advance(0.1)
    await router.close()
    answer = await waiting
    assert isinstance(answer, Undetermined)
    assert answer.reason == "stopped"


async def test_the_whole_view(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    (other,) = await channel_kit.namespace("test/kit2", bundles=1)
    await channel_kit.settle()
    await channel_kit.advance(1)
    bundles = {seen.bundle: seen.owner for seen in router.bundles()}
    assert bundles[served] == "a"
    assert other in bundles
    assert {seen.bundle for seen in router.bundles(NAMESPACE)} == bundles.keys() - {other}
    assert [seen.bundle for seen in router.bundles("test/kit2")] == [other]
    assert [seen.bundle for seen in router.owned_by("a")] == [served]
    assert router.owned_by("b") == []
    assert [seen.broker for seen in router.brokers()] == ["a"]
    channel = channel_kit.brokers["a"].channel
    assert router.digest()[0] == channel.digest()[0]
    for ask in (router.bundles, router.owned_by):
        with pytest.raises(ArgumentTypeError):
            ask(7)  # type: ignore[arg-type]


# --- changes ------------------------------------------------------------------------------------------------------------


async def take(stream: AsyncIterator[Change | ChangesGap], count: int) -> list[Change]:
    taken = [await anext(stream) for _ in range(count)]
    assert not any(isinstance(item, ChangesGap) for item in taken)
    return taken  # type: ignore[return-value]


async def move_about(kit: ChannelKit, bundle: str) -> list[str]:
    """Four accepted records."""
    await kit.unload(bundle)
    await kit.own(bundle, "a")
    return ["Releasing", "Unassigned", "Assigning", "Assigned"]


async def test_changes_begin_now_or_where_they_are_wanted(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    now = router.changes()
    first = asyncio.create_task(anext(now))
    await channel_kit.advance(0.5)
    states = await move_about(channel_kit, served)
    changes = [await first, *await take(now, 3)]
    assert [str(change.state) for change in changes] == states  # type: ignore[union-attr]
    whole = await take(router.changes(since={}), 3)
    assert [str(change.state) for change in whole] == ["Active", "Assigning", "Assigned"]
    rest = await take(router.changes(since={0: changes[1].offset + 1}), 2)  # type: ignore[union-attr]
    assert rest == changes[2:]
    for wrong in ({0: -1}, {-1: 0}):
        with pytest.raises(ArgumentValueError):
            await anext(router.changes(since=wrong))
    with pytest.raises(ArgumentValueError):
        await anext(router.changes(limit=0))


async def test_a_slow_consumer_misses_nothing_and_each_time_goes_on_as_soon_as_the_first(
    channel_kit: ChannelKit,
) -> None:
    """The pause before the next try grows while none comes through, and begins with its shortest after one that did."""
    router, served, _ = await routed(channel_kit)
    stream = router.changes(limit=1)
    first = asyncio.create_task(anext(stream))
    await channel_kit.advance(0.5)
    states = await move_about(channel_kit, served)
    assert str((await first).state) == states[0]  # type: ignore[union-attr]
    await take(stream, 3)
    took_s = []
    for _ in range(8):
        await move_about(channel_kit, served)
        await channel_kit.advance(1)
        began_s = channel_kit.now_s
        assert [str(change.state) for change in await take(stream, 4)] == states
        took_s.append(channel_kit.now_s - began_s)
    assert max(took_s) < 2 * took_s[0] + 0.5, took_s


async def test_the_stream_outlives_an_outage(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    stream = router.changes()
    first = asyncio.create_task(anext(stream))
    channel_kit.log.lose()
    await channel_kit.advance(120)
    channel_kit.log.restore()
    await channel_kit.settle()
    states = await move_about(channel_kit, served)
    assert [str(change.state) for change in [await first, *await take(stream, 3)]][-4:] == states  # type: ignore[union-attr]


@pytest.mark.channel_kit(settings={"channel": {"min_compaction_lag_ms": 300_000}})
async def test_what_was_compacted_is_a_gap_in_its_place(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    for _ in range(5):
        await move_about(channel_kit, served)
    await channel_kit.advance(700)
    assert channel_kit.log.compact() > 0
    end = router.positions()[0] + 1
    gap = await anext(router.changes(since={0: 1}))
    assert isinstance(gap, ChangesGap)
    assert (gap.partition, gap.first_offset) == (0, 1)
    assert 1 < gap.next_offset <= end
    past = [item async for item in router.past({0: 1}, {0: end})]
    assert past[0] == gap
    assert all(isinstance(item, Change) and item.offset >= gap.next_offset for item in past[1:])
    await move_about(channel_kit, served)
    after = router.changes(since={0: 1})
    assert isinstance(await anext(after), ChangesGap)
    later = await take(after, 1)
    assert later[0].offset >= gap.next_offset


async def test_changes_end_with_the_router(channel_kit: ChannelKit) -> None:
    router, _, _ = await routed(channel_kit)
    waiting = asyncio.create_task(anext(router.changes()))
    await channel_kit.advance(0.5)
    await router.close()
    with pytest.raises(ChannelStoppedError):
        await waiting
