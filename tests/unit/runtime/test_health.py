"""What a broker says of its own health, in each state that it can be in."""

import asyncio
import json
import threading
import time

import pytest

from statechannel.broker.exits import Stopped
from statechannel.broker.hook_runner import HookCounts
from statechannel.broker.host import Host
from statechannel.broker.observe import health, replica_digest
from statechannel.broker.observe.events import Level
from statechannel.broker.observe.metrics import Metrics
from statechannel.broker.observe.observer import Availability, Observer
from statechannel.broker.observe.replica_digest import CopyTimeoutError
from statechannel.broker.parts import ReadersAvailability
from statechannel.engine.context import Mode
from statechannel.engine.engine import Engine
from tests.support.log_lines import capture_logs
from tests.support.lone_member import lone_host
from tests.support.waits import WAIT_S, wait_until


def failed(checks) -> list[str]:
    return [check.name for check in checks if not check.ok]


async def test_a_member_that_joins_is_alive_and_not_ready() -> None:
    async with lone_host() as host:
        assert failed(health.alive(host)) == []
        assert failed(health.ready(host)) == ["caught-up", "registered", "mode"]
        host.stop(Stopped("closed", "the test is over"))
        assert failed(health.alive(host)) == ["member"]


async def test_a_loop_that_stands_still_is_not_alive() -> None:
    async with lone_host() as host:
        host._driver.last_progress_s = time.monotonic() - host.settings.runtime.watchdog_s - 1
        (check,) = [broker for broker in health.alive(host) if not broker.ok]
        assert check.name == "loop"
        assert "11." in check.why


async def test_why_it_is_not_ready_is_told(monkeypatch) -> None:
    async with lone_host() as host:
        monkeypatch.setattr(Engine, "caught_up", property(lambda _: True))
        host.engine.context.registry_mode = Mode.NORMAL
        assert failed(health.ready(host)) == []
        host.engine.context.draining = True
        answer = health._answer(host, health.ready(host))
        document = json.loads(answer.body)
        assert answer.status == 503
        assert (document["status"], document["reasons"]) == ("unavailable", ["staying: hands over its bundles"])
        host.engine.context.draining = False
        host.engine.context.registry_mode = Mode.SAFE
        assert failed(health.ready(host)) == ["mode"]


@pytest.mark.parametrize(("late", "ready"), [(3, True), (4, False)])
async def test_a_broker_whose_hook_threads_are_all_kept_is_not_ready(monkeypatch, late: int, ready: bool) -> None:
    async with lone_host() as host:
        monkeypatch.setattr(Host, "hooks", property(lambda _: HookCounts(late, late, 0, 4)))
        monkeypatch.setattr(Engine, "caught_up", property(lambda _: True))
        host.engine.context.registry_mode = Mode.NORMAL
        assert failed(health.alive(host)) == []
        assert failed(health.ready(host)) == ([] if ready else ["hooks"])
        (check,) = [item for item in health.ready(host) if item.name == "hooks"]
        assert check.why == f"{late} of 4 threads run hooks that are past their deadlines"


async def test_verdicts_on_everything_are_only_reckoned_where_somebody_listens() -> None:
    async with lone_host() as host:
        assert host.engine.context.tells_all is False
        Observer(host.engine, Metrics("c", "b1", least=Level.DEBUG))
        assert host.engine.context.tells_all is True


async def test_an_old_debt_raises_the_alarm_once(monkeypatch) -> None:
    async with lone_host() as host:
        ages = iter((5.0, 50.0, 60.0, 0.0))
        monkeypatch.setattr(host.engine.duties, "oldest_debt_s", lambda: next(ages))
        watch = Observer(host.engine, Metrics("c", "b1"), debt_alarm_s=10.0)
        with capture_logs() as lines:
            for _ in range(4):
                watch.look(inbox=0, commands=0, requests=0, hooks=HookCounts(0, 0, 0, None), unanswered=0)
    results = [(line["event"], line["log_level"]) for line in lines if line["event"].startswith("debt")]
    assert results == [("debt.alarm", "error"), ("debt.alarm-over", "info")]


@pytest.mark.parametrize("state", ["absent", "no-connection"])
def test_an_outage_says_what_the_addresses_do(state: str) -> None:
    looked = threading.Event()

    def look() -> str:
        assert looked.wait(WAIT_S)
        return state

    with capture_logs() as lines:
        availability = Availability(Metrics("c", "b1"), look)
        availability.changed(False)
        assert lines == [], "nobody waits for the look"
        looked.set()
        wait_until(lambda: lines, pause_s=0.01)
        availability.changed(True)
    away, back = lines
    assert (away["event"], away["reason"], away["broker"]) == ("kafka.away", state, "b1")
    assert back["event"] == "kafka.back"


def test_an_outage_that_ends_before_the_look_is_reported_once() -> None:
    looked = threading.Event()

    def look() -> str:
        assert looked.wait(WAIT_S)
        return "absent"

    before = set(threading.enumerate())
    with capture_logs() as lines:
        availability = Availability(Metrics("c", "b1"), look)
        availability.changed(False)
        (looking,) = set(threading.enumerate()) - before
        availability.changed(True)
        looked.set()
        looking.join(WAIT_S)
    expected = [("kafka.away", "no-answer"), ("kafka.back", None)]
    assert [(line["event"], line.get("reason")) for line in lines] == expected


def test_kafka_goes_and_comes() -> None:
    metrics = Metrics("c", "b1")
    availability = Availability(metrics)
    with capture_logs() as lines:
        for there in (True, False, True):
            availability.changed(there)
    assert [line["event"] for line in lines] == ["kafka.away", "kafka.back"]
    own = {"channel": "c", "broker": "b1"}
    assert metrics.registry.get_sample_value("statechannel_kafka_outages_total", own) == 1.0
    assert metrics.registry.get_sample_value("statechannel_kafka_available", own) == 1.0


async def test_a_dump_that_cannot_be_copied_is_refused_before_anything_is_sent(monkeypatch) -> None:
    async with lone_host() as host:

        async def late(*_args, **_given) -> None:
            raise CopyTimeoutError("not copied in time")

        monkeypatch.setattr(replica_digest, "copy_replicas", late)
        pages = health.routes(host, asyncio.get_running_loop(), timeout_s=5.0)
        with pytest.raises(CopyTimeoutError):
            await asyncio.to_thread(pages["/dump"])
        monkeypatch.undo()
        answer = await asyncio.to_thread(pages["/dump"])  # and its room is given back
        assert (answer.status, b"".join(answer.body)[:11]) == (200, b'{"replica":')


def test_kafka_is_there_while_every_reader_says_so() -> None:
    heard: list[bool] = []
    availability = ReadersAvailability(heard.append)
    for part, available in (("a", True), ("a", True), ("b", False), ("a", False), ("b", True), ("a", True)):
        availability.changed(part, available=available)
    assert heard == [True, False, True]
