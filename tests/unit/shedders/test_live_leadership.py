"""Leadership of the balancer: lost, won again, taken over from a leader that is dead, with what it remembered."""

import asyncio
from typing import Any

import pytest

from shedders.model.plan import BundleMove
from statechannel.engine.commands import Done
from statechannel.kafka.errors import KafkaUnavailableError, TopicMissingError
from tests.support.live_balancer import Channel, World, four_bundles, is_due, key, move, plan_once, settle
from tests.support.log_lines import capture_logs


@pytest.fixture
def world() -> World:
    return four_bundles()


async def test_leadership_lost_while_it_decides_leaves_everything_to_the_next_leader(world: World) -> None:
    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        world.channel.term = -1
        return [move(key(0), "b1", "b2")]

    world.plan = plan
    await world.cycle()
    assert (world.records, world.channel.asked) == ([], [])


async def test_leadership_lost_and_won_again_while_it_decides_is_another_leadership(world: World) -> None:
    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        world.channel.term += 1
        return [move(key(0), "b1", "b2")]

    world.plan = plan
    await world.cycle()
    assert (world.records, world.channel.asked) == ([], [])
    world.plan = lambda cluster, memory: []
    assert await is_due(world) is None  # it watches again first
    await world.cycle()
    assert [(decision.term, decision.cycle, decision.trigger) for decision in world.decisions] == [(8, 1, "new-leader")]


async def test_leadership_lost_while_the_memory_is_fetched_decides_nothing(world: World) -> None:
    def lose() -> None:
        world.channel.term = -1

    world.recall_hook = lose
    await world.cycle()
    assert (world.recalls, world.records) == (1, [])


@pytest.mark.parametrize(
    "error", [TopicMissingError("no topic"), KafkaUnavailableError("away"), OSError("disk"), RuntimeError("a bug")]
)
async def test_a_leader_that_cannot_read_the_decisions_begins_without_memory(world: World, error: Exception) -> None:
    def fail() -> None:
        raise error

    world.recall_hook = fail
    with capture_logs() as logs:
        await world.cycle()
        await world.cycle()
    assert [decision.memory for decision in world.decisions] == [{"decisions": 1}, {"decisions": 2}]
    assert world.recalls == 1
    assert [log["event"] for log in logs if log["log_level"] in ("warning", "error")] == ["decisions-unread"]


async def test_a_leader_that_dies_in_the_middle_of_its_moves_is_followed_by_one_that_makes_none_twice() -> None:
    """Of three moves one has arrived, one is under way on the channel, one was never begun."""
    old = World(channel=Channel(bundles=dict.fromkeys(map(key, range(4)), "b1")))
    old.report()
    old.change(moves_at_once=2)
    ends: list[asyncio.Future[Any]] = []

    def answer(command: Any) -> Any:
        if command.name == key(0):
            return Done(command.operation, "transferred")
        ends.append(asyncio.get_running_loop().create_future())
        return ends[-1]

    old.channel.answer = answer
    three = [move(key(number), "b1", "b2") for number in range(3)]
    old.plan = lambda cluster, memory: three
    await old.cycle()
    assert [request.name for request in old.channel.asked] == [key(0), key(1), key(2)]
    assert [(outcome.bundle, outcome.result) for outcome in old.outcomes] == [(key(0), "done")]

    # It is dead. What it has begun goes on: the channel has that key 1 is on its way; of key 2 the record was lost.
    new = World(channel=Channel(broker="b3", term=9, brokers_=["b2", "b3"], bundles=old.channel.bundles))
    new.channel.in_flight[key(1)] = "b2"
    new.before = old.decisions[-1]
    new.report()
    seen: list[Any] = []

    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        seen.append((cluster, memory))
        return [move(item.name, "b1", "b2") for item in cluster.bundles_of["b1"] if not item.in_flight]

    new.plan = plan
    await new.cycle()
    cluster, memory = seen[0]
    assert memory == old.decisions[-1].memory
    assert [bundle.name for bundle in cluster.bundles.values() if bundle.in_flight] == [key(1)]
    assert [request.name for request in new.channel.asked] == [key(2), key(3)]
    assert not {request.operation for request in new.channel.asked} & {
        request.operation for request in old.channel.asked
    }
    for end in ends:
        end.cancel()


async def test_moves_that_wait_are_not_begun_by_one_who_leads_no_more(world: World) -> None:
    world.change(moves_at_once=1)
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.channel.answer = lambda _: end
    plan_once(world, move(key(0), "b1", "b2"), move(key(1), "b1", "b2"))
    await world.cycle()
    world.channel.term = -1
    end.set_result(Done(world.channel.asked[0].operation, "transferred"))
    await settle()
    assert len(world.channel.asked) == 1
    expected = [(key(0), "done", 7), (key(1), "abandoned", 7)]
    assert [(outcome.bundle, outcome.result, outcome.term) for outcome in world.outcomes] == expected


async def test_a_new_leader_goes_on_with_the_memory_of_the_one_before(world: World) -> None:
    seen: list[Any] = []
    world.plan = lambda cluster, memory: seen.append(dict(memory)) or []  # type: ignore[func-returns-value]
    await world.cycle()
    await world.cycle()
    world.before = world.decisions[-1]
    successor = World(channel=Channel("b2", 9, world.channel.bundles), before=world.before, plan=world.plan)
    await successor.cycle()
    assert seen == [{}, {"decisions": 1}, {"decisions": 2}]
    assert successor.decisions[0].memory == {"decisions": 3}
    assert successor.recalls == 1
    await successor.cycle()
    assert successor.recalls == 1


async def test_the_memory_of_another_strategy_is_not_its_own(world: World) -> None:
    seen: list[Any] = []
    world.plan = lambda cluster, memory: seen.append(dict(memory)) or []  # type: ignore[func-returns-value]
    await world.cycle()
    other = World(before=world.decisions[-1].model_copy(update={"strategy": "threshold"}), plan=world.plan)
    await other.cycle()
    assert seen == [{}, {}]
