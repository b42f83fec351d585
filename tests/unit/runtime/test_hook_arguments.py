"""A wrong hook is refused when the channel is opened: at its first call somebody would have to wait for it."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from statechannel.api import ArgumentTypeError, BlockingBrokerHooks, BlockingStateChannel, BrokerHooks, StateChannel
from statechannel.broker.arguments import hooks_of
from statechannel.broker.hook_runner import warn_of_hooks
from statechannel.broker.hooks import ThreadedHooks
from tests.support.log_lines import capture_logs


def wrapped(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(*arguments: Any) -> Any:
        return hook(*arguments)

    return call


def hooks(base: type[Any] = BrokerHooks, **members: Any) -> Any:
    """Hooks of a class that has these."""
    return type("Theirs", (base,), members)()


def plain(self, bundle, generation): ...
async def one_argument(self, bundle): ...
async def two(self, bundle, generation): ...
async def three(self, bundle, generation, destination): ...
async def four(self, bundle, generation, destination, reason): ...


@pytest.mark.parametrize(
    ("named", "member", "meant"),
    [
        ("on_own", plain, None),
        ("on_own", one_argument, None),
        ("on_release", four, None),
        ("on_own", None, None),
        ("on_zzz", one_argument, None),
        ("on_owned", two, "on_own"),
        ("onOwn", two, "on_own"),
        ("onrelease", three, "on_release"),
        ("release", three, "on_release"),  # without `on_`, but with the hook's own arguments
    ],
)
async def test_a_wrong_hook_is_refused_at_open(named: str, member: Any, meant: str | None) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        await StateChannel.open(broker="b1", hooks=hooks(**{named: member}), kafka={"bootstrap_servers": "127.0.0.1:1"})
    assert f"`{named}` of Theirs" in str(refused.value)
    assert (f"Did you mean `{meant}`?" in str(refused.value)) == (meant is not None)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("theirs", "event"),
    [
        (hooks(on_release=three), "hooks.no-on-split"),
        (ThreadedHooks(hooks(BlockingBrokerHooks, on_release=lambda self, *_: None)), "hooks.no-on-split"),
        (hooks(own=two), "hooks.none"),
        (ThreadedHooks(hooks(BlockingBrokerHooks)), "hooks.none"),
        (hooks(on_release=three, on_split=three), None),
        (BrokerHooks(), None),
    ],
)
def test_who_has_no_hook_or_none_of_a_split_is_warned_of_once(theirs: BrokerHooks, event: str | None) -> None:
    with capture_logs() as lines:
        warn_of_hooks(theirs, "b1")
    found = [(line["event"], line["log_level"], line["hooks"], line["broker"]) for line in lines]
    assert found == ([] if event is None else [(event, "warning", "Theirs", "b1")])


def test_all_misspelt_hooks_are_named_at_once() -> None:
    with pytest.raises(ArgumentTypeError, match=r"`onOwn`, `on_serves` of Theirs are not hooks"):
        hooks_of(hooks(onOwn=two, on_serves=two), BrokerHooks)


class Helpers(BrokerHooks):
    """Methods of its own that are no hooks, and look like none."""

    async def release(self, lock):
        """Other arguments."""

    def only(self):
        """Nothing of a hook."""

    async def own(self, bundle, generation):
        """A helper of the hook that is there."""

    async def on_own(self, bundle, generation):
        await self.own(bundle, generation)


def test_other_methods_are_left_alone() -> None:
    hooks_of(Helpers(), BrokerHooks)


def test_a_coroutine_among_blocking_hooks_is_refused() -> None:
    theirs = hooks(BlockingBrokerHooks, on_own=two)
    with pytest.raises(ArgumentTypeError, match="on_own"):
        BlockingStateChannel.open(broker="b1", hooks=theirs, kafka={"bootstrap_servers": "127.0.0.1:1"})


class Good(BrokerHooks):
    """More than it needs, in forms that work."""

    on_message: object = None  # a value, no method

    async def on_own(self, bundle, generation, *, again=False):
        """One more argument, which has a default."""

    async def on_release(self, *arguments):
        """All of them."""

    @wrapped
    async def on_moved(self, bundle, owner, urls):
        """A coroutine behind a decorator."""

    def _on_timer(self):
        """Not public."""


def in_a_thread(function: Any) -> Any:
    @functools.wraps(function)
    async def run(*arguments: Any) -> None:
        await asyncio.to_thread(function, *arguments)

    return run


def awaited(function: Any) -> Any:
    @functools.wraps(function)
    def run(*arguments: Any) -> None:
        asyncio.run(function(*arguments))

    return run


def test_what_is_called_decides_and_not_what_it_wraps() -> None:
    hooks_of(hooks(on_own=in_a_thread(plain)), BrokerHooks)
    hooks_of(hooks(BlockingBrokerHooks, on_own=awaited(two)), BlockingBrokerHooks)


def test_what_can_be_called_is_taken() -> None:
    hooks_of(None, BrokerHooks)
    hooks_of(BrokerHooks(), BrokerHooks)
    hooks_of(Good(), BrokerHooks)
    mocked = BrokerHooks()
    mocked.on_own = AsyncMock()  # type: ignore[method-assign]
    hooks_of(mocked, BrokerHooks)
