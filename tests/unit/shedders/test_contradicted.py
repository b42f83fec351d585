"""Policies that cannot be kept: told by the leader while it runs, in its status and in its decisions."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shedders.balancer.balancer import Balancer
from shedders.balancer.duties import SHOWN_MAX, ContradictionWatch
from shedders.balancer.extension import BalancerExtension
from shedders.balancer.settings import BalancerSettings
from shedders.model.cluster import Cluster, Policies
from shedders.policies.effective import EffectivePolicies
from tests.support.live_balancer import World, key
from tests.support.waits import WAIT_S

PINNED = EffectivePolicies(policies=Policies(pins={key(0): "b9"}))
WHY = f"pin {key(0)} -> b9: `{key(0)}` is pinned to `b9`, which is not registered"


@pytest.fixture
async def world() -> World:
    world = World(effective=PINNED)
    world.channel.bundles = {key(0): "b1", key(1): "b2"}
    world.report()
    return world


def watching(world: World, cluster: Any = None) -> ContradictionWatch:
    result = cluster or (lambda: world.ports.cluster(world.channel.picture()))
    return ContradictionWatch(result, lambda: world.effective, lambda: 60.0)


async def test_what_cannot_be_kept_is_found_and_forgotten(world: World) -> None:
    watch = watching(world)
    await watch.look()
    assert WHY in watch.sentences()
    world.effective = EffectivePolicies()
    await watch.look()
    assert watch.sentences() == []


@pytest.mark.parametrize("cluster", [None, Cluster({}, {})])
async def test_who_does_not_lead_or_hears_nobody_says_nothing(world: World, cluster: Cluster | None) -> None:
    watch = watching(world, lambda: cluster)
    await watch.look()
    assert watch.sentences() == []


async def test_a_change_of_policies_is_looked_at_at_once(world: World) -> None:
    world.effective = EffectivePolicies()
    watch = watching(world)
    task = asyncio.create_task(watch.run())
    try:
        await asyncio.sleep(0.05)
        world.effective = PINNED
        watch.wake()
        async with asyncio.timeout(WAIT_S):
            while not watch.found:  # noqa: ASYNC110 - the look is made in another thread
                await asyncio.sleep(0.005)
    finally:
        task.cancel()


async def test_decisions_have_them_also_those_that_were_skipped(world: World) -> None:
    watch = watching(world)
    await watch.look()
    ports = replace(world.ports, contradictions=watch.left)
    world.balancer = Balancer(ports)
    await world.cycle()
    world.unusable = "no"
    await world.cycle()
    assert [decision.skipped for decision in world.decisions] == [None, "unusable-policies"]
    for decision in world.decisions:
        assert ("contradiction", WHY) in [(left.reason, left.why) for left in decision.left]
        assert decision.left_counts["contradiction"] == len(watch.found)


async def test_what_is_told_is_bounded(world: World) -> None:
    world.effective = EffectivePolicies(
        policies=Policies(pins={key(number): "b9" for number in range(16)} | {"t/x": "b8", "t/y": "b8"})
    )
    world.channel.bundles = {key(number): "b1" for number in range(16)}
    watch = watching(world)
    await watch.look()
    assert len(watch.found) > SHOWN_MAX
    assert len(watch.sentences()) == SHOWN_MAX + 1
    assert len(watch.left()) == SHOWN_MAX


async def test_what_cannot_be_kept_is_told_by_the_leader(world: World) -> None:
    extension = BalancerExtension(BalancerSettings())
    channel = SimpleNamespace(picture=world.channel.picture, leading=False)
    extension._channel = channel  # type: ignore[assignment]
    extension._follower = SimpleNamespace(effective=PINNED, status=dict, doubt="")  # type: ignore[assignment]
    await extension._contradicted.look()
    assert extension.status()["contradictions"] == []
    channel.leading = True
    await extension._contradicted.look()
    assert WHY in extension.status()["contradictions"]
