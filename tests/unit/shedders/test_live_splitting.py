"""A broker splits its own bundles, and answers who asks for a split or a decision."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from loaddata.source import TopicRates
from shedders.balancer.request_handlers import RequestHandlers
from shedders.balancer.splitting import Splitting, TopicsOnDemand, own_cluster, unload_children
from shedders.model.cluster import Policies
from shedders.policies.effective import EffectivePolicies
from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.engine import commands
from statechannel.engine.commands import Done, Rejected
from statechannel.operations.table import ExtensionAsk
from tests.support.live_balancer import Channel, World, key, local
from tests.support.waits import WAIT_S


class Source:
    """Topics of bundles; it notes who asks, and in which thread."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def bundles(self) -> dict[str, Any]:
        return {}

    def topics(self, bundle: str) -> Sequence[TopicRates]:
        self.asked.append(bundle)
        self.threads.add(threading.get_ident())
        return [TopicRates(f"persistent://t/n/t{number}", msg_rate_in=number) for number in range(4)]


class Owner:
    """A broker that splits."""

    def __init__(self, bundles: dict[str, str | None] | None = None) -> None:
        self.world = World(channel=Channel(bundles=bundles or {key(0): "b1", key(1): "b1", key(2): "b2"}))
        self.source = Source()
        self.topics = 4
        self.safe: str | None = None
        self.splitting = Splitting(
            self.world.ports, source=self.source, local=lambda: local(self.world, self.topics), safe=lambda: self.safe
        )

    @property
    def asked(self) -> list[Any]:
        return self.world.channel.asked


async def test_what_is_over_a_limit_is_split_and_told() -> None:
    owner = Owner()
    await owner.splitting.look()
    assert [(request.name, request.at) for request in owner.asked] == [(key(0), (0x08000000,)), (key(1), (0x18000000,))]
    (record,) = owner.world.decisions
    assert record.subject == "split"
    assert [split.operation for split in record.splits] == [request.operation for request in owner.asked]
    expected = [(key(0), "done"), (key(1), "done")]
    assert [(outcome.bundle, outcome.result) for outcome in owner.world.outcomes] == expected
    assert all(record.id in request.reason for request in owner.asked)


async def test_nothing_to_split_is_no_record() -> None:
    owner = Owner()
    owner.topics = 1
    await owner.splitting.look()
    assert (owner.asked, owner.world.records) == ([], [])


async def test_a_cluster_to_be_left_alone_is_not_split() -> None:
    owner = Owner()
    owner.safe = "this broker is leaving"
    result = await owner.splitting.look()
    assert "leaving" in result.why
    assert owner.asked == []


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Rejected("bad-split", "too narrow"), "bad-split"),
        (ChannelStoppedError(Stopped("closed", "bye")), "abandoned"),
        (ValueError("position outside"), "internal-error"),
    ],
)
async def test_a_split_that_fails_is_told_and_the_next_one_made(answer: Any, result: str) -> None:
    owner = Owner()
    owner.world.channel.answer = lambda command: answer if command.name == key(0) else Done(command.operation, "split")
    await owner.splitting.look()
    expected = [(key(0), result), (key(1), "done")]
    assert [(outcome.bundle, outcome.result) for outcome in owner.world.outcomes] == expected


async def test_children_are_let_go_where_that_is_asked_for_whatever_becomes_of_one() -> None:
    owner = Owner({key(0): "b1"})
    halves = ["t/n/0x00000000_0x08000000", "t/n/0x08000000_0x10000000"]

    def answer(command: Any) -> Any:
        if isinstance(command, commands.Split):
            owner.world.channel.bundles = dict.fromkeys(halves, "b1")
        if command.name == halves[0] and isinstance(command, commands.Unload):
            return OSError("no")
        return Done(command.operation, "ok")

    owner.world.channel.answer = answer
    await owner.splitting.look()
    assert [type(request) for request in owner.asked] == [commands.Split]
    owner.asked.clear()
    await unload_children(owner.world.ports.channel, key(0), [0x08000000], 5)
    assert [(type(request), request.name) for request in owner.asked] == [(commands.Unload, name) for name in halves]


async def test_the_embedder_is_asked_in_the_loops_thread_and_only_for_what_is_looked_at() -> None:
    """`LoadSource` promises it that."""
    owner = Owner()
    await owner.splitting.look()
    assert set(owner.source.asked) <= {key(0), key(1)}
    assert owner.source.threads <= {threading.get_ident()}


async def test_the_interval_and_the_switch_are_followed_while_it_runs() -> None:
    owner = Owner()
    owner.world.change(split_interval_s=0.2, splitting=False)
    running = asyncio.create_task(owner.splitting.run())
    await asyncio.sleep(0)
    owner.world.clock.s += 1
    await asyncio.sleep(0.4)
    assert owner.asked == []
    owner.world.change(splitting=True)
    async with asyncio.timeout(WAIT_S):
        while not owner.asked:
            owner.world.clock.s += 1
            await asyncio.sleep(0.05)
    running.cancel()


