"""Three members of one channel in one process, on a real Kafka: every flow through the embedding API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from statechannel.api import BrokerHooks, Done, NotFound, Owned, Rejected, Started, StateChannel, Ticket, Unowned
from tests.support.channels import Recorder, created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

NAMESPACE = "public/default"
TOPIC = f"{NAMESPACE}/orders"


class Trio:
    """Three open channels and what their hooks were told."""

    def __init__(self, settings) -> None:
        self.settings = settings
        self.channels: dict[str, StateChannel] = {}
        self.hooks: dict[str, Recorder] = {}

    async def add(self, stack: AsyncExitStack, broker: str, hooks: BrokerHooks | None = None) -> StateChannel:
        recorder = hooks or Recorder()
        channel = await stack.enter_async_context(
            StateChannel.open(
                self.settings,
                broker=broker,
                hooks=recorder,
                listeners={"pulsar": f"pulsar://{broker}:6650"},
                create_topics=True,
                join_timeout_s=WAIT_S,
            )
        )
        self.channels[broker] = channel
        self.hooks[broker] = recorder
        return channel


@pytest.fixture
async def trio(kafka: Kafka, topic_prefix: str) -> AsyncIterator[Trio]:
    trio = Trio(make_settings(kafka.bootstrap_servers, topic_prefix))
    async with AsyncExitStack() as stack:
        await trio.add(stack, "b1")  # it makes the topics
        await asyncio.gather(*(trio.add(stack, broker) for broker in ("b2", "b3")))
        yield trio
        await asyncio.gather(*(channel.shutdown(0) for channel in trio.channels.values()))  # nobody needs a hand-over


async def done(ticket: Ticket) -> Done:
    outcome = await ticket.outcome(WAIT_S)
    assert isinstance(outcome, Done), outcome
    return outcome


async def create(trio: Trio, bundles: int = 4) -> None:
    """Create the namespace at one member and wait until every member has seen it."""
    ticket = await created(trio.channels["b1"], NAMESPACE, bundles)
    assert isinstance(await ticket.started(WAIT_S), Started)
    for channel in trio.channels.values():
        assert (await done(channel.ticket(str(ticket)))).result == "created"


async def owned(trio: Trio, topic: str = TOPIC) -> Owned:
    """Have the topic's bundle owned, and wait until every member has seen by whom: views may be milliseconds apart."""
    while True:
        answers = [await channel.lookup(topic, WAIT_S) for channel in trio.channels.values()]
        assert all(isinstance(answer, Owned) for answer in answers), answers
        if len({(answer.broker, answer.generation, answer.bundle) for answer in answers}) == 1:
            return answers[0]
        await asyncio.sleep(0.02)


async def test_first_lookup_assigns_and_every_member_agrees(trio: Trio) -> None:
    await create(trio)
    first = await trio.channels["b2"].lookup(TOPIC, WAIT_S)
    assert isinstance(first, Owned), first
    assert first.urls == {"pulsar": f"pulsar://{first.broker}:6650"}
    for channel in trio.channels.values():
        again = await channel.lookup(TOPIC, WAIT_S)
        assert (again.broker, again.generation, again.bundle) == (first.broker, first.generation, first.bundle)
    assert trio.channels[first.broker].serving()[first.bundle] == first.generation
    await trio.hooks[first.broker].until(("on_serve", first.bundle, first.generation))
    expected = [("on_own", first.bundle, first.generation), ("on_serve", first.bundle, first.generation)]
    assert trio.hooks[first.broker].calls[:2] == expected


async def test_lookups_of_what_is_not_there(trio: Trio) -> None:
    channel = trio.channels["b1"]
    assert isinstance(await channel.lookup("no-namespace"), NotFound)
    assert isinstance(await channel.lookup("public/absent/topic"), NotFound)
    await create(trio)
    assert isinstance(await channel.lookup(TOPIC, read_only=True), Unowned)


