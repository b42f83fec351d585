"""An observer in a simulated cluster: it only reads, suffers as brokers do, and what it answers has to be true. And canaries."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from statechannel.engine.canary import Canary, CanaryAnswer
from statechannel.engine.canary_finding import CanaryReason
from statechannel.engine.commands import Owned, Undetermined
from statechannel.engine.config import OBSERVER
from statechannel.engine.context import Mode
from statechannel.engine.lookups import NO_BROKER
from statechannel.protocol.states import State
from statechannel.sim.process import SimProcess
from statechannel.sim.trace import Violation
from statechannel.sim.truth import compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from statechannel.engine.canary import CanaryQuestion
    from statechannel.engine.canary_finding import CanaryFinding
    from statechannel.engine.commands import Outcome
    from statechannel.engine.effects import Append, Emit
    from statechannel.engine.inputs import Input
    from statechannel.protocol.log import Topic
    from statechannel.sim.checks import SimChecks
    from statechannel.sim.cluster import SimCluster

FAULT_EVERY_S = 9.0
FAULT_MAX_S = 8.0
TOPICS = 50
WELL_S = 15.0
ASK_EVERY_S = 1.0
CANARY_EVERY_S = 0.4
CANARY_CONFIRM_S = 2.0
TRAVEL_MAX_S = 0.4
OTHERS_SHARE = 0.3
"""Of the questions: to a broker that may not own the bundle."""
PAUSE_MAX_S = 1.5
"""A registry that is quieter than this may be out of reach: after that the silence of brokers does not count for a while."""
SILENT_MAX_S = 10.5
"""The expiry, settling, and the way of a record."""


class SimObserver:
    """One observer from the start of a run to its end; its faults are its own, so that the brokers' run is the same without it.

    Args:
        check_owner: Raises `Violation` if an owner that a process names is not the one by the log, or its view is too old.
    """

    def __init__(
        self, cluster: SimCluster, checks: SimChecks, check_owner: Callable[[SimProcess, Owned], None]
    ) -> None:
        self._cluster = cluster
        self._checks = checks
        self._check_owner = check_owner
        self._rng = Random(f"{cluster.seed}/observer")
        self.process = SimProcess(cluster, self, OBSERVER, 0, observes=True)

    def start(self) -> None:
        """Begin to read, and to suffer."""
        self.process.start()
        self._ask_ends()
        self._plan_fault()

    def notify(self, topic: Topic, partition: int) -> None:
        """A record was written."""
        self.process.notify(topic, partition)

    def _ask_ends(self) -> None:
        if self.process.running:
            self.process.ask_ends()
        self._cluster.events.after(ASK_EVERY_S, self._ask_ends)

    def _plan_fault(self) -> None:
        self._cluster.events.after(self._rng.uniform(0.2, 2 * FAULT_EVERY_S), self._suffer)

    def _suffer(self) -> None:
        process, cluster = self.process, self._cluster
        if not cluster.faulty:
            return
        ail = self._rng.choice((process.pause, process.hang, process.cut_off, process.reopen))
        ail()
        cluster.trace.count("faults of the observer")
        cluster.events.after(self._rng.uniform(0.1, FAULT_MAX_S), self._recover)
        self._plan_fault()

    def _recover(self) -> None:
        self.process.heal()
        self.process.wake()

    # --- what it does -----------------------------------------------------------------------------------------------

    def stepped(self, process: SimProcess, event: Input) -> None:
        """Any name, after each step: as the cache has it, and as a look has it."""
        del event
        namespace = self._rng.choice(self._cluster.namespaces)
        name = f"{namespace}/topic-{self._rng.randrange(TOPICS)}"
        lookups = process.engine.lookups
        seen = lookups.peek(lookups.answer_now, name)
        cached = process.engine.cached_owner(process.now.mono_s, name)
        if cached is not None and cached != seen:
            raise Violation("cache", f"{process.name} has {cached} in its cache, and answers {seen}")
        if isinstance(seen, Owned):
            self._check(process, seen)

    def _check(self, process: SimProcess, owned: Owned) -> None:
        self._cluster.trace.count("owners named by the observer")
        context = process.engine.context
        if owned.broker not in context.members.alive:
            raise Violation("lost-owner", f"{process.name} names {owned}, which it does not hear")
        if owned.stale_age_s is None:
            self._check_owner(process, owned)
            self._check_lives(process, owned)
        else:
            self._cluster.trace.count("owners with an age named by the observer")

    def _check_lives(self, process: SimProcess, owned: Owned) -> None:
        """An observer that is well names no broker that has been silent for so long that anybody would call it lost."""
        cluster = self._cluster
        now_s = cluster.events.now_s
        if not process.undisturbed or now_s - process.well_since_s < WELL_S:
            return
        newer_s = now_s
        for entry in reversed(cluster.registry.entries):
            spoke_s = cluster.log_s(entry.timestamp_ms)
            if newer_s - spoke_s > PAUSE_MAX_S or entry.key == owned.broker.encode():
                return  # silence before a pause of all does not count; or this broker was heard
            if now_s - spoke_s > SILENT_MAX_S:
                raise Violation("lost-owner", f"{process.name} names {owned}, silent for {now_s - spoke_s:.1f} s")
            newer_s = spoke_s

    def writes(self, process: SimProcess, append: Append) -> None:
        raise Violation("observer", f"{process.name} writes {append}")

    def stands(self, process: SimProcess, *, stand: bool) -> None:
        raise Violation("observer", f"{process.name} enters or leaves the election ({stand})")

    def completed(self, process: SimProcess, token: int, outcome: Outcome) -> None:
        raise Violation("observer", f"{process.name} answers {token}, which was not asked: {outcome}")

    def emitted(self, process: SimProcess, emit: Emit) -> None:
        if emit.event.startswith(("leader.", "deputy.", "lease.", "membership.")):
            raise Violation("observer", f"{process.name} takes itself for a member: {emit.event}")

    def ended(self, process: SimProcess) -> None:
        raise Violation("observer", f"{process.name} ends: {process.reason}")

    def judges_by_another_history(self, process: SimProcess, partition: int) -> bool:
        return self._checks.judges_by_another_history(process, partition)

    # --- the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The faults are over."""
        self._recover()

    def problems(self) -> list[str]:
        """What it does not see, once the brokers are well: every owner, as of now."""
        process = self.process
        if not process.engine.caught_up:
            return [f"{process.name} is not caught up"]
        problems = []
        for truth in self._cluster.truths:
            for key in truth.view.live():
                if key.state is not State.ASSIGNED:
                    continue
                lookups = process.engine.lookups
                seen = lookups.peek(lookups.answer_now, key.name)
                if not isinstance(seen, Owned) or seen.stale_age_s is not None or seen.broker != key.owner:
                    problems.append(f"{process.name} answers {seen} for {key!r}")
        return problems

    def check_deserted(self) -> None:
        """All brokers have been dead for a while: it names none of them as of now, and says that none lives."""
        process = self.process
        lookups = process.engine.lookups
        for truth in self._cluster.truths:
            for key in truth.view.live():
                seen = lookups.peek(lookups.answer_now, key.name)
                if isinstance(seen, Owned) or (isinstance(seen, Undetermined) and seen.reason != NO_BROKER):
                    raise Violation("deserted", f"no broker lives, and {process.name} answers {seen} for {key!r}")
                self._cluster.trace.count("answers of the observer that no broker lives")

    def check_end(self) -> None:
        """Its view is the truth."""
        for replica, truth in zip(self.process.engine.replicas, self._cluster.truths, strict=True):
            if replica.caught_up:
                compare(self.process.name, replica.view, truth)


