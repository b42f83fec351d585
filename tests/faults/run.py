"""One run: a cluster of its own, faults after faults by the plan, and the evidence."""

import asyncio
import contextlib
import os
import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statechannel.audit.gaps import GapEnd
from statechannel.audit.transfer.export_file import read_export
from statechannel.kafka.reader import ReaderTuning
from statechannel.protocol.codec import COLD_START_KEY
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.settings.groups_cluster import KafkaSettings
from tests.faults import checker
from tests.faults.brokers import COMMAND, ROOT, Brokers, Incarnation
from tests.faults.clients import Clients
from tests.faults.fault import Fault
from tests.faults.faults_in_debt import KillAllInDebt, leave_gaps
from tests.faults.floor import Floor, waited_s, withheld_s
from tests.faults.history import Beside, FaultSpan, History, Recovery, Serving
from tests.faults.judged import Judged, judge, live_bundles, unpaid
from tests.faults.kafka_clock import NoJdkError, true_times
from tests.faults.kafka_nodes import KafkaNodes, to_its_end
from tests.faults.log_copy import LogCopy
from tests.faults.operations import TIMEOUT_S, Operations, make_connection
from tests.faults.plan import Plan, Step
from tests.faults.service import Check, Service, overlaps, read_record, widen
from tests.faults.storage_process import StorageProcess
from tests.faults.world import World
from tests.support.data_plane import place_of_topic

CHANNEL = "faults"
READY_S = 90.0
SERVED_WITHIN_S = 10.0
"""Once healthy, every bundle has a live owner within this time, and what the machine itself kept back meanwhile."""
COVERED = 16
"""Each namespace's topics fall into this many equal parts of its ring: every bundle has some, splits of it too."""
BESIDE_RETRY_S = 0.5
COMMAND_S = 60.0
ENDING_S, DIGEST_S, PAID_S = 30.0, 10.0, 10.0
_COMPLAINT = re.compile(r"Traceback|invariant-violated|loop-stuck|restarts-exhausted|this is a bug")


class SetUpError(Exception):
    """The run could not begin; nothing is known of the cluster under faults."""


