"""The test kit: until it is ready, what virtual time and a check of hooks cost, and how many planted mistakes are found."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from statechannel.testing import ChannelKit, check_hooks
from tests.bench.measure import Figure, Load, median
from tests.support import planted_hooks, planted_splits  # noqa: F401 - the mistakes themselves
from tests.support.hook_stores import Gate, Shards
from tests.support.planted import PLANTED, arguments_of

VIRTUAL_S = 1_000
BROKERS = (1, 3)
_NAMES = "abc"


def run(rounds: int) -> Sequence[Figure]:
    """Processor time, as a kit has one thread. The floor is asyncio itself: as many timers in a loop without brokers."""
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            return [*_times(rounds), *_checks()]
    finally:
        logging.disable(logging.NOTSET)


def _times(rounds: int) -> list[Figure]:
    load = Load()
    _ready_ms()  # the first one imports
    ready = [_ready_ms() for _ in range(max(rounds, 20))]
    figures = [Figure("testkit.ready", median(ready), "ms", aim="<= 20 ms", rounds=ready, load=str(load))]
    for brokers in BROKERS:
        taken, callbacks = zip(*(_virtual_s(brokers) for _ in range(rounds)), strict=True)
        floor_s = median([_floor_s(int(median(callbacks))) for _ in range(rounds)])
        figures.append(
            Figure(
                f"testkit.virtual.{brokers}-brokers",
                median(taken),
                f"s of processor time for {VIRTUAL_S:,} virtual seconds",
                ratio=median(taken) / floor_s,
                aim="<= 1 s",
                rounds=taken,
                load=str(load),
                notes={"callbacks": median(callbacks), "floor_s": floor_s},
            )
        )
    return figures


def _ready_ms() -> float:
    began_s = time.perf_counter()

    async def first() -> None:
        await kit.broker("a", Gate())

    with ChannelKit() as kit:
        kit.run(first())
        return (time.perf_counter() - began_s) * 1e3


def _virtual_s(brokers: int) -> tuple[float, int]:
    async def pass_time() -> float:
        for name in _NAMES[:brokers]:
            await kit.broker(name, Gate())
        for bundle in await kit.namespace(bundles=16):
            await kit.own(bundle, "a")
        before = kit.loop.callbacks
        began_s = time.process_time()
        await kit.advance(VIRTUAL_S)
        taken_s = time.process_time() - began_s
        counted.append(kit.loop.callbacks - before)
        return taken_s

    counted: list[int] = []
    with ChannelKit() as kit:
        return kit.run(pass_time()), counted[0]


def _floor_s(callbacks: int) -> float:
    """Time of as many timers in asyncio's own loop, each of which sets the next one."""
    loop = asyncio.new_event_loop()
    left = callbacks

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_later(0, again)
        else:
            loop.stop()

    began_s = time.process_time()
    loop.call_soon(again)
    loop.run_forever()
    loop.close()
    return time.process_time() - began_s


def _checks() -> list[Figure]:
    load = Load()
    figures = []
    for hooks in (Gate, Shards):
        began_s = time.perf_counter()
        check_hooks(**arguments_of(hooks)).require()
        figures.append(Figure(f"testkit.check.{hooks.__name__}", time.perf_counter() - began_s, "s", load=str(load)))
    missed = []
    for name, (hooks, found, _, attach) in PLANTED.items():
        if not check_hooks(**arguments_of(hooks, attach=attach)).codes & found:
            missed.append(name)
    share = 100 * (len(PLANTED) - len(missed)) / len(PLANTED)
    notes = {"planted": len(PLANTED), "missed": missed}
    return [*figures, Figure("testkit.found", share, "% of planted mistakes", aim=">= 95 %", notes=notes)]
