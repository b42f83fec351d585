"""The test kit: real members in virtual time, that are killed, paused, cut off from the log, and split."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Sequence
from unittest import IsolatedAsyncioTestCase

import pytest

from statechannel.api import (
    Admission,
    ArgumentTypeError,
    ArgumentValueError,
    BlockingBrokerHooks,
    BrokerHooks,
    ChannelStoppedError,
    Owned,
    Redirect,
    SettingsError,
    Undetermined,
)
from statechannel.router import ChangesGap, Route
from statechannel.testing import (
    ChannelKit,
    KitError,
    NothingHappensError,
    NotSettledError,
    OutcomeError,
    RealIoError,
    TimeLimitError,
)
from statechannel.testing.loop import VirtualLoop

LONG = {"deadline_s": 600, "shutdown_budget_s": 700}


class Recorder(BrokerHooks):
    """Notes its calls; `on_own` takes some time."""

    def __init__(self, own_s: float = 0.0) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.ended: list[str] = []
        self._own_s = own_s

    async def on_own(self, bundle: str, generation: int) -> None:
        self.calls.append(("own", bundle, generation))
        try:
            await asyncio.sleep(self._own_s)
        finally:
            self.ended.append(bundle)

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.calls.append(("serve", bundle, generation))

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.calls.append(("release", bundle, generation, destination))

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        self.calls.append(("split", parent, *children))


async def test_a_bundle_is_owned_moved_and_split_by_real_members(channel_kit: ChannelKit) -> None:
    kit, hooks = channel_kit, Recorder()
    a, b = await kit.broker("a", hooks, listeners={"http": "http://a:1"}), await kit.broker("b")
    bundle, *_ = await kit.namespace("example/orders")
    first = await kit.own(bundle, "a")
    assert hooks.calls == [("own", bundle, first), ("serve", bundle, first)]
    assert isinstance(a.channel.guard(bundle), Admission)
    answer = b.channel.guard(bundle)
    assert isinstance(answer, Redirect)
    assert answer.urls == {"http": "http://a:1"}
    second = await kit.own(bundle, "b")
    assert second > first
    assert hooks.calls[-1] == ("release", bundle, first, "b")
    await kit.own(bundle, "a")
    children = await kit.split(bundle, parts=3)
    assert [kit.owner(child) for child in children] == ["a"] * 3
    assert ("split", bundle, *children) in hooks.calls
    assert kit.owners() == dict.fromkeys(children, "a")


async def test_hooks_sleep_in_virtual_time(channel_kit: ChannelKit) -> None:
    await channel_kit.broker("a", Recorder(own_s=500.0), hook_settings=LONG, repair={"in_flight_limit_s": 1_000})
    bundle, *_ = await channel_kit.namespace()
    began_s = channel_kit.now_s
    member = channel_kit.brokers["a"].channel
    assert isinstance(await member.lookup(bundle, timeout_s=700), Owned)
    assert 500 <= channel_kit.now_s - began_s < 510


async def test_a_killed_broker_runs_nothing_more_and_its_bundles_get_another_owner(channel_kit: ChannelKit) -> None:
    kit, hooks = channel_kit, Recorder(own_s=5.0)
    a = await kit.broker("a", hooks)
    bundle, other, *_ = await kit.namespace()
    await kit.own(bundle, "a")
    hooks.ended.clear()
    waiting = asyncio.create_task(a.channel.lookup(other, timeout_s=30))
    await kit.advance(1.0)
    await kit.broker("b")
    a.kill()
    with pytest.raises(ChannelStoppedError):
        await a.channel.lookup(bundle)
    assert isinstance(await waiting, Undetermined)
    await kit.advance(60)
    assert hooks.ended == []
    assert not any(call[0] == "release" for call in hooks.calls)
    assert kit.owner(bundle) == "b"
    assert a.serving() == {}
    assert not a.alive


async def test_brokers_that_stop_at_the_same_moment_leave_no_bundle_without_an_owner(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    a, b, _ = [await kit.broker(name) for name in "abc"]
    bundles = await kit.namespace(bundles=8)
    for number, bundle in enumerate(bundles):
        await kit.own(bundle, "abcccccc"[number])  # so a and b choose each other, as long as they may
    unloaded = bundles.pop()
    await kit.unload(unloaded)
    stopped = await asyncio.gather(a.stop(), b.stop())
    assert [end.reason for end in stopped] == ["closed", "closed"]
    await kit.advance(10)
    assert kit.owners() == dict.fromkeys(bundles, "c")
    assert kit.owner(unloaded) is None


def test_what_a_killed_broker_had_begun_is_closed_with_the_kit_and_not_in_a_later_test() -> None:
    closed: list[str] = []

    class Background(BrokerHooks):
        async def on_serve(self, bundle: str, generation: int) -> None:
            self.task = asyncio.create_task(self._work(bundle))

        async def _work(self, bundle: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                closed.append(bundle)
                await asyncio.sleep(1.0)

    async def kill(kit: ChannelKit) -> None:
        a = await kit.broker("a", Background())
        bundle, *_ = await kit.namespace()
        await kit.own(bundle, "a")
        a.kill()
        await kit.advance(60)
        assert not closed

    said: list[object] = []
    unraisable, sys.unraisablehook = sys.unraisablehook, lambda problem: said.append(problem.exc_value)
    try:
        with ChannelKit() as kit:
            kit.run(kill(kit))
        assert len(closed) == 1
        del kit
        gc.collect()
    finally:
        sys.unraisablehook = unraisable
    assert not said


async def test_a_paused_broker_goes_on_with_what_it_had_begun(channel_kit: ChannelKit) -> None:
    kit, hooks = channel_kit, Recorder(own_s=1.0)
    a = await kit.broker("a", hooks)
    await kit.broker("b")
    bundle, *_ = await kit.namespace()
    generation = await kit.own(bundle, "a")
    a.pause()
    await kit.advance(30)
    await kit.settle()
    assert kit.owner(bundle) == "b"
    assert hooks.calls[-1] == ("serve", bundle, generation)
    a.resume()
    await kit.advance(1)
    assert hooks.calls[-1][:3] == ("release", bundle, generation)
    await kit.settle()
    assert a.serves(bundle) is None


async def test_a_broker_without_the_log_serves_on_and_comes_back(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    a = await kit.broker("a", Recorder())
    bundle, *_ = await kit.namespace()
    generation = await kit.own(bundle, "a")
    kit.log.lose()
    await kit.advance(600)
    answer = await a.channel.lookup(bundle)
    assert isinstance(answer, Owned)
    assert answer.stale_age_s > 500
    assert a.serves(bundle) == generation
    with pytest.raises(NotSettledError):
        await kit.settle(5)
    kit.log.restore()
    await kit.settle()
    assert a.serves(bundle) == generation


async def test_one_that_is_cut_off_is_lost_for_the_others(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    a = await kit.broker("a", Recorder(), safe_mode={"lease_s": 4.0})
    await kit.broker("b", safe_mode={"lease_s": 4.0})
    bundle, *_ = await kit.namespace()
    await kit.own(bundle, "a")
    a.cut_off()
    await kit.advance(4.5)
    assert a.serves(bundle) is None, "its lease has ended"
    await kit.advance(30)
    assert kit.brokers["b"].serves(bundle) is not None
    a.restore()
    await kit.settle()
    assert kit.owner(bundle) == "b"


async def test_a_slow_log_makes_transfers_slow(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    await kit.broker("a")
    await kit.broker("b")
    bundle, *_ = await kit.namespace()
    await kit.own(bundle, "a")
    began_s = kit.now_s
    kit.log.slow(0.5)
    await kit.own(bundle, "b")
    assert kit.now_s - began_s > 2.0
    kit.log.restore()
    began_s = kit.now_s
    await kit.own(bundle, "a")
    assert kit.now_s - began_s < 0.5


@pytest.mark.channel_kit({"channel": {"min_compaction_lag_ms": 300_000}}, partitions=2)
async def test_who_joins_after_a_compaction_sees_the_same(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    a = await kit.broker("a")
    await kit.broker("b")
    bundle, *_ = await kit.namespace()
    for owner in "abababab":
        await kit.own(bundle, owner)
    assert kit.log.compact() == 0, "everything is younger than the lag"
    await kit.advance(700)
    partition = next(seen.partition for seen in a.channel.picture().bundles)
    before = len(kit.log.records(partition))
    assert kit.log.compact() > 20
    assert len(kit.log.records(partition)) < before
    c = await kit.broker("c")
    await kit.settle()
    assert c.channel.digest() == a.channel.digest()


async def test_a_process_comes_back_under_its_id(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    a = await kit.broker("a")
    bundle, *_ = await kit.namespace()
    first = await kit.own(bundle, "a")
    a.kill()
    began_s = kit.now_s
    await kit.broker("a", membership={"take_over": True})
    assert kit.now_s - began_s < 2.0
    await kit.settle()
    assert (kit.brokers["a"].serves(bundle) or 0) > first
    kit.brokers["a"].kill()
    began_s = kit.now_s
    await kit.broker("a")
    assert kit.now_s - began_s > 4.0, "it waited until the former process counted as lost"
    stopped = await kit.brokers["a"].stop()
    assert stopped.clean
    assert not kit.brokers["a"].alive


class Blocking(BlockingBrokerHooks):
    """Plain functions; one hangs once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hang: threading.Event | None = None

    def on_own(self, bundle: str, generation: int) -> None:
        self.calls.append("own")
        time.sleep(0.02)
        if self.hang is not None:
            self.hang.wait()

    def on_serve(self, bundle: str, generation: int) -> None:
        self.calls.append("serve")


