"""A router in virtual time: whom it names while all is well, while Kafka is away and after its end, and its stream of changes."""

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

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
from statechannel.broker.assembly import KafkaMemberLog, access, make_observer
from statechannel.broker.changes import Change
from statechannel.broker.exits import JoinTimeoutError
from statechannel.broker.observe.metrics import Metrics
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.router import BlockingRouter, ChangesGap, Route, Router
from statechannel.router import router as router_module
from statechannel.settings import Settings, load
from statechannel.testing import ChannelKit
from tests.support.forks import Raised, in_child
from tests.support.lone_member import SilentLog, lone_settings

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
    assert (first.broker, first.stale, second.stale) == ("a", True, True)
    assert 40.0 < first.age_s < 70.0
    assert second.age_s == pytest.approx(first.age_s + 10, abs=1.0)
    channel_kit.log.restore()
    await channel_kit.settle()
    again = router.lookup(served)
    assert not again.stale
    assert again.age_s < 5.0


async def test_a_router_whose_loop_stood_still_calls_its_first_answer_stale(channel_kit: ChannelKit) -> None:
    """Its engine has not heard yet of the time that went by; an answer from memory says so all the same."""
    router, served, _ = await routed(channel_kit)
    assert isinstance(router.lookup(served), Route)
    loop = channel_kit.loop
    loop._now_s += 100.0  # type: ignore[union-attr]
    late = router.lookup(served)
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


async def test_the_child_of_a_fork_answers_nothing(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    assert isinstance(router.lookup(served), Route)
    assert in_child(lambda: router.lookup(served)).reason == "forked"
    for call in (lambda: anext(router.past({}, {0: 1})), lambda: router.wait(served), router.bundles):
        said = in_child(call)
        assert isinstance(said, Raised)
        assert said.reason == "forked"


# --- how it is opened and closed ----------------------------------------------------------------------------------------


class Opening:
    """The kit opens what `Router.open` asks for, in place of Kafka.

    Attributes:
        settings: Of each that was opened.
        waits_s: Longest waits for catching up.
        late: Whether that takes longer.
    """

    def __init__(self, kit: ChannelKit) -> None:
        self._kit = kit
        self.settings: list[Settings] = []
        self.waits_s: list[float] = []
        self.hosts: list[Any] = []
        self.late = False

    async def open_observer(self, settings: Settings, *, registry: object) -> Any:
        self.settings.append(settings)
        await self._kit.broker(f"b{len(self.settings)}")
        inner = await self._kit.router()
        self.hosts.append(inner._host)
        return SimpleNamespace(host=self, log=inner._log, kafka=None, registry=registry)

    async def wait_caught_up(self, limit_s: float) -> None:
        self.waits_s.append(limit_s)
        if self.late:
            raise JoinTimeoutError(limit_s, "it reads on")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hosts[-1], name)


@pytest.fixture
def opening(channel_kit: ChannelKit, monkeypatch: pytest.MonkeyPatch) -> Opening:
    made = Opening(channel_kit)
    monkeypatch.setattr(router_module, "open_observer", made.open_observer)
    return made


async def test_it_is_open_inside_the_block_and_closed_behind_it(opening: Opening) -> None:
    block = Router.open(kafka={"bootstrap_servers": "h:1"})
    async with block as router:
        assert router.stopped is None
        assert in_child(lambda: block.__aexit__(None, None, None)) is None, "a child leaves the block, too"
        assert router.settings is opening.settings[0]
        assert router.settings.kafka.bootstrap_servers == "h:1"
    assert router.stopped.reason == "closed"
    again = await Router.open(router.settings)
    assert again.stopped is None
    await again.close()


@pytest.mark.parametrize(("given_s", "limit_s"), [(None, 77.0), (5.0, 5.0)])
async def test_one_that_does_not_catch_up_in_time_is_closed(opening: Opening, given_s: float | None, limit_s: float):
    opening.late = True
    settings = load(overrides={"kafka": {"bootstrap_servers": "h:1"}, "runtime": {"join_timeout_s": 77.0}})
    with pytest.raises(JoinTimeoutError):
        await Router.open(settings, join_timeout_s=given_s)
    assert opening.waits_s == [limit_s]
    assert opening.hosts[0].stopped.reason == "closed"