def test_a_broker_looks_at_its_own_bundles_and_counts_the_others_of_their_namespaces() -> None:
    owners = {"t/n": {key(0): "b1", key(1): "b2", key(2): "b1"}, "t/other": {}}
    world = World(channel=Channel(bundles={key(0): "b1", key(2): "b1", "t/other/0x00000000_0xffffffff": "b1"}))
    mine = local(world)
    cluster = own_cluster("b1", mine, Source(), lambda name: owners[name], now_ms=5, safe=None)
    expected = {key(0): ("b1", True), key(1): ("b2", False), key(2): ("b1", True)}
    assert {name: (bundle.owner, bundle.stats is not None) for name, bundle in cluster.bundles.items()} == expected


def test_topics_are_asked_for_once_and_come_in_the_order_of_their_hashes() -> None:
    source = Source()
    topics = TopicsOnDemand(source, key(0))
    assert source.asked == []
    assert [topic.position for topic in topics] == sorted(topic.position for topic in topics)
    first = next(iter(topics))
    assert (len(topics), topics[0], topics[:1]) == (4, first, [first])
    assert source.asked == [key(0)]


# --- a decision that is asked for -----------------------------------------------------------------------------------


def asks(*, leading: bool) -> tuple[RequestHandlers, list[str]]:
    woken: list[str] = []
    balancer: Any = SimpleNamespace(wake=woken.append, leading=leading)
    nobody: Any = None
    return RequestHandlers(balancer, nobody, nobody, nobody), woken


def ask(word: str) -> ExtensionAsk:
    return ExtensionAsk("balancer", word, {}, "op1", 10.0)


async def test_a_decision_is_asked_of_the_leader() -> None:
    result, woken = asks(leading=True)
    assert await result.answer(ask("decide")) == Done("op1", "decision requested")
    assert woken == ["request"]
    result, woken = asks(leading=False)
    refused = await result.answer(ask("decide"))
    assert isinstance(refused, Rejected)
    assert (refused.reason, woken) == ("not-leader", [])


async def test_what_nobody_knows_is_refused_with_what_there_is() -> None:
    result, _ = asks(leading=True)
    refused = await result.answer(ask("dance"))
    assert isinstance(refused, Rejected)
    assert refused.reason == "unknown-ask"
    assert "decide" in refused.hint


# --- what is asked again ----------------------------------------------------------------------------------------------


def become_unsafe(owner: Owner) -> None:
    owner.safe = "this broker is in safe mode"


def switch_off(owner: Owner) -> None:
    owner.world.change(splitting=False)


def hand_over(owner: Owner) -> None:
    owner.world.channel.bundles[key(1)] = "b2"


@pytest.mark.parametrize(
    ("happens", "why"),
    [(become_unsafe, "safe mode"), (switch_off, "splitting is false"), (hand_over, "b2 serves it by now")],
)
async def test_each_split_is_asked_about_again(happens: Callable[[Owner], None], why: str) -> None:
    owner = Owner()

    def answer(command: Any) -> Any:
        happens(owner)
        return Done(command.operation, "split")

    owner.world.channel.answer = answer
    await owner.splitting.look()
    assert [request.name for request in owner.asked] == [key(0)]
    expected = [(key(0), "done"), (key(1), "abandoned")]
    assert [(outcome.bundle, outcome.result) for outcome in owner.world.outcomes] == expected
    assert why in (owner.world.outcomes[1].why or "")


LEFT, RIGHT = "t/n/0x00000000_0x08000000", "t/n/0x08000000_0x10000000"


@pytest.mark.parametrize(
    ("policies", "settings", "unloaded"),
    [
        (EffectivePolicies(), {}, [LEFT, RIGHT]),
        (EffectivePolicies(shedding_on=False, shedding_why="sale"), {}, []),
        (None, {}, []),
        (EffectivePolicies(), {"balancing": False}, []),
        (EffectivePolicies(policies=Policies(excluded=frozenset({"t/n"}))), {}, []),
        (EffectivePolicies(policies=Policies(pins={"t/n": "b1"})), {}, []),
        (EffectivePolicies(policies=Policies(pins={LEFT: "b1"})), {}, [RIGHT]),
    ],
)
async def test_children_are_unloaded_under_the_rules_of_moves(
    policies: EffectivePolicies | None, settings: dict[str, Any], unloaded: list[str]
) -> None:
    owner = Owner({key(0): "b1"})
    owner.world.effective = policies
    owner.world.change(**settings)
    splitting = owner.world.chosen.splitting.model_copy(update={"unload_children": True})
    owner.world.chosen = replace(owner.world.chosen, splitting=splitting)

    def answer(command: Any) -> Any:
        if isinstance(command, commands.Split):
            del owner.world.channel.bundles[command.name]
            owner.world.channel.bundles |= {LEFT: "b1", RIGHT: "b1"}
        return Done(command.operation, "done")

    owner.world.channel.answer = answer
    await owner.splitting.look()
    assert [request.name for request in owner.asked if isinstance(request, commands.Unload)] == unloaded


async def test_children_stay_while_the_cluster_is_to_be_left_alone() -> None:
    owner = Owner({key(0): "b1"})
    owner.safe = "this broker is in safe mode"
    assert owner.splitting._stays(LEFT) == owner.safe
