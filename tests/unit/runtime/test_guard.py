"""The guard of a member without a log, and the form of a redirect on its way to a client."""

import asyncio
from types import SimpleNamespace

import pytest

from statechannel.api import (
    Admission,
    AdmittedCounts,
    ArgumentTypeError,
    ArgumentValueError,
    BrokerHooks,
    NoListenerError,
    Redirect,
)
from statechannel.api.guard import Guard
from statechannel.broker.opening_process import OpeningProcess
from statechannel.engine.commands import Owned
from statechannel.testing import ChannelKit
from tests.support.lone_member import lone_channel

OWNED = Redirect("other-owner", "b2 serves it", "t/n/0x00000000_0xffffffff", "b2", {"http": "http://b2"}, 7)


def test_a_redirect_survives_json() -> None:
    assert Redirect.from_json(OWNED.to_json()) == OWNED
    assert Redirect.from_json({"reason": "no-owner", "message": "try again"}) == Redirect("no-owner", "try again")


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        "other-owner",
        {"reason": ""},
        {"reason": 7, "message": ""},
        OWNED.to_json() | {"urls": ["http://b2"]},
        OWNED.to_json() | {"urls": {"http": 7}},
        OWNED.to_json() | {"generation": "7"},
        OWNED.to_json() | {"generation": True},
        OWNED.to_json() | {"broker": 7},
    ],
    ids=str,
)
def test_what_is_no_redirect_is_none(fields) -> None:
    assert Redirect.from_json(fields) is None


async def test_a_member_that_joins_admits_nothing() -> None:
    async with lone_channel() as channel:
        refused = channel.guard("t/n/topic")
        assert isinstance(refused, Redirect)
        assert refused.broker is None
        assert channel.admitted() == {}


async def test_the_owner_admits_and_counts_and_all_others_name_it(channel_kit: ChannelKit) -> None:
    a = await channel_kit.broker("a", listeners={"http": "http://a:1"})
    b = await channel_kit.broker("b")
    bundle, free, *_ = await channel_kit.namespace()
    generation = await channel_kit.own(bundle, "a")
    await channel_kit.settle()
    for write, size_bytes in [(True, 10), (True, 5), (False, 3)]:
        assert a.channel.guard(bundle, write=write, size_bytes=size_bytes) == Admission(bundle, generation)
    assert a.channel.admitted() == {bundle: AdmittedCounts(reads=1, read_bytes=3, writes=2, write_bytes=15)}
    there = b.channel.guard(bundle)
    assert (there.reason, there.bundle, there.broker) == ("other-owner", bundle, "a")
    assert (there.urls, there.generation) == ({"http": "http://a:1"}, generation)
    assert there.url("http") == "http://a:1"
    with pytest.raises(NoListenerError, match=r"`amqp`.*`http`"):
        there.url("amqp")
    assert "a (normal, serving 1 " in repr(a.channel)
    nobody = a.channel.guard(free)
    assert (nobody.reason, nobody.bundle, nobody.broker, nobody.generation) == ("no-owner", free, None, -1)
    unknown = a.channel.guard("no/such/topic")
    assert isinstance(unknown, Redirect)
    assert (unknown.bundle, unknown.broker) == ("", None)
    assert b.channel.admitted() == {}
    assert a.channel.admitted().keys() == {bundle}, "only what was admitted counts"


async def test_a_bundle_that_belongs_to_a_broker_by_rule_is_that_brokers(channel_kit: ChannelKit) -> None:
    a = await channel_kit.broker("a")
    (bundle,) = await channel_kit.namespace("pulsar/b", bundles=1)  # before that broker is heard
    await channel_kit.broker("b", listeners={"http": "http://b:1"})
    await channel_kit.advance(1)
    there = a.channel.guard(bundle)
    assert (there.reason, there.bundle, there.broker) == ("other-owner", bundle, "b")
    assert there.urls == {"http": "http://b:1"}


async def test_who_lets_go_still_admits_reads_but_no_writes(channel_kit: ChannelKit) -> None:
    class Slow(BrokerHooks):
        async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
            await asyncio.sleep(1.0)

    a = await channel_kit.broker("a", Slow())
    bundle, *_ = await channel_kit.namespace()
    generation = await channel_kit.own(bundle, "a")
    unloading = asyncio.create_task(channel_kit.unload(bundle))
    await channel_kit.advance(0.5)
    assert a.channel.guard(bundle, write=False) == Admission(bundle, generation)
    refused = a.channel.guard(bundle)
    assert isinstance(refused, Redirect)
    assert (refused.bundle, refused.broker) == (bundle, None)
    await unloading
    assert isinstance(a.channel.guard(bundle, write=False), Redirect)


async def test_an_owner_that_has_stopped_admits_nothing(channel_kit: ChannelKit) -> None:
    a = await channel_kit.broker("a")
    await channel_kit.broker("b")
    bundle, *_ = await channel_kit.namespace()
    await channel_kit.own(bundle, "a")
    await a.stop()
    for write in (True, False):
        refused = a.channel.guard(bundle, write=write)
        assert refused.reason in {"stopped", "other-owner"}
    assert repr(a.channel).startswith("<StateChannel a (stopped")
    with pytest.raises(NoListenerError):
        Redirect("stopped", "").url("http")


async def test_wrong_arguments_are_refused() -> None:
    async with lone_channel() as channel:
        with pytest.raises(ArgumentTypeError):
            channel.guard(7)  # type: ignore[arg-type]
        with pytest.raises(ArgumentValueError):
            channel.guard("t/n/topic", size_bytes=-1)
        refused = channel.guard("nonsense")
        assert refused.reason == "bad-name"


BUNDLE = "t/n/0x00000000_0xffffffff"


@pytest.mark.parametrize(
    ("outcome", "reason", "broker", "generation"),
    [
        (Owned(BUNDLE, "b1", 7), "no-owner", None, -1),  # its own, but no longer by its lease
        (Owned(BUNDLE, "b2", 7, {"http": "http://b2"}), "other-owner", "b2", 7),
    ],
)
@pytest.mark.parametrize("write", [True, False])
def test_an_owner_is_named_unless_it_is_this_broker(
    outcome: Owned, reason: str, broker: str | None, generation: int, write: bool
) -> None:
    host = SimpleNamespace(
        engine=SimpleNamespace(lookups=None, identity=SimpleNamespace(broker="b1")),
        process=OpeningProcess(),
        stopped=None,
        cached_owner=lambda _: outcome,
        accepts_writes=lambda _: None if write else 7,
        serves=lambda _: 7 if write else None,
    )
    redirect = Guard(host).admit("t/n/topic", write=write, size_bytes=0)  # type: ignore[arg-type]
    assert (redirect.reason, redirect.bundle, redirect.broker) == (reason, BUNDLE, broker)
    assert (redirect.urls, redirect.generation) == (outcome.urls if broker else {}, generation)
    assert isinstance(Guard(host).admit("t/n/topic", write=not write, size_bytes=0), Admission)  # type: ignore[arg-type]