@pytest.mark.parametrize("wrong", [{"settings": 7}, {"join_timeout_s": -1.0}, {"join_timeout_s": "soon"}])
def test_wrong_arguments_are_refused_before_anything_is_opened(wrong: dict[str, Any]) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError)):
        Router.open(**wrong)


async def test_a_redirect_is_followed_only_to_a_newer_owner(channel_kit: ChannelKit) -> None:
    router, served, unowned = await routed(channel_kit)
    known = router.lookup(served)
    assert isinstance(known, Route)
    ahead = router.follow(served, _ahead(served, known.generation + 1))
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


async def test_between_two_owners_nobody_is_asked_to_assign_it(channel_kit: ChannelKit) -> None:
    router, served, _ = await routed(channel_kit)
    moving = asyncio.create_task(channel_kit.unload(served))
    for _ in range(100):
        await channel_kit.advance(0.01)
        if isinstance(router.lookup(served), Undetermined):
            break
    answer = await router.wait(served, 0.0, assign=True)
    assert isinstance(answer, Undetermined)
    assert answer.reason == "timed-out"
    await moving


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


async def test_a_slow_consumer_misses_nothing_and_each_time_goes_on_as_soon_as_the_first(channel_kit: ChannelKit):
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
    for whole in (router.changes(since={}), router.past({}, {0: end})):
        first = await anext(whole)
        assert first == gap._replace(first_offset=0, message=first.message)  # type: ignore[union-attr]
    assert all(isinstance(item, Change) and item.offset >= gap.next_offset for item in past[1:])
    await move_about(channel_kit, served)
    after = router.changes(since={0: 1})
    assert isinstance(await anext(after), ChangesGap)
    later = await take(after, 1)
    assert later[0].offset >= gap.next_offset


async def test_the_past_is_read_from_the_beginning_or_where_it_is_wanted(channel_kit: ChannelKit) -> None:
    router, _, _ = await routed(channel_kit)
    end = router.positions()[0]
    whole = [item async for item in router.past({}, {0: end})]
    assert isinstance(whole[0], Change)
    rest = [item async for item in router.past({0: whole[0].offset + 1}, {0: end})]
    assert rest == whole[1:]
    channel_kit.log.lose()
    assert [item async for item in router.past({0: end}, {0: end})] == [], "for nothing, Kafka is not asked"
    for wrong in ((7, {0: end}), ({0: -1}, {0: end}), ({}, {0: -1})):
        with pytest.raises((ArgumentTypeError, ArgumentValueError)):
            await anext(router.past(*wrong))  # type: ignore[arg-type]


# --- the blocking face --------------------------------------------------------------------------------------------------


class Joined:
    """A host that has caught up at once."""

    def __init__(self, host: Any) -> None:
        self._inner = host

    async def wait_caught_up(self, _: float) -> None:
        """It has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def _open_silent(settings: Settings, *, registry: object) -> Any:
    host = make_observer(settings, SilentLog(), Metrics("test", "router"), partitions=1)  # type: ignore[arg-type]
    host.start()
    kafka = access(settings)
    return SimpleNamespace(host=Joined(host), log=KafkaMemberLog(kafka, settings, partitions=1), kafka=kafka)


def test_the_blocking_face_is_closed_behind_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "open_observer", _open_silent)
    before = set(threading.enumerate())
    with BlockingRouter.open(lone_settings()) as router:
        assert router.stopped is None
        assert router.positions() == {0: -1}
        assert router.bundles() == router.owned_by("b1") == router.brokers() == []
        assert router.digest()[1] == {0: -1}
        assert isinstance(router.wait("no/such/topic", 0.01), NotFound | Undetermined)
        assert list(router.past({}, {})) == []
        assert in_child(lambda: router.__exit__(None, None, None)) is None
    assert router.stopped.reason == "closed"
    router.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "statechannel-router"]


def test_what_cannot_be_opened_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise KafkaUnavailableError("away")

    monkeypatch.setattr(router_module, "open_observer", fail)
    before = set(threading.enumerate())
    with pytest.raises(KafkaUnavailableError):
        BlockingRouter.open(lone_settings())
    assert set(threading.enumerate()) <= before


async def test_changes_end_with_the_router(channel_kit: ChannelKit) -> None:
    router, _, _ = await routed(channel_kit)
    waiting = asyncio.create_task(anext(router.changes()))
    await channel_kit.advance(0.5)
    await router.close()
    with pytest.raises(ChannelStoppedError):
        await waiting
