"""The engine level: whole brokers in a cluster that suffers, checked after every step."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from statechannel.engine.inputs import Input
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.replica import Phase
from statechannel.sim.blackouts import Blackouts
from statechannel.sim.checks import SimChecks
from statechannel.sim.clients import Clients
from statechannel.sim.election import Election
from statechannel.sim.events import Events
from statechannel.sim.faults import NIGHT_OVER_S, Faults
from statechannel.sim.health import settle
from statechannel.sim.log import CleanerSettings, SimLog
from statechannel.sim.options import LAG_S, TOMBSTONE_S, EngineOptions
from statechannel.sim.process import SimProcess
from statechannel.sim.trace import SimTrace
from statechannel.sim.truth import Truth

if TYPE_CHECKING:
    from statechannel.engine.commands import Outcome
    from statechannel.engine.effects import Emit
    from statechannel.protocol.record import Record

_LOG_MS = 1_700_000_000_000
_CLEANER_EVERY_S = 0.7
_REGISTRY_KEEP_MS = 60_000
NAMESPACES = ("t/one", "u/two")


class SimWorld:
    """One run: the logs, the processes, the truth.

    Attributes:
        faulty: The phase with faults; ends before the liveness phase.
        processes: Every process ever started, by number.
        sick: The one that is left sick while the others are judged.
    """

    def __init__(self, seed: int, options: EngineOptions, trace: SimTrace, skip: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.options = options
        self.trace = trace
        self.faulty = True
        self.events = Events()
        self.rng = Random(f"{seed}/world")
        settings = CleanerSettings(int(LAG_S * 1000), int(TOMBSTONE_S * 1000), self.rng.choice((300, 2_000, 8_000)))
        self.logs = [SimLog(Topic.CHANNEL, p, settings, options.copies) for p in range(options.partitions)]
        self.registry = SimLog(Topic.REGISTRY, 0, CleanerSettings(segment_ms=10_000))
        self.truths = [Truth(p, options.partitions) for p in range(options.partitions)]
        self.namespaces = NAMESPACES[: options.namespaces]
        self.brokers = [f"b{index}" for index in range(options.brokers)]
        self.processes: list[SimProcess] = []
        self.sick: SimProcess | None = None
        self.election = Election(self, Random(f"{seed}/election"))
        self.checks = SimChecks(self)
        self.clients = Clients(self)
        self.blackouts = Blackouts(self, wanted=options.blackouts, losers=options.late_losers)
        self.faults = Faults(self, skip)

    @property
    def now_ms(self) -> int:
        """Log time."""
        return _LOG_MS + int(self.events.now_s * 1000)

    def log_s(self, timestamp_ms: int) -> float:
        """Virtual time of a log time."""
        return (timestamp_ms - _LOG_MS) / 1000

    def all_logs(self) -> list[SimLog]:
        """Every partition that a process reads."""
        return [*self.logs, self.registry]

    def log(self, topic: Topic, partition: int) -> SimLog:
        """One partition."""
        return self.registry if topic is Topic.REGISTRY else self.logs[partition]

    def partition_of(self, namespace: str) -> int:
        """Where the keys of a namespace lie."""
        return partition_of(namespace, self.options.partitions)

    def alive(self) -> list[SimProcess]:
        """Processes that exist, paused ones included."""
        return [process for process in self.processes if process.alive]

    def written_at_s(self, record: Record) -> float:
        """Virtual time at which a record was written; now, where its writer is none of ours."""
        wall_ms = record.raw.get("written_at_ms")
        for process in self.processes:
            if (process.broker, process.incarnation) == (record.broker, record.incarnation) and type(wall_ms) is int:
                return process.virtual_s(wall_ms)
        return self.events.now_s

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults first, then the liveness phase."""
        for broker in self.brokers:
            self.spawn(broker)
        self.events.after(_CLEANER_EVERY_S, self._clean)
        self.faults.plan()
        nights_s = NIGHT_OVER_S if self.options.late_returns else 0.0
        self.events.run_until(self.options.duration_s + self.blackouts.total_s + nights_s)
        settle(self)

    def spawn(self, broker: str, *, take_over: bool = False) -> SimProcess:
        """Start a process."""
        process = SimProcess(self, broker, len(self.processes) + 1, take_over=take_over)
        self.processes.append(process)
        self.note(f"{process.name} starts" + (" to take over" if take_over else ""))
        self.trace.count("process starts")
        process.start()
        return process

    def note(self, text: str) -> None:
        """A line of the trace."""
        self.trace.add(f"{self.events.now_s:.3f} {text}")

    def _clean(self) -> None:
        self.events.after(_CLEANER_EVERY_S, self._clean)
        self.registry.expire(self.now_ms, _REGISTRY_KEEP_MS)
        if not self.options.cleaner:
            return
        for log in self.logs:
            removed = log.clean(self.now_ms, self.rng)
            if removed:
                self.note(f"the cleaner takes {removed} records of partition {log.partition}")
                self.trace.count("records cleaned", removed)

    # --- what processes do ------------------------------------------------------------------------------------------

    def append(self, who: str, topic: Topic, partition: int, key: bytes, value: bytes | None) -> int:
        """A record reaches a log; all who read it are told."""
        log = self.log(topic, partition)
        offset = log.append(self.now_ms, key, value)
        if topic is Topic.CHANNEL:
            self.checks.appended(who, log.entries[offset])
        elif topic is Topic.REGISTRY and value is not None:
            self.checks.presence.registered(value)
        for process in self.alive():
            process.notify(topic, partition)
        return offset

    def stepped(self, process: SimProcess, event: Input) -> None:
        """A process took an input in: the invariants."""
        self.checks.serving(process)
        self.checks.presence.stepped(process)
        if isinstance(event, RecordsRead | RecordRead):
            records = event.records if isinstance(event, RecordsRead) else (event,)
            self.checks.forgeries.stepped(process, records)
            self.checks.heard(process, records)
        record = event.records[-1] if isinstance(event, RecordsRead) else event
        if isinstance(record, RecordRead) and record.topic is Topic.CHANNEL:
            self.checks.read(process, record)
        self.checks.stepped(process)

    def ended(self, process: SimProcess) -> None:
        """A process is gone."""
        self.note(f"{process.name} ends: {process.reason}")
        self.clients.process_ended(process)
        self.faults.process_ended(process)

    def completed(self, process: SimProcess, token: int, outcome: Outcome) -> None:
        """A command was answered."""
        self.clients.completed(process, token, outcome)

    def emitted(self, process: SimProcess, emit: Emit) -> None:
        """An engine tells something."""
        match emit.event:
            case "replica.phase":
                self.note(
                    f"{process.name} partition {emit.facts['partition']}: {emit.facts['phase']}: {emit.facts['why']}"
                )
                if emit.facts["phase"] == Phase.WAITING:
                    self.checks.read_to_the_end(process, emit.facts["partition"])
                if emit.facts["phase"] == Phase.CAUGHT_UP:
                    self.trace.count("joins completed")
            case "record.accepted" | "record.rejected" | "record.unchanging" | "operation.began" | "operation.ended":
                return
            case "cold-start.began":
                self.checks.cold_start(process, emit.facts["partition"])
                self.faults.cold_start_began(process)
            case "record.forged":
                self.checks.forgeries.emitted(process, dict(emit.facts))
            case "cold-start.abandoned":
                self.checks.cold_start_abandoned(process, emit.facts["partition"])
            case _:
                facts = ", ".join(f"{name}={value}" for name, value in emit.facts.items())
                self.note(f"{process.name} {emit.event} {facts}")
        self.trace.count(f"event {emit.event}")