class SimCanaries:
    """A canary of each broker; their randomness is their own, and no engine learns of them: the run is the same without."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._rng = Random(f"{cluster.seed}/canaries")
        self._canaries: dict[str, Canary] = {}
        self._silenced_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}

    def start(self) -> None:
        """Begin to ask."""
        self._cluster.events.after(CANARY_EVERY_S, self._turn)

    def _turn(self) -> None:
        self._cluster.events.after(CANARY_EVERY_S, self._turn)
        for process in self._cluster.alive():
            if process.engine.context.mode is not Mode.NORMAL or process.engine.context.lease_ran_out:
                self._silenced_s[process.incarnation] = self._cluster.events.now_s
            if process.running:
                self._ask(process)

    def _ask(self, process: SimProcess) -> None:
        context = process.engine.context
        canary = self._canaries.get(process.incarnation)
        if canary is None:
            canary = Canary(context, self._rng.randrange, confirm_s=CANARY_CONFIRM_S, by_hook=True)
            self._canaries[process.incarnation] = canary
        for finding in canary.review(process.now.wall_ms):
            self._cluster.trace.count("findings of canaries")
            self._check(process, finding)
        names = [key.name for replica in context.replicas for key in replica.view.live()]
        if names and self._rng.random() < OTHERS_SHARE:
            canary.moved(process.mono_s, self._rng.choice(names), self._rng.choice(sorted(self._cluster.brokers)))
        question = canary.next(process.mono_s)
        if question is not None:
            self._cluster.trace.count("questions of canaries")
            self._cluster.events.after(self._travel_s(), lambda: self._arrive(process, canary, question))

    def _travel_s(self) -> float:
        return self._rng.uniform(0.001, TRAVEL_MAX_S)

    def _process_of(self, question: CanaryQuestion) -> SimProcess | None:
        """Who is asked; None if it has died, or stands still."""
        alive = (process for process in self._cluster.alive() if process.incarnation == question.incarnation)
        target = next(alive, None)
        return None if target is None or target.halted else target

    def _arrive(self, process: SimProcess, canary: Canary, question: CanaryQuestion) -> None:
        target = self._process_of(question)
        if target is None:
            answer = CanaryAnswer(error="no answer")
        else:
            answer = CanaryAnswer(target.engine.lease.serves_at(question.bundle, target.mono_s))
            self._answered_s[target.broker] = self._cluster.events.now_s
        self._cluster.events.after(self._travel_s(), lambda: self._come_back(process, canary, question, answer))

    def _come_back(self, process: SimProcess, canary: Canary, question: CanaryQuestion, answer: CanaryAnswer) -> None:
        if not process.running:
            return
        canary.judge(process.mono_s, process.now.wall_ms, question, answer)

    def _check(self, process: SimProcess, finding: CanaryFinding) -> None:
        asked = [other for other in self._cluster.alive() if other.broker == finding.broker and not other.halted]
        target, now_s = (asked[-1] if asked else None), self._cluster.events.now_s
        report = f"{process.name}'s canary: {finding.message}"
        if target is None:
            # It may have answered, and ended since.
            answered_s = now_s - self._answered_s.get(finding.broker, -math.inf)
            if finding.reason is not CanaryReason.NO_ANSWER and answered_s >= WELL_S:
                raise Violation("canary", f"{report}; it does not run any more")
            return
        # Where the registry is away for all, an owner that is well stops, too, and the log names it until it is back.
        well_since_s = max(target.well_since_s, self._silenced_s.get(target.incarnation, 0.0))
        if target.undisturbed and now_s - well_since_s >= WELL_S:
            raise Violation("canary", f"{report}; but {target.name} has been well for {WELL_S:g} s")
        serves = target.engine.lease.serves_at(finding.bundle, target.mono_s)
        if finding.reason is CanaryReason.NOT_SERVING and serves == finding.generation:
            raise Violation("canary", f"{report}; but it does")
