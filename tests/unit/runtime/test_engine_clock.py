"""A suspended machine: the engine's clock runs on while CLOCK_MONOTONIC stands still, and at the wake time has passed."""

import time

import pytest

from statechannel import clocks
from statechannel.broker.driver import Driver, DriverOptions
from statechannel.broker.host_platform import read_clocks
from statechannel.broker.observe import health
from statechannel.engine.effects import Effect
from statechannel.engine.inputs import Input, Now, Tick
from statechannel.engine.reactions import ServedBundle
from tests.support.lone_member import lone_channel, lone_host
from tests.support.waits import until

BUNDLE = "a/b/0x00000000_0xffffffff"


class BootClock:
    """CLOCK_BOOTTIME of a machine that is suspended when the test says so; asyncio's own clock knows nothing of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.suspended_s = 0.0
        monkeypatch.setattr(clocks, "BOOT_CLOCK", 7)
        monkeypatch.setattr(clocks.time, "clock_gettime", self._read)

    def _read(self, clock: int) -> float:
        assert clock == 7
        return time.monotonic() + 1_000_000.0 + self.suspended_s  # far from the other clock: mixing them shows


def test_time_that_the_machine_slept_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = BootClock(monkeypatch)
    before = read_clocks()
    boot.suspended_s = 3600.0
    assert 3600.0 <= read_clocks().mono_s - before.mono_s < 3660.0


def test_without_such_a_clock_the_monotonic_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "BOOT_CLOCK", None)
    before_s = time.monotonic()
    assert before_s <= read_clocks().mono_s <= time.monotonic()


def test_the_wall_clock_is_in_milliseconds() -> None:
    before_ms = int(time.time() * 1000)
    assert before_ms <= read_clocks().wall_ms <= time.time() * 1000


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux only")
def test_linux_has_one() -> None:
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before_s <= read_clocks().mono_s <= time.clock_gettime(time.CLOCK_BOOTTIME)


async def test_at_the_wake_nothing_may_be_served_before_the_engine_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = BootClock(monkeypatch)
    async with lone_channel() as channel:
        host = channel._host
        engine = host.engine
        engine.context.config = type(engine.config)(**{**_fields(engine.config), "lease_s": 5.0})
        await until(lambda: host._driver.steps > 0)
        engine.reactions.holdings[BUNDLE] = ServedBundle(generation=7)
        engine.context.announced = True
        engine.presence._heartbeat_sent_s = host._driver.now_s()
        assert channel.serves(BUNDLE) == 7
        boot.suspended_s = 60.0
        assert channel.serves(BUNDLE) is None


class Waiting:
    """An engine that wants a tick later than any test lasts by a clock that stands still."""

    def __init__(self, wake_at_s: float) -> None:
        self.wake_at_s = wake_at_s
        self.given: list[tuple[float, Input]] = []

    def step(self, now: Now, given: Input) -> list[Effect]:
        self.given.append((now.mono_s, given))
        self.wake_at_s = float("inf")
        return []


async def test_a_tick_that_came_due_in_the_suspend_is_given_at_the_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = BootClock(monkeypatch)
    due_s = read_clocks().mono_s + 3600.0
    engine = Waiting(due_s)
    driver = Driver(engine, perform=lambda _: None, on_failure=lambda *_: None, options=DriverOptions(beat_s=0.05))
    driver.start()
    await until(lambda: driver.beats > 1)
    assert engine.given == []
    boot.suspended_s = 3600.0
    await until(lambda: bool(engine.given))
    at_s, given = engine.given[0]
    assert at_s >= due_s
    assert isinstance(given, Tick)
    driver.stop()


async def test_the_timer_of_a_tick_is_set_by_the_engines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    BootClock(monkeypatch)
    engine = Waiting(read_clocks().mono_s + 0.05)
    driver = Driver(engine, perform=lambda _: None, on_failure=lambda *_: None, options=DriverOptions(beat_s=1000.0))
    driver.start()
    await until(lambda: bool(engine.given))
    driver.stop()


async def test_a_loop_that_wakes_from_a_suspend_has_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = BootClock(monkeypatch)
    async with lone_host() as host:
        await until(lambda: host._driver.beats > 0)
        boot.suspended_s = 3600.0
        assert [broker.name for broker in health.alive(host) if not broker.ok] == []


def _fields(config: object) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}  # type: ignore[attr-defined]
