"""An observer in a simulated cluster: it only reads, suffers as brokers do, and what it answers has to be true."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from statechannel.engine.commands import Owned, Undetermined
from statechannel.engine.config import OBSERVER
from statechannel.engine.lookups import NO_BROKER
from statechannel.protocol.states import State
from statechannel.sim.process import SimProcess
from statechannel.sim.trace import Violation
from statechannel.sim.truth import compare

if TYPE_CHECKING:
    from collections.abc import Callable

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
        for replica, truth in zip(self.process.engine.replicas, self._cluster.truths, strict=True):
            if replica.caught_up:
                compare(self.process.name, replica.view, truth)
