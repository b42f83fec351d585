"""The leader's cycle: when it decides, what keeps it from moving anything, and what it writes down of both."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loaddata.report.record import ReportedLoad
from shedders.balancer.cluster_inputs import cluster_now
from shedders.balancer.lead import Balance
from shedders.decision.booked_moves import BookedMoves, BudgetSettings
from shedders.decisions.record import DecisionRecord
from shedders.model.cluster import Policies
from shedders.model.plan import BundleMove
from shedders.policies.effective import EffectivePolicies
from statechannel.broker.changes import Change, Derived
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.engine import commands
from statechannel.engine.commands import Done, Rejected
from statechannel.protocol.states import State
from tests.support.live_balancer import (
    World,
    behind,
    four_bundles,
    is_due,
    key,
    leaving,
    load,
    move,
    plan_once,
    safe,
    settle,
)
from tests.support.waits import WAIT_S


@pytest.fixture
def world() -> World:
    return four_bundles()


# --- when -----------------------------------------------------------------------------------------------------------


async def test_a_new_leader_watches_first_then_decides_at_every_interval(world: World) -> None:
    assert await is_due(world) is None
    world.clock.s += 19
    assert await is_due(world) is None
    await world.cycle(2)
    assert [decision.trigger for decision in world.decisions] == ["new-leader"]
    world.clock.s += 59
    assert await is_due(world) is None
    await world.cycle(2)
    assert [(decision.trigger, decision.cycle) for decision in world.decisions] == [("new-leader", 1), ("cycle", 2)]
    world.change(interval_s=10)  # by policy
    world.clock.s += 11
    assert await is_due(world) == "cycle"


async def test_who_does_not_lead_decides_nothing(world: World) -> None:
    world.channel.term = -1
    world.clock.s += 1_000
    assert await is_due(world) is None
    assert not world.balancer.leading


async def test_something_new_asks_for_a_decision_but_not_at_once_after_the_last(world: World) -> None:
    await world.cycle()
    await world.cycle()
    world.balancer.wake("policy")
    world.balancer.wake("children")
    assert await is_due(world) is None
    await world.cycle(5)
    assert [decision.trigger for decision in world.decisions] == ["new-leader", "cycle", "policy"]
    world.clock.s += 6
    assert await is_due(world) is None  # both were answered by that one


async def test_it_runs_for_ever_and_takes_its_scores_back_when_it_ends(world: World) -> None:
    world.change(settle_s=0)
    running = asyncio.create_task(world.balancer.run())
    async with asyncio.timeout(WAIT_S):
        while not world.decisions:  # noqa: ASYNC110 - decisions are no event
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.decisions[0].trigger == "new-leader"


# --- what keeps it from deciding ------------------------------------------------------------------------------------


def unread(world: World) -> None:
    world.effective = None


def off(world: World) -> None:
    world.effective = EffectivePolicies(shedding_on=False, shedding_why="shedding is off (ann: sale)")


def off_by_setting(world: World) -> None:
    world.change(balancing=False)


def unusable(world: World) -> None:
    world.unusable = "unknown shedding strategy `threshhold`"


HINDRANCES: list[tuple[Callable[[World], None], str, str]] = [
    (unread, "policies-unread", "have not been read"),
    (off, "shedding-off", "ann: sale"),
    (off_by_setting, "shedding-off", "balancing is false"),
    (behind, "joining", "has not caught up"),
    (safe, "safe-mode", "safe mode"),
    (leaving, "safe-mode", "this broker is leaving"),
    (unusable, "unusable-policies", "threshhold"),
]


@pytest.mark.parametrize(("hinder", "word", "why"), HINDRANCES)
async def test_a_skipped_cycle_says_why_and_moves_nothing(
    world: World, hinder: Callable[[World], None], word: str, why: str
) -> None:
    plan_once(world, move(key(0), "b1", "b2"))
    hinder(world)
    await world.cycle()
    (record,) = world.decisions
    assert (record.skipped, record.moves) == (word, [])
    assert why in record.why
    assert world.channel.asked == []


@pytest.mark.parametrize(("hinder", "word", "why"), [HINDRANCES[0], HINDRANCES[1], HINDRANCES[2], HINDRANCES[6]])
async def test_what_is_forbidden_while_it_decides_is_obeyed(
    world: World, hinder: Callable[[World], None], word: str, why: str
) -> None:
    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        hinder(world)
        return [move(key(0), "b1", "b2")]

    world.plan = plan
    await world.cycle()
    assert [decision.skipped for decision in world.decisions] == [word]
    assert world.channel.asked == []
    assert len(world.balancer._lead.balance.booked) == 0  # type: ignore[union-attr]


async def test_what_is_forbidden_while_moves_wait_for_their_turn_is_obeyed(world: World) -> None:
    world.change(moves_at_once=1)
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.channel.answer = lambda _: end
    plan_once(world, *(move(key(number), "b1", "b2") for number in range(3)))
    await world.cycle()
    assert len(world.channel.asked) == 1
    off(world)
    end.set_result(Done(world.channel.asked[0].operation, "transferred"))
    await settle()
    assert len(world.channel.asked) == 1
    assert [outcome.result for outcome in world.outcomes] == ["done", "abandoned", "abandoned"]


async def test_a_strategy_that_raises_is_a_record_and_nothing_else(world: World) -> None:
    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        raise ZeroDivisionError("by zero")

    world.plan = plan
    await world.cycle()
    (record,) = world.decisions
    assert (record.skipped, record.label) == ("strategy-failed", "Failure")
    assert "by zero" in record.why
    plan_once(world, move(key(0), "b1", "b2"))
    await world.cycle()
    assert len(world.channel.asked) == 1


async def test_a_move_that_makes_no_sense_is_refused_and_the_others_are_made(world: World) -> None:
    seen: list[Any] = []

    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        seen.append(memory)
        return [] if memory.get("decisions") else [move(key(3), "b1", "b2"), move(key(0), "b1", "b2")]

    world.plan = plan
    await world.cycle()
    (record,) = world.decisions
    assert record.skipped is None
    refused = {move.bundle: move.refused for move in record.moves}
    assert str(refused[key(3)]).startswith("not-owned: ")
    assert refused[key(0)] is None
    assert [request.name for request in world.channel.asked] == [key(0)]
    await world.cycle()
    assert seen[1] == record.memory != {}


async def test_of_a_move_that_is_planned_twice_only_the_made_entry_has_an_operation(world: World) -> None:
    plan_once(world, move(key(0), "b1", "b2"), move(key(0), "b1", "b3"))
    await world.cycle()
    (record,) = world.decisions
    assert [move.destination for move in record.moves] == ["b2", None]
    assert [move.operation is not None for move in record.moves] == [True, False]
    assert [request.name for request in world.channel.asked] == [key(0)]


async def test_a_bug_beside_the_strategy_is_written_down_too_before_the_duty_fails(world: World) -> None:
    world.chosen = replace(world.chosen, pipeline=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        await world.cycle()
    assert [(decision.skipped, decision.label) for decision in world.decisions] == [("internal-error", "Failure")]


# --- moves ----------------------------------------------------------------------------------------------------------


async def test_a_move_is_made_told_and_booked_until_the_reports_show_it(world: World) -> None:
    seen: list[Any] = []

    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        seen.append(cluster)
        return [] if memory.get("decisions") else [move(key(0), "b1", "b2")]

    world.plan = plan
    await world.cycle()
    (asked,) = world.channel.asked
    assert (asked.name, asked.destination) == (key(0), "b2")
    (record,) = world.decisions
    assert record.moves[0].operation == asked.operation
    assert record.id in asked.reason
    assert [(outcome.decision, outcome.result, outcome.operation) for outcome in world.outcomes] == [
        (record.id, "done", asked.operation)
    ]
    before = seen[0].brokers["b2"].load.msg_rate_in
    world.loads = {name: replace_age(load, 100.0) for name, load in world.loads.items()}
    await world.cycle(10 + 60)  # the reports are those of before
    assert seen[1].brokers["b2"].load.msg_rate_in > before
    assert seen[1].recent.bundles[key(0)] == 0
    world.report()
    await world.cycle()
    assert seen[2].brokers["b2"].load.msg_rate_in == before


def replace_age(seen: Any, age_s: float) -> Any:
    return seen._replace(age_s=age_s)


async def test_a_decision_records_how_far_it_is_from_the_best(world: World) -> None:
    plan_once(world, move(key(0), "b1", "b2"))
    await world.cycle()
    distance = world.decisions[0].distance
    assert distance.any_load_bound <= distance.bound <= distance.largest_use
    assert distance.load_moved > 0


async def test_a_move_that_fails_is_booked_no_more(world: World) -> None:
    seen: list[Any] = []
    world.channel.answer = lambda _: Rejected("not-owned", "b3 owns it")

    def plan(cluster: Any, memory: Any) -> list[BundleMove]:
        seen.append(cluster.brokers["b2"].load.msg_rate_in)
        return [] if memory.get("decisions") else [move(key(0), "b1", "b2")]

    world.plan = plan
    await world.cycle()
    assert [(outcome.result, outcome.why) for outcome in world.outcomes] == [("not-owned", "b3 owns it")]
    await world.cycle()
    assert seen[1] == seen[0]


async def test_no_more_than_the_budget_sets_out_and_a_policy_may_change_it(world: World) -> None:
    world.change(budget=BudgetSettings(moves=2, load_percent=100))
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.channel.answer = lambda _: end
    world.plan = lambda cluster, memory: [
        move(item.name, "b1", "b2") for item in cluster.bundles_of["b1"] if not item.in_flight
    ]
    await world.cycle()
    first = world.decisions[0]
    assert [move.operation is not None for move in first.moves] == [True, True, False]
    assert first.moves[2].refused.startswith("budget")
    assert (first.budget.moves_max, first.budget.moves_left, first.budget.on_the_way) == (2, 0, 0)
    world.change(budget=BudgetSettings(moves=3, load_percent=100))
    await world.cycle()
    second = world.decisions[1]
    assert (second.budget.moves_max, second.budget.on_the_way) == (3, 2)
    assert [(move.bundle, move.operation is not None) for move in second.moves] == [(key(2), True)]
    assert len(world.channel.asked) == 3
    end.cancel()


async def test_plain_unloads_by_policy_are_booked_for_nobody(world: World) -> None:
    world.effective = EffectivePolicies(unload_mode="unload")
    plan_once(world, move(key(0), "b1", "b2"))
    await world.cycle()
    (asked,) = world.channel.asked
    assert isinstance(asked, commands.Unload)
    (booked,) = world.balancer._lead.balance.booked.moves  # type: ignore[union-attr]
    assert booked.destination is None
    assert [outcome.result for outcome in world.outcomes] == ["done"]


async def test_filters_refuse_and_the_placement_chooses_what_the_strategy_left_open(world: World) -> None:
    world.effective = EffectivePolicies(policies=Policies(cordons={"b2": "disk"}))
    world.loads["b1"] = ReportedLoad(load(0.9, 5_000), 0.0, lapsed=False)
    plan_once(world, move(key(0), "b1", "b2"), move(key(1), "b1", None))
    await world.cycle()
    assert [(request.name, request.destination) for request in world.channel.asked] == [(key(1), "b3")]
    refused, chosen = world.decisions[0].moves
    assert "disk" in (refused.refused or "")
    assert (chosen.destination, chosen.planned) == ("b3", None)


async def test_decisions_and_placements_do_not_share_what_changes(world: World) -> None:
    assert world.chosen.pipeline is not world.chosen.placing
    world.loads["b1"] = ReportedLoad(load(0.9, 5_000), 0.0, lapsed=False)
    plan_once(world, move(key(0), "b1", None))
    await world.cycle()
    assert world.chosen.pipeline.memory == {"asked": 1}
    assert world.chosen.placing.memory == {}


async def test_a_strategy_that_sheds_and_places_places_by_what_it_has_planned(world: World) -> None:
    world.placing.__class__ = type("Scripted", (type(world.placing),), {"name": "scripted"})
    world.chosen.pipeline.name = "scripted"
    await world.cycle()
    assert world.chosen.placing.memory == {"decisions": 1}


async def test_settings_are_told_once_and_when_they_change(world: World) -> None:
    await world.cycle()
    await world.cycle()
    world.change(budget=BudgetSettings(moves=9))
    await world.cycle()
    results = [decision.settings for decision in world.decisions]
    assert [item is None for item in results] == [False, True, False]
    assert results[2]["budget"]["moves"] == 9  # type: ignore[call-overload, index]


# --- children -------------------------------------------------------------------------------------------------------


def split(number: int, *children: tuple[int, int]) -> Change:
    derived = tuple(Derived(f"t/n/0x{low:08x}_0x{high:08x}", State.ASSIGNED, 5, "b1") for low, high in children)
    return Change(0, 9, 1, key(number), State.DELETED, 4, "b1", None, "b1", "i1", derived=derived)


async def test_the_children_of_a_split_are_offered_at_once(world: World) -> None:
    seen: list[Any] = []
    world.plan = lambda cluster, memory: seen.append(cluster) or []  # type: ignore[func-returns-value]
    await world.cycle()
    del world.channel.bundles[key(1)]
    halves = ["t/n/0x10000000_0x18000000", "t/n/0x18000000_0x20000000"]
    world.channel.bundles |= dict.fromkeys(halves, "b1")
    world.balancer.changed(split(1, (0x10000000, 0x18000000), (0x18000000, 0x20000000)))
    await world.cycle(5)
    assert world.decisions[-1].trigger == "children"
    results = [seen[-1].bundles[name] for name in halves]
    assert [item.estimated for item in results] == [True, True]
    assert [item.stats.msg_rate_in for item in results] == [50, 50]
    world.report()
    await world.cycle()
    assert [seen[-1].bundles[name].estimated for name in halves] == [False, False]  # measured by now


@pytest.mark.parametrize(
    "change",
    [
        split(9, (0x90000000, 0x98000000), (0x98000000, 0xA0000000)),  # nobody knew it
        split(1),  # a namespace that is deleted
        replace(split(1, (0x10000000, 0x18000000), (0x18000000, 0x20000000)), state=State.SPLITTING),
    ],
)
async def test_other_changes_offer_nothing(world: World, change: Change) -> None:
    await world.cycle()
    world.balancer.changed(change)
    assert world.balancer._lead.balance.estimates == {}  # type: ignore[union-attr]


async def test_who_does_not_lead_keeps_nothing_of_a_split(world: World) -> None:
    world.balancer.changed(split(1, (0x10000000, 0x18000000), (0x18000000, 0x20000000)))
    assert not world.balancer.leading


# --- the leader's memory --------------------------------------------------------------------------------------------


async def test_a_decision_is_made_from_what_was_booked_when_it_was_asked_for(world: World) -> None:
    """What ends in the loop while the thread decides must neither fail it nor change it."""
    balance = Balance(BookedMoves(expire_s=60, keep_s=60))
    cluster, _ = balance.look(world_cluster(world), 100.0)
    world.plan = lambda cluster, memory: []
    balance.booked.book(cluster, [move(key(0), "b1", "b2")], 100.0)
    question = balance.question(cluster, world.chosen)
    balance.booked.cancel(key(0), "it failed")
    decision = question()
    assert [item.bundle for item in decision.booked] == [key(0)]


def world_cluster(world: World) -> Any:
    return cluster_now(world.channel.picture(), world.ports.known(), 1)


async def test_closing_ends_the_waiting_for_moves(world: World) -> None:
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.channel.answer = lambda _: end
    plan_once(world, move(key(0), "b1", "b2"))
    await world.cycle()
    await world.balancer.close()
    await settle()
    assert [outcome.result for outcome in world.outcomes] == ["unknown"]


async def test_a_member_that_has_stopped_abandons_its_moves(world: World) -> None:
    world.channel.answer = lambda _: ChannelStoppedError(Stopped("closed", "bye"))
    plan_once(world, move(key(0), "b1", "b2"))
    await world.cycle()
    assert [outcome.result for outcome in world.outcomes] == ["abandoned"]
    assert isinstance(world.records[0], DecisionRecord)
