"""How the canary asks: what is slow or old at this process, or between it and others, is no broker that does not answer."""

import asyncio
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from statechannel.broker import canary
from statechannel.broker.canary import CanaryRunner
from statechannel.broker.hooks import BlockingBrokerHooks, BrokerHooks, ThreadedHooks
from statechannel.engine.canary import CanaryAnswer, CanaryQuestion
from statechannel.http_client import HttpRefusedError
from statechannel.settings.groups_engine import CanarySettings
from tests.support.lone_engine import LoneEngine
from tests.support.waits import wait_until

TIMEOUT_S = 0.3
QUESTION = CanaryQuestion("t/m/0x00000000_0xffffffff", "z", "z-1", {}, "http://127.0.0.1:1", "z", 3, 5, 7, 0.0)
SERVES = orjson.dumps({"broker": "z", "incarnation": "z-1", "generation": 3})


def runner(hooks: BrokerHooks | None = None) -> tuple[CanaryRunner, list[CanaryAnswer]]:
    """A canary whose answers are kept instead of judged."""
    answers: list[CanaryAnswer] = []
    metrics = SimpleNamespace(counted=lambda *_: None, set=lambda *_: None, log=None)
    host: Any = SimpleNamespace(
        engine=LoneEngine([]).engine, now_s=time.monotonic, stopped=None, metrics=metrics, feed=lambda _: None
    )
    settings = CanarySettings(questions_per_second_max=1.0, timeout_s=TIMEOUT_S)
    made = CanaryRunner(host, hooks or BrokerHooks(), settings)
    made._canary.judge = lambda now_s, wall_ms, question, answer: answers.append(answer)  # type: ignore[method-assign]
    return made, answers


def answering(monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception) -> None:
    def get(url: str, **_: Any) -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("statechannel.http_client.get", get)


@pytest.mark.parametrize(("status", "silent"), [(404, False), (503, True)])
def test_a_broker_of_a_version_without_the_page_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, status: int, silent: bool
) -> None:
    answering(monkeypatch, HttpRefusedError(f"HTTP {status}", status=status, body=b""))
    asker, answers = runner()
    asyncio.run(asker._ask(QUESTION))
    assert [bool(answer.error) for answer in answers] == [True] * silent


def test_an_endpoint_is_asked_although_all_threads_of_the_loop_are_occupied(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, SERVES)
    asker, answers = runner()
    end = threading.Event()

    async def ask() -> None:
        others = [asyncio.ensure_future(asyncio.to_thread(end.wait)) for _ in range(64)]
        await asyncio.sleep(0)  # they come first
        try:
            await asker._ask(QUESTION)
        finally:
            end.set()
        await asyncio.gather(*others)

    asyncio.run(ask())
    assert answers == [CanaryAnswer(3)]


class Probes(BlockingBrokerHooks):
    """Each probe of `hung` hangs until the end; others are answered."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def probe_owner(self, bundle: str, broker: str, urls: Mapping[str, str]) -> int | None:
        if broker == "hung":
            self.end.wait()
        return 3


def test_probes_that_hang_do_not_make_others_look_silent() -> None:
    probes = Probes()
    asker, answers = runner(ThreadedHooks(probes))

    async def ask() -> None:
        try:
            for _ in range(8):
                await asyncio.gather(*(asker._ask(QUESTION._replace(broker="hung")) for _ in range(8)))
                answers.clear()
                await asker._ask(QUESTION)
                assert not any(answer.error for answer in answers), "z would have answered"
        finally:
            probes.end.set()

    asyncio.run(ask())

    def answered() -> bool:
        asyncio.run(asker._ask(QUESTION))
        return answers[-1:] == [CanaryAnswer(3)]

    wait_until(answered)


class Slow(BrokerHooks):
    async def probe_owner(self, bundle: str, broker: str, urls: Mapping[str, str]) -> int | None:
        if broker == "silent":
            await asyncio.sleep(3600.0)
        return 3


def test_a_loop_that_stood_still_missed_the_answer_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, answers = runner(Slow())

    async def ask() -> None:
        asked = asyncio.ensure_future(asker._ask(QUESTION._replace(broker="silent")))
        await asyncio.sleep(0)
        time.sleep(TIMEOUT_S + 2 * canary.LATE_S)  # noqa: ASYNC251 - it is to stand still
        await asked

    asyncio.run(ask())
    assert answers == []
    monkeypatch.setattr(canary, "LATE_S", 60.0)
    asyncio.run(asker._ask(QUESTION._replace(broker="silent")))
    assert "no answer within" in answers[-1].error
    asyncio.run(asker._ask(QUESTION))
    assert answers[-1] == CanaryAnswer(3)