@dataclass(slots=True)
class RunResult:
    """What came of a run."""

    plan: Plan
    violations: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Run:
    """A run; use once.

    Args:
        say: Told what happens, a line at a time.
        patience_s: Added to every bound of the run, where the machine has other work.
    """

    def __init__(
        self, plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None, patience_s: float = 0.0
    ) -> None:
        self.plan, self.folder, self._say, self._patience_s = plan, folder, say, patience_s
        self.history = History()
        self.floor = Floor()
        self.kafka = KafkaNodes(folder, plan.nodes, plan.brokers)
        settings = plan.settings()
        flags = [f"{name}={value}" for name, value in settings.items()]
        self.brokers = Brokers(folder, plan.brokers, self.kafka.address_for, flags, CHANNEL, plan.racks)
        rng = random.Random(f"load/{plan.seed}")
        topics = [topic for index in range(len(plan.bundles)) for topic in _topics(f"faults/n{index}")]
        self.clients = Clients(topics, self._reachable, self.history, rng)
        self.storage = StorageProcess(folder)
        self.copy = LogCopy(self.kafka.address, CHANNEL, plan.partitions)
        self.world = World(self.kafka, self.brokers, self.clients, self.copy)
        self._settings = settings
        self._rng = rng
        self._start_s = 10.0
        self._kept_from = 0
        self._operations: Operations | None = None
        self._probes = 0

    async def run(self) -> RunResult:
        """Everything.

        Raises:
            SetUpError: The cluster was not there to begin with.
        """
        began_s = time.monotonic()
        result = RunResult(self.plan)
        self.floor.start()
        background: list[asyncio.Task[Any]] = []
        async with contextlib.AsyncExitStack() as stack:  # the last one first; what one cannot end keeps no other alive
            stack.callback(self.floor.stop)
            stack.push_async_callback(self.kafka.close)
            stack.push_async_callback(self.clients.close)
            stack.callback(self.storage.close)
            stack.callback(self.brokers.close)
            stack.callback(self.copy.stop)
            stack.callback(lambda: [task.cancel() for task in background])
            operations = await self._set_up(background)
            for step in self.plan.steps:
                await self._step(step, operations)
            await operations.quiet()
            if self.plan.balancing:
                # What it has under way as the log ends would be a gap without an end.
                await self._command("policy", "set", "shedding", "off")
            # What was still open when the last round was calm may have ended in an unload.
            await self._calm(["the end"])
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._finish(result)
        result.figures["floor"] = self.floor.summary()
        result.seconds = round(time.monotonic() - began_s, 1)
        return result

    def _reachable(self) -> list[Incarnation]:
        """Whom clients may ask: paused processes, too, since nobody tells them."""
        return [process for process in self.brokers.running() if process.ready]

    # --- the beginning ----------------------------------------------------------------------------------------------

    async def _set_up(self, background: list[asyncio.Task[Any]]) -> Operations:
        await to_its_end(self.storage.start)
        self.brokers.storage = self.storage.url
        await self.kafka.start()
        await self._command("init")
        began_s = time.monotonic()
        for broker in self.plan.brokers:
            self.brokers.start(broker)
        while len(self.brokers.up()) < len(self.plan.brokers):
            if time.monotonic() - began_s > READY_S + self._patience_s:
                raise SetUpError(f"the brokers were not ready within {READY_S + self._patience_s:g} s")
            await asyncio.sleep(0.1)
        self._start_s = time.monotonic() - began_s
        self.copy.start()
        await self.kafka.learn_topics(CHANNEL)
        if self.plan.in_debt:
            lag_ms = int(self._settings["channel.min_compaction_lag_ms"])
            self._kept_from = await leave_gaps(self.kafka.address, CHANNEL, lag_ms, self.copy)
        connection = make_connection(self.kafka.address, CHANNEL, self._settings)
        operations = self._operations = Operations(
            connection, self.plan.brokers, self.world.bundles, self.history, self._rng
        )
        for index, bundles in enumerate(self.plan.bundles):
            answer = await operations.ask("create", {"namespace": f"faults/n{index}", "bundles": bundles})
            if answer.answer != "done":
                raise SetUpError(f"the namespace was not created: {answer}")
        for job in (self.clients.run(), operations.run(), self.brokers.supervise()):
            background.append(asyncio.create_task(job))
        if (recovery := await self._calm(["the start"])).problems:
            raise SetUpError(f"not well before any fault: {recovery.problems}")
        operations.allowed.set()
        return operations

    async def _command(self, *args: str) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        flags = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        place = ["--bootstrap-servers", self.kafka.address, "--channel", CHANNEL, *flags]
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *args, *place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(COMMAND_S + self._patience_s):
                _, stderr = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise SetUpError(f"{' '.join(args)} failed: {stderr.decode(errors='replace')[-500:]}")

    # --- rounds -----------------------------------------------------------------------------------------------------

    async def _step(self, step: Step, operations: Operations) -> None:
        self._say(f"  {step}")
        operations.allowed.set()
        if any(isinstance(fault, KillAllInDebt) for fault in step.faults):
            # Somebody has to have vouched since the outage before: two in a row without are a longer one.
            await self._paid()
            await asyncio.sleep(2 * self._settings["leader.heartbeat_interval_s"])
        spans = []
        tasks = []
        for number, fault in enumerate(step.faults):
            span = FaultSpan(fault.kind, (), time.monotonic_ns(), detail=str(fault))
            spans.append(span)
            self.history.faults.append(span)
            alone = len(step.faults) == 1
            tasks.append(asyncio.create_task(self._run_fault(fault, span, number * step.apart_s, alone=alone)))
        await asyncio.gather(*tasks)
        if step.calm:
            operations.allowed.clear()
            recovery = await self._calm([fault.kind for fault in step.faults])
            for span in self.history.faults:
                span.calm_ns = span.calm_ns or time.monotonic_ns()
            if any(isinstance(fault, KillAllInDebt) for fault in step.faults):
                self.history.changed.append(await self._changed())
            self._say(
                f"    healthy after {_s(recovery.healthy_s)}, served {_s(recovery.served_s)} later {recovery.problems or ''}"
            )
        else:
            await asyncio.sleep(step.pause_s)

    async def _run_fault(self, fault: Fault, span: FaultSpan, wait_s: float, *, alone: bool) -> None:
        await asyncio.sleep(wait_s)
        span.start_ns = time.monotonic_ns()
        try:
            span.detail = f"{fault}: {await fault.begin(self.world)}"
            span.touched = fault.touched
            if fault.lasting and alone:  # beside a second fault nothing is promised before that one is healed
                await self._beside(fault)
            await asyncio.sleep(fault.hold_s)
        except NoJdkError as error:
            self.history.faults.remove(span)
            self._say(f"    {fault.kind} was not done: {error}")
        finally:
            span.touched = fault.touched
            await fault.heal(self.world)
            span.healed_ns = time.monotonic_ns()

    async def _changed(self) -> list[str]:
        """Bundles that the brokers hold otherwise than a reader of the whole log does, once they had time to agree."""
        until_s = time.monotonic() + DIGEST_S + self._patience_s
        while True:
            held, log = await self.world.bundles(), live_bundles(list(self.copy.records))
            changed = sorted(name for name in held.keys() | log.keys() if held.get(name) != log.get(name))
            if not changed or time.monotonic() > until_s:
                return changed
            await asyncio.sleep(0.3)

    @property
    def health_bound_s(self) -> float:
        """Longest time until the cluster is healthy after everything was healed, by its settings.

        A process that died waits until its predecessor has expired; if it died since Kafka was away, it is started
        first. Kafka's return is followed by the settling wait, a lost leader by its session, the loss of many at once
        by repair's pause; where nobody was left, by the wait before a cold start. The starts of processes are measured.
        """
        s = self._settings
        waits_s: float = (
            s["membership.expiry_s"]
            + s["safe_mode.settle_s"]
            + s["kafka.session_timeout_ms"] / 1_000
            + s["repair.mass_loss_pause_s"]
            + s["leader.cold_start_after_s"]
        )
        return waits_s + 3 * self._start_s + SERVED_WITHIN_S + self._patience_s

    async def _calm(self, after: list[str]) -> Recovery:
        """Wait until the cluster is healthy, then until everything is served; both have bounds."""
        recovery = Recovery(after, time.monotonic_ns())
        self.history.recoveries.append(recovery)
        healed_s = time.monotonic()
        problems = await self._until(self.world.unwell, healed_s, self.health_bound_s)
        recovery.healthy_s = time.monotonic() - healed_s
        if problems:
            recovery.problems = [f"not healthy within {self.health_bound_s:.0f} s: {problems[:4]}"]
            recovery.healthy_s = None
            return recovery
        healthy_s, healthy_ns = time.monotonic(), time.monotonic_ns()
        waited = waited_s(self.brokers.pids())

        async def unserved() -> list[str]:
            await self.world.look_up_all()
            problems = await self.world.unserved()
            taken = self.clients.taken_ns
            silent = [topic for topic in self.clients.topics if taken.get(topic, 0) < healthy_ns]
            return problems + [f"no write of {topic} was taken" for topic in silent]

        problems = await self._until(unserved, healthy_s, SERVED_WITHIN_S + self._patience_s)
        withheld = withheld_s(waited, waited_s(self.brokers.pids()))
        recovery.stall_s = round(max(withheld, self.floor.stalled_s(healthy_s)), 2)
        allowed_s = SERVED_WITHIN_S + self._patience_s + recovery.stall_s
        if any(kind.startswith(("kafka", "node")) for kind in after):
            # After a restart of Kafka librdkafka may fetch nothing any more, until the reader notices and replaces the client.
            allowed_s += KafkaSettings().stall_timeout_s + ReaderTuning().watch_s
        if problems:
            problems = await self._until(unserved, healthy_s, allowed_s)
        recovery.served_s = time.monotonic() - healthy_s
        if problems:
            recovery.problems = [f"not served within {allowed_s:.1f} s of health: {problems[:6]}"]
            recovery.served_s = None
        return recovery

    async def _beside(self, sick: Fault) -> None:
        """While a member stays sick: every topic takes writes, and a new namespace is created and looked up."""
        begun_s = time.monotonic()
        probe = Beside(str(sick), time.monotonic_ns())
        self.history.beside.append(probe)
        # What the others cannot know before: that the member is lost, and that its seat is free.
        await asyncio.sleep(self._settings["membership.expiry_s"] + self._settings["kafka.session_timeout_ms"] / 1_000)
        since_ns = time.monotonic_ns()
        self._probes += 1
        namespace = f"faults/beside-{self._probes}"

        async def problems_now() -> list[str]:
            taken = self.clients.taken_ns
            silent = [topic for topic in self.clients.topics if taken.get(topic, 0) < since_ns]
            return [f"no write of {topic} was taken" for topic in silent] + await self._unled(namespace, sick.touched)

        problems = await self._until(problems_now, begun_s, self.beside_bound_s, BESIDE_RETRY_S)
        if problems:
            bound_s = self.beside_bound_s + self.floor.stalled_s(begun_s)
            problems = await self._until(problems_now, begun_s, bound_s, BESIDE_RETRY_S)
        if problems:
            probe.problems = [f"not led and served after {time.monotonic() - begun_s:.0f} s: {problems[:4]}"]
        else:
            probe.served_s = time.monotonic() - begun_s
        self._say(f"    beside {sick}: served after {_s(probe.served_s)} {probe.problems or ''}")

    async def _unled(self, namespace: str, sick: Sequence[str]) -> list[str]:
        """Why an operator's request or a client's lookup gets no answer from the brokers that are well; empty if both do."""
        well = [process for process in self.brokers.up() if process.broker not in sick]
        if not well or well[0].url is None or self._operations is None:
            return ["no broker is well"]
        topic = f"{namespace}/probe"
        answer = await self.clients.ask(well[0].url, "lookup", 6.0, topic=topic, wait_s=5.0)
        if answer.get("ok") and answer.get("bundle") is not None:
            return []
        created = await self._operations.ask("create", {"namespace": namespace, "bundles": 1})
        return [f"{topic} is not answered by {well[0].name} ({answer.get('why')}); creating it: {created.answer}"]

    @property
    def beside_bound_s(self) -> float:
        """Longest time until the others serve everything beside a sick member, by the settings.

        The member is lost, or resigns, after the expiry; the next leader is elected after the session; what was in flight
        ends by its limit and is found by the next scan; repair may pause; a request waits for the next try.
        """
        s = self._settings
        waits_s: float = (
            2 * s["membership.expiry_s"]
            + s["kafka.session_timeout_ms"] / 1_000
            + s["safe_mode.settle_s"]
            + s["repair.in_flight_limit_s"]
            + s["repair.scan_interval_s"]
            + s["repair.mass_loss_pause_s"]
        )
        return waits_s + TIMEOUT_S + SERVED_WITHIN_S + self._patience_s

    @staticmethod
    async def _until(
        problems_now: Callable[[], Any], since_s: float, bound_s: float, retry_s: float = 0.1
    ) -> list[str]:
        while problems := await problems_now():
            if time.monotonic() - since_s > bound_s:
                return list(problems)
            await asyncio.sleep(retry_s)
        return []

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _finish(self, result: RunResult) -> None:
        await self._paid()
        digests = await self._digests()
        self.copy.stop()
        # From here on they leave: what the rules judge is the log up to now.
        for process in self.brokers.all:
            self.history.serving += _serving_of(process)
        judged = self._judge(self.copy.seen())
        current = list(self.brokers.current.values())
        self.brokers.held_down.update(self.plan.brokers)
        for process in list(self.brokers.running()):
            process.stop()
        await self.world.gone(current, ENDING_S + self._patience_s)
        self.history.services = self._services()
        export = self.folder / "export.jsonl"
        await self._command("export", str(export))
        exported = read_export(export)
        final = [record for number in range(self.plan.partitions) for record in exported.partitions.get(number, ())]
        evidence = self._evidence(judged, final, exported.header.exported_at_ms, digests)
        evidence.journal = await self.storage.journal()
        self.history.save(self.folder / "history.jsonl")
        result.violations = checker.check(evidence)
        result.figures = self._figures(evidence)

    def _judge(self, seen: Sequence[tuple[RecordRead, int]]) -> Judged:
        """Judge a log, or a branch of it, with the times of the machine's clock."""
        return judge(true_times(seen, self.kafka.clock_spans, _wall_ns()), self.plan.partitions)

    def _services(self) -> list[Service]:
        """By each process's own record, and by what it told clients."""
        recorded = [
            service
            for process in self.brokers.all
            for service in read_record(process.record_path, process.broker, process.pid)
        ]
        checks = (
            Check(write.broker, write.pid, write.bundle, write.generation, write.at_ns) for write in self.history.writes
        )
        return widen(recorded, checks)

    async def _paid(self) -> None:
        """Give the leader its time to pay what the last records owe, and to end what it began: until then neither is a fault."""
        until_s = time.monotonic() + PAID_S + self._patience_s
        while time.monotonic() < until_s:
            judged = judge(self.copy.records, self.plan.partitions)
            if not judged.answer["debts"] and not any(gap.end is GapEnd.OPEN for gap in judged.gaps):
                return
            await asyncio.sleep(0.3)

    async def _digests(self) -> dict[str, str | None]:
        """Every broker's digest, with the audit's of the log up to the offset that each has applied."""
        until_s = time.monotonic() + DIGEST_S + self._patience_s
        digests: dict[str, str | None] = {}
        while time.monotonic() < until_s:
            answers = await self.world.ask_all("digest")
            digests = {process.name: answer["digest"] for process, answer in answers.items()}
            applied = [
                max((answer["applied"][str(number)] for answer in answers.values()), default=-1)
                for number in range(self.plan.partitions)
            ]
            copied = [record for record in self.copy.records if record.offset <= applied[record.partition]]
            ends = {record.partition: record.offset for record in copied}
            # Heartbeats go on, so that the offsets differ; the states do not, once nothing is under way.
            if len(digests) == len(self.plan.brokers) and ends == {p: at for p, at in enumerate(applied) if at >= 0}:
                for read in ("full", "join"):
                    digests[f"audit, {read}"] = judge(copied, self.plan.partitions, read).answer["digest"]
                if len(set(digests.values())) == 1:
                    break
            await asyncio.sleep(0.3)
        return digests

    def _evidence(
        self, judged: Judged, final: Sequence[RecordRead], final_ms: int, digests: dict[str, str | None]
    ) -> checker.Evidence:
        return checker.Evidence(
            history=self.history,
            judged=judged,
            copy=self.copy.records,
            final=final,
            final_ms=final_ms,
            digests=digests,
            ends=[
                (process.name, process.process.wait(20), _done_to(process))
                for process in self.brokers.all
                if not process.running
            ],
            complaints=[line for process in self.brokers.all for line in _complaints_of(process)],
            wall_ns=_wall_ns(),
            lease_s=self.plan.lease_s,
            after_s=float(self._settings["safe_mode.after_s"]),
            expiry_s=float(self._settings["membership.expiry_s"]),
            lag_ms=self._least_lag_ms() if self.plan.compacting else None,
            kept_from=self._kept_from,
            deleted_below=self.world.deleted_below,
            uncommitted=self.world.uncommitted,
            branches=[self._judge(branch) for branch in self.copy.branches],
            unpaid=[unpaid(self.copy.records, key) for key in self.world.left_in_debt],
            seen_ns={(record.partition, record.offset): seen_ns for record, seen_ns in self.copy.seen()},
        )

    def _least_lag_ms(self) -> int:
        """Age by the machine's clock from which the cleaner may have taken a record: Kafka's may have been ahead."""
        ahead_s = max((span.offset_s for span in self.kafka.clock_spans), default=0.0)
        return int(self._settings["channel.min_compaction_lag_ms"]) - round(max(0.0, ahead_s) * 1_000)

    def _figures(self, evidence: checker.Evidence) -> dict[str, Any]:
        history, last = self.history, {record.partition: record.offset for record in evidence.copy}
        stale = sorted(late_s for late_s, _ in checker.staleness_s(evidence))
        return {
            "faults": dict(Counter(span.kind for span in history.faults)),
            "writes": len(history.writes),
            "writes_not_taken": history.refused_writes,
            "lookups": len(history.lookups),
            "lookups_undetermined": history.undetermined_lookups,
            "operations": dict(Counter(f"{request.kind} {request.answer}" for request in history.asked)),
            "processes": len(self.brokers.all),
            "restarts": self.brokers.restarts,
            "ends": dict(Counter(str(code) for _, code, _ in evidence.ends)),
            "records": len(evidence.copy),
            "records_cleaned": len(evidence.copy)
            - sum(record.offset <= last.get(record.partition, -1) for record in evidence.final),
            "killed_in_debt": len(evidence.unpaid),
            "unpaid_then": evidence.unpaid,
            "cold_starts": sum(record.key == COLD_START_KEY for record in evidence.copy),
            "keys_changed": [len(names) for names in history.changed],
            "lenient_joins": sum(_joined_leniently(process) for process in self.brokers.all),
            "moves_by_brokers": _moves_by_brokers(evidence),
            "rejected": evidence.judged.answer["rejected"],
            "gaps_ms": [[gap.cause.value, gap.length_ms] for gap in evidence.judged.gaps if gap.length_ms is not None],
            "outages_ms": [
                (outage.end_ns - outage.start_ns) // 1_000_000 for outage in history.outages if outage.end_ns
            ],
            "outages_by_fault_ms": _outages_by_fault(history),
            "healthy_s": [recovery.healthy_s for recovery in history.recoveries[1:-1]],
            "served_s": [recovery.served_s for recovery in history.recoveries[1:-1]],
            "beside_s": [probe.served_s for probe in history.beside],
            "calls": dict(Counter(f"{call.kind} {call.outcome}" for call in history.calls)),
            "registers": len({call.topic for call in history.calls}),
            "stored": sum(entry.accepted and entry.topic is not None for entry in evidence.journal),
            "fenced_opens": sum(not entry.accepted and entry.topic is None for entry in evidence.journal),
            "fenced_writes": sum(not entry.accepted and entry.topic is not None for entry in evidence.journal),
            "services": len(history.services),
            "overlaps": sum(1 for _ in overlaps(history.services)),
            "old_reads": sum(1 for _ in checker.old_reads(evidence)),
            "stale_writes": sum(1 for _ in checker.stale_writes(evidence)),
            "stale_lookups_ms": {"count": len(stale), "max": round(stale[-1] * 1_000) if stale else 0},
        }