async def test_plain_functions_run_in_threads_while_virtual_time_stands_still(channel_kit: ChannelKit) -> None:
    hooks = Blocking()
    await channel_kit.broker("a", hooks)
    bundle, *_ = await channel_kit.namespace()
    began_s = channel_kit.now_s
    await channel_kit.own(bundle, "a")
    assert channel_kit.now_s - began_s < 1.0
    assert hooks.calls == ["own", "serve"]


@pytest.mark.channel_kit(thread_patience_s=0.1)
async def test_a_function_that_hangs_is_late(channel_kit: ChannelKit) -> None:
    hooks = Blocking()
    hooks.hang = threading.Event()
    a = await channel_kit.broker("a", hooks)
    bundle, *_ = await channel_kit.namespace()
    answer = await a.channel.lookup(bundle, timeout_s=60)
    hooks.hang.set()
    assert isinstance(answer, Undetermined)
    assert any("did not return within" in str(event.facts.get("error")) for event in channel_kit.events)
    assert [event.name for event in channel_kit.events].count("hook.ended") == 0


async def test_time_stands_still_for_calls_in_threads(channel_kit: ChannelKit) -> None:
    async with asyncio.timeout(0.01):
        assert await asyncio.to_thread(lambda: time.sleep(0.05) or 7) == 7
    assert channel_kit.now_s == 0