async def test_transfer_names_the_destination_and_moves_the_bundle(trio: Trio) -> None:
    await create(trio)
    before = await owned(trio)
    destination = next(name for name in trio.channels if name != before.broker)
    ticket = await trio.channels["b3"].transfer(TOPIC, destination, reason="test")
    assert (await done(ticket)).result == "transferred"
    after = await owned(trio)
    assert after.broker == destination
    assert after.generation > before.generation
    assert ("on_release", before.bundle, before.generation, destination) in trio.hooks[before.broker].calls
    await trio.hooks[before.broker].until(("on_moved", before.bundle, destination))
    # A ticket is nothing but its id: any member can tell how the operation ended.
    assert (await done(trio.channels["b2"].ticket(str(ticket)))).result == "transferred"


async def test_bad_destinations_are_refused_with_a_reason(trio: Trio) -> None:
    await create(trio)
    owner = await owned(trio)
    for destination in (owner.broker, "nobody"):
        outcome = await (await trio.channels["b1"].transfer(TOPIC, destination)).outcome(WAIT_S)
        assert isinstance(outcome, Rejected), outcome
        assert outcome.message


async def test_unload_and_split(trio: Trio) -> None:
    await create(trio, bundles=1)
    owner = await owned(trio)
    assert (await done(await trio.channels["b2"].unload(TOPIC))).result == "unloaded"
    owner = await owned(trio)
    ticket = await trio.channels["b2"].split(owner.bundle, parts=3)
    assert (await done(ticket)).result == "split"
    # Another member's view may be some milliseconds behind: there the same ticket tells.
    assert isinstance(await trio.channels["b3"].ticket(str(ticket)).outcome(WAIT_S), Done)
    child = await owned(trio)
    assert child.broker == owner.broker
    assert child.bundle != owner.bundle
    assert child.generation > owner.generation
    outside = await (await trio.channels["b2"].split(child.bundle, at=[0xFFFFFFFF])).outcome(WAIT_S)
    assert isinstance(outside, Rejected), outside


async def test_delete_namespace(trio: Trio) -> None:
    await create(trio)
    assert isinstance(await trio.channels["b1"].lookup(TOPIC, WAIT_S), Owned)
    assert (await done(await trio.channels["b2"].delete_namespace(NAMESPACE))).result == "deleted"
    assert isinstance(await trio.channels["b3"].lookup(TOPIC, 5), NotFound)


async def test_changes_from_the_past_then_live(trio: Trio) -> None:
    channel = trio.channels["b1"]
    await create(trio)
    assert isinstance(await channel.lookup(TOPIC, WAIT_S), Owned)
    seen = []
    async with asyncio.timeout(WAIT_S):
        async for change in trio.channels["b2"].changes(since={}):
            seen.append(change)
            if change.state == "Assigned":
                break
    assert [str(change.state) for change in seen] == ["Active", "Assigning", "Assigned"]
    assert len(seen[0].derived) == 4
    assert seen[1].operation == seen[2].operation
    live = channel.changes()
    follow = asyncio.ensure_future(anext(live))
    await asyncio.sleep(0)
    ticket = await channel.unload(TOPIC)
    change = await asyncio.wait_for(follow, WAIT_S)
    assert (str(change.state), change.operation) == ("Releasing", str(ticket))
    await live.aclose()
    resumed = trio.channels["b3"].changes(since={0: seen[-1].offset + 1})
    change = await asyncio.wait_for(anext(resumed), WAIT_S)
    assert str(change.state) == "Releasing"
    await resumed.aclose()


async def test_shutdown_hands_over_and_says_goodbye(trio: Trio) -> None:
    await create(trio, bundles=6)
    places = [f"{NAMESPACE}/topic-{number}" for number in range(60)]
    owners = await asyncio.gather(*(trio.channels["b1"].lookup(place, WAIT_S) for place in places))
    leaver = next(o.broker for o in owners if isinstance(o, Owned))
    mine = trio.channels[leaver].serving()
    assert mine
    stopped = await trio.channels[leaver].shutdown(20)
    assert (stopped.reason, stopped.exit_code) == ("closed", 0)
    stayed = next(channel for broker, channel in trio.channels.items() if broker != leaver)
    for bundle in mine:
        owner = await stayed.lookup(bundle, 20, read_only=True)
        assert isinstance(owner, Owned), owner
        assert owner.broker != leaver
