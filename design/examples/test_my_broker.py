"""Tests of a broker, without Kafka. Run: pytest test_my_broker.py."""

from my_broker import MyHooks

from statechannel.testing import ChannelKit, check_hooks


def test_hooks_keep_their_promises() -> None:
    check_hooks(MyHooks, serves=lambda hooks, bundle: hooks.serving.get(bundle)).require()


async def test_a_killed_broker_is_replaced(channel_kit: ChannelKit) -> None:
    a, b = await channel_kit.broker("a", MyHooks()), await channel_kit.broker("b", MyHooks())
    bundle, *_ = await channel_kit.namespace("example/orders")
    await channel_kit.own(bundle, "a")
    a.kill()
    await channel_kit.settle()
    assert b.serves(bundle) is not None
