"""A hook that blocks the event loop is named, and Kafka is not blamed for it."""

import asyncio
import linecache
import threading
import time

import pytest

from statechannel.api import BrokerHooks
from statechannel.broker.host import Host
from statechannel.broker.observe.metrics import Metrics
from statechannel.broker.observe.observer import Availability
from statechannel.broker.supervision import Watchdog, place_of, stack_of
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.reactions import ServedBundle
from tests.support.log_lines import capture_logs
from tests.support.lone_member import host_settings, lone_host
from tests.support.waits import WAIT_S, until

BUNDLE = "t/n/0x00000000_0xffffffff"


class BlockingTheLoop(BrokerHooks):
    def __init__(self, said: threading.Event) -> None:
        self.said = said
        self.host: Host | None = None
        self.blocked = False

    async def on_serve(self, bundle: str, generation: int) -> None:
        self.said.wait(WAIT_S)  # until it is named
        self.blocked = self.host.loop_blocked


class Heard:
    """Knows when an event is logged, in whatever thread."""

    def __init__(self, lines: list, event: str) -> None:
        self._lines, self._event = lines, event
        self.heard = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        ends_s = time.monotonic() + WAIT_S
        while time.monotonic() < ends_s and not any(line["event"] == self._event for line in list(self._lines)):
            time.sleep(0.01)
        self.heard.set()


async def test_the_hook_that_blocks_the_loop_is_named_with_its_place() -> None:
    with capture_logs() as lines:
        hooks = BlockingTheLoop(Heard(lines, "loop-blocked").heard)
        async with lone_host(settings=host_settings(loop_blocked_s=0.2), hooks=hooks) as hooks.host:
            await asyncio.sleep(0.1)
            hooks.host._hooks.call(CallHook(0, Hook.ON_SERVE, BUNDLE, 3, None, 5.0))
    assert hooks.blocked
    (line,) = [line for line in lines if line["event"] == "loop-blocked"]
    assert (line["log_level"], line["hook"], line["bundle"]) == ("warning", "on_serve", BUNDLE)
    assert line["seconds"] >= 0.2
    assert "test_blocked_loop.py" in line["place"]
    assert "in on_serve" in line["place"]


async def test_other_code_that_blocks_the_loop_has_a_place_and_no_hook() -> None:
    with capture_logs() as lines:
        heard = Heard(lines, "loop-blocked").heard
        async with lone_host(settings=host_settings(loop_blocked_s=0.2)):
            await asyncio.sleep(0.1)
            heard.wait(WAIT_S)
    (line,) = [line for line in lines if line["event"] == "loop-blocked"]
    assert "hook" not in line
    assert "test_other_code_that_blocks" in line["place"]


async def test_the_heartbeat_says_how_often_the_loop_was_blocked_and_where() -> None:
    with capture_logs() as lines:
        heard = Heard(lines, "loop-blocked").heard
        async with lone_host(settings=host_settings(loop_blocked_s=0.2)) as host:
            await asyncio.sleep(0.1)
            assert host.engine.context.troubles.blocked is None
            heard.wait(WAIT_S)
            await until(lambda: host.engine.context.troubles.blocked is not None)
            blocked = host.engine.context.troubles.blocked.fields()
    assert (blocked["times"], blocked["hook"]) == (1, None)
    assert blocked["place"].partition(":")[0] in ("threading.py", "test_blocked_loop.py"), "a file, without its folder"


def test_a_stall_is_said_once_and_again_after_a_recovery() -> None:
    beats, said = [0], []
    told = threading.Semaphore(0)

    def on_blocked(seconds: float) -> None:
        said.append(seconds)
        told.release()

    watchdog = Watchdog(
        lambda: beats[0], limit_s=WAIT_S, on_stuck=lambda: said.append(0.0),
        blocked_s=0.1, on_blocked=on_blocked,
    )  # fmt: skip
    watchdog.start()
    assert told.acquire(timeout=WAIT_S)
    time.sleep(0.3)
    assert len(said) == 1
    beats[0] += 1
    assert told.acquire(timeout=WAIT_S)
    watchdog.close()
    assert all(seconds > 0.1 for seconds in said)


def test_a_warning_that_cannot_be_given_does_not_end_the_watch() -> None:
    stuck = threading.Event()

    def on_blocked(_: float) -> None:
        raise RuntimeError("can't start new thread")

    watchdog = Watchdog(
        lambda: 0, limit_s=0.3, on_stuck=stuck.set,
        blocked_s=0.1, on_blocked=on_blocked,
    )  # fmt: skip
    watchdog.start()
    assert stuck.wait(WAIT_S)
    watchdog.close()


