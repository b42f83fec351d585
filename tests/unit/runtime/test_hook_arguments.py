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


class Plain(BrokerHooks):
    def on_own(self, bundle, generation):  # type: ignore[override]
        """A plain function."""


class Arity(BrokerHooks):
    async def on_own(self, bundle):  # type: ignore[override]
        """Too few."""


class MoreWanted(BrokerHooks):
    async def on_release(self, bundle, generation, destination, reason):  # type: ignore[override]
        """Too many."""


class Misspelt(BrokerHooks):
    async def on_owned(self, bundle, generation):
        """Nothing would call it."""


class Unlike(BrokerHooks):
    async def on_zzz(self):
        """Like no hook."""


class Camel(BrokerHooks):
    async def onOwn(self, bundle, generation):  # noqa: N802
        """As in other languages."""


class Joined(BrokerHooks):
    async def onrelease(self, bundle, generation, destination):
        """Without the underscore."""


class Bare(BrokerHooks):
    async def release(self, bundle, generation, destination):
        """Without `on_`, but with the hook's own arguments."""


class NoFunction(BrokerHooks):
    on_own = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("hooks", "named", "meant"),
    [
        (Plain(), "on_own", None),
        (Arity(), "on_own", None),
        (MoreWanted(), "on_release", None),
        (Misspelt(), "on_owned", "on_own"),
        (Unlike(), "on_zzz", None),
        (Camel(), "onOwn", "on_own"),
        (Joined(), "onrelease", "on_release"),
        (Bare(), "release", "on_release"),
        (NoFunction(), "on_own", None),
    ],
)
async def test_a_wrong_hook_is_refused_at_open(hooks: BrokerHooks, named: str, meant: str | None) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        await StateChannel.open(broker="b1", hooks=hooks, kafka={"bootstrap_servers": "127.0.0.1:1"})
    assert f"`{named}` of {type(hooks).__name__}" in str(refused.value)
    assert (f"Did you mean `{meant}`?" in str(refused.value)) == (meant is not None)
    assert refused.value.hint


class Releases(BrokerHooks):
    async def on_release(self, bundle, generation, destination):
        """Closes the bundle's store."""


class Splits(Releases):
    async def on_split(self, parent, children, generation):
        """Takes no more writes."""


class BlockingReleases(BlockingBrokerHooks):
    def on_release(self, bundle, generation, destination):
        """Closes the bundle's store."""


@pytest.mark.parametrize(
    ("hooks", "name"),
    [
        (Releases(), "Releases"),
        (ThreadedHooks(BlockingReleases()), "BlockingReleases"),
        (Splits(), None),
        (BrokerHooks(), None),
    ],
)
def test_who_stops_at_a_release_only_is_warned_once_that_a_split_has_none(hooks: BrokerHooks, name: str | None) -> None:
    with capture_logs() as lines:
        warn_of_hooks(hooks, "b1")
    if name is None:
        assert lines == []
        return
    (line,) = lines
    assert line["event"] == "hooks.no-on-split"
    assert line["log_level"] == "warning"
    assert (line["hooks"], line["broker"]) == (name, "b1")
    assert "no on_release" in line["why"]
    assert "on_split" in line["hint"]


class Misspelt(BrokerHooks):
    async def onOwn(self, bundle, generation):  # noqa: N802
        """Meant to be a hook."""

    async def on_serves(self, bundle, generation):
        """This one, too."""


def test_all_misspelt_hooks_are_named_at_once() -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        hooks_of(Misspelt(), BrokerHooks)
    assert str(refused.value).startswith("`onOwn`, `on_serves` of Misspelt are not hooks; wanted: on_own, on_serve, ")
    assert str(refused.value).endswith("Did you mean `on_own` or `on_serve`?")


class Nothing(BrokerHooks):
    async def own(self, key):
        """No hook, and not like one."""


class BlockingNothing(BlockingBrokerHooks):
    """Neither."""


@pytest.mark.parametrize("hooks", [Nothing(), ThreadedHooks(BlockingNothing())])
def test_a_class_without_any_hook_is_warned_of(hooks: BrokerHooks) -> None:
    with capture_logs() as lines:
        warn_of_hooks(hooks, "b1")
    (line,) = lines
    assert (line["event"], line["log_level"], line["broker"]) == ("hooks.none", "warning", "b1")
    assert line["hooks"] in ("Nothing", "BlockingNothing")
    assert "on_own, on_serve, on_release" in line["hint"]


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


class Coroutine(BlockingBrokerHooks):
    async def on_own(self, bundle, generation):  # type: ignore[override]
        """Nobody would await it."""


def test_a_coroutine_among_blocking_hooks_is_refused() -> None:
    with pytest.raises(
        ArgumentTypeError, match="is a coroutine function, and these hooks run in threads; wanted: `def on_own"
    ):
        BlockingStateChannel.open(broker="b1", hooks=Coroutine(), kafka={"bootstrap_servers": "127.0.0.1:1"})


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


class PlainInside(BrokerHooks):
    @in_a_thread
    def on_own(self, bundle, generation):
        """A coroutine function that wraps a plain one."""


class CoroutineInside(BlockingBrokerHooks):
    @awaited
    async def on_own(self, bundle, generation):
        """A plain function that wraps a coroutine function."""


def test_what_is_called_decides_and_not_what_it_wraps() -> None:
    hooks_of(PlainInside(), BrokerHooks)
    hooks_of(CoroutineInside(), BlockingBrokerHooks)


def test_what_can_be_called_is_taken() -> None:
    hooks_of(None, BrokerHooks)
    hooks_of(BrokerHooks(), BrokerHooks)
    hooks_of(Good(), BrokerHooks)
    mocked = BrokerHooks()
    mocked.on_own = AsyncMock()  # type: ignore[method-assign]
    hooks_of(mocked, BrokerHooks)
