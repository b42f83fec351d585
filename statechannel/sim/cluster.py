"""The processes of a run, on its stage: what faults, clients and checks work on."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from statechannel.sim.stage import SimStage

if TYPE_CHECKING:
    from statechannel.protocol.record import Record
    from statechannel.sim.options import EngineOptions
    from statechannel.sim.process import SimProcess
    from statechannel.sim.trace import SimTrace


class SimCluster(SimStage):
    """A stage with processes.

    Attributes:
        sick: The one that is left sick while the others are judged.
        bent: The one whose view differs from all others' by a fault of the run.
        differing: Who has reported that it differs from whom: names of processes and of brokers.
    """

    def __init__(self, seed: int, options: EngineOptions, trace: SimTrace) -> None:
        super().__init__(seed, options, trace)
        self.processes: list[SimProcess] = []
        self.sick: SimProcess | None = None
        self.bent: SimProcess | None = None
        self.differing: set[tuple[str, str]] = set()

    def alive(self) -> list[SimProcess]:
        return [process for process in self.processes if process.alive]

    def written_at_s(self, record: Record) -> float:
        """Virtual time at which a record was written; now, where its writer is none of ours."""
        wall_ms = record.raw.get("written_at_ms")
        for process in self.processes:
            if (process.broker, process.incarnation) == (record.broker, record.incarnation) and type(wall_ms) is int:
                return process.virtual_s(wall_ms)
        return self.events.now_s

    def spawn_newcomer(self) -> SimProcess:
        self.brokers.append(f"b{len(self.brokers)}")
        return self.spawn(self.brokers[-1])

    @abstractmethod
    def end_transaction(self, partition: int) -> None:
        """The marker of a transaction takes an offset of the channel's log."""

    @abstractmethod
    def spawn(self, broker: str, *, take_over: bool = False) -> SimProcess: ...
