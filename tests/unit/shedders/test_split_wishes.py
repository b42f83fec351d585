"""Splits that the leader's strategy wants: who is asked, how often, what stands in the way, and what is written down."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from shedders.cli.decisions import deeds, done_count
from shedders.cli.plans import _print_moves
from shedders.decision.dry_run import decide, nonsense
from shedders.decisions.builder import BALANCE
from shedders.decisions.explanation import why_not
from shedders.decisions.history import DecisionBook
from shedders.decisions.record import decode, encode, key_of
from shedders.model.cluster import Bundle, Cluster, Policies
from shedders.model.plan import Label, Plan, Reason, SplitWanted
from shedders.policies.effective import EffectivePolicies
from shedders.snapshots.plan_document import cycle_part
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.engine.commands import Done, Rejected
from statechannel.operations.table import RequestCommand
from tests.support.live_balancer import NS, Scripted, World, four_bundles, key, move, plan_once, settle


@pytest.fixture
def world() -> World:
    world = four_bundles()
    world.splits = [wanted(0)]
    return world


def wanted(number: int) -> SplitWanted:
    return SplitWanted(key(number), "it alone is 40 % of b1")


async def answered(world: World, number: int, outcome: Any) -> None:
    """The request's reply is read."""
    world.channel.requests[number][3](outcome)
    await settle()


def done(operation: str | None) -> Done:
    return Done(operation or "", "split")


async def test_the_owner_is_asked_by_the_algorithm_in_force_and_the_record_says_so(world: World) -> None:
    await world.cycle()
    ((asked, args, timeout_s, _),) = world.channel.requests
    (record,) = world.decisions
    assert (asked, timeout_s) == (RequestCommand.EXTENSION, world.settings.move_timeout_s)
    assert {name: args[name] for name in ("extension", "ask", "to", "name", "algorithm", "unload_children")} == {
        "extension": "balancer",
        "ask": "split",
        "to": "owner",
        "name": key(0),
        "algorithm": "halves",
        "unload_children": False,
    }
    assert (args["decision"], args["settings"]) == (record.id, {})
    assert args["reason"] == f"split by the balancer, decision {record.id}: it alone is 40 % of b1"
    (entry,) = record.splits
    assert (entry.bundle, entry.positions, entry.reason, entry.outcome) == (key(0), [], BALANCE, "started")
    assert entry.refused is None
    assert decode(key_of(record), encode(record)) == record
    assert world.outcomes == []
    world.clock.s += 2
    await answered(world, 0, done(entry.operation))
    (end,) = world.outcomes
    assert (end.decision, end.bundle, end.operation, end.result) == (record.id, key(0), entry.operation, "done")
    assert end.took_ms == 2_000.0


async def test_nobody_is_asked_twice_while_it_is_under_way(world: World) -> None:
    await world.cycle()
    await world.cycle()
    assert len(world.channel.requests) == 1
    (entry,) = world.decisions[-1].splits
    assert entry.operation is None
    assert entry.refused.startswith("under-way: ")


async def test_what_was_refused_is_asked_for_again_only_after_a_while(world: World) -> None:
    world.change(split_again_s=150)
    await world.cycle()
    await answered(world, 0, Rejected("nothing-to-cut", "it has a single topic"))
    assert [outcome.result for outcome in world.outcomes] == ["nothing-to-cut"]
    await world.cycle()
    assert world.decisions[-1].splits[0].refused == ("refused-lately: 60 s ago, nothing-to-cut: it has a single topic")
    await world.cycle()
    assert len(world.channel.requests) == 1
    await world.cycle()
    assert len(world.channel.requests) == 2


async def test_no_more_are_under_way_than_may_be(world: World) -> None:
    world.change(splits_at_once=2)
    world.splits = [wanted(number) for number in range(3)]
    await world.cycle()
    assert [args["name"] for _, args, _, _ in world.channel.requests] == [key(0), key(1)]
    assert [split.refused is None for split in world.decisions[0].splits] == [True, True, False]
    assert (world.decisions[0].splits[2].refused or "").startswith("budget: 2 splits are under way")
    await answered(world, 0, done("x"))
    world.splits = [wanted(2)]
    await world.cycle()
    assert [args["name"] for _, args, _, _ in world.channel.requests] == [key(0), key(1), key(2)]


async def test_policies_that_forbid_it_are_obeyed(world: World) -> None:
    world.change(splitting=False)
    await world.cycle()
    world.change(splitting=True)
    world.effective = EffectivePolicies(policies=Policies(excluded=frozenset({NS})))
    await world.cycle()
    world.effective = EffectivePolicies(shedding_on=False, shedding_why="sale")
    await world.cycle()
    assert world.channel.requests == []
    refused = [decision.splits[0].refused for decision in world.decisions[:2]]
    assert refused == ["splitting-off: extensions.balancer.splitting is false", f"excluded: {NS} is excluded"]
    assert (world.decisions[2].skipped, world.decisions[2].splits) == ("shedding-off", [])


