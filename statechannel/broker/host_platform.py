"""What a host takes from the process it runs in: clocks, a watch over its loop, and a place for calls that block.

The defaults are those of a broker's own process. The test kit (`statechannel.testing`) has virtual clocks and no threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from statechannel.broker.supervision import Watchdog
from statechannel.clocks import engine_s, now_ms
from statechannel.engine.config import TICK_INTERVAL_S
from statechannel.engine.inputs import Now

BEAT_S = 0.25


def read_clocks() -> Now:
    return Now(engine_s(), now_ms())


class HostClocks(NamedTuple):
    """Clocks of one member.

    Attributes:
        now: The engine's clock and the wall clock.
        mono_s: For durations that concern the member alone: the clock of its event loop.
    """

    now: Callable[[], Now] = read_clocks
    mono_s: Callable[[], float] = time.monotonic


class LoopWatch(Protocol):
    """Notices that the loop of a member makes no progress; see `Watchdog`."""

    def start(self) -> None: ...

    def end(self) -> None:
        """Stop watching, without waiting."""

    def close(self) -> None:
        """Stop watching; may block."""


class LoopWatchMaker(Protocol):
    """Makes the watch of one member; the arguments are those of `Watchdog`."""

    def __call__(
        self,
        beats: Callable[[], int],
        *,
        limit_s: float,
        on_stuck: Callable[[], None],
        loop_lives: Callable[[], bool],
        blocked_s: float,
        on_blocked: Callable[[float], None] | None,
    ) -> LoopWatch: ...


class CallAside(Protocol):
    """Runs a function that may block, beside the loop."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class HostPlatform:
    """The surroundings of one member.

    Attributes:
        tunes_collector: Whether the member may tune the garbage collector of its process.
        tick_interval_s: Time between two looks of the engine at its deadlines, while nothing happens.
        beat_s: Longest time between two beats of a driver for a watchdog.
        observe_s: Time between two updates of the gauges.
    """

    clocks: HostClocks = field(default_factory=HostClocks)
    watch: LoopWatchMaker = Watchdog
    aside: CallAside = asyncio.to_thread
    tunes_collector: bool = True
    tick_interval_s: float = TICK_INTERVAL_S
    beat_s: float = BEAT_S
    observe_s: float = 1.0
