"""A broker process under a flood: `python -m tests.bench.flood_process BROKER BOOTSTRAP CHANNEL`.

It does what `broker_process` does, and measures itself meanwhile: a task that sleeps notes how late it wakes, which is how long
the loop was held by anybody, and a thread samples the resident memory.
"""

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from typing import Any

from statechannel.api import StateChannel
from statechannel.broker.changes import ChangesError
from statechannel.broker.driver import Driver, DriverOptions
from statechannel.broker.exits import ChannelStoppedError
from statechannel.engine.commands import CreateNamespace, Outcome, Rejected, Undetermined
from statechannel.engine.effects import Effect, Emit
from statechannel.engine.inputs import Input, Now
from statechannel.protocol.bundle import namespace_bounds
from tests.bench.broker_process import Broker, Stamps, main
from tests.bench.measure import percentile
from tests.bench.memory import resident_bytes

NAP_S = 0.002
SAMPLE_S = 0.05
AT_ONCE = 200
"""Calls that are begun in one turn of the loop. Whoever begins more in one turn holds his own loop up: see `in_one_turn`."""


class Probe:
    """How late a sleeping task wakes, what the loop's thread computed meanwhile, and the highest resident memory."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self.collected_ms = 0.0
        self.peak_bytes = 0
        self._collecting_s = 0.0
        gc.callbacks.append(self._collects)
        self._task = asyncio.get_running_loop().create_task(self._nap())
        threading.Thread(target=self._sample, daemon=True).start()

    async def _nap(self) -> None:
        while True:
            began_s, cpu_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(NAP_S)
            self.late_ms.append((time.monotonic() - began_s - NAP_S) * 1000)
            self.cpu_ms.append((time.thread_time() - cpu_s) * 1000)

    def _collects(self, phase: str, _: object) -> None:
        if phase == "start":
            self._collecting_s = time.thread_time()
        else:
            self.collected_ms = max(self.collected_ms, (time.thread_time() - self._collecting_s) * 1000)

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, resident_bytes())
            time.sleep(SAMPLE_S)


class Pieces:
    """What a turn of the driver is made of: single inputs, single effects, and the look around at its end.

    Attributes:
        piece_cpu_max_ms: Processor time of the longest input or effect; between two of them the driver looks at the clock.
        look_cpu_max_ms: Of the longest look around.
        effects_max: Most effects of one input.
        mode_changes: How often this member went from one mode to another.
        count: Inputs and effects.
    """

    def __init__(self, driver: Driver) -> None:
        self.reset()
        self._driver = driver
        give, perform, look = driver._step, driver._perform, driver._on_progress

        def given(now: Now, item: Input) -> None:
            before, began_s = len(driver._effects), time.thread_time()
            give(now, item)
            self._ended(began_s)
            self.effects_max = max(self.effects_max, len(driver._effects) - before)

        def performed(effect: Effect) -> None:
            self.mode_changes += isinstance(effect, Emit) and effect.event == "mode.changed"
            began_s = time.thread_time()
            perform(effect)
            self._ended(began_s)

        def looked() -> None:
            began_s = time.thread_time()
            if look is not None:
                look()
            self.look_cpu_max_ms = max(self.look_cpu_max_ms, (time.thread_time() - began_s) * 1000)

        driver._step, driver._perform, driver._on_progress = given, performed, looked  # type: ignore[method-assign]

    def reset(self) -> None:
        self.piece_cpu_max_ms = self.look_cpu_max_ms = 0.0
        self.effects_max = self.mode_changes = self.count = 0

    def _ended(self, began_s: float) -> None:
        self.count += 1
        self.piece_cpu_max_ms = max(self.piece_cpu_max_ms, (time.thread_time() - began_s) * 1000)


class Flooded(Broker):
    """Floods by the process's own callers, and what became of them."""

    def __init__(self, channel: StateChannel, stamps: Stamps) -> None:
        super().__init__(channel, stamps)
        self._probe = Probe()
        self._pieces = Pieces(channel._host._driver)
        self._stalls = channel._host._driver.stalls
        self._watchers: list[Any] = []
        self._began_bytes = resident_bytes()
        self._began_cpu_s = 0.0

    async def begin(self) -> None:
        """What was measured so far is forgotten."""
        await asyncio.sleep(0.3)
        self._probe.late_ms.clear()
        self._probe.cpu_ms.clear()
        self._probe.collected_ms = 0.0
        self._began_cpu_s = time.process_time()
        self._began_bytes = self._probe.peak_bytes = resident_bytes()
        self._stalls.reset()
        self._pieces.reset()

    async def measured(self) -> dict[str, Any]:
        """Since `begin`."""
        seen, late_ms, pieces = self._stalls.seen, self._probe.late_ms, self._pieces
        return {
            "stall_p50_ms": percentile(late_ms, 0.5),
            "stall_p99_ms": percentile(late_ms, 0.99),
            "stall_max_ms": max(late_ms),
            "stall_cpu_max_ms": max(self._probe.cpu_ms),
            "collector_max_ms": self._probe.collected_ms,
            "cpu_s": time.process_time() - self._began_cpu_s,
            "turn_max_ms": seen.turn_max_s * 1000,
            "burst_max_ms": seen.burst_max_s * 1000,
            "burst_cpu_max_ms": seen.burst_cpu_max_s * 1000,
            "slice_ms": DriverOptions().slice_s * 1000,
            "piece_cpu_max_ms": pieces.piece_cpu_max_ms,
            "look_cpu_max_ms": pieces.look_cpu_max_ms,
            "pieces": pieces.count,
            "effects_max": pieces.effects_max,
            "mode_changes": pieces.mode_changes,
            "rss_before_mib": self._began_bytes / 2**20,
            "rss_peak_mib": max(self._probe.peak_bytes, resident_bytes()) / 2**20,
            "rss_after_mib": resident_bytes() / 2**20,
        }

    async def look_up(self, names: str, count: int, timeout_s: float, at_once: int = AT_ONCE) -> dict[str, int]:
        """Look up `count` names, formatted with their number, all of them before one is awaited."""
        asked = []
        for number in range(count):
            asked.append(asyncio.ensure_future(self._channel.lookup(names.format(number), timeout_s)))
            if number % at_once == 0:
                await asyncio.sleep(0)
        return await _counted(asked)

    async def look_up_all(self, bundles: list[str], timeout_s: float) -> dict[str, int]:
        """Likewise for these bundles."""
        asked = []
        for number, bundle in enumerate(bundles):
            asked.append(asyncio.ensure_future(self._channel.lookup(bundle, timeout_s)))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return await _counted(asked)

    async def create_many(self, names: str, count: int, bundles: int) -> dict[str, int]:
        """Begin to create `count` namespaces, all before the end of one is awaited."""
        bounds = tuple(namespace_bounds(bundles))
        asked = []
        for number in range(count):
            name = names.format(number)
            asked.append(self._channel._host.submit(CreateNamespace(name, bounds, f"op-{name.replace('/', '-')}", 60)))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return await _counted(asked)

    async def move_many(self, bundles: list[str], to: str) -> dict[str, int]:
        """Move one half of these bundles away, split the other, all at once; until every operation has ended."""
        tickets = []
        for number, bundle in enumerate(bundles):
            ask = self._channel.split(bundle) if number % 2 else self._channel.transfer(bundle, to)
            tickets.append(asyncio.ensure_future(_end_of(ask)))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return await _counted(tickets)

    async def delete(self, namespace: str) -> str:
        ticket = await self._channel.delete_namespace(namespace)
        return type(await ticket.outcome(120)).__name__

    async def subscribe(self, limit: int) -> None:
        """Subscribe to the changes, and never take one."""
        self._watchers.append(self._channel.watch(limit))

    async def subscribed(self) -> list[Any]:
        """How many changes the idle subscriber can still take, and how its stream ends."""
        watcher, count = self._watchers.pop(), 0
        while True:
            try:
                async with asyncio.timeout(1):
                    await watcher.next()
            except ChangesError as error:
                return [count, str(error)]
            except TimeoutError:
                return [count, ""]
            count += 1


async def _end_of(asked: Any) -> Outcome:
    return await (await asked).outcome(120)


async def _counted(asked: list[asyncio.Future[Any]]) -> dict[str, int]:
    """How often each answer was given; one after the other, not by `gather`, which looks at all of them in one turn."""
    counts: Counter[str] = Counter()
    for request in asked:
        try:
            outcome = await request
        except ChannelStoppedError as error:
            counts[f"refused: {error.stopped.reason}"] += 1
            continue
        reason = f" {outcome.reason}" if isinstance(outcome, Rejected | Undetermined) else ""
        counts[type(outcome).__name__ + reason] += 1
    return dict(counts)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:], made_with=Flooded))
