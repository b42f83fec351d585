"""How soon the canary reports an owner that lies, in virtual time: real members, their heartbeats, and the hook that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace

import pytest

from statechannel.api import BrokerHooks
from statechannel.broker import canary as module
from statechannel.broker.canary import CanaryRunner
from statechannel.engine.canary import SETTLE_S
from statechannel.settings import Settings
from statechannel.settings.groups_engine import CanarySettings
from statechannel.testing import ChannelKit

WITHIN_S = 10.0
RATE = 5.0
LOOK_S = 0.1
HEARTBEAT_S = Settings().membership.interval_s
SETTINGS = CanarySettings(questions_per_second_max=RATE)


def bound_s(bundles: int) -> float:
    """Until one canary has confirmed a lie about any bundle: asked last in this round and in the next, then once more.

    The second look needs a heartbeat by which the asked broker has read on, and waits for the turn after it.
    """
    return (2 * bundles + 1) / RATE + confirmed_s()


def moved_bound_s(moved: int) -> float:
    """The same for a bundle that has just moved with others: each is asked at its new owner and at the former one."""
    return SETTLE_S + (2 * moved + 1) / RATE + confirmed_s()


def confirmed_s() -> float:
    return SETTINGS.confirm_s + 2 * HEARTBEAT_S + 2 / RATE + 2 * LOOK_S


class DataPlane(BrokerHooks):
    """What is served where, as clients see it."""

    def __init__(self, served: dict[tuple[str, str], int], broker: str) -> None:
        self.served = served
        self.broker = broker
        self.lies = False

    async def on_serve(self, bundle: str, generation: int) -> None:
        if not self.lies:
            self.served[self.broker, bundle] = generation

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.served.pop((self.broker, bundle), None)

    async def probe_owner(self, bundle: str, broker: str, urls: Mapping[str, str]) -> int | None:
        return self.served.get((broker, bundle))


class Watched:
    """A cluster of three, in which `a` asks and `b` owns."""

    def __init__(self, kit: ChannelKit) -> None:
        self.kit = kit
        self.served: dict[tuple[str, str], int] = {}
        self.hooks = {name: DataPlane(self.served, name) for name in "abc"}

    async def start(self, bundles: int) -> list[str]:
        for name, hooks in self.hooks.items():
            await self.kit.broker(name, hooks)
        names = await self.kit.namespace("example/orders", bundles)
        for name in names:
            await self.kit.own(name, "b")
        return names

    def ask(self) -> Callable[[], set[tuple[str, str]]]:
        """Begin to ask; the brokers and bundles that are reported."""
        host = self.kit.brokers["a"]._host
        CanaryRunner(host, self.hooks["a"], SETTINGS).start()
        return lambda: {(finding.broker, finding.bundle) for finding in host.engine.context.troubles.canary}

    async def reported_s(
        self, reported: Callable[[], set[tuple[str, str]]], lies: set[tuple[str, str]], limit_s: float
    ) -> float:
        """Virtual time until these lies are reported, and nothing else is."""
        begun_s, before = self.kit.now_s, reported()
        while reported() != lies:
            assert reported() <= lies | before
            assert self.kit.now_s - begun_s < limit_s, (
                f"{len(reported())} of {len(lies)} are reported after {limit_s} s"
            )
            await asyncio.sleep(LOOK_S)
        return self.kit.now_s - begun_s


@pytest.fixture(params=[1, 2])
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "random", SimpleNamespace(randrange=Random(request.param).randrange))


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("bundles", [8, 64])
async def test_a_bundle_that_is_not_served_any_more_is_reported_within_two_rounds(
    channel_kit: ChannelKit, bundles: int
) -> None:
    watched = Watched(channel_kit)
    names = await watched.start(bundles)
    reported = watched.ask()
    await channel_kit.advance(30)
    assert reported() == set()
    for _ in range(3):
        for name in (names[0], names[-1]):
            generation = watched.served.pop(("b", name))
            lie = {("b", name)}
            await watched.reported_s(reported, lie, bound_s(bundles))
            watched.served["b", name] = generation
            await watched.reported_s(reported, set(), bound_s(bundles))
    if bundles <= 8:
        assert bound_s(bundles) < WITHIN_S, "the page says so"


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("bundles", [8, 64])
async def test_an_owner_that_lies_since_it_took_the_bundle_is_reported_within_ten_seconds(
    channel_kit: ChannelKit, bundles: int
) -> None:
    """However many bundles there are: what has moved is asked first."""
    watched = Watched(channel_kit)
    names = await watched.start(bundles)
    reported = watched.ask()
    await channel_kit.advance(30)
    watched.hooks["c"].lies = True
    moved = names[:6]
    begun_s = channel_kit.now_s
    for name in moved:
        await channel_kit.own(name, "c")
    limit_s = moved_bound_s(len(moved))
    assert limit_s < WITHIN_S
    lies = {("c", name) for name in moved}
    await watched.reported_s(reported, lies, limit_s)
    assert channel_kit.now_s - begun_s < WITHIN_S, "from the first of the moves on"
