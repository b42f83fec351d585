"""The child of a fork has the memory of its parent's members, which nothing updates: it admits nothing, and waits for nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statechannel.api import Admission, BlockingStateChannel, Redirect, StateChannel, Undetermined
from statechannel.broker.assembly import KafkaMemberLog, Opened, access, make_observer
from statechannel.broker.loop_thread import LoopThread
from statechannel.broker.observe.metrics import Metrics
from statechannel.broker.opening_process import PickledError
from statechannel.engine.commands import Lookup
from statechannel.router import BlockingRouter, Route, Router
from statechannel.testing import ChannelKit
from tests.support.forks import Raised, fork_in_c, in_child
from tests.support.lone_member import SilentLog, lone_channel, lone_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

BUNDLE = "t/n/0x00000000_0xffffffff"
ROOT = Path(__file__).parents[3]


def assert_forked(said: object) -> None:
    """It was refused at once, with what to do."""
    assert isinstance(said, Raised), said
    assert (said.kind, said.reason) == ("ChannelStoppedError", "forked"), said
    assert str(os.getpid()) in said.message, "the process that opened it"
    assert "each worker" in said.hint


# --- members and routers that serve -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease_s", [None, 4])
def test_a_child_admits_nothing_while_its_parent_serves(lease_s: int | None) -> None:
    groups = {} if lease_s is None else {"safe_mode": {"lease_s": lease_s, "after_s": 3}}
    with ChannelKit(settings=groups) as kit:
        kit.run(_admits_nothing(kit))


async def _admits_nothing(kit: ChannelKit) -> None:
    channel = (await kit.broker("a", listeners={"http": "http://a:1"})).channel
    bundle, *_ = await kit.namespace("t/n")
    generation = await kit.own(bundle, "a")
    router = await kit.router()

    def cheap_reads() -> dict[str, Any]:
        return {
            "write": channel.guard(bundle),
            "read": channel.guard(bundle, write=False),
            "accepts_writes": channel.accepts_writes(bundle),
            "serves": channel.serves(bundle),
            "serving": channel.serving(),
            "lookup_cached": channel.lookup_cached(bundle),
            "leading": channel.leading,
            "stopped": None if channel.stopped is None else channel.stopped.reason,
            "route": router.lookup(bundle),
            "routed": None if router.stopped is None else router.stopped.reason,
        }

    before = cheap_reads()
    said = in_child(cheap_reads)
    assert cheap_reads() == before, "the parent serves on"
    assert before["write"] == before["read"] == Admission(bundle, generation)
    assert isinstance(before["route"], Route)
    for answer in (said["write"], said["read"], said["route"]):
        assert answer.reason == "forked"
        assert str(os.getpid()) in answer.message
    assert isinstance(said["write"], Redirect)
    assert said["write"].broker is None
    assert isinstance(said["route"], Undetermined)
    assert "each worker" in said["route"].hint
    assert said["accepts_writes"] is said["serves"] is said["lookup_cached"] is None
    assert (said["serving"], said["leading"]) == ({}, False)
    assert said["stopped"] == said["routed"] == "forked"
    for call in (channel.lookup(bundle), router.wait(bundle)):
        assert_forked(in_child(lambda call=call: call))
        call.close()


async def test_a_child_follows_a_redirect_that_it_was_given(channel_kit: ChannelKit) -> None:
    router = await channel_kit.router()
    redirect = Redirect("other-owner", "b serves it", BUNDLE, "b", {"http": "http://b:1"}, 9)
    assert in_child(lambda: router.follow("t/n/topic", redirect)).generation == 9


# --- every other call ---------------------------------------------------------------------------------------------------

ASYNC_CALLS: dict[str, Callable[[StateChannel], Any]] = {
    "ask": lambda channel: channel.ask(Lookup("t/n/topic", 60)),
    "lookup": lambda channel: channel.lookup("t/n/topic", 60),
    "transfer": lambda channel: channel.transfer("t/n/topic", "b2"),
    "unload": lambda channel: channel.unload("t/n/topic").outcome(),
    "split": lambda channel: channel.split(BUNDLE).started(),
    "create_namespace": lambda channel: channel.create_namespace("t/n"),
    "delete_namespace": lambda channel: channel.delete_namespace("t/n"),
    "resume_repair": lambda channel: channel.resume_repair(),
    "changes": lambda channel: anext(channel.changes()),
    "wait_stopped": lambda channel: channel.wait_stopped(),
    "shutdown": lambda channel: channel.shutdown(1.0),
    "close": lambda channel: channel.close(),
    "ticket": lambda channel: channel.ticket("op-1"),
    "status": lambda channel: channel.status(),
    "picture": lambda channel: channel.picture(),
    "brokers": lambda channel: channel.brokers(),
    "broker_ids": lambda channel: channel.broker_ids(),
    "positions": lambda channel: channel.positions(),
    "locate": lambda channel: channel.locate("t/n/topic"),
    "owners": lambda channel: channel.owners("t/n"),
    "holder": lambda channel: channel.holder(BUNDLE),
    "digest": lambda channel: channel.digest(),
    "watch": lambda channel: channel.watch(1),
    "admitted": lambda channel: channel.admitted(),
    "log_time_ms": lambda channel: channel.log_time_ms,
    "metrics_registry": lambda channel: channel.metrics_registry,
    "shutdown_budget_s": lambda channel: channel.shutdown_budget_s,
}


@pytest.mark.parametrize("call", ASYNC_CALLS)
async def test_every_other_call_is_refused_at_once(call: str) -> None:
    async with lone_channel() as channel:
        assert_forked(in_child(lambda: ASYNC_CALLS[call](channel)))


async def test_so_is_what_was_begun_before_the_fork() -> None:
    async with lone_channel() as channel:
        ticket = channel.ticket("op-1")
        assert_forked(in_child(lambda: ticket.started(60)))
        assert_forked(in_child(lambda: ticket.outcome(60)))


async def test_what_had_ended_before_the_fork_has_ended_in_the_child_too(channel_kit: ChannelKit) -> None:
    broker = await channel_kit.broker("a")
    await channel_kit.broker("b")
    ended = await broker.stop()
    assert in_child(broker.channel.close) is None
    assert in_child(broker.channel.wait_stopped) == in_child(lambda: broker.channel.stopped) == ended


@contextlib.asynccontextmanager
async def _lone_router() -> AsyncIterator[Router]:
    settings = lone_settings()
    host = make_observer(settings, SilentLog(), Metrics("test", "router"), partitions=1)  # type: ignore[arg-type]
    host.start()
    kafka = access(settings)
    router = Router(Opened(host, KafkaMemberLog(kafka, settings, partitions=1), kafka), settings)
    yield router
    await router.close()


@contextlib.contextmanager
def _on_loop_thread(opening: contextlib.AbstractAsyncContextManager[Any]) -> Iterator[tuple[LoopThread, Any]]:
    """Opened on a loop of its own, as the blocking faces do it."""
    loop = LoopThread("test")
    try:
        yield loop, loop.call(opening.__aenter__())
    finally:
        loop.finish(lambda: opening.__aexit__(None, None, None))


BLOCKING_CALLS: dict[str, Callable[[BlockingStateChannel], Any]] = {
    **{name: call for name, call in ASYNC_CALLS.items() if hasattr(BlockingStateChannel, name) and name != "changes"},
    "changes": lambda channel: next(channel.changes()),
}
ROUTER_CALLS: dict[str, Callable[[Any], Any]] = {
    "wait": lambda router: router.wait("t/n/topic"),
    "bundles": lambda router: router.bundles(),
    "owned_by": lambda router: router.owned_by("b1"),
    "brokers": lambda router: router.brokers(),
    "positions": lambda router: router.positions(),
    "digest": lambda router: router.digest(),
    "close": lambda router: router.close(),
}
ASYNC_ROUTER_CALLS: dict[str, Callable[[Router], Any]] = {
    **ROUTER_CALLS,
    "changes": lambda router: anext(router.changes()),
    "past": lambda router: anext(router.past({}, {0: 1})),
    "wait_stopped": lambda router: router.wait_stopped(),
    "metrics_registry": lambda router: router.metrics_registry,
}
BLOCKING_ROUTER_CALLS: dict[str, Callable[[BlockingRouter], Any]] = {
    **ROUTER_CALLS,
    "changes": lambda router: next(router.changes()),
    "past": lambda router: next(router.past({}, {0: 1})),
}


def test_the_blocking_face_waits_for_no_loop_in_a_child() -> None:
    with _on_loop_thread(lone_channel()) as (loop, channel):
        face = BlockingStateChannel(loop, channel, None)
        for name, call in BLOCKING_CALLS.items():
            said = in_child(lambda call=call: call(face))
            try:
                assert_forked(said)
            except AssertionError as error:
                raise AssertionError(name) from error
        assert in_child(lambda: face.stopped.reason if face.stopped else None) == "forked"
        assert face.stopped is None


async def test_a_router_waits_for_nothing_in_a_child() -> None:
    async with _lone_router() as router:
        for name, call in ASYNC_ROUTER_CALLS.items():
            said = in_child(lambda call=call: call(router))
            assert isinstance(said, Raised), name
            assert_forked(said)


def test_nor_does_its_blocking_face() -> None:
    with _on_loop_thread(_lone_router()) as (loop, inner):
        router = BlockingRouter(loop, inner)
        for name, call in BLOCKING_ROUTER_CALLS.items():
            said = in_child(lambda call=call: call(router))
            assert isinstance(said, Raised), name
            assert_forked(said)
        assert in_child(lambda: router.lookup("t/n/topic")).reason == "forked"


def test_a_child_does_not_hang_while_other_threads_of_its_parent_are_in_calls() -> None:
    with _on_loop_thread(lone_channel()) as (loop, channel):
        face, over = BlockingStateChannel(loop, channel, None), threading.Event()

        def busy() -> None:
            while not over.is_set():
                face.status()

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                assert_forked(in_child(face.status))
        finally:
            over.set()
            for thread in threads:
                thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel has to tell: no hook is called")
async def test_a_server_that_forks_in_c_makes_no_difference(channel_kit: ChannelKit) -> None:
    channel = (await channel_kit.broker("a")).channel
    bundle, *_ = await channel_kit.namespace("t/n")
    await channel_kit.own(bundle, "a")

    async def opened() -> tuple[object, object]:
        async with lone_channel() as own:
            return own.stopped, channel.accepts_writes(bundle)

    assert in_child(lambda: channel.guard(bundle), fork_in_c).reason == "forked"
    assert in_child(lambda: channel.accepts_writes(bundle), fork_in_c) is None
    assert_forked(in_child(channel.status, fork_in_c))
    assert in_child(opened, fork_in_c) == (None, None)
    assert isinstance(channel.guard(bundle), Admission)
    with _on_loop_thread(lone_channel()) as (loop, inner):
        assert_forked(in_child(BlockingStateChannel(loop, inner, None).close, fork_in_c))


# --- children -----------------------------------------------------------------------------------------------------------


async def test_a_child_of_a_child_names_the_process_that_opened_it() -> None:
    async with lone_channel() as channel:
        assert_forked(in_child(lambda: in_child(channel.status)))


async def test_what_a_child_opens_is_its_own() -> None:
    async with lone_channel() as inherited:

        async def opened() -> tuple[object, object]:
            async with lone_channel() as own:
                return own.status()["broker"], inherited.stopped and inherited.stopped.reason

        assert in_child(opened) == ("b1", "forked")


def test_a_worker_by_fork_is_refused_and_one_by_spawn_is_never_started() -> None:
    with _on_loop_thread(lone_channel()) as (loop, channel):
        face = BlockingStateChannel(loop, channel, None)
        for inherited in (face, channel, BlockingRouter.__new__(BlockingRouter), Router.__new__(Router)):
            spawned = multiprocessing.get_context("spawn").Process(target=print, args=(inherited,))
            with pytest.raises(PickledError) as refused:
                spawned.start()
            assert "open one there" in refused.value.hint
        forked = multiprocessing.get_context("fork").Process(target=face.close)
        forked.start()
        forked.join(20)
        assert forked.exitcode == 1, "an error, and no hang"


def test_a_child_ends_as_it_wants_to_and_its_parent_serves_on() -> None:
    script = textwrap.dedent(
        """
        import gc, os, sys, warnings
        from statechannel.api import BlockingStateChannel
        from statechannel.broker.loop_thread import LoopThread
        from tests.support.lone_member import lone_channel

        def end_in_block():
            with face:
                sys.exit(5)

        def end_by_error():
            with face:
                raise ArithmeticError

        def end_without_the_member():
            global loop, opening, channel, face
            del loop, opening, channel, face
            gc.unfreeze()
            gc.collect()

        warnings.simplefilter("ignore", DeprecationWarning)
        loop, opening = LoopThread("test"), lone_channel()
        channel = loop.call(opening.__aenter__())
        face = BlockingStateChannel(loop, channel, None)
        for end in (end_in_block, end_by_error, end_without_the_member):
            child = os.fork()
            if child == 0:
                end()
                sys.exit(6)
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), face.stopped, face.status()["broker"])
        os._exit(0)
        """
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=40, cwd=ROOT, check=False
    )
    assert ran.stdout.splitlines() == ["5 None b1", "1 None b1", "6 None b1"], ran
    assert "ArithmeticError" in ran.stderr
    assert "ChannelStopped" not in ran.stderr
    assert "left-open" not in ran.stderr, "a child has no member"
