"""Opening a channel: what is handed on to the member, and how an opening that was begun is left."""

import asyncio
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.api import (
    ArgumentTypeError,
    BrokerHooks,
    ChannelStoppedError,
    StateChannel,
    StateChannelError,
    Stopped,
)
from statechannel.api import channel as channel_module
from statechannel.api.channel import Opening
from statechannel.broker.assembly import KafkaMemberLog, Opened, access
from statechannel.broker.opening_process import OfOneLoop, OpeningProcess
from statechannel.engine.placement import FewestBundles
from statechannel.router import Router
from tests.support.lone_member import lone_settings, started_host

ENDED = Stopped("closed", "left on request")


class Begun(OfOneLoop):
    """The part of a channel that its opening needs."""

    def __init__(self) -> None:
        self.process = OpeningProcess()
        self._host = SimpleNamespace(process=self.process)
        self.shut_down: list[float | None] = []

    async def shutdown(self, budget_s: float | None = None) -> Stopped:
        self.shut_down.append(budget_s)
        return ENDED

    close = shutdown

    async def wait_stopped(self) -> Stopped:
        return ENDED


def opening_of(channel: Begun, made: asyncio.Event | None = None, error: Exception | None = None) -> Opening:
    async def make(begun: Callable[[Any], None]) -> Any:
        begun(channel)
        if made is not None:
            await made.wait()
        if error is not None:
            raise error
        return channel

    return Opening(StateChannel, make)


@pytest.mark.parametrize("opened_before", [False, True])
@pytest.mark.parametrize(("forked", "shut_down"), [(False, [None]), (True, [])])
async def test_a_block_is_left_by_a_shutdown_but_in_the_child_of_a_fork(
    forked: bool, shut_down: list[None], opened_before: bool
) -> None:
    channel = Begun()
    async with await opening_of(channel) if opened_before else opening_of(channel) as entered:
        assert entered is channel  # type: ignore[comparison-overlap]
        if forked:
            channel.process.leave()
    assert channel.shut_down == shut_down


async def test_an_opening_that_was_begun_may_be_shut_down_and_ends_first() -> None:
    channel, made = Begun(), asyncio.Event()
    opening = opening_of(channel, made, OSError("it was ended"))
    assert await opening.shutdown() is None, "nothing is begun yet"
    awaiting = asyncio.ensure_future(opening.__aenter__())
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(opening.shutdown(7.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (channel.shut_down, ending.done()) == ([7.0], False)
    made.set()
    assert await ending == ENDED
    with pytest.raises(OSError, match="it was ended"):
        await awaiting
    with pytest.raises(OSError, match="it was ended"):
        await opening  # one that failed may be awaited again


class Offering:
    """An extension with a placement, or without."""

    def __init__(self, name: str, placement: FewestBundles | None) -> None:
        self.name = name
        self.placement = placement

    async def start(self, channel: object) -> None: ...

    async def close(self) -> None: ...

    def status(self) -> dict[str, Any]:
        return {}


class OpenedError(Exception):
    """The member would be opened now."""


OWN, OFFERED = FewestBundles(), FewestBundles()


@pytest.mark.parametrize(
    ("placement", "extensions", "chosen"),
    [
        (None, [], None),
        (OWN, [], OWN),
        (OWN, [Offering("one", OFFERED)], OWN),
        (None, [Offering("one", None), Offering("two", OFFERED)], OFFERED),
    ],
)
async def test_what_a_member_is_opened_with(
    monkeypatch: pytest.MonkeyPatch, placement: FewestBundles | None, extensions: list[Offering], chosen: object
) -> None:
    seen: list[tuple[Any, ...]] = []

    async def open_member(*arguments: Any, **named: Any) -> None:
        seen.append((arguments, named))
        raise OpenedError

    monkeypatch.setattr(channel_module, "open_member", open_member)
    settings, hooks = lone_settings(), BrokerHooks()
    for given, flags in (
        ({}, (True, True, False)),
        ({"hooks": hooks, "persistent": False, "non_persistent": False, "create_topics": True}, (False, False, True)),
    ):
        with pytest.raises(OpenedError):
            await StateChannel.open(settings, broker="b1", placement=placement, extensions=extensions, **given)  # type: ignore[arg-type]
        (values, identity, called), named = seen[-1]
        assert values is settings
        assert (identity.persistent, identity.non_persistent, named["create_topics"]) == flags
        assert (identity.broker, list(identity.extensions)) == ("b1", [one.name for one in extensions])
        assert (called is hooks) == bool(given)
        assert type(called) is BrokerHooks
        assert named["placement"] is chosen


async def test_an_opening_that_joins_may_be_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = lone_settings()

    async def open_member(*_: Any, **__: Any) -> Opened:
        return Opened(started_host(), KafkaMemberLog(access(settings), settings, partitions=1), access(settings))

    monkeypatch.setattr(channel_module, "open_member", open_member)
    opening = StateChannel.open(settings, broker="b1")
    awaiting = asyncio.ensure_future(opening.__aenter__())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await opening.shutdown(0.0) is not None
    with pytest.raises(ChannelStoppedError):
        await awaiting


# --- what is written wrongly ----------------------------------------------------------------------------------------


KINDS = {"StateChannel": lambda: StateChannel.open(broker="b1"), "Router": lambda: Router.open(SETTINGS)}
SETTINGS = lone_settings()
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.filterwarnings("ignore:.*was never awaited")
@each_kind
def test_not_awaited(kind: str) -> None:
    opening: Any = KINDS[kind]()
    with pytest.raises(AttributeError, match=rf"not open yet and has no `lookup`: .*await {kind}\.open"):
        opening.lookup("t/n/topic")
    with pytest.raises(AttributeError, match="object has no attribute 'look_up'"):
        opening.look_up("t/n/topic")


@each_kind
def test_an_opening_that_is_dropped_is_warned_of(kind: str) -> None:
    with pytest.warns(RuntimeWarning, match=rf"`{kind}\.open\(...\)` was never awaited"):
        KINDS[kind]()


async def test_one_that_was_awaited_is_not(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ArgumentTypeError):
        await StateChannel.open(broker="b1", kafak={})
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "awaited" in str(warning.message)] == []


async def test_an_opening_opens_one_member() -> None:
    made = asyncio.Event()
    opening = opening_of(Begun(), made)
    first = asyncio.ensure_future(opening.__aenter__())
    await asyncio.sleep(0)
    for _ in ("while it is opened", "and afterwards"):
        with pytest.raises(StateChannelError) as error:
            await opening
        assert error.value.code == "opened-twice"
        made.set()
        await first


@each_kind
def test_a_plain_with_says_what_to_write(kind: str) -> None:
    opening: Any = KINDS[kind]()
    with pytest.raises(TypeError, match=rf"write `async with {kind}\.open"), opening:
        pass
