"""A wrong argument is told to its caller by name, and never reaches the engine, which would end the member over it."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.api import (
    ArgumentTypeError,
    ArgumentValueError,
    BlockingBrokerHooks,
    BlockingStateChannel,
    BlockingTicket,
    BrokerHooks,
    ChannelStoppedError,
    StateChannel,
    Ticket,
)
from statechannel.broker.loop_thread import LoopThread
from statechannel.engine import commands
from statechannel.errors import StateChannelError
from statechannel.operations.table import RequestCommand, check
from statechannel.protocol.bundle import MAX_CHILDREN
from tests.support.lone_member import lone_channel, lone_settings
from tests.support.waits import WAIT_S

HUGE = 10**5_000  # more digits than Python is willing to print

Call = Callable[[Any, Any], Any]
CALLS: dict[tuple[str, str], tuple[Call, object]] = {
    ("lookup", "name"): (lambda c, v: c.lookup(v), None),
    ("lookup_cached", "name"): (lambda c, v: c.lookup_cached(v), b"a/b/t"),
    ("lookup", "timeout_s"): (lambda c, v: c.lookup("a/b/t", v), "5"),
    ("lookup", "read_only"): (lambda c, v: c.lookup("a/b/t", read_only=v), "yes"),
    ("transfer", "name"): (lambda c, v: c.transfer(v, "b2"), None),
    ("transfer", "to"): (lambda c, v: c.transfer("a/b/t", v), 7),
    ("transfer", "reason"): (lambda c, v: c.transfer("a/b/t", "b2", reason=v), b"why"),
    ("unload", "name"): (lambda c, v: c.unload(v), None),
    ("unload", "reason"): (lambda c, v: c.unload("a/b/t", reason=v), 7),
    ("split", "name"): (lambda c, v: c.split(v), None),
    ("split", "at"): (lambda c, v: c.split("a/b/t", at=v), "12"),
    ("split", "parts"): (lambda c, v: c.split("a/b/t", parts=v), 4.0),
    ("split", "reason"): (lambda c, v: c.split("a/b/t", reason=v), 7),
    ("create_namespace", "name"): (lambda c, v: c.create_namespace(v), None),
    ("create_namespace", "bundles"): (lambda c, v: c.create_namespace("a/b", v), MAX_CHILDREN + 1),
    ("create_namespace", "reason"): (lambda c, v: c.create_namespace("a/b", reason=v), 7),
    ("delete_namespace", "name"): (lambda c, v: c.delete_namespace(v), None),
    ("delete_namespace", "reason"): (lambda c, v: c.delete_namespace("a/b", reason=v), 7),
    ("ticket", "operation"): (lambda c, v: c.ticket(v), None),
    ("ask", "command"): (lambda c, v: c.ask(v), commands.Lookup),
    ("changes", "since"): (lambda c, v: first_of(c.changes(v)), {0: -1}),
    ("changes", "limit"): (lambda c, v: first_of(c.changes(limit=v)), 0),
    ("holder", "bundle"): (lambda c, v: c.holder(v), None),
    ("locate", "name"): (lambda c, v: c.locate(v), None),
    ("request", "asked"): (lambda c, v: c.request(v, {}, 5), "lookup"),
    ("request", "args"): (lambda c, v: c.request(RequestCommand.LOOKUP, v, 5), ["name"]),
    ("request", "timeout_s"): (lambda c, v: c.request(RequestCommand.LOOKUP, {}, v), None),
    ("request", "on_reply"): (lambda c, v: c.request(RequestCommand.LOOKUP, {}, 5, v), "on_reply"),
    ("owners", "namespace"): (lambda c, v: c.owners(v), None),
    ("answer_for", "extension"): (lambda c, v: c.answer_for(v, print), None),
    ("answer_for", "handler"): (lambda c, v: c.answer_for("x", v), None),
    ("check_before", "check"): (lambda c, v: c.check_before(v, print), None),
    ("check_before", "refusal"): (lambda c, v: c.check_before("x", v), 7),
    ("watch", "limit"): (lambda c, v: c.watch(v), 0),
    ("serves", "bundle"): (lambda c, v: c.serves(v), "a/b/t"),
    ("accepts_writes", "bundle"): (lambda c, v: c.accepts_writes(v), "a/b/t"),
    ("guard", "name"): (lambda c, v: c.guard(v), None),
    ("guard", "write"): (lambda c, v: c.guard("a/b/t", write=v), 1),
    ("guard", "size_bytes"): (lambda c, v: c.guard("a/b/t", size_bytes=v), -1),
    ("shutdown", "budget_s"): (lambda c, v: c.shutdown(v), -1),
    ("Ticket.started", "timeout_s"): (lambda c, v: c.ticket("op1").started(v), None),
    ("Ticket.outcome", "timeout_s"): (lambda c, v: c.ticket("op1").outcome(v), -1),
}
"""A wrong value of each argument; which values are wrong is in `test_argument_checks`."""
OPENING: dict[str, Any] = {
    "settings": {},
    "broker": "b 1",
    "hooks": BrokerHooks,
    "listeners": {"pulsar": None},
    "properties": {"rack": 7},
    "persistent": 1,
    "non_persistent": "no",
    "create_topics": None,
    "join_timeout_s": -1,
    "placement": 7,
    "extensions": "balancer",
    "metrics_registry": 7,
    "on_stuck": 7,
    "hook_settings": 7,
}


def first_of(changes: Any) -> Any:
    return anext(aiter(changes)) if hasattr(changes, "__aiter__") else next(changes)


def test_every_argument_of_every_public_method_is_in_the_table() -> None:
    """So that a new one cannot be forgotten."""
    result = set()
    for kind, prefix in ((StateChannel, ""), (Ticket, "Ticket.")):
        for name, member in inspect.getmembers(kind, callable):
            if not name.startswith("_") and name != "open":
                result |= {(prefix + name, argument) for argument in inspect.signature(member).parameters}
    assert {(name, argument) for name, argument in result if argument != "self"} == CALLS.keys()
    assert inspect.signature(StateChannel.open).parameters.keys() - {"groups"} == OPENING.keys()


def complains(error: StateChannelError, argument: str) -> None:
    assert f"`{argument}`" in str(error) or f"`{argument}[" in str(error)
    assert "wanted" in str(error)
    assert error.hint
    assert error.exit_code == 2
    assert isinstance(error, TypeError | ValueError)


async def asked(call: Call, channel: StateChannel, value: object) -> None:
    result = call(channel, value)
    if inspect.isawaitable(result):
        async with asyncio.timeout(WAIT_S):
            await result


@pytest.mark.parametrize(("method", "argument"), CALLS)
async def test_a_wrong_argument_is_refused_and_the_member_lives(method: str, argument: str) -> None:
    call, value = CALLS[method, argument]
    async with lone_channel() as channel:
        with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
            await asked(call, channel, value)
        complains(caught.value, argument)
        await asyncio.sleep(0)
        assert channel.stopped is None
        assert isinstance(await channel.lookup("a/b/t", 0), commands.Undetermined)


BLOCKING = [item for item in CALLS if item[0].startswith("Ticket.") or hasattr(BlockingStateChannel, item[0])]


@pytest.mark.parametrize(("method", "argument"), BLOCKING)
def test_the_blocking_face_refuses_the_same(method: str, argument: str) -> None:
    call, value = CALLS[method, argument]
    loop = LoopThread("test")
    entered = lone_channel()
    channel = loop.call(entered.__aenter__())
    try:
        face = BlockingStateChannel(loop, channel, None)
        assert isinstance(face.ticket("op1"), BlockingTicket)
        with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
            call(face, value)
        complains(caught.value, argument)
        assert face.stopped is None
    finally:
        loop.finish(lambda: entered.__aexit__(None, None, None))


@pytest.mark.parametrize("argument", OPENING)
async def test_wrong_arguments_of_open_are_refused_by_both_faces(argument: str) -> None:
    arguments: dict[str, Any] = {"settings": lone_settings(), "broker": "b1", argument: OPENING[argument]}
    with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
        await StateChannel.open(**arguments)
    complains(caught.value, argument)
    with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
        await asyncio.to_thread(BlockingStateChannel.open, **arguments)
    complains(caught.value, argument)


async def test_hooks_of_the_other_face_are_refused() -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        await StateChannel.open(lone_settings(), broker="b1", hooks=BlockingBrokerHooks())  # type: ignore[arg-type]
    complains(caught.value, "hooks")
    with pytest.raises(ArgumentTypeError) as caught:
        await asyncio.to_thread(BlockingStateChannel.open, lone_settings(), broker="b1", hooks=BrokerHooks())  # type: ignore[arg-type]
    complains(caught.value, "hooks")


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("value", [Rude(), HUGE, "x" * 10**6, [HUGE]], ids=["rude", "huge", "long", "nested"])
def test_what_cannot_be_shown_is_refused_all_the_same_and_briefly(value: object) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        check(commands.Lookup("a/b/t", 1.0, value))  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


NAMES = st.text(max_size=40)
ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10), st.binary(max_size=5),
    st.lists(st.integers() | st.floats() | st.text(max_size=3), max_size=4).map(tuple), st.complex_numbers(),
)  # fmt: skip
ID = st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True)


@st.composite
def any_command(draw: st.DrawFn) -> commands.Command:
    kind = draw(st.sampled_from(commands.Command.__args__))
    return kind(*(draw(ANY | NAMES | ID) for _ in kind.__dataclass_fields__))


@settings(max_examples=150, deadline=None)
@given(st.lists(any_command(), max_size=5))
def test_whatever_is_asked_no_command_but_a_shutdown_ends_the_member(asked: list[commands.Command]) -> None:
    async def ask() -> None:
        async with lone_channel() as channel:
            for command in asked:
                try:
                    waiting = asyncio.ensure_future(channel.ask(command))
                    await asyncio.wait({waiting}, timeout=0)
                    waiting.cancel()
                    await waiting
                except (ArgumentTypeError, ArgumentValueError, asyncio.CancelledError):
                    pass
                except ChannelStoppedError:
                    assert any(isinstance(earlier, commands.Shutdown) for earlier in asked)
            await asyncio.sleep(0.001)
            gone = channel.stopped
            assert gone is None or gone.reason != "invariant-violated", gone

    asyncio.run(ask())
