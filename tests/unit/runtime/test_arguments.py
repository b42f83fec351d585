"""A wrong argument is told to its caller by name, and never reaches the engine, which would end the member over it."""

import asyncio
import inspect
import math
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
from statechannel.broker.arguments import ADVERTISED_MAX_BYTES, check_opening
from statechannel.broker.loop_thread import LoopThread
from statechannel.engine import commands
from statechannel.errors import StateChannelError
from statechannel.operations.table import RequestCommand, check
from statechannel.protocol.bundle import FULL_UPPER, MAX_CHILDREN, bounds_of, children_of
from tests.support.lone_member import lone_channel, lone_settings
from tests.support.waits import WAIT_S

HUGE = 10**5_000  # more digits than Python is willing to print

NO_TEXT = [None, 7, b"a/b/t", ["a/b/t"]]
NO_BUNDLE = ["a/b/t", "persistent://a/b/t", "a/b", "", "a/b/0x00000000_0x4000000", "a/b/0x00000000_0x400000000"]
NO_SECONDS = [None, "5", True, math.nan, math.inf, -math.inf, -1, -0.001, HUGE, 1j]
NO_WHOLE = [None, "4", 4.0, True]

Call = Callable[[Any, Any], Any]
CALLS: dict[tuple[str, str], tuple[Call, list]] = {
    ("lookup", "name"): (lambda c, v: c.lookup(v), NO_TEXT),
    ("lookup_cached", "name"): (lambda c, v: c.lookup_cached(v), NO_TEXT),
    ("lookup", "timeout_s"): (lambda c, v: c.lookup("a/b/t", v), [v for v in NO_SECONDS if v is not None]),
    ("lookup", "read_only"): (lambda c, v: c.lookup("a/b/t", read_only=v), [None, 1, "yes"]),
    ("transfer", "name"): (lambda c, v: c.transfer(v, "b2"), NO_TEXT),
    ("transfer", "to"): (lambda c, v: c.transfer("a/b/t", v), NO_TEXT),
    ("transfer", "reason"): (lambda c, v: c.transfer("a/b/t", "b2", reason=v), [7, b"why", ["why"]]),
    ("unload", "name"): (lambda c, v: c.unload(v), NO_TEXT),
    ("unload", "reason"): (lambda c, v: c.unload("a/b/t", reason=v), [7, b"why"]),
    ("split", "name"): (lambda c, v: c.split(v), NO_TEXT),
    ("split", "at"): (
        lambda c, v: c.split("a/b/t", at=v),
        [None, 7, "12", b"12", ["x"], [1.5], [None], [True], {1: 2}, range(MAX_CHILDREN)],
    ),
    ("split", "parts"): (lambda c, v: c.split("a/b/t", parts=v), NO_WHOLE),
    ("split", "reason"): (lambda c, v: c.split("a/b/t", reason=v), [7]),
    ("create_namespace", "name"): (lambda c, v: c.create_namespace(v), NO_TEXT),
    ("create_namespace", "bundles"): (
        lambda c, v: c.create_namespace("a/b", v),
        [*NO_WHOLE, 0, -1, MAX_CHILDREN + 1, HUGE],
    ),
    ("create_namespace", "reason"): (lambda c, v: c.create_namespace("a/b", reason=v), [7]),
    ("delete_namespace", "name"): (lambda c, v: c.delete_namespace(v), NO_TEXT),
    ("delete_namespace", "reason"): (lambda c, v: c.delete_namespace("a/b", reason=v), [7]),
    ("ticket", "operation"): (lambda c, v: c.ticket(v), NO_TEXT),
    ("ask", "command"): (lambda c, v: c.ask(v), [None, "lookup", commands.Lookup, object()]),
    ("changes", "since"): (
        lambda c, v: anext(aiter(c.changes(v))) if isinstance(c, StateChannel) else next(c.changes(v)),
        [7, [0], {"0": 1}, {0: "1"}, {0: None}, {0: -1}, {0: 1.0}, {-1: 0}],
    ),
    ("changes", "limit"): (
        lambda c, v: anext(aiter(c.changes(limit=v))) if isinstance(c, StateChannel) else next(c.changes(limit=v)),
        [*NO_WHOLE, 0, -1],
    ),
    ("holder", "bundle"): (lambda c, v: c.holder(v), NO_TEXT),
    ("locate", "name"): (lambda c, v: c.locate(v), NO_TEXT),
    ("request", "asked"): (lambda c, v: c.request(v, {}, 5), [None, 7, "lookup"]),
    ("request", "args"): (lambda c, v: c.request(RequestCommand.LOOKUP, v, 5), [None, 7, "name", ["name"]]),
    ("request", "timeout_s"): (lambda c, v: c.request(RequestCommand.LOOKUP, {}, v), NO_SECONDS),
    ("request", "on_reply"): (lambda c, v: c.request(RequestCommand.LOOKUP, {}, 5, v), [7, "on_reply"]),
    ("owners", "namespace"): (lambda c, v: c.owners(v), NO_TEXT),
    ("answer_for", "extension"): (lambda c, v: c.answer_for(v, print), NO_TEXT),
    ("answer_for", "handler"): (lambda c, v: c.answer_for("x", v), [None, 7]),
    ("check_before", "check"): (lambda c, v: c.check_before(v, print), NO_TEXT),
    ("check_before", "refusal"): (lambda c, v: c.check_before("x", v), [None, 7]),
    ("watch", "limit"): (lambda c, v: c.watch(v), [*NO_WHOLE, 0, -1]),
    ("serves", "bundle"): (lambda c, v: c.serves(v), [*NO_TEXT, *NO_BUNDLE]),
    ("accepts_writes", "bundle"): (lambda c, v: c.accepts_writes(v), [*NO_TEXT, *NO_BUNDLE]),
    ("guard", "name"): (lambda c, v: c.guard(v), NO_TEXT),
    ("guard", "write"): (lambda c, v: c.guard("a/b/t", write=v), [None, 1, "yes"]),
    ("guard", "size_bytes"): (lambda c, v: c.guard("a/b/t", size_bytes=v), [*NO_WHOLE, -1]),
    ("shutdown", "budget_s"): (lambda c, v: c.shutdown(v), [v for v in NO_SECONDS if v is not None]),
    ("Ticket.started", "timeout_s"): (lambda c, v: c.ticket("op1").started(v), NO_SECONDS),
    ("Ticket.outcome", "timeout_s"): (lambda c, v: c.ticket("op1").outcome(v), NO_SECONDS),
}
OPENING: dict[str, list] = {
    "settings": ["kafka", {}, 7],
    "broker": [None, 7, "", "b 1", "x" * 129, "é", "-b1"],
    "hooks": [7, BlockingBrokerHooks(), BrokerHooks],
    "listeners": [
        7,
        "pulsar://b1:6650",
        ["x"],
        {"pulsar": None},
        {7: "pulsar://b1:6650"},
        {"pulsar": "\ud800"},
        {"pulsar": "x" * ADVERTISED_MAX_BYTES},
    ],
    "properties": [
        7,
        {"rack": 7},
        {"x" * ADVERTISED_MAX_BYTES: ""},
        {"rack": "\0" * (ADVERTISED_MAX_BYTES // 6)},
        {str(n): "" for n in range(ADVERTISED_MAX_BYTES)},
    ],
    "persistent": [None, 1],
    "non_persistent": ["no"],
    "create_topics": [None, 1],
    "join_timeout_s": [v for v in NO_SECONDS if v is not None],
    "placement": [7],
    "extensions": [None, 7, {}, [7], "balancer"],
    "metrics_registry": [7],
    "on_stuck": [7],
    "hook_settings": [7, "deadline_s", [2]],
}
ONLY_ASYNC = {
    "answer_for",
    "check_before",
    "broker_ids",
    "brokers",
    "holder",
    "locate",
    "positions",
    "request",
    "watch",
}
ONLY_ON_SELF = {
    "broker_ids",
    "brokers",
    "positions",
    "status",
    "picture",
    "serving",
    "digest",
    "admitted",
    "wait_stopped",
    "close",
    "resume_repair",
}


def test_every_argument_of_every_public_method_is_in_the_table() -> None:
    """So that a new one cannot be forgotten."""
    result = set()
    for kind, prefix in ((StateChannel, ""), (Ticket, "Ticket.")):
        for name, member in inspect.getmembers(kind, callable):
            if not name.startswith("_") and name != "open":
                wanted = [p for p in inspect.signature(member).parameters if p != "self"]
                assert bool(wanted) != (name in ONLY_ON_SELF)
                result |= {(prefix + name, argument) for argument in wanted}
    assert result == CALLS.keys()
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
async def test_wrong_arguments_are_refused_and_the_member_lives(method: str, argument: str) -> None:
    call, values = CALLS[method, argument]
    async with lone_channel() as channel:
        for value in values:
            with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
                await asked(call, channel, value)
            complains(caught.value, argument)
        await asyncio.sleep(0)
        assert channel.stopped is None
        assert isinstance(await channel.lookup("a/b/t", 0), commands.Undetermined)


@pytest.mark.parametrize(("method", "argument"), [item for item in CALLS if item[0] not in ONLY_ASYNC])
def test_the_blocking_face_refuses_the_same(method: str, argument: str) -> None:
    call, values = CALLS[method, argument]
    loop = LoopThread("test")
    entered = lone_channel()
    channel = loop.call(entered.__aenter__())
    try:
        face = BlockingStateChannel(loop, channel, None)
        assert isinstance(face.ticket("op1"), BlockingTicket)
        for value in values:
            with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
                call(face, value)
            complains(caught.value, argument)
        assert face.stopped is None
    finally:
        loop.finish(lambda: entered.__aexit__(None, None, None))


@pytest.mark.parametrize("argument", OPENING)
async def test_wrong_arguments_of_open_are_refused_by_both_faces(argument: str) -> None:
    for value in OPENING[argument]:
        given_ = {"settings": lone_settings(), "broker": "b1", argument: value}
        with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
            await StateChannel.open(given_.pop("settings"), **given_)
        complains(caught.value, argument)
        given_ = {"settings": lone_settings(), "broker": "b1", argument: value}
        if isinstance(value, BlockingBrokerHooks):
            given_["hooks"] = BrokerHooks()
        with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
            await asyncio.to_thread(BlockingStateChannel.open, given_.pop("settings"), **given_)
        complains(caught.value, argument)


def opening(listeners: dict[str, str], properties: dict[str, str]) -> None:
    nothing = dict.fromkeys(("settings", "hooks", "join_timeout_s", "placement", "metrics_registry", "on_stuck"))
    given_ = {"broker": "b1", "listeners": listeners, "properties": properties, "flags": {}, "extensions": ()}
    check_opening(hooks_class=BrokerHooks, **nothing, **given_)


def test_listeners_and_properties_fit_into_every_heartbeat_together() -> None:
    around = len(b'{"listeners":{"a":"tcp://"},"properties":{"b":""}}')
    half, rest = divmod(ADVERTISED_MAX_BYTES - around, 2)
    opening({"a": "tcp://" + "x" * half}, {"b": "x" * (half + rest)})
    with pytest.raises(ArgumentValueError, match=f"take {ADVERTISED_MAX_BYTES + 1} bytes") as caught:
        opening({"a": "tcp://" + "x" * (half + 1)}, {"b": "x" * (half + rest)})
    complains(caught.value, "listeners")
    complains(caught.value, "properties")
    assert str(ADVERTISED_MAX_BYTES) in str(caught.value)
    assert len(str(caught.value)) < 300


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


RING = st.sampled_from([0, 1, 5, 1 << 31, FULL_UPPER - 1, FULL_UPPER, FULL_UPPER + 1, -1]) | st.integers()


@given(st.lists(RING, max_size=6) | st.lists(RING, max_size=6).map(lambda item: [0, *sorted(item), FULL_UPPER]))
def test_bounds_that_pass_are_a_ring_and_no_others_do(bounds: list[int]) -> None:
    command = commands.CreateNamespace("a/b", tuple(bounds), "op1", 1.0)
    ring = (
        len(bounds) > 1
        and bounds[0] == 0
        and bounds[-1] == FULL_UPPER
        and all(0 <= bound <= FULL_UPPER for bound in bounds)
        and list(bounds_of(children_of(bounds)) or ()) == bounds
    )
    if ring:
        check(command)
    else:
        with pytest.raises(ArgumentValueError, match="bounds"):
            check(command)
