"""Who leads in a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.engine.inputs import LeadershipChanged

if TYPE_CHECKING:
    from tests.scenarios.process import Process
    from tests.scenarios.world import World


class Election:
    """The one-partition consumer group: sticky, first come first served, and slow to notice a dead holder.

    Attributes:
        closed: Nobody is elected (the group coordinator is away).
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.holder: Process | None = None
        self.closed = False
        self._seen_s = 0.0
        self._to_tell: list[Process] = []

    def seat(self, process: Process) -> None:
        """A rebalance gives the seat to this process."""
        self._vacate()
        self.holder, self._seen_s = process, self._world.now_s
        process.step(LeadershipChanged(elected=True))
        self._tell()

    def tick(self) -> None:
        """Who left, who timed out, who is next."""
        now_s, holder = self._world.now_s, self.holder
        if holder is not None and holder.alive and not holder.standing:
            self._vacate()
        elif holder is not None and self._reaches(holder):
            self._seen_s = now_s
        elif holder is not None and now_s - self._seen_s >= self._world.session_timeout_s:
            self._vacate()
        self._tell()
        if self.holder is None and not self.closed:
            chosen = next((one for one in self._world.processes if self._reaches(one) and one.standing), None)
            if chosen is not None:
                self.seat(chosen)

    @staticmethod
    def _reaches(process: Process) -> bool:
        return process.alive and not process.paused and not process.cut

    def _vacate(self) -> None:
        if self.holder is not None:
            self._to_tell.append(self.holder)
        self.holder = None

    def _tell(self) -> None:
        for process in [one for one in self._to_tell if self._reaches(one) or not one.alive]:
            self._to_tell.remove(process)
            process.step(LeadershipChanged(elected=process is self.holder))
