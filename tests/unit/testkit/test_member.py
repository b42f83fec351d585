"""What a member says while it runs, alone on a log in memory, in virtual time: of itself, of bundles, of its operations."""

import asyncio
from types import MappingProxyType

import pytest
from prometheus_client import CollectorRegistry

from statechannel.api import ArgumentTypeError, ArgumentValueError, BrokerHooks, StateChannelError, WrongLoopError
from statechannel.api.member import CACHED_IN_A_ROW, ChannelMember, NoKafkaError, Ticket
from statechannel.engine.commands import (
    AwaitOperation,
    Done,
    NotFound,
    Outcome,
    Owned,
    Rejected,
    ResumeRepair,
    Started,
    Undetermined,
    Unknown,
)
from statechannel.operations.request_record import Request
from statechannel.operations.table import ExtensionAsk, RequestCommand
from statechannel.testing import ChannelKit

LOWER, UPPER = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"


async def test_what_a_member_says_of_itself_and_of_bundles(channel_kit: ChannelKit) -> None:
    channel = (await channel_kit.broker("b1")).channel
    await channel_kit.namespace("t/n", 2)
    assert (channel.holder(LOWER), channel.owners("t/n"), channel.serving()) == (None, {}, {})
    owned = await channel.lookup(LOWER)
    assert isinstance(owned, Owned)
    assert (owned.bundle, owned.broker) == (LOWER, "b1")
    assert channel.lookup_cached(LOWER) == owned
    assert channel.lookup_cached(UPPER) is None
    assert (channel.holder(LOWER), channel.owners("t/n")) == ("b1", {LOWER: "b1"})
    generation = channel.serves(LOWER)
    assert generation is not None
    assert channel.serving() == {LOWER: generation}
    assert (channel.accepts_writes(LOWER), channel.serves(UPPER)) == (generation, None)
    assert channel.accepts_writes(UPPER) is None
    assert {channel.locate(name) for name in (LOWER, UPPER, "t/n/topic")} == {LOWER, UPPER}
    assert isinstance(channel.locate("t/other/topic"), NotFound)
    assert channel.holder("t/other/0x00000000_0x80000000") is None

    await channel_kit.advance(30)
    assert ([broker.broker for broker in channel.brokers()], channel.broker_ids()) == (["b1"], ["b1"])
    assert (channel.leading, channel.identity.broker, channel.stopped) == (True, "b1", None)
    assert channel.term >= 0
    assert channel.positions() == channel.digest()[1]
    assert channel.positions()[0] > 0
    assert channel.log_time_ms > 0
    assert len(channel.picture().bundles) == 2
    assert channel.status()["extensions"] == {}
    assert isinstance(channel.metrics_registry, CollectorRegistry)
    assert channel.watched_topics == {}
    with pytest.raises(NoKafkaError):
        _ = channel.access
    assert channel.settings.runtime.close_timeout_s > 0
    assert channel.admitted() == {}
    await channel.close()
    assert (channel.leading, channel.term, channel.serving()) == (False, -1, {})
    assert channel.stopped is not None


async def test_an_operation_is_followed_to_its_end_and_found_again(channel_kit: ChannelKit) -> None:
    channel = (await channel_kit.broker("b1")).channel
    await channel_kit.namespace("t/n", 2)
    await channel.lookup(LOWER)
    ticket = await channel.unload(LOWER, reason="a test")
    started = await ticket.started()
    assert isinstance(started, Started)
    assert (started.operation, started.bundle) == (str(ticket), LOWER)
    assert repr(ticket) == f"Ticket({str(ticket)!r})"
    for _ in range(2):
        ended = await ticket.outcome()
        assert isinstance(ended, Done)
        assert ended.operation == str(ticket)
    again = channel.ticket(str(ticket))
    assert await again.outcome() == await again.started() == ended
    assert await channel.ask(AwaitOperation(str(ticket), 5.0)) == ended
    refused = await channel.transfer(UPPER, "nobody").outcome()
    assert isinstance(refused, Rejected)
    assert await channel.transfer(UPPER, "nobody").started() == refused
    unknown = channel.ticket("never-begun")
    assert isinstance(await unknown.outcome(0), Undetermined | NotFound)
    assert await channel.resume_repair() == await channel.ask(ResumeRepair())


