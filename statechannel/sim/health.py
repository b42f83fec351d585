"""The liveness phase: faults are over, so within a bound everything that was begun must have ended."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from statechannel.protocol.log import Topic
from statechannel.protocol.states import IN_FLIGHT, State
from statechannel.sim.checks import overlap
from statechannel.sim.endurance import endure_flood, join_in_a_trickle, join_without_a_clock
from statechannel.sim.faults import sicknesses
from statechannel.sim.process import READ, WRITE, SimLink, SimProcess
from statechannel.sim.truth import compare
from statechannel.sim.violation import Violation

if TYPE_CHECKING:
    from statechannel.sim.checks import SimChecks
    from statechannel.sim.clients import Clients
    from statechannel.sim.cluster import SimCluster
    from statechannel.sim.election import Election

LIVENESS_BOUND_S = 75.0
QUIET_S = 3.0
MEMBERS_AT_LEAST = 2
SICK_FOR_S = 40.0
LEADER_SHARE = 0.8
HUNG, FROZEN = SimLink("hung"), SimLink("frozen")


class LivenessPhase:
    """The end of a run: the cluster recovers, and is judged."""

    def __init__(self, cluster: SimCluster, election: Election, clients: Clients, checks: SimChecks) -> None:
        self._cluster = cluster
        self._election = election
        self._clients = clients
        self._checks = checks

    def settle(self) -> None:
        """Let the cluster recover, and judge it; then, perhaps, once more with one member left sick."""
        cluster = self._cluster
        cluster.faulty = False
        cluster.note("faults are over")
        for process in cluster.alive():
            process.slow = False
            process.crash_after = None
            process.heal()
            process.wake()
        self._await_health(at_least_s=0.0)
        cluster.events.run_until(cluster.events.now_s + QUIET_S)
        self._check_end()
        options = cluster.options
        if options.trickle:
            join_in_a_trickle(cluster, Random(f"{cluster.seed}/trickle"), self._checks.marks)
            self._await_health(at_least_s=0.0)
        if options.deaf_joiners:
            join_without_a_clock(cluster, Random(f"{cluster.seed}/deaf joiners"))
            self._await_health(at_least_s=0.0)
        if options.registry_floods:
            endure_flood(cluster, Random(f"{cluster.seed}/registry floods"))
            self._await_health(at_least_s=0.0)
        if options.sick or options.sick_owners or options.sick_starters:
            if options.sick_owners:
                self._sicken_owner(Random(f"{cluster.seed}/sick owners"))
            elif options.sick:
                self._sicken(Random(f"{cluster.seed}/sick"))
            else:
                self._sicken_starter(Random(f"{cluster.seed}/sick starters"))
            self._await_health(at_least_s=SICK_FOR_S)
            cluster.events.run_until(cluster.events.now_s + QUIET_S)
            self._check_end()

    def _await_health(self, *, at_least_s: float) -> None:
        """Return once nothing is wrong, every bundle having been looked up, but not before some time has passed."""
        cluster = self._cluster
        started_s = cluster.events.now_s
        problems = ["not looked at yet"]
        touched = False
        while problems:
            if cluster.events.now_s - started_s > at_least_s + LIVENESS_BOUND_S:
                raise Violation("liveness", f"after {LIVENESS_BOUND_S:g} s: " + "; ".join(problems[:6]))
            self._restart_missing()
            cluster.events.run_until(cluster.events.now_s + 1.0)
            problems = self._unwell()
            if cluster.events.now_s - started_s < at_least_s:
                problems = ["too early to judge"]
            elif not problems and not touched:
                touched = True
                self._clients.touch_everything()
                problems = ["every bundle was looked up"]
        cluster.trace.count("healthy after s", int(cluster.events.now_s - started_s))

    def _sicken(self, rng: Random) -> None:
        """One member falls sick and stays so: most often the one that leads."""
        cluster = self._cluster
        holder, alive = self._election.holder, cluster.alive()
        sick = holder if holder in alive and rng.random() < LEADER_SHARE else rng.choice(alive)
        cluster.sick = sick
        ways = [*sicknesses(cluster), [HUNG], [HUNG, FROZEN]]
        chosen = rng.choice(ways)
        cluster.note(f"{sick.name} stays sick: {', '.join(map(str, chosen))}")
        cluster.trace.count(f"left sick: {' and '.join(sorted({link.way for link in chosen}))}")
        if FROZEN in chosen and holder is sick:
            self._election.frozen = sick
        if HUNG in chosen:
            sick.hang()
        else:
            sick.sever(chosen)
        self._clients.unload_from(sick)

    def _sicken_owner(self, rng: Random) -> None:
        """One member that owns bundles loses connections for good; what becomes of the bundles is up to the others."""
        cluster = self._cluster
        cluster.sick = sick = self._choose_owner(rng)
        chosen = rng.choice(sicknesses(cluster))
        cluster.note(f"{sick.name}, which owns {len(sick.served)} bundles, stays sick: {', '.join(map(str, chosen))}")
        cluster.trace.count("owners left sick")
        sick.sever(chosen)

    def _sicken_starter(self, rng: Random) -> None:
        """An owner dies, and a process that starts under its id can write its heartbeats, but reads the registry no more."""
        cluster = self._cluster
        owner = self._choose_owner(rng)
        cluster.note(f"{owner.name}, which owns {len(owner.served)} bundles, dies for good")
        owner.end("crash")
        cluster.sick = sick = cluster.spawn(owner.broker)
        while sick.alive and not sick.engine.context.announced:
            cluster.events.run_until(cluster.events.now_s + 0.0005)
        sick.sever([SimLink(READ, Topic.REGISTRY, 0)])
        cluster.note(f"{sick.name} reads the registry no more")
        cluster.trace.count("starters left sick")

    def _choose_owner(self, rng: Random) -> SimProcess:
        cluster = self._cluster
        owners = sorted((process for process in cluster.alive() if process.served), key=lambda process: process.name)
        return rng.choice(owners or cluster.alive())

    def _restart_missing(self) -> None:
        cluster = self._cluster
        for broker in cluster.brokers[: max(MEMBERS_AT_LEAST, cluster.options.brokers)]:
            if not any(process.broker == broker for process in cluster.alive()):
                cluster.spawn(broker)

    def _unwell(self) -> list[str]:
        """What is not as it should be, whoever is left sick: the others lead, repair, serve and answer."""
        cluster = self._cluster
        alive = [process for process in cluster.alive() if process is not cluster.sick]
        problems = [
            f"{p.name} is not caught up ({_phases(p.engine.replicas)})" for p in alive if not p.engine.caught_up
        ]
        problems += [f"{p.name} is in mode {p.engine.mode}" for p in alive if p.engine.mode != "normal"]
        problems += [f"{p.name} takes no bundles" for p in alive if not p.engine.accepting and not p.engine.draining]
        problems += [f"{p.name} is not fit to lead" for p in alive if not p.engine.candidacy.seat.fit]
        ids = [process.broker for process in alive]
        problems += [
            f"{process.name} is not the only {process.broker}" for process in alive if ids.count(process.broker) > 1
        ]
        problems += self._led_wrongly(alive)
        served = {(bundle, generation) for p in cluster.alive() for bundle, generation in p.engine.serving().items()}
        silent = cluster.sick is not None and self._silent(cluster.sick)
        for truth in cluster.truths:
            if truth.debts and truth.debts[-1]:
                problems.append(f"debts: {sorted(truth.debts[-1])[:3]}")
            for key in truth.view.live():
                if key.state in IN_FLIGHT:
                    problems.append(f"in flight: {key!r}")
                elif key.state is State.ASSIGNED and (key.name, key.version) not in served:
                    problems.append(f"not served: {key!r}")
                elif (
                    key.state is State.ASSIGNED
                    and silent
                    and cluster.sick is not None
                    and key.to == cluster.sick.broker
                ):
                    problems.append(f"left to who is not heard: {key!r}")
        problems += self._clients.overdue()
        return problems

    def _led_wrongly(self, alive: list[SimProcess]) -> list[str]:
        leaders = [process.name for process in alive if process.engine.leading]
        if self._election.frozen is not None:
            deputies = [process.name for process in alive if process.engine.deputizing]
            return [] if len(deputies) == 1 and not leaders else [f"deputies: {deputies}, leaders: {leaders}"]
        sick = self._cluster.sick
        if sick is not None and sick.engine.leading and sick is self._election.holder and _may_lead(sick):
            return []
        return [] if len(leaders) == 1 else [f"leaders: {leaders}"]

    def _silent(self, sick: SimProcess) -> bool:
        """Whether the others hear nothing of it."""
        return sick.hung or not sick.reaches(WRITE, self._cluster.registry.topic, 0)

    def _check_end(self) -> None:
        """All agree, and what is served is served once; who is left sick may serve on at an old generation."""
        cluster = self._cluster
        alive = [process for process in cluster.alive() if process is not cluster.sick]
        for process in alive:
            for replica, truth in zip(process.engine.replicas, cluster.truths, strict=True):
                if replica.caught_up:
                    compare(process.name, replica.view, truth)
        claims = [(process.name, bundle) for process in alive for bundle in process.engine.serving()]
        for index, (name, bundle) in enumerate(claims):
            for other, second in claims[:index]:
                if overlap(bundle, second):
                    raise Violation("serving", f"healthy, but {other} serves {second} and {name} serves {bundle}")
        late = self._clients.overdue()
        if late:
            raise Violation("answer", late[0])
        cluster.trace.count("bundles served at the end", len(claims))


def _may_lead(sick: SimProcess) -> bool:
    """Whether what it lost is not needed to lead."""
    return not sick.severed and not sick.hung


def _phases(replicas: object) -> str:
    return ", ".join(f"{r.phase}: {r.why}" for r in replicas)  # type: ignore[attr-defined]