def test_the_place_is_the_innermost_call_first() -> None:
    place = place_of(threading.get_ident())
    assert place.calls.split(" < ")[1].endswith("in test_the_place_is_the_innermost_call_first")
    assert place.innermost.startswith("supervision.py:")
    assert place.innermost.endswith(" in place_of")
    assert place_of(-1) == ("", "")


def test_the_watchdog_reads_no_file_to_say_where_the_loop_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk with the sources may be what the loop hangs on; and lines of sources may hold secrets."""

    def hang(*_: object, **__: object) -> None:
        raise AssertionError("it reads the sources")

    with monkeypatch.context() as patched:
        for name in ("checkcache", "getline", "getlines", "lazycache", "updatecache"):
            patched.setattr(linecache, name, hang)
        stack, place = stack_of(threading.get_ident()), place_of(threading.get_ident())  # sesame
    assert "test_blocked_loop.py" in place.calls
    assert "in test_the_watchdog_reads_no_file_to_say_where_the_loop_is < " in stack
    assert "sesame" not in stack
    assert stack_of(-1) == "(the thread has ended)"


class ClosingSlowly(BrokerHooks):
    """Ends only once an outage that begins while the member closes is said, or after a long time."""

    def __init__(self, lines: list, *, block: bool) -> None:
        self.lines, self.block = lines, block
        self.host: Host | None = None
        self.went_on = False

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        if self.block:
            time.sleep(0.3)  # noqa: ASYNC251 - the loop is to be blocked
        else:
            await asyncio.sleep(0.3)
            await until(lambda: not self.host.loop_blocked)
            self.went_on = True
        self.host.availability.changed(available=False)
        await until(lambda: any(line["event"] == "kafka.away" for line in self.lines))


@pytest.mark.parametrize("block", [False, True])
async def test_an_outage_that_begins_while_a_channel_closes_is_said(block: bool) -> None:
    """Also where the loop is blocked just then: once it goes on."""
    with capture_logs() as lines:
        hooks = ClosingSlowly(lines, block=block)
        settings = host_settings(loop_blocked_s=0.2, deadline_s=2 * WAIT_S)
        async with lone_host(settings=settings, hooks=hooks) as hooks.host:
            found = hooks.host.availability = Availability(hooks.host.metrics)
            found.loop_blocked = lambda: hooks.host.loop_blocked
            hooks.host.engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
    assert hooks.went_on is not block
    assert [line["event"] for line in lines if line["event"] in ("kafka.away", "kafka.back")] == ["kafka.away"]


def test_a_review_does_not_wait_for_a_thread_that_writes_its_line() -> None:
    """It runs in the event loop; the line may hang in a full pipe."""
    now = Blocked()
    now.blocked = True
    now.found.changed(available=False)
    now.blocked = False
    reviewed = threading.Event()
    with now.found._lock:
        threading.Thread(target=lambda: (now.found.review(), reviewed.set()), daemon=True).start()
        assert reviewed.wait(WAIT_S)
    with capture_logs() as lines:
        now.found.review()
    assert [line["event"] for line in lines] == ["kafka.away"]


class Blocked:
    """The availability of Kafka, with a loop that is blocked or not."""

    def __init__(self) -> None:
        self.blocked = False
        self.found = Availability(Metrics("c", "b1"))
        self.found.loop_blocked = lambda: self.blocked


def test_an_outage_is_said_when_it_begins() -> None:
    now = Blocked()
    with capture_logs() as lines:
        now.found.changed(available=False)
        now.found.changed(available=True)
    assert [line["event"] for line in lines] == ["kafka.away", "kafka.back"]


def test_what_only_a_blocked_loop_has_kept_from_kafka_is_no_outage() -> None:
    now = Blocked()
    with capture_logs() as lines:
        now.blocked = True
        now.found.changed(available=False)
        now.found.review()
        now.found.changed(available=True)
        now.blocked = False
        now.found.review()
    assert lines == []


def test_an_outage_that_lasts_longer_than_the_block_is_said_after_it() -> None:
    now = Blocked()
    with capture_logs() as lines:
        now.blocked = True
        now.found.changed(available=False)
        now.blocked = False
        now.found.review()
        now.found.review()
        now.found.changed(available=True)
    assert [line["event"] for line in lines] == ["kafka.away", "kafka.back"]
