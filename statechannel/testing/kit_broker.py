"""One broker of a kit, and the log of all of them: what a test does to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from statechannel.broker.exits import Stopped
from statechannel.engine.context import Mode
from statechannel.operations import checks
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.api import StateChannel
    from statechannel.broker.host import Host
    from statechannel.protocol.log import RecordRead
    from statechannel.testing.loop import RealTimeLoop, VirtualLoop
    from statechannel.testing.network import KitProcess, KitStage

KILLED = Stopped("killed", "the test killed this broker")


class KitBroker:
    """One broker of a kit: a process that can be paused or killed."""

    def __init__(self, loop: RealTimeLoop | VirtualLoop, name: str, process: KitProcess, host: Host) -> None:
        self.name = name
        self.channel: StateChannel
        self._loop = loop
        self._process = process
        self._host = host

    def __repr__(self) -> str:
        return f"<broker {self._process.name}>"

    @property
    def running(self) -> bool:
        """Whether it lives and is not paused."""
        return self.alive and not self._process.life.paused

    @property
    def alive(self) -> bool:
        """Whether it was neither killed nor stopped."""
        return not self._process.life.killed and self._host.stopped is None

    def serves(self, bundle: str) -> int | None:
        """Generation by which it may serve a bundle now, as `StateChannel.serves`; None if it is killed."""
        return self._host.serves(bundle) if self.alive else None

    def serving(self) -> dict[str, int]:
        """Bundles that it may serve now, with their generations."""
        return self._host.serving() if self.alive else {}

    def kill(self) -> None:
        """End it as `kill -9`: nothing of it runs any more, not even a `finally`.

        Python runs those once the kit is closed, outside of any loop. The broker counts as lost after `membership.expiry_s`.
        """
        if self._process.life.killed:
            return
        self._process.life.kill()
        self._host.abandon(KILLED)
        self._process.end()

    def pause(self) -> None:
        """Stop it as SIGSTOP does: none of its callbacks, hooks and timers runs; what is sent to it waits."""
        self._process.life.paused = True

    def resume(self) -> None:
        """Let it go on after `pause`, with what it had begun."""
        self._loop.resume(self._process.life)
        self._process.heal_if_reachable()

    def cut_off(self) -> None:
        """Take the log out of its reach, until `restore`."""
        self._process.cut = True

    def restore(self) -> None:
        """Let it reach the log again."""
        self._process.heal()

    async def stop(self, budget_s: float | None = None) -> Stopped:
        """Shut it down gracefully, as `StateChannel.shutdown`."""
        return await self.channel.shutdown(budget_s)

    def unsettled(self, ends: Sequence[int]) -> str:
        """Why it is not at rest; empty if it is.

        Args:
            ends: Offset by partition up to which it has to have read.
        """
        engine, hooks = self._host.engine, self._host.hooks
        if not (engine.caught_up and engine.mode is Mode.NORMAL):
            return f"{self.name} has not caught up (mode {engine.mode})"
        if self._process.cut:
            return f"the log is out of reach of {self.name}"
        for replica in engine.replicas:
            if replica.position < ends[replica.partition]:
                return f"{self.name} has not read partition {replica.partition} to its end"
        if hooks.running > hooks.late or hooks.owed:
            return f"{self.name} has {hooks.running} running hooks"
        moving = (
            seen for seen in self.channel.picture().bundles if seen.state not in (State.ASSIGNED, State.UNASSIGNED)
        )
        return next((f"{seen.bundle} is {seen.state}" for seen in moving), "")


class KitLog:
    def __init__(self, stage: KitStage) -> None:
        self._stage = stage

    def slow(self, delay_s: float) -> None:
        """Delay each write, each answer and each read by this time."""
        checks.seconds("delay_s", delay_s)
        self._stage.delay_s = delay_s

    def lose(self) -> None:
        """Take the log out of everybody's reach."""
        for process in self._stage.processes:
            process.cut = True

    def restore(self) -> None:
        """Everybody reaches the log again, without a delay."""
        self._stage.delay_s = 0.0
        for process in list(self._stage.processes):
            process.heal()

    def compact(self) -> int:
        """Remove what Kafka's cleaner may remove by now; returns the number of records.

        Only records older than `channel.min_compaction_lag_ms` go (an hour, unless the kit's settings have less): let time pass.
        """
        return self._stage.compact()

    def records(self, partition: int = 0) -> list[RecordRead]:
        """What a partition of the channel has now, in order."""
        return self._stage.logs[partition].left()
