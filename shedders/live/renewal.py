"""A broker that gave or got a bundle reports once more when it has cooled down.

Reports come when figures change, else every `report_max_age_s`. Strategies leave a broker alone until it has made a report some
time after a move (`cool_down_s`), as its averages need that time. Where the load is steady by then nothing would call for that
report, and the broker would be left alone for a quarter of an hour after each move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from statechannel.core.states import State

if TYPE_CHECKING:
    from statechannel.runtime.changes import Change

LOOK_S = 0.5
SLACK_S = 1.0
SLACK_SHARE = 0.02
"""The leader has to see that much time between the move and the report: it reads both later than they were written."""


class Renewal:
    """See the module. In the loop's thread.

    Args:
        broker: This broker.
        cool_down_s: Of the strategy in force; None: it has none.
        report: Reports now, whatever the figures say.
    """

    def __init__(
        self,
        broker: str,
        cool_down_s: Callable[[], float | None],
        report: Callable[[str], None],
        now_s: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._cool_down_s = cool_down_s
        self._report = report
        self._now_s = now_s
        self._moved_s: float | None = None

    def changed(self, change: Change) -> None:
        """A record was accepted."""
        if change.state is State.ASSIGNED and change.from_ != change.to and self._broker in (change.from_, change.to):
            self._moved_s = self._now_s()

    async def run(self) -> None:
        """Look for ever; ends by being cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Report if it is time for it."""
        cool_down_s = self._cool_down_s()
        if self._moved_s is None or cool_down_s is None:
            return
        if self._now_s() - self._moved_s >= cool_down_s * (1 + SLACK_SHARE) + SLACK_S:
            self._moved_s = None
            self._report("this broker has cooled down since its last move")