async def test_an_operation_of_which_nothing_was_read_keeps_its_first_answer(channel_kit: ChannelKit) -> None:
    """That Kafka refused its record is not hidden behind "no such operation"."""
    channel = (await channel_kit.broker("b1")).channel
    first: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    first.set_result(Unknown("op1", "MSG_SIZE_TOO_LARGE"))
    ticket = Ticket(channel, "op1", first)
    assert await ticket.outcome(2) == await ticket.started() == first.result()


async def test_who_asks_for_many_cached_answers_leaves_others_their_turn(channel_kit: ChannelKit) -> None:
    channel = (await channel_kit.broker("b1")).channel
    await channel_kit.namespace("t/n", 1)
    await channel.lookup("t/n/topic")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(count())
    await asyncio.sleep(0)
    for number in range(1, 2 * CACHED_IN_A_ROW + 1):
        assert isinstance(await channel.lookup("t/n/topic"), Owned)
        assert turns == 1 + number // CACHED_IN_A_ROW
    others.cancel()


async def test_a_request_is_written_and_its_reply_heard(channel_kit: ChannelKit) -> None:
    channel = (await channel_kit.broker("b1")).channel
    await channel_kit.namespace("t/n", 1)
    heard: list[Outcome] = []
    asked: list[ExtensionAsk] = []

    async def answer(ask: ExtensionAsk) -> Outcome:
        asked.append(ask)
        return Done(ask.operation, "answered")

    channel.answer_for("mine", answer)
    args = {"extension": "mine", "ask": "this"}
    identifiers = [
        channel.request(RequestCommand.LOOKUP, {"name": "t/n/topic"}, 5, heard.append),
        channel.request(RequestCommand.EXTENSION, args, 5, heard.append),
        channel.request(RequestCommand.LOOKUP, {"name": "t/n/topic"}, 5),
    ]
    await channel_kit.advance(5)
    assert len(set(identifiers)) == 3
    assert {type(outcome) for outcome in heard} == {Owned, Done}
    assert len(heard) == 2
    assert [(ask.ask, ask.operation) for ask in asked] == [("this", identifiers[1])]
    for wrong in (MappingProxyType({}), None):
        with pytest.raises(ArgumentTypeError):
            channel.request(RequestCommand.LOOKUP, wrong, 5)  # type: ignore[arg-type]


async def test_a_broker_checks_a_move_before_it_executes_it_whether_it_leads_or_not(channel_kit: ChannelKit) -> None:
    channels = [(await channel_kit.broker(name)).channel for name in ("b1", "b2")]
    await channel_kit.namespace("t/n", 1)
    owned = await channels[0].lookup("t/n/topic")
    assert isinstance(owned, Owned)
    checked: list[tuple[str, str]] = []
    for channel in channels:
        name = channel.identity.broker

        def refusal(request: Request, name: str = name) -> Outcome:
            checked.append((name, request.name))
            return Rejected("filtered", "it is pinned")

        channel.check_before("may-take", refusal)
    heard: list[Outcome] = []
    channels[0].request(RequestCommand.UNLOAD, {"name": owned.bundle}, 5, heard.append)
    await channel_kit.advance(5)
    assert checked == [(owned.broker, owned.bundle)]
    assert [getattr(outcome, "reason", "") for outcome in heard] == ["filtered"]
    assert channels[0].holder(owned.bundle) == owned.broker
    channels[0].request(RequestCommand.UNLOAD, {"name": owned.bundle, "force": True}, 5, heard.append)
    await channel_kit.advance(5)
    assert isinstance(heard[-1], Done)
    assert len(checked) == 1


async def test_another_thread_gets_what_does_not_change_under_it(channel_kit: ChannelKit) -> None:
    channel = (await channel_kit.broker("b1")).channel
    for read in (channel.brokers, channel.positions, channel.picture, channel.digest, channel.status, channel.serving):
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(read)
    await channel_kit.namespace("t/n", 1)
    await channel.lookup("t/n/topic")
    bundle = "t/n/0x00000000_0xffffffff"
    assert await asyncio.to_thread(channel.serves, bundle) is not None
    for name in ("t/n/topic", "t/n"):
        for ask in (channel.serves, channel.accepts_writes):
            with pytest.raises(ArgumentValueError):
                ask(name)


