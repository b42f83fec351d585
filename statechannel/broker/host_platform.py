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


def read_clocks() -> Now:
    """The engine's clock, and the wall clock."""
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

    def start(self) -> None:
        """Start to watch."""

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
    ) -> LoopWatch:
        """A watch that was not started yet."""


class CallAside(Protocol):
    """Runs a function that may block, beside the loop."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Its result."""


@dataclass(frozen=True, slots=True)
class HostPlatform:
    """The surroundings of one member.

    Attributes:
        tunes_collector: Whether the member may tune the garbage collector of its process.
        tick_interval_s: Time between two looks of the engine at its deadlines, while nothing happens.
        rests: A driver that has nothing to do waits for the engine's next look, without beats for a watchdog between.
    """

    clocks: HostClocks = field(default_factory=HostClocks)
    watch: LoopWatchMaker = Watchdog
    aside: CallAside = asyncio.to_thread
    tunes_collector: bool = True
    tick_interval_s: float = TICK_INTERVAL_S
    rests: bool = False
