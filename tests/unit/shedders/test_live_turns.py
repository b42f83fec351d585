"""A move is looked at again when its turn comes: what was decided on may have waited for long; exchanges go whole or not."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loaddata.report.record import ReportedLoad
from shedders.decision.booked_moves import BookedMoves
from shedders.model.cluster import Policies
from shedders.model.plan import in_turn
from shedders.policies.effective import EffectivePolicies
from statechannel.engine.commands import Done, Rejected
from tests.support.live_balancer import Channel, World, behind, key, leaving, load, move, safe, settle


@pytest.fixture
def world() -> World:
    world = World(channel=Channel(bundles={key(0): "b1", key(1): "b1", key(2): "b1", key(3): "b2"}))
    world.report()
    world.change(moves_at_once=1)
    return world


def plan_once(world: World, *moves: Any) -> None:
    world.plan = lambda cluster, memory: [] if memory.get("decisions") else list(moves)


async def waiting(world: World) -> asyncio.Future[Any]:
    """Two moves from b1 to b2, the first under way, the second waiting for its turn."""
    first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answers: list[Any] = [first]
    world.channel.answer = lambda command: answers.pop() if answers else Done(command.operation, "transferred")
    plan_once(world, move(key(0), "b1", "b2"), move(key(1), "b1", "b2"))
    await world.cycle()
    assert len(world.channel.asked) == 1
    return first


async def ended(world: World, first: asyncio.Future[Any]) -> tuple[str, str]:
    """The first is done, and the second has its turn: what became of it."""
    first.set_result(Done(world.channel.asked[0].operation, "transferred"))
    await settle()
    (outcome,) = [answer for answer in world.outcomes if answer.bundle == key(1)]
    return outcome.result, outcome.why or ""


async def test_a_move_whose_turn_comes_late_is_made_where_nothing_has_changed(world: World) -> None:
    first = await waiting(world)
    # What the first move brought made these reports lapse; that is booked.
    world.loads["b2"] = ReportedLoad(load(), 30.0, lapsed=True)
    assert (await ended(world, first))[0] == "done"
    assert [request.name for request in world.channel.asked] == [key(0), key(1)]


def policies(**fields: Any) -> Callable[[World], None]:
    return lambda world: setattr(world, "effective", EffectivePolicies(policies=Policies(**fields)))


def elsewhere(world: World) -> None:
    world.channel.bundles[key(1)] = "b3"


def gone(world: World) -> None:
    del world.channel.bundles[key(1)]


def released(world: World) -> None:
    world.channel.in_flight[key(1)] = "b3"


def silent(world: World) -> None:
    del world.loads["b2"]


def old(world: World) -> None:
    world.loads["b2"] = ReportedLoad(load(), 1_801.0, lapsed=False)


def unregistered(world: World) -> None:
    world.channel.brokers_.remove("b2")


def no_booking(world: World) -> None:
    world.balancer._lead.balance.booked.cancel(key(1), "it took too long")  # type: ignore[union-attr]


def off(world: World) -> None:
    world.effective = EffectivePolicies(shedding_on=False, shedding_why="bob said so")


@pytest.mark.parametrize(
    ("hinder", "why"),
    [
        (policies(cordons={"b2": "disk"}), "disk"),
        (policies(pins={key(1): "b1"}), "pinned to b1"),
        (policies(pins={"t/n": "b3"}), "pinned to b3"),
        (policies(excluded=frozenset({"t/n"})), "t/n is excluded"),
        (off, "shedding-off: bob said so"),
        (safe, "safe mode"),
        (leaving, "this broker is leaving"),
        (behind, "has not caught up"),
        (elsewhere, "b3 serves it, not b1"),
        (gone, "no longer exists"),
        (released, "in flight already"),
        (silent, "b2: no-load-data"),
        (old, "b2: outdated"),
        (unregistered, "b2: gone"),
        (no_booking, "no longer booked"),
    ],
)
async def test_a_move_whose_turn_comes_late_is_looked_at_again(world: World, hinder: Callable[[World], None], why: str):
    first = await waiting(world)
    hinder(world)
    result, outcome = await ended(world, first)
    assert (result, len(world.channel.asked)) == ("abandoned", 1)
    assert outcome.startswith("it was not started: ")
    assert why in outcome
    assert key(1) not in world.balancer._lead.balance.booked  # type: ignore[union-attr]


# --- exchanges --------------------------------------------------------------------------------------------------------


def heavy(load: float = 9.0) -> Any:
    return replace(move(key(0), "b1", "b2"), load=load)


BACK = replace(move(key(3), "b2", "b1"), swap=True)


def test_the_heaviest_goes_first_and_what_comes_back_follows_it() -> None:
    light, other = move(key(1), "b1", "b2"), move(key(5), "b4", "b5")
    turns = list(in_turn([BACK, other, light, heavy()]))
    assert [turn.move for turn in turns] == [heavy(), light, BACK, other]
    assert [(turn.after, list(turn.along)) for turn in turns] == [(None, [BACK]), (None, []), (heavy(), []), (None, [])]


@pytest.mark.parametrize("at_once", [1, 8])
async def test_of_an_exchange_nothing_comes_back_before_the_heavier_half_has_gone(world: World, at_once: int) -> None:
    world.change(moves_at_once=at_once)
    first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.channel.answer = lambda command: first if command.name == key(0) else Done(command.operation, "transferred")
    plan_once(world, BACK, heavy())
    await world.cycle()
    assert [request.name for request in world.channel.asked] == [key(0)]
    first.set_result(Done("x", "transferred"))
    world.channel.bundles[key(0)] = "b2"
    await settle()
    assert [(request.name, request.destination) for request in world.channel.asked] == [(key(0), "b2"), (key(3), "b1")]


async def test_of_an_exchange_nothing_comes_back_where_the_heavier_half_is_refused(world: World) -> None:
    world.change(moves_at_once=8)
    world.channel.answer = lambda _: Rejected("destination-not-accepting", "b2 is in safe mode")
    plan_once(world, BACK, heavy())
    await world.cycle()
    assert [request.name for request in world.channel.asked] == [key(0)]
    expected = [(key(0), "destination-not-accepting"), (key(3), "abandoned")]
    assert [(outcome.bundle, outcome.result) for outcome in world.outcomes] == expected
    assert key(0) in (world.outcomes[1].why or "")
    assert not world.balancer._lead.balance.booked.moves  # type: ignore[union-attr]


async def test_of_an_exchange_nothing_goes_where_nothing_may_come_back(world: World) -> None:
    world.change(moves_at_once=1)
    first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answers: list[Any] = [first]
    world.channel.answer = lambda command: answers.pop() if answers else Done(command.operation, "transferred")
    plan_once(world, move(key(1), "b1", "b3"), BACK, heavy())
    await world.cycle()
    world.effective = EffectivePolicies(policies=Policies(pins={key(3): "b2"}))
    first.set_result(Done("x", "transferred"))
    await settle()
    assert [request.name for request in world.channel.asked] == [key(1)]
    expected = {key(1): "done", key(0): "abandoned", key(3): "abandoned"}
    assert {outcome.bundle: outcome.result for outcome in world.outcomes} == expected


async def test_who_stops_makes_no_half_of_an_exchange(world: World) -> None:
    first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.channel.answer = lambda _: first
    plan_once(world, BACK, heavy())
    await world.cycle()
    await world.balancer.close()
    expected = [(key(0), "unknown"), (key(3), "abandoned")]
    assert sorted((outcome.bundle, outcome.result) for outcome in world.outcomes) == expected


# --- a new leader -----------------------------------------------------------------------------------------------------


async def test_a_new_leader_books_what_is_on_its_way(world: World) -> None:
    world.channel.in_flight[key(0)] = "b2"
    await world.cycle()
    (booked,) = world.balancer._lead.balance.booked.moves  # type: ignore[union-attr]
    assert (booked.bundle, booked.source, booked.destination, booked.arrived) == (key(0), "b1", "b2", False)
    assert booked.cargo.msg_rate_in == 100
    del world.channel.in_flight[key(0)]
    world.channel.bundles[key(0)] = "b2"
    world.report()
    await world.cycle()
    await world.cycle()
    assert not world.balancer._lead.balance.booked.moves  # type: ignore[union-attr]


def test_what_is_booked_already_is_not_adopted_again() -> None:
    moves = BookedMoves(expire_s=10, keep_s=10)
    world = World(channel=Channel(bundles={key(0): "b1"}))
    cluster = world.ports.cluster(world.channel.picture())
    moves.book(cluster, [move(key(0), "b1", "b2")], 1.0)
    moves.adopt([replace(moves.moves[0], destination="b3")], 2.0)
    assert [move.destination for move in moves.moves] == ["b2"]


# --- what a strategy remembers ----------------------------------------------------------------------------------------


async def test_a_memory_that_makes_its_strategy_fail_is_dropped_and_that_is_said(world: World) -> None:
    def plan(cluster: Any, memory: Any) -> list[Any]:
        if memory.get("decisions", 0) >= 2:
            raise OverflowError("int too large to convert to float")
        return []

    world.plan = plan
    for _ in range(5):
        await world.cycle()
    assert [decision.skipped for decision in world.decisions] == [None, None, "strategy-failed", None, None]
    assert world.decisions[2].why.endswith("; its memory is dropped, the next decision starts without")
    assert world.decisions[3].memory == {"decisions": 1}


async def test_nothing_is_said_of_a_memory_that_there_is_not(world: World) -> None:
    def plan(cluster: Any, memory: Any) -> list[Any]:
        raise ValueError("no")

    world.plan = plan
    await world.cycle()
    assert "remembered" not in world.decisions[0].why
