"""Commands of callers, and whether their answers are true."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from statechannel.engine.commands import (
    AwaitOperation,
    Command,
    CreateNamespace,
    DeleteNamespace,
    Done,
    Lookup,
    Outcome,
    Owned,
    Rejected,
    ResumeRepair,
    Shutdown,
    Split,
    Started,
    Transfer,
    Unload,
)
from statechannel.engine.freshness import SILENT_BEATS
from statechannel.engine.inputs import CommandReceived
from statechannel.protocol.bundle import namespace_bounds
from statechannel.protocol.replica import Phase
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.sim.trace import Violation

if TYPE_CHECKING:
    from statechannel.sim.checks import SimChecks
    from statechannel.sim.cluster import SimCluster
    from statechannel.sim.process import SimProcess

ANSWER_SLACK_S = 1.5
NAMES_CHECKED = 8
"""Names of lookups that are looked up in the caches, in turn."""


@dataclass(slots=True)
class _Asked:
    process: SimProcess
    command: Command
    due_s: float
    asked_s: float
    epoch: int
    cached: Owned | None


class Clients:
    """All commands given and not answered yet."""

    def __init__(self, cluster: SimCluster, checks: SimChecks) -> None:
        self._cluster = cluster
        self._checks = checks
        self._open: dict[int, _Asked] = {}
        self._answered: set[int] = set()
        self._tokens = 0
        self._operations: list[str] = []
        self._names: list[str] = []
        self._turn = 0

    def ask(self, process: SimProcess, command: Command) -> None:
        self._tokens += 1
        token = self._tokens
        limit_s = command.budget_s + 5 if isinstance(command, Shutdown) else getattr(command, "timeout_s", 0.0)
        now_s = self._cluster.events.now_s
        cached = self._cached(process, command.name) if isinstance(command, Lookup) else None
        epoch = process.engine.lookups.cache.epoch
        self._open[token] = _Asked(process, command, now_s + limit_s + ANSWER_SLACK_S, now_s, epoch, cached)
        self._cluster.note(f"{process.name} is asked: {command}")
        self._cluster.trace.count(f"command {type(command).__name__}")
        process.take(CommandReceived(token, command))

    def process_ended(self, process: SimProcess) -> None:
        """Its callers learn from the broken connection."""
        for token in [token for token, asked in self._open.items() if asked.process is process]:
            del self._open[token]

    def completed(self, process: SimProcess, token: int, outcome: Outcome) -> None:
        """One answer, from the process that was asked, and a true one."""
        asked = self._open.pop(token, None)
        if asked is None or asked.process is not process:
            raise Violation("answer", f"{process.name} answered {token} twice or unasked: {outcome}")
        cluster, now_s = self._cluster, self._cluster.events.now_s
        cluster.note(f"{process.name} answers {type(asked.command).__name__}: {outcome}")
        cluster.trace.count(f"answer {type(outcome).__name__}")
        if isinstance(outcome, Owned):
            self._check_heard(process, outcome)
            if outcome.stale_age_s is None:
                self.check_owner(process, outcome)
        # The step that answers has begun and ended (its effects are performed after it), and no other since the question.
        at_once = process.engine.lookups.cache.epoch == asked.epoch + 2
        if asked.cached is not None and at_once and now_s == asked.asked_s and outcome != asked.cached:
            raise Violation("cache", f"{process.name} had {asked.cached} in its cache, and answers {outcome}")
        if isinstance(outcome, Started):
            self._operations.append(outcome.operation)
            truth = cluster.truths[outcome.partition]
            if not 0 <= outcome.offset < truth.end or truth.verdicts[outcome.offset] is not Verdict.ACCEPTED:
                raise Violation("answer", f"{process.name} says started, but nothing was accepted: {outcome}")
        if isinstance(outcome, Rejected) and isinstance(asked.command, Transfer | Unload | Split | CreateNamespace):
            self._checks.operations.refuse(asked.command.operation, process.name, outcome)
        if isinstance(asked.command, Shutdown):
            self._check_departure(process, outcome, asked)

    def check_cache(self, process: SimProcess) -> None:
        """What the cache says at this moment, as any thread of the process may ask it, has to be true."""
        if self._names:
            self._turn += 1
            self._cached(process, self._names[self._turn % len(self._names)])

    def _cached(self, process: SimProcess, name: str) -> Owned | None:
        if len(self._names) < NAMES_CHECKED:
            self._names.append(name)
        else:
            self._names[self._turn % NAMES_CHECKED] = name
        owner = process.engine.cached_owner(process.now.mono_s, name)
        if owner is not None:
            self._cluster.trace.count("owners from the cache")
            self._check_heard(process, owner)
            self.check_owner(process, owner)
        return owner

    def _check_departure(self, process: SimProcess, outcome: Outcome, asked: _Asked) -> None:
        """Who says that it has left in order serves nothing by the log; who says that it could not has used its time."""
        cluster = self._cluster
        if isinstance(outcome, Rejected) and outcome.reason == "shutdown-late":
            stopped = any(replica.phase is Phase.STOPPED for replica in process.engine.replicas)
            budget_s = asked.command.budget_s if isinstance(asked.command, Shutdown) else 0.0
            if cluster.events.now_s - asked.asked_s < budget_s and not stopped:
                raise Violation("answer", f"{process.name} gives up before its time: {outcome}")
        if not isinstance(outcome, Done):
            return
        me = (process.broker, process.incarnation)
        for truth in cluster.truths:
            if self._checks.judges_by_another_history(process, truth.view.partition):
                continue
            for key in truth.view.live():
                forged = self._checks.forgeries.is_forged(truth.view.partition, key.offset)
                if key.owner == process.broker and key.server == me and not forged:
                    raise Violation("answer", f"{process.name} says {outcome}, but leaves {key.name} behind")

    def _check_heard(self, process: SimProcess, outcome: Owned) -> None:
        """However old its view is, a process names no broker that it knows to be lost, and none without an address.

        It knows itself, and by its own address, once its first record is read back and until its goodbye is: where it took
        over, the registry has its predecessor, or no process, under its id until its second record is read.
        """
        context = process.engine.context
        if outcome.broker == process.broker and context.registered and not process.engine.presence.goodbye_heard:
            if outcome.urls != context.identity.listeners:
                raise Violation(
                    "lost-owner", f"{process.name} names itself by an address that is not its own: {outcome}"
                )
        elif outcome.broker not in context.members.alive:
            how = "lost" if context.is_lost(outcome.broker) else "not heard"
            raise Violation("lost-owner", f"{process.name} names {outcome}, which it knows to be {how}")

    def check_owner(self, process: SimProcess, outcome: Owned) -> None:
        """An owner that a process names without an age is the one by the log, and its view is not old."""
        namespace = outcome.bundle.rpartition("/")[0]
        engine = process.engine
        truth = self._cluster.truths[engine.context.partition_of(namespace)]
        grant = truth.grants.get((outcome.bundle, outcome.generation))
        if grant is None or grant.broker != outcome.broker:
            raise Violation("answer", f"{process.name} names {outcome}, granted: {grant}")
        key = engine.key(outcome.bundle)
        if key is None or key.state not in (State.ASSIGNED, State.SPLITTING) or key.generation != outcome.generation:
            raise Violation("answer", f"{process.name} names {outcome}, but holds {key!r}")
        self._check_age(process, engine.context.partition_of(namespace))

    def _check_age(self, process: SimProcess, partition: int) -> None:
        """An answer without an age comes from a view in which nothing is missing that is older than the patience."""
        cluster, engine = self._cluster, process.engine
        unread = cluster.logs[partition].next(engine.replicas[partition].position)
        if unread is None:
            return
        config = engine.config
        patience_s = config.safe_after_s + SILENT_BEATS * config.heartbeat_interval_s
        late_s = cluster.events.now_s - cluster.log_s(unread.timestamp_ms)
        if late_s > patience_s + ANSWER_SLACK_S:
            missing = f"has not read offset {unread.offset}, {late_s:.1f} s old"
            raise Violation("age", f"{process.name} takes its view for current, but {missing}")

    def overdue(self) -> list[str]:
        """Commands that should have been answered by now; those of suffering processes do not count."""
        now_s = self._cluster.events.now_s
        return [
            f"{asked.process.name} has not answered {asked.command}"
            for asked in self._open.values()
            if now_s > asked.due_s and asked.process.running and asked.process is not self._cluster.sick
        ]

    # --- what callers want ------------------------------------------------------------------------------------------

    def random_command(self, rng: Random, number: int) -> None:
        cluster = self._cluster
        for process in cluster.alive():
            if process.hung and not process.paused:
                self.check_cache(process)  # its other threads go on
        fit = [process for process in cluster.alive() if not process.halted]
        if not fit:
            return
        process = rng.choice(fit)
        self.ask(process, self._draw(rng, number))

    def _draw(self, rng: Random, number: int) -> Command:
        cluster = self._cluster
        options = cluster.options
        namespace = rng.choice(cluster.namespaces)
        truth = cluster.truths[cluster.processes[0].engine.context.partition_of(namespace)]
        root = truth.view.get(namespace)
        operation = f"op-{number}"
        timeout_s = rng.choice((1.0, 4.0, 8.0))
        if root is None or root.ring is None:
            return CreateNamespace(
                namespace, tuple(namespace_bounds(rng.randint(1, options.bundles))), operation, timeout_s
            )
        bundle = rng.choice([key.name for key in root.ring.live.values()])
        roll = rng.random()
        if roll < 0.08:  # noqa: PLR2004
            return self._odd(rng, namespace, operation)
        if options.splits and roll < 0.2 and len(root.ring.live) < 4 * options.bundles:  # noqa: PLR2004
            return Split(bundle, operation, timeout_s, parts=rng.choice((2, 2, 3)))
        if options.transfers and roll < 0.45:  # noqa: PLR2004
            return Transfer(bundle, rng.choice(cluster.brokers), operation, timeout_s)
        if roll < 0.55:  # noqa: PLR2004
            return Unload(bundle, operation, timeout_s)
        if options.deletions and roll < 0.6:  # noqa: PLR2004
            return DeleteNamespace(namespace, operation, 8.0)
        return Lookup(rng.choice((bundle, f"{namespace}/topic-{rng.randrange(50)}")), timeout_s, rng.random() < 0.2)  # noqa: PLR2004

    def _odd(self, rng: Random, namespace: str, operation: str) -> Command:
        roll = rng.randrange(5)
        if roll == 0:
            return ResumeRepair()
        if roll == 1:
            return Lookup("nonsense", 1.0)
        if roll == 2:  # noqa: PLR2004
            return Transfer(f"{namespace}/0x00000000_0x00000001", "nobody", operation, 2.0)
        if roll == 3 and self._operations:  # noqa: PLR2004
            return AwaitOperation(rng.choice(self._operations[-5:]), 5.0)
        return Split(f"{namespace}/topic-1", operation, 3.0, at=(7, 9))

    def unload_from(self, owner: SimProcess) -> None:
        """Others ask for what a process owns: it may have no part in the end of it."""
        fit = [p for p in self._cluster.alive() if p.engine.caught_up and p is not owner]
        for truth in self._cluster.truths:
            for key in truth.view.live():
                if fit and key.state is State.ASSIGNED and key.to == owner.broker:
                    self.ask(fit[0], Unload(key.name, f"unload-{key.name}", 5.0))

    def ask_for_owners(self, process: SimProcess) -> None:
        if process.alive and not process.halted:
            for truth in self._cluster.truths:
                for key in truth.view.live():
                    self.ask(process, Lookup(key.name, 1.0, read_only=True))

    def touch_everything(self) -> None:
        """Liveness: every bundle is looked up, so that every one gets an owner."""
        for truth in self._cluster.truths:
            names = [key.name for key in truth.view.live()]
            fit = [p for p in self._cluster.alive() if p.engine.caught_up and p is not self._cluster.sick]
            for index, name in enumerate(names):
                if fit:
                    self.ask(fit[index % len(fit)], Lookup(name, 10.0))
