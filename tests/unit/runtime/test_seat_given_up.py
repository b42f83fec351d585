"""A member whose loop hangs or was closed gives the leader's seat up, with or without an embedder that listens."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

from statechannel.broker.hooks import BrokerHooks
from statechannel.broker.host import Host
from statechannel.broker.inbox import Inbox
from statechannel.broker.observe.metrics import Metrics
from statechannel.engine.effects import StandForLeader
from statechannel.engine.engine import Engine
from statechannel.engine.inputs import PositionReached
from statechannel.protocol.log import Topic
from statechannel.settings import to_engine, to_identity
from tests.support.lone_member import SilentLog, host_settings, lone_host, lone_settings
from tests.support.waits import until, wait_until

WAIT_S = 10.0


class Seat(SilentLog):
    """Notes what is asked of the election, and whether it was closed."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.closed = threading.Event()
        self.last_progress_s: Callable[[], float] = time.monotonic

    def start(self, inbox: object, on_end: object, last_progress_s: object = None) -> None:
        super().start(inbox, on_end)
        assert callable(last_progress_s)
        self.last_progress_s = last_progress_s

    def stand(self, *, stand: bool) -> None:
        self.asked.append(stand)

    def close(self, timeout_s: float) -> bool:
        self.closed.set()
        return True


async def test_a_hung_loop_gives_the_seat_up_without_any_listener_and_takes_it_back() -> None:
    log = Seat()
    async with lone_host(log, host_settings(watchdog_s=0.3)) as host:
        host._perform(StandForLeader(stand=True))
        wait_until(lambda: log.asked == [True, False])  # the loop is held up here: this is the fault
        await until(lambda: log.asked == [True, False, True])


async def test_who_did_not_stand_does_not_stand_after_a_hang() -> None:
    log = Seat()
    async with lone_host(log, host_settings(watchdog_s=0.3)):
        wait_until(lambda: log.asked == [False])
        await until(lambda: log.asked == [False, False])


async def test_the_election_is_told_of_the_progress_of_the_loop() -> None:
    log = Seat()
    async with lone_host(log):
        seen_s = log.last_progress_s()
        await until(lambda: log.last_progress_s() > seen_s)
        time.sleep(0.3)  # noqa: ASYNC251 - a loop that is held up
        assert time.monotonic() - log.last_progress_s() >= 0.3


def _leave_open(log: Seat, watchdog_s: float) -> Host:
    """A member whose embedder's loop ended under it."""
    hosts: list[Host] = []

    async def embedder() -> None:
        engine = Engine(to_identity("b1"), to_engine(lone_settings()), None)
        host = Host(engine, log, BrokerHooks(), Metrics("test", "b1"), settings=host_settings(watchdog_s=watchdog_s))
        host.start()
        hosts.append(host)
        await asyncio.sleep(0)
        raise RuntimeError("the embedder's own fault")

    with contextlib.suppress(RuntimeError):
        asyncio.run(embedder())
    return hosts[0]


def test_a_closed_loop_is_noticed_by_the_watchdog_although_nothing_arrives() -> None:
    log = Seat()
    host = _leave_open(log, watchdog_s=0.5)
    assert log.closed.wait(WAIT_S)
    assert log.asked == [False]
    assert host.stopped.reason == "loop-closed"
    assert not host.stopped.clean
    wait_until(lambda: not any(item.name == "statechannel-watchdog" for item in threading.enumerate()))


def test_a_closed_loop_is_noticed_at_once_by_what_arrives() -> None:
    log = Seat()
    host = _leave_open(log, watchdog_s=1_000.0)
    host._driver._scheduled = False  # a turn that was asked for before the end is the watchdog's affair
    inbox = log.inbox
    assert isinstance(inbox, Inbox)
    inbox.take(100)
    inbox.take(100)
    inbox.push(PositionReached(Topic.REGISTRY, 0, 0))
    assert log.closed.wait(WAIT_S)
    assert log.asked == [False]
    inbox.offer([PositionReached(Topic.REGISTRY, 0, 0)] * 3)  # nobody is held up by what nobody takes
    assert len(inbox) == 0
    host._watchdog.close()