async def test_changes_from_now_on_and_from_a_position(channel_kit: ChannelKit) -> None:
    channel = (await channel_kit.broker("b1")).channel
    await channel_kit.namespace("t/one", 1)
    end = channel.positions()[0] + 1
    firsts_wanted = (None, {0: end}, {0: end + 1}, {0: 0}, {0: end - 1}, {})
    streams = [channel.changes(since) for since in firsts_wanted]
    firsts = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    watcher = channel.watch(10)
    await channel_kit.namespace("t/two", 1)
    await channel_kit.namespace("t/three", 1)
    found = [(await first).bundle for first in firsts]
    assert found[0] == found[1] == "t/two"
    assert (found[3], found[5]) == ("t/one", "t/one")
    assert [change.bundle for change in watcher.take()] == ["t/two", "t/three"]
    for first in firsts:
        first.cancel()


class Mine:
    """An extension that notes its life."""

    name = "mine"
    placement = None

    def __init__(self, fails: Exception | None = None) -> None:
        self.log: list[str] = []
        self.fails = fails

    async def start(self, channel: ChannelMember) -> None:
        self.log.append(f"start at {channel.identity.broker}")
        if self.fails is not None:
            raise self.fails

    async def close(self) -> None:
        self.log.append("close")

    def status(self) -> dict[str, bool]:
        return {"works": True}


async def test_extensions_live_with_their_member(channel_kit: ChannelKit) -> None:
    mine = Mine()
    channel = (await channel_kit.broker("b1", extensions=[mine])).channel
    assert channel.status()["extensions"] == {"mine": {"works": True}}
    waiting = asyncio.ensure_future(channel.wait_stopped())
    with pytest.raises(ArgumentValueError):
        await channel.shutdown(-1.0)
    await channel_kit.advance(1)
    assert (waiting.done(), mine.log) == (False, ["start at b1"])
    stopped = await channel.shutdown(5.0)
    assert stopped.clean
    assert stopped == await waiting == await channel.wait_stopped() == await channel.shutdown() == channel.stopped
    await channel.close()
    assert mine.log == ["start at b1", "close"]
    assert channel.status()["extensions"] == {}


@pytest.mark.parametrize("fails", [OSError("no port"), StateChannelError("no topic")])
async def test_an_extension_that_cannot_start_ends_its_member(channel_kit: ChannelKit, fails: Exception) -> None:
    mine = Mine(fails)
    with pytest.raises(StateChannelError, match=str(fails)):
        await channel_kit.broker("b1", extensions=[mine])
    assert mine.log == ["start at b1", "close"]
    await channel_kit.broker("b2")
    await channel_kit.advance(1)
    assert channel_kit.brokers["b2"].channel.broker_ids() == ["b2"], "it has said goodbye"


async def test_a_shutdown_has_time_for_each_bundle(channel_kit: ChannelKit) -> None:
    groups = {"hook_settings": {"shutdown_budget_s": 20.0, "shutdown_bundle_s": 2.0}}
    channel = (await channel_kit.broker("b1", **groups)).channel  # type: ignore[arg-type]
    bundles = await channel_kit.namespace("t/n", 3)
    assert channel.shutdown_budget_s == 20.0
    for bundle in bundles:
        await channel_kit.own(bundle, "b1")
    assert channel.shutdown_budget_s == 26.0


@pytest.mark.parametrize(("timeout_s", "waited_s"), [(3.0, 3.0), (0, 0.05)])
async def test_an_operation_that_goes_on_is_undetermined_after_its_time(
    channel_kit: ChannelKit, timeout_s: float, waited_s: float
) -> None:
    class Slow(BrokerHooks):
        async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
            await asyncio.sleep(20.0)

    channel = (await channel_kit.broker("b1", Slow(), hook_settings={"deadline_s": 25})).channel
    bundle, *_ = await channel_kit.namespace()
    await channel_kit.own(bundle, "b1")
    ticket = await channel.unload(bundle)
    assert isinstance(await ticket.started(), Started)
    began_s = channel_kit.now_s
    assert isinstance(await ticket.outcome(timeout_s), Undetermined)
    assert channel_kit.now_s - began_s == pytest.approx(waited_s, abs=0.6)
