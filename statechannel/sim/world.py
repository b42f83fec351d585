"""The engine level: whole brokers in a cluster that suffers, checked after every step."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from statechannel.engine.inputs import Input
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.protocol.replica import Phase
from statechannel.sim.checks import Forgeries, PresenceChecks, SimChecks
from statechannel.sim.clients import Clients
from statechannel.sim.cluster import SimCluster
from statechannel.sim.election import Election
from statechannel.sim.faults import NIGHT_OVER_S, Blackouts, Faults
from statechannel.sim.health import LivenessPhase
from statechannel.sim.observer import SimObserver
from statechannel.sim.process import SimProcess
from statechannel.sim.trace import Violation

if TYPE_CHECKING:
    from statechannel.engine.commands import Outcome
    from statechannel.engine.effects import Append, Emit
    from statechannel.sim.options import EngineOptions
    from statechannel.sim.trace import SimTrace

_CLEANER_EVERY_S = 0.7
_REGISTRY_KEEP_MS = 60_000


class SimWorld(SimCluster):
    """One run: it makes the parts, and passes on to them what processes do."""

    def __init__(self, seed: int, options: EngineOptions, trace: SimTrace, skip: frozenset[int] = frozenset()) -> None:
        super().__init__(seed, options, trace)
        self._election: Election[SimProcess] = Election(self, Random(f"{seed}/election"))
        self._presence = PresenceChecks(self)
        self._forgeries = Forgeries()
        self._checks = SimChecks(self, self._presence, self._forgeries)
        self._clients = Clients(self, self._checks)
        self._blackouts = Blackouts(self, wanted=options.blackouts, losers=options.late_losers)
        self.faults = Faults(
            self,
            skip,
            election=self._election,
            clients=self._clients,
            blackouts=self._blackouts,
            forgeries=self._forgeries,
        )

        observed = SimObserver(self, self._checks, self._clients.check_owner) if options.observer else None
        self._observer = observed

    # --- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for broker in self.brokers:
            self.spawn(broker)
        if self._observer is not None:
            self._observer.start()
        self.events.after(_CLEANER_EVERY_S, self._clean)
        self.faults.plan()
        nights_s = NIGHT_OVER_S if self.options.late_returns else 0.0
        self.events.run_until(self.options.duration_s + self._blackouts.total_s + nights_s)
        ending = LivenessPhase(self, self._election, self._clients, self._checks, self._observer)
        ending.settle()
        ending.desert()

    def spawn(self, broker: str, *, take_over: bool = False) -> SimProcess:
        process = SimProcess(self, self, broker, len(self.processes) + 1, take_over=take_over)
        self.processes.append(process)
        self.note(f"{process.name} starts" + (" to take over" if take_over else ""))
        self.trace.count("process starts")
        process.start()
        return process

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
        if topic is Topic.CHANNEL and partition >= len(self.logs):
            raise Violation(
                "partitions", f"{who} writes to partition {partition}, and the channel uses {len(self.logs)}"
            )
        log = self.log(topic, partition)
        offset = log.append(self.now_ms, key, value)
        if topic is Topic.CHANNEL:
            self._checks.appended(who, log.entries[offset])
        elif topic is Topic.REGISTRY and value is not None:
            self._presence.registered(value)
        self._notify(topic, partition)
        return offset

    def end_transaction(self, partition: int) -> None:
        log = self.logs[partition]
        self._checks.appended("stranger", log.entries[log.end_transaction(self.now_ms)])
        self.trace.count("transactions")
        self._notify(Topic.CHANNEL, partition)

    def _notify(self, topic: Topic, partition: int) -> None:
        for process in self.alive():
            process.notify(topic, partition)
        if self._observer is not None:
            self._observer.notify(topic, partition)

    def stepped(self, process: SimProcess, event: Input) -> None:
        self._checks.serving(process)
        self._presence.stepped(process)
        if isinstance(event, RecordsRead | RecordRead):
            records = event.records if isinstance(event, RecordsRead) else (event,)
            self._forgeries.stepped(process, records)
            self._checks.heard(process, records)
        record = event.records[-1] if isinstance(event, RecordsRead) else event
        if isinstance(record, RecordRead) and record.topic is Topic.CHANNEL:
            self._checks.read(process, record)
        self._checks.stepped(process)
        self._clients.check_cache(process)

    def writes(self, process: SimProcess, append: Append) -> None:
        self._checks.writes(process, append)

    def judges_by_another_history(self, process: SimProcess, partition: int) -> bool:
        return self._checks.judges_by_another_history(process, partition)

    def stands(self, process: SimProcess, *, stand: bool) -> None:
        if stand and not process.engine.caught_up:
            self._presence.stands_to_start_cold(process)
        self._election.stand(process, stand=stand)

    def ended(self, process: SimProcess) -> None:
        self.note(f"{process.name} ends: {process.reason}")
        self._clients.process_ended(process)
        self.faults.process_ended(process)

    def completed(self, process: SimProcess, token: int, outcome: Outcome) -> None:
        self._clients.completed(process, token, outcome)

    def emitted(self, process: SimProcess, emit: Emit) -> None:
        match emit.event:
            case "replica.phase":
                self.note(
                    f"{process.name} partition {emit.facts['partition']}: {emit.facts['phase']}: {emit.facts['why']}"
                )
                if emit.facts["phase"] == Phase.START_OVER and emit.facts["before"] == Phase.CAUGHT_UP:
                    self._checks.starts_over(process, emit.facts["partition"])
                if emit.facts["phase"] == Phase.WAITING:
                    self._checks.read_to_the_end(process, emit.facts["partition"])
                if emit.facts["phase"] == Phase.CAUGHT_UP:
                    self.trace.count("joins completed")
            case "record.accepted" | "record.rejected" | "record.unchanging" | "operation.began" | "operation.ended":
                return
            case "cold-start.began":
                self._checks.cold_start(process, emit.facts["partition"])
                self.faults.cold_start_began(process)
            case "record.forged":
                self._forgeries.emitted(process, dict(emit.facts))
            case "replica.differs":
                self.differing.add((process.name, emit.facts["member"]))
                self.note(f"{process.name} differs from {emit.facts['member']} at {emit.facts['offset']}")
            case "cold-start.abandoned":
                self._checks.cold_start_abandoned(process, emit.facts["partition"])
            case _:
                facts = ", ".join(f"{name}={value}" for name, value in emit.facts.items())
                self.note(f"{process.name} {emit.event} {facts}")
        self.trace.count(f"event {emit.event}")