async def test_what_is_booked_is_not_to_be_split(world: World) -> None:
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    world.channel.answer = lambda _: never
    plan_once(world, move(key(0), "b1", "b2"))
    world.splits = []
    await world.cycle()
    world.splits = [wanted(0)]
    await world.cycle()
    assert world.channel.requests == []
    record = world.decisions[-1]
    assert (record.skipped, record.splits) == (None, [])
    assert [(bundle.name, bundle.reason) for bundle in record.left] == [(key(0), "in-flight")]


async def test_without_an_answer_it_counts_as_refused_and_a_late_one_does_no_harm(world: World, monkeypatch):
    monkeypatch.setattr("shedders.balancer.splitting.GRACE_S", -119.99)
    world.change(move_timeout_s=120)
    await world.cycle()
    for _ in range(100):
        await settle()
        if world.outcomes:
            break
        await asyncio.sleep(0.01)
    assert [outcome.result for outcome in world.outcomes] == ["timed-out"]
    await answered(world, 0, done("x"))
    assert len(world.outcomes) == 1
    await world.cycle()
    assert len(world.channel.requests) == 1


async def test_closing_waits_for_no_answer(world: World) -> None:
    await world.cycle()
    await world.balancer.close()
    assert [outcome.result for outcome in world.outcomes] == ["unknown"]


async def test_a_member_that_has_stopped_asks_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def request(*_: Any) -> str:
        raise ChannelStoppedError(Stopped("closed", "bye"))

    monkeypatch.setattr(world.channel, "request", request)
    await world.cycle()
    (entry,) = world.decisions[0].splits
    assert (entry.operation, entry.outcome) == (None, "abandoned")


async def test_why_not_tells_it(world: World) -> None:
    await world.cycle()
    book = DecisionBook()
    book.add(world.decisions[0])
    assert "40 % of b1" in why_not(key(0), "b1", book, now_ms=0, since_ms=None).messages[0]
    world.change(splitting=False)
    await world.cycle()
    book.add(world.decisions[1])
    result = why_not(key(0), "b1", book, now_ms=0, since_ms=None)
    assert (result.verdicts[0].word, result.verdicts[0].reason) == ("refused", "splitting-off")


async def test_tables_show_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.change(splits_at_once=1)
    world.splits = [wanted(0), wanted(1)]
    await world.cycle()
    await answered(world, 0, Rejected("nothing-to-cut", "one topic"))
    book = DecisionBook()
    for record in world.records:
        book.add(record)
    begun, refused = deeds(book, world.decisions[0])
    assert (begun.to, begun.reason, begun.result) == ("split", BALANCE, "nothing-to-cut: one topic")
    assert (refused.to, (refused.result or "").partition(":")[0]) == ("not split", "budget")
    assert done_count(world.decisions[0]) == 1
    decision = decide(CLUSTER, lambda _: Scripted(lambda *_: [], [wanted(0)]), {}, world.chosen.pipeline)
    part = cycle_part(1, decision)
    assert [split.bundle for split in part.splits] == [key(0)]
    _print_moves(part, "scripted", every_left=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"to be split why {key(0)} it alone is 40 % of b1" in shown


# --- what no strategy may want --------------------------------------------------------------------------------------


CLUSTER = Cluster({}, {key(0): Bundle(key(0), "b1"), key(1): Bundle(key(1), None)})


@pytest.mark.parametrize(
    ("cluster", "numbers", "moved", "said"),
    [
        (CLUSTER, [5], False, "which does not exist"),
        (CLUSTER, [1], False, "which no broker serves"),
        (CLUSTER, [0, 0], False, "twice"),
        (CLUSTER, [0], True, "moves and splits"),
        (replace(CLUSTER, safe="safe mode"), [0], False, "to be left alone"),
        (replace(CLUSTER, bundles={key(0): Bundle(key(0), "b1", in_flight=True)}), [0], False, "in flight"),
        (CLUSTER, [0], False, None),
    ],
)
def test_nonsense(cluster: Cluster, numbers: list[int], moved: bool, said: str | None) -> None:
    moves = [move(key(0), "b1", "b2")] if moved else []
    plan = Plan("s", Label.SKIP, Reason.UNKNOWN, "", moves, splits=[wanted(number) for number in numbers])
    result = nonsense(cluster, plan)
    assert result is None if said is None else said in (result or "")
