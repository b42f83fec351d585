"""The driver steps an engine: order of effects, time, back-pressure, failures. The engine here is a stand-in."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from statechannel.broker.driver import Driver, DriverOptions
from statechannel.broker.inbox import Inbox
from statechannel.clocks import engine_s
from statechannel.engine.effects import Complete, Effect, Emit
from statechannel.engine.inputs import CommandReceived, Input, Now, Tick
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from tests.support.waits import WAIT_S, until


class Scripted:
    """An engine that notes what it is given and answers by a function."""

    def __init__(self, answer: Callable[[Input], list[Effect]] = lambda _: []) -> None:
        self.answer = answer
        self.given: list[Input] = []
        self.wake_at_s = float("inf")

    def step(self, now: Now, given: Input) -> list[Effect]:
        if isinstance(given, RecordsRead):
            return [effect for record in given.records for effect in self.step(now, record)]
        self.given.append(given)
        if isinstance(given, Tick):
            self.wake_at_s = float("inf")
        return self.answer(given)


def record(offset: int) -> RecordRead:
    return RecordRead(Topic.CHANNEL, 0, offset, 0, b"k", b"v")


class Bench:
    """A driver around a scripted engine; the effects performed are noted."""

    def __init__(self, engine: Scripted, **options: object) -> None:
        self.performed: list[Effect] = []
        self.failures: list[tuple[Exception, tuple[Input, ...]]] = []
        self.changed = asyncio.Event()
        self.driver = Driver(
            engine,
            perform=self.perform,
            on_failure=lambda error, recent: self.failures.append((error, tuple(recent))),
            options=DriverOptions(**options),  # type: ignore[arg-type]
        )
        self.driver.start()

    def perform(self, effect: Effect) -> None:
        self.performed.append(effect)
        self.changed.set()


async def test_effects_are_performed_in_order_and_inputs_in_the_order_of_arrival() -> None:
    engine = Scripted(lambda given: [Emit("first", {"of": given}), Emit("second", {"of": given})])
    bench = Bench(engine)
    inputs = [record(n) for n in range(1000)]
    await asyncio.to_thread(bench.driver.inbox.offer, inputs)
    await until(lambda: len(bench.performed) == 2000)
    assert engine.given == inputs
    assert [e.event for e in bench.performed[:4]] == ["first", "second", "first", "second"]  # type: ignore[union-attr]
    assert bench.performed[3].facts["of"] == inputs[1]  # type: ignore[union-attr]
    bench.driver.stop()


async def test_an_input_from_a_thread_wakes_the_loop_at_once() -> None:
    beat_s = 600.0
    bench = Bench(Scripted(lambda _: [Emit("came")]), beat_s=beat_s)
    await asyncio.sleep(0.01)
    began_s = time.monotonic()
    threading.Thread(target=bench.driver.inbox.push, args=(record(0),)).start()
    await asyncio.wait_for(bench.changed.wait(), WAIT_S)
    assert time.monotonic() - began_s < beat_s / 2, "it waited for the beat"
    bench.driver.stop()


async def test_time_comes_as_a_tick_when_the_engine_wants_it_also_under_load() -> None:
    engine = Scripted()
    engine.wake_at_s = time.monotonic() + 0.05
    bench = Bench(engine, beat_s=30.0)
    await until(lambda: any(isinstance(item, Tick) for item in engine.given))
    engine.given.clear()
    stop = threading.Event()

    def flood() -> None:
        offset = 0
        while not stop.is_set():
            bench.driver.inbox.offer([record(offset + n) for n in range(100)])
            offset += 100

    thread = threading.Thread(target=flood)
    thread.start()
    engine.wake_at_s = time.monotonic() + 0.05
    try:
        await until(lambda: any(isinstance(item, Tick) for item in engine.given))
    finally:
        stop.set()
        bench.driver.stop()
        await asyncio.to_thread(thread.join)


async def test_a_deadline_a_moment_ahead_is_met_as_any_other() -> None:
    """uvloop's handle for so short a delay is another one than asyncio's, and does not know when it is due."""
    engine = Scripted()
    bench = Bench(engine)
    for count in range(1, 20):
        engine.wake_at_s = engine_s() + 0.0003
        bench.driver.inbox.push(record(count))
        await until(lambda count=count: sum(isinstance(item, Tick) for item in engine.given) >= count)
    bench.driver.stop()


async def test_other_callbacks_get_their_turn_while_much_is_stepped() -> None:
    bench = Bench(Scripted(lambda _: time.sleep(0.0005) or []), slice_s=0.005)
    bench.driver.inbox.offer([record(n) for n in range(2000)])
    turns = 0
    while len(bench.driver.inbox):
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3
    bench.driver.stop()


async def test_reader_is_held_back_while_the_inbox_is_full_and_let_go_at_the_end() -> None:
    inbox = Inbox(10, lambda: None)
    inbox.offer([record(n) for n in range(10)])
    blocked = threading.Thread(target=inbox.offer, args=([record(10)],))
    blocked.start()
    await asyncio.to_thread(blocked.join, 0.1)
    assert blocked.is_alive()
    inbox.push(record(99))  # reports never wait
    assert len(inbox) == 11
    assert len(inbox.take(5)) == 5
    await asyncio.to_thread(blocked.join, 5)
    assert not blocked.is_alive()
    inbox.offer([record(n) for n in range(11, 20)])
    blocked = threading.Thread(target=inbox.offer, args=([record(20)],))
    blocked.start()
    inbox.close()
    await asyncio.to_thread(blocked.join, 5)
    assert not blocked.is_alive()
    assert len(inbox) == 0


async def test_one_wake_up_for_many_inputs() -> None:
    woken = []
    inbox = Inbox(100, lambda: woken.append(1))
    for n in range(5):
        inbox.push(record(n))
    assert len(woken) == 1
    assert len(inbox.take(100)) == 5
    inbox.push(record(5))
    assert len(woken) == 1  # whoever took is still at it and will ask again
    assert len(inbox.take(100)) == 1
    assert inbox.take(100) == []
    inbox.push(record(6))
    assert len(woken) == 2


def breaks_at(offset: int) -> Callable[[Input], list[Effect]]:
    def answer(given: Input) -> list[Effect]:
        if isinstance(given, RecordRead) and given.offset == offset:
            raise ValueError("version 3 after 5")
        return []

    return answer


async def test_a_step_that_raises_stops_everything_and_leaves_evidence() -> None:
    engine = Scripted(breaks_at(7))
    bench = Bench(engine, evidence=3)
    bench.driver.inbox.offer([record(n) for n in range(20)])
    await until(lambda: bool(bench.failures))
    error, evidence = bench.failures[0]
    assert str(error) == "version 3 after 5"
    assert [item.offset for item in evidence] == [4, 5, 6, 7]  # type: ignore[union-attr]
    assert not bench.driver.running
    bench.driver.inbox.push(record(30))
    await asyncio.sleep(0.02)
    assert engine.given[-1] == record(7)


async def test_evidence_keeps_inputs_without_values_too() -> None:
    bench = Bench(Scripted(breaks_at(2)))
    inputs: list[Input] = [
        record(0)._replace(value=None),
        Tick(),
        RecordsRead([record(1)._replace(value=None)]),
        record(2),
    ]
    for item in inputs:
        bench.driver.inbox.push(item)
    await until(lambda: bool(bench.failures))
    assert bench.failures[0][1] == (inputs[0], inputs[1], inputs[2].records[0], inputs[3])  # type: ignore[union-attr]


async def test_small_effects_are_performed_in_one_turn() -> None:
    bench = Bench(Scripted(lambda _: [Emit(str(number)) for number in range(100)]), slice_s=600.0, beat_s=600.0)
    await until(lambda: bench.driver.beats == 1)
    bench.driver.inbox.push(record(0))
    await until(lambda: len(bench.performed) > 0)
    assert (len(bench.performed), bench.driver.beats) == (100, 2)
    bench.driver.stop()


async def test_a_portion_that_breaks_is_evidence_as_a_whole_however_large() -> None:
    bench = Bench(Scripted(breaks_at(110)), evidence=3)
    portions: list[Input] = [
        RecordsRead([record(n) for n in range(100)]),
        RecordsRead([record(n) for n in range(100, 5000)]),
    ]
    bench.driver.inbox.offer(portions)
    await until(lambda: bool(bench.failures))
    _, evidence = bench.failures[0]
    assert [item.offset for item in evidence] == list(range(97, 5000))  # type: ignore[union-attr]


async def test_what_raises_between_two_inputs_repeats_none_in_the_evidence() -> None:
    failures: list[tuple[Input, ...]] = []

    def progress() -> None:
        if driver.steps == 5:
            raise ValueError("no metrics")

    driver = Driver(
        Scripted(),
        perform=lambda _: None,
        on_failure=lambda _, recent: failures.append(tuple(recent)),
        on_progress=progress,
        options=DriverOptions(evidence=3),
    )
    driver.start()
    driver.inbox.offer([record(n) for n in range(5)])
    await until(lambda: bool(failures))
    assert failures == [tuple(record(n) for n in range(1, 5))]


async def test_an_effect_that_raises_counts_as_a_failure_too() -> None:
    failures: list[Exception] = []

    def perform(_: Effect) -> None:
        raise RuntimeError("no producer")

    driver = Driver(
        Scripted(lambda _: [Complete(1, None)]),  # type: ignore[arg-type]
        perform=perform,
        on_failure=lambda error, _: failures.append(error),
    )
    driver.start()
    driver.inbox.push(CommandReceived(1, None))  # type: ignore[arg-type]
    await until(lambda: bool(failures))
    assert str(failures[0]) == "no producer"
    assert not driver.running


async def test_what_is_diverted_never_reaches_the_engine() -> None:
    engine = Scripted()
    kept: list[Input] = []

    def divert(item: Input) -> bool:
        if isinstance(item, RecordRead) and item.topic is Topic.REQUESTS:
            kept.append(item)
            return True
        return False

    driver = Driver(engine, perform=lambda _: None, on_failure=lambda *_: None, divert=divert)
    driver.start()
    request = RecordRead(Topic.REQUESTS, 0, 0, 0, b"k", b"v")
    driver.inbox.offer([record(0), request, record(1)])
    await until(lambda: len(engine.given) == 2)
    assert kept == [request]
    driver.stop()


async def test_effects_that_were_not_performed_are_handed_over_once() -> None:
    made = [Emit(str(number)) for number in range(4)]

    def perform(effect: Effect) -> None:
        if effect == made[1]:
            raise RuntimeError("no producer")

    driver = Driver(Scripted(lambda _: list(made)), perform=perform, on_failure=lambda *_: None)
    driver.start()
    driver.inbox.push(record(0))
    await until(lambda: not driver.running)
    assert [driver.unperformed(), driver.unperformed()] == [made[2:], []]


@pytest.mark.parametrize("listens", [True, False])
def test_a_loop_that_is_closed_ends_the_driver_once(listens: bool) -> None:
    closed: list[int] = []
    driver = Driver(
        Scripted(),
        perform=lambda _: None,
        on_failure=lambda *_: None,
        on_loop_closed=(lambda: closed.append(1)) if listens else None,
    )
    assert driver.check_loop()
    loop = asyncio.new_event_loop()

    async def start() -> bool:
        driver.start()
        return driver.check_loop()

    assert loop.run_until_complete(start())
    assert driver.running
    loop.close()
    assert [driver.check_loop(), driver.check_loop()] == [False, False]
    assert not driver.running
    assert closed == ([1] if listens else [])
    driver.inbox.push(record(0))
    assert len(driver.inbox) == 0


def test_an_earlier_deadline_takes_the_place_of_a_later_one() -> None:
    timers: list[asyncio.TimerHandle] = []

    class Noting(asyncio.SelectorEventLoop):
        def call_at(self, *args: Any, **context: Any) -> asyncio.TimerHandle:
            timers.append(super().call_at(*args, **context))
            return timers[-1]

    async def move_deadlines() -> None:
        engine = Scripted()
        driver = Bench(engine, beat_s=600.0).driver
        for number in range(5):
            engine.wake_at_s = engine_s() + 500.0 - number
            driver.inbox.push(record(number))
            await until(lambda number=number: len(engine.given) > number)
        assert [timer.cancelled() for timer in timers].count(False) == 1
        driver.stop()
        assert all(timer.cancelled() for timer in timers)

    loop = Noting()
    try:
        loop.run_until_complete(move_deadlines())
    finally:
        loop.close()