def _moves_by_brokers(evidence: checker.Evidence) -> int:
    """Moves that no client asked for: the balancer's, and those of brokers that were told to go."""
    asked = {request.operation for request in evidence.history.asked}
    operations = evidence.judged.operations.items()
    return sum(
        operation not in asked and any(record.state is State.RELEASING and record.to for record in records)
        for operation, records in operations
    )


def _outages_by_fault(history: History) -> list[tuple[str, int]]:
    """How long each topic took no writes, with the fault that was on as that began; with several that says little."""
    lengths = []
    for outage in history.outages:
        on = {
            span.kind
            for span in history.faults
            if span.start_ns <= outage.start_ns <= (span.calm_ns or span.healed_ns or 2**62)
        }
        if outage.end_ns is not None:
            kind = "none" if not on else "several" if len(on) > 1 else on.pop()
            lengths.append((kind, (outage.end_ns - outage.start_ns) // 1_000_000))
    return lengths


def _wall_ns() -> int:
    """The wall clock minus the monotonic one."""
    return time.time_ns() - time.monotonic_ns()


def _topics(namespace: str) -> list[str]:
    """Topics of a namespace, one in each part of its ring."""
    topics: dict[int, str] = {}
    number = 0
    while len(topics) < COVERED:
        topic = f"{namespace}/t{number}"
        topics.setdefault(place_of_topic(topic)[1] * COVERED >> 32, topic)
        number += 1
    return [topics[part] for part in sorted(topics)]


def _done_to(process: Incarnation) -> frozenset[str]:
    young = process.ready_ns is None and not process.events()
    return frozenset(process.done) | ({checker.YOUNG} if young else set())


def _serving_of(process: Incarnation) -> list[Serving]:
    return [
        Serving(
            process.broker,
            process.pid,
            process.incarnation,
            event["event"],
            event["bundle"],
            event["generation"],
            event["mono_ns"],
        )
        for event in process.events()
        if event["event"] in ("own", "serve", "release")
    ]


def _complaints_of(process: Incarnation) -> list[str]:
    with contextlib.suppress(OSError):
        lines = process.log_path.read_text(errors="replace").splitlines()
        return [f"{process.name}: {line[:300]}" for line in lines if _COMPLAINT.search(line)][:3]
    return []


def _joined_leniently(process: Incarnation) -> bool:
    """Whether the log that it found had gaps already."""
    lines = process.log_path.read_text(errors="replace").splitlines()
    return any("replica.caught-up" in line and "no gaps from offset 0" not in line for line in lines)


def _s(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}s"


__all__ = ["Judged", "Run", "RunResult", "SetUpError"]
