"""A member that ends by itself lets go of what it serves: its hooks are called, and get their time."""

import asyncio
from dataclasses import replace

import pytest

from statechannel.broker import host as host_module
from statechannel.broker.exits import Stopped
from statechannel.broker.hooks import BrokerHooks
from statechannel.engine.commands import Shutdown
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.reactions import ServedBundle
from tests.support.log_lines import capture_logs
from tests.support.lone_member import SilentLog, host_settings, lone_host
from tests.support.waits import WAIT_S

BUNDLE = "a/b/0x00000000_0xffffffff"
FAILED = Stopped("part-failed", "the reader's thread ended too often")


class Releasing(BrokerHooks):
    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.log: list[str] = []

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.log.append(f"release of {bundle} at {generation} begins")
        await asyncio.sleep(self.takes_s)
        self.log.append("release ends")


class NotingLog(SilentLog):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def stand(self, *, stand: bool) -> None:
        self.log.append(f"stand: {stand}")

    def close(self, timeout_s: float) -> bool:
        self.log.append("clients are closed")
        return True


async def test_what_is_served_is_let_go_where_the_engine_did_not_end_itself() -> None:
    hooks = Releasing()
    async with lone_host(NotingLog(hooks.log), hooks=hooks) as host:
        host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
        host.engine.candidacy.stands = True
        assert host.engine.serving() == {BUNDLE: 7}
        host.stop(FAILED)
        assert host.engine.serving() == {}
        await host.wait_stopped()
    assert hooks.log[-2:] == ["release ends", "clients are closed"]
    assert sorted(hooks.log[:-2]) == [f"release of {BUNDLE} at 7 begins", "stand: False"]


async def test_releases_that_a_step_ordered_and_nobody_performed_yet_are_called() -> None:
    hooks = Releasing()
    async with lone_host(hooks=hooks) as host:
        host._driver._effects.append(CallHook(0, Hook.ON_RELEASE, BUNDLE, 7, None, 15.0))
        host.stop(FAILED)
        await host.wait_stopped()
    assert hooks.log == [f"release of {BUNDLE} at 7 begins", "release ends"]


async def test_a_release_may_take_its_deadline_and_the_watchdog_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "CLOSING_SLACK_S", 0.1)
    stuck: list[str] = []
    hooks = Releasing(takes_s=2.5)
    settings = host_settings(watchdog_s=1.0, close_timeout_s=0.1, deadline_s=20.0)
    async with lone_host(settings=settings, on_stuck=lambda: stuck.append("stuck"), hooks=hooks) as host:
        host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
        host.stop(FAILED)
        await host.wait_stopped()
    assert hooks.log[-1] == "release ends"
    assert stuck == []


async def test_an_engine_that_cannot_even_end_does_not_keep_the_member_from_closing(monkeypatch) -> None:
    log: list[str] = []
    async with lone_host(NotingLog(log)) as host:

        def broken(reason: str, detail: str) -> None:
            raise KeyError("no such bundle")

        monkeypatch.setattr(host.engine, "stop", broken)
        host.stop(Stopped("invariant-violated", "a bug"))
        assert (await host.wait_stopped()).reason == "invariant-violated"
    assert log[-1] == "clients are closed"


class Hanging(BrokerHooks):
    def __init__(self) -> None:
        self.calls = 0

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self.calls += 1
        await asyncio.Event().wait()


async def test_a_hook_that_hangs_holds_up_no_shutdown_beyond_its_budget() -> None:
    """Its own deadline is far away."""
    hooks = Hanging()
    settings = host_settings(deadline_s=100 * WAIT_S, shutdown_grace_s=0.1)
    async with lone_host(settings=settings, hooks=hooks) as host:
        context = host.engine.context
        host.engine.config = context.config = replace(context.config, hook_deadline_s=100 * WAIT_S)
        host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
        await host.submit(Shutdown(0.1))
        async with asyncio.timeout(WAIT_S):
            await host.wait_stopped()
    assert hooks.calls == 1


async def test_a_release_that_runs_already_is_not_called_again_at_the_end() -> None:
    hooks = Hanging()
    with capture_logs() as lines:
        async with lone_host(settings=host_settings(deadline_s=0.2), hooks=hooks) as host:
            host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
            host._hooks.call(CallHook(5, Hook.ON_RELEASE, BUNDLE, 7, "b2", 15.0))
            host.stop(FAILED)
            await host.wait_stopped()
    assert hooks.calls == 1
    (left,) = (line for line in lines if line["event"] == "hooks-left")
    assert (left["running"], left["not_called"]) == (1, 0)