async def test_sockets_are_refused_in_virtual_time_and_work_in_real_time(channel_kit: ChannelKit) -> None:
    with pytest.raises(RealIoError, match="create_connection"):
        await asyncio.open_connection("127.0.0.1", 1)
    with pytest.raises(RealIoError, match="subprocess_exec"):
        await asyncio.create_subprocess_exec("true")


@pytest.mark.channel_kit(real_time=True)
async def test_a_kit_in_real_time(channel_kit: ChannelKit) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(5))
        writer.close()

    class Asks(BrokerHooks):
        answer = b""

        async def on_own(self, bundle: str, generation: int) -> None:
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello")
            self.answer = await reader.read()
            writer.close()
            server.close()

    hooks = Asks()
    a = await channel_kit.broker("a", hooks)
    bundle, *_ = await channel_kit.namespace()
    await channel_kit.own(bundle, "a")
    assert hooks.answer == b"hello"
    a.pause()
    await channel_kit.advance(0.1)
    a.resume()
    await channel_kit.settle()
    a.kill()


async def test_a_router_follows_the_kit(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    await kit.broker("a", listeners={"http": "http://a:1"})
    await kit.broker("b", listeners={"http": "http://b:1"})
    bundle, *_ = await kit.namespace()
    router = await kit.router()
    answer = await router.wait(bundle, assign=True)
    assert isinstance(answer, Route)
    await kit.own(bundle, "b")
    assert router.lookup(bundle).urls == {"http": "http://b:1"}  # type: ignore[union-attr]
    seen = []
    async for change in router.changes(since={0: 0}):
        assert not isinstance(change, ChangesGap)
        seen.append(change.offset)
        if change.offset >= answer.as_of:
            break
    assert seen == sorted(seen)
    assert len(seen) >= 3


async def test_the_past_of_a_router_ends(channel_kit: ChannelKit) -> None:
    kit = channel_kit
    await kit.broker("a")
    bundle, *_ = await kit.namespace()
    await kit.own(bundle, "a")
    router = await kit.router()
    end = router.positions()[0]
    past = [change async for change in router.past({}, {0: end})]
    assert [change.offset for change in past if isinstance(change, ChangesGap)] == []
    offsets = [change.offset for change in past if not isinstance(change, ChangesGap)]
    assert offsets == sorted(offsets)
    assert bundle in {change.bundle for change in past if not isinstance(change, ChangesGap)}
    half = offsets[len(offsets) // 2]
    rest = [change.offset async for change in router.past({0: half}, {0: end})]  # type: ignore[union-attr]
    assert rest == [offset for offset in offsets if offset >= half]
    assert [change async for change in router.past({0: end}, {0: end})] == []
    with pytest.raises(ArgumentValueError):
        await anext(router.past({0: -1}, {0: end}))


async def test_equal_seeds_give_equal_orders() -> None:
    def orders(seed: int) -> list[tuple[float, str, str, object]]:
        async def story() -> None:
            a = await kit.broker("a", Recorder(0.1))
            await kit.broker("b", Recorder(0.1))
            for bundle in await kit.namespace(bundles=8):
                await kit.own(bundle, "a")
            a.kill()
            await kit.settle()

        with ChannelKit(seed=seed) as kit:
            kit.run(story())
            return [(e.at_s, e.broker, e.name, e.facts.get("bundle")) for e in kit.events]

    first = await asyncio.to_thread(orders, 1)
    assert first == await asyncio.to_thread(orders, 1)
    assert len(first) > 30


def test_what_never_happens_ends_with_an_error() -> None:
    async def wait_alone() -> None:
        await asyncio.get_running_loop().create_future()

    # The kit's own poll of the log is a timer as any other: only a loop without a kit can run out of timers.
    loop = VirtualLoop()
    with pytest.raises(NothingHappensError):
        loop.run_until_complete(wait_alone())
    loop.close()

    async def wait_for_nothing() -> None:
        await kit.broker("a")
        await _forever()

    with ChannelKit(time_limit_s=500) as kit, pytest.raises(TimeLimitError, match="500 virtual seconds"):
        kit.run(wait_for_nothing())


async def _forever() -> None:
    await asyncio.Event().wait()


async def test_a_kit_is_used_in_its_own_loop() -> None:
    kit = ChannelKit()
    with pytest.raises(KitError, match="outside its event loop"):
        await kit.broker("a")
    await asyncio.to_thread(kit.close)


async def test_what_cannot_be_done_is_an_error_that_says_why(channel_kit: ChannelKit) -> None:
    class Declines(BrokerHooks):
        async def on_own(self, bundle: str, generation: int) -> None:
            raise RuntimeError("the disk is full")

    kit = channel_kit
    with pytest.raises(KitError, match="No broker runs"):
        await kit.namespace()
    await kit.broker("a", Declines())
    bundle, *_ = await kit.namespace()
    with pytest.raises(OutcomeError, match="the disk is full"):
        await kit.own(bundle, "a")
    with pytest.raises(OutcomeError, match="namespace-exists"):
        await kit.namespace()
    with pytest.raises(KitError, match="No broker b runs"):
        await kit.own(bundle, "b")


async def test_wrong_arguments_are_refused(channel_kit: ChannelKit) -> None:
    with pytest.raises(ArgumentValueError, match="partitions"):
        ChannelKit(partitions=0)
    with pytest.raises(SettingsError, match="deadline"):
        ChannelKit({"hooks": {"deadline_s": 0}})
    with pytest.raises(ArgumentValueError, match="delay_s"):
        channel_kit.log.slow(-1)
    with pytest.raises(ArgumentTypeError, match="membershp"):
        await channel_kit.broker("a", membershp={"take_over": True})
    with pytest.raises(ArgumentTypeError, match="on_onw"):
        await channel_kit.broker("a", Misspelt())
    await channel_kit.broker("a")
    with pytest.raises(OutcomeError, match="unknown-namespace"):
        await channel_kit.own("no/such/0x00000000_0xffffffff", "a")


class Misspelt(BrokerHooks):
    async def on_onw(self, bundle: str, generation: int) -> None:
        """Not a hook."""


async def test_an_id_that_is_in_use_is_refused_and_the_kit_goes_on(channel_kit: ChannelKit) -> None:
    await channel_kit.broker("a")
    with pytest.raises(ChannelStoppedError, match="id"):
        await channel_kit.broker("a")
    bundle, *_ = await channel_kit.namespace()
    assert await channel_kit.own(bundle, "a") > 0


@pytest.mark.usefixtures("channel_kit")
class TestOfUnittest(IsolatedAsyncioTestCase):
    """A test of the standard library beside the fixture."""

    def setUp(self) -> None:
        self.ready = True

    async def test_it_keeps_its_set_up_and_its_loop(self) -> None:
        assert self.ready
        assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
