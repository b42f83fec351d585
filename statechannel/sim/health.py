"""The liveness phase: faults are over, so within a bound everything that was begun must have ended.

Some runs add junk that does not end: in a trickle, each record on a key of its own, members go on to vouch and joins go on to
end; in a flood of the registry, while each process takes time for what it reads, no view of the channel falls behind.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from statechannel.engine import freshness
from statechannel.engine.commands import PreStop, Shutdown
from statechannel.engine.context import Mode
from statechannel.engine.inputs import HeadLost
from statechannel.protocol.codec import encode
from statechannel.protocol.log import Topic
from statechannel.protocol.states import IN_FLIGHT, State, is_left_by_shutdown
from statechannel.sim.checks import overlap
from statechannel.sim.drafts import Scribe
from statechannel.sim.faults import sicknesses
from statechannel.sim.options import LAG_S
from statechannel.sim.process import READ, WRITE, SimLink, SimProcess
from statechannel.sim.trace import Violation
from statechannel.sim.truth import compare, vouched_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statechannel.sim.checks import SimChecks
    from statechannel.sim.clients import Clients
    from statechannel.sim.cluster import SimCluster
    from statechannel.sim.election import Election
    from statechannel.sim.log import SimLog
    from statechannel.sim.observer import SimObserver


LIVENESS_BOUND_S = 75.0
QUIET_S = 3.0
MEMBERS_AT_LEAST = 2
SICK_FOR_S = 40.0
LEAVE_WITHIN_S = 5.0
PREPARES_SHARE = 0.4
LEADER_SHARE = 0.8
DESERTED_S = 30.0
"""The expiry, settling, and time for an observer that has met its last fault a moment ago."""
WATCH_S = 5.0
"""Between two looks of a member's watch over the topics."""
HUNG, FROZEN = SimLink("hung"), SimLink("frozen")


class LivenessPhase:
    """The end of a run: the cluster recovers, and is judged."""

    def __init__(
        self,
        cluster: SimCluster,
        election: Election[SimProcess],
        clients: Clients,
        checks: SimChecks,
        observer: SimObserver | None,
    ) -> None:
        self._cluster = cluster
        self._observer = observer
        self._election = election
        self._clients = clients
        self._checks = checks
        self._wanted: set[str] = set()

    def settle(self) -> None:
        """Let the cluster recover, and judge it; then, perhaps, once more with one member left sick."""
        cluster = self._cluster
        cluster.faulty = False
        cluster.note("faults are over")
        if self._observer is not None:
            self._observer.settle()
        for process in cluster.alive():
            process.slow = False
            process.crash_after = None
            process.heal()
            process.wake()
        self._await_health(at_least_s=0.0)
        cluster.events.run_until(cluster.events.now_s + QUIET_S)
        self._check_end()
        options = cluster.options
        if options.joint_shutdowns:
            self._shut_down_together(Random(f"{cluster.seed}/joint shutdowns"))
        if options.trickle:
            join_in_a_trickle(cluster, Random(f"{cluster.seed}/trickle"), self._checks.marks)
            self._await_health(at_least_s=0.0)
        if options.lost_heads:
            join_behind_lost_heads(cluster, Random(f"{cluster.seed}/lost heads"))
            self._await_health(at_least_s=0.0)
        if options.bent_views:
            differ(cluster, Random(f"{cluster.seed}/bent views"))
            self._await_health(at_least_s=0.0)
        if options.deaf_joiners:
            join_without_a_clock(cluster, Random(f"{cluster.seed}/deaf joiners"))
            self._await_health(at_least_s=0.0)
        if options.registry_floods:
            self._await_delayed_writes()
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

    def desert(self) -> None:
        """At last every broker dies, and who only reads has to notice, although nothing is written any more."""
        if self._observer is None:
            return
        cluster = self._cluster
        for process in cluster.alive():
            process.end("the end of all brokers")
        cluster.events.run_until(cluster.events.now_s + DESERTED_S)
        self._observer.check_deserted()

    def _shut_down_together(self, rng: Random) -> None:
        """Members leave at the same moment, perhaps all: what was served is served again, although no client asks for it."""
        cluster = self._cluster
        alive = cluster.alive()
        leaving = rng.sample(alive, rng.randint(MEMBERS_AT_LEAST, len(alive)))
        cluster.note(f"{', '.join(process.name for process in leaving)} leave at the same moment")
        cluster.trace.count("joint shutdowns")
        self._wanted = {
            key.name for truth in cluster.truths for key in truth.view.live() if key.state is State.ASSIGNED
        }
        for process in leaving:
            if rng.random() < PREPARES_SHARE:
                self._clients.ask(process, PreStop(LEAVE_WITHIN_S))
                cluster.events.after(rng.uniform(0.0, LEAVE_WITHIN_S), partial(self._leave, process))
            else:
                self._leave(process)
        self._await_health(at_least_s=LEAVE_WITHIN_S)
        self._wanted = set()

    def _leave(self, process: SimProcess) -> None:
        if process.alive:
            self._clients.ask(process, Shutdown(LEAVE_WITHIN_S))

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

    def _await_delayed_writes(self) -> None:
        """Let all that a fault delayed arrive, and the cluster recover from it.

        Heartbeats queue behind a record of their producer that is late: its writer, or a partition, seems silent for seconds
        after the faults are over, also if all were well a moment before. A flood is not to blame for that.
        """
        cluster = self._cluster
        delayed_until_s = max(process.writes_delayed_until_s for process in cluster.alive())
        cluster.events.run_until(max(cluster.events.now_s, delayed_until_s))
        self._await_health(at_least_s=0.0)

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
        """What is not as it should be, whichever member is left sick: the others lead, repair, serve and answer."""
        cluster = self._cluster
        alive = [process for process in cluster.alive() if process is not cluster.sick]
        problems = [f"{p.name} is not caught up ({_phases(p)})" for p in alive if not p.engine.caught_up]
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
                elif key.state is State.UNASSIGNED and key.name in self._wanted:
                    problems.append(f"left without an owner: {key!r}")
                elif is_left_by_shutdown(key.state, key.flow):
                    problems.append(f"left by a shutdown: {key!r}")
                elif key.state is State.ASSIGNED and (key.name, key.version) not in served:
                    problems.append(f"not served: {key!r}")
                elif (
                    key.state is State.ASSIGNED
                    and silent
                    and cluster.sick is not None
                    and key.to == cluster.sick.broker
                ):
                    problems.append(f"left to who is not heard: {key!r}")
        if self._observer is not None and not problems:
            problems += self._observer.problems()
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
        return sick.hung or not sick.reaches(WRITE, self._cluster.registry.topic, 0)

    def _check_end(self) -> None:
        """All agree, and what is served is served once; who is left sick may serve on at an old generation."""
        cluster = self._cluster
        alive = [process for process in cluster.alive() if process is not cluster.sick]
        for process in alive:
            for replica, truth in zip(process.engine.replicas, cluster.truths, strict=True):
                if replica.caught_up:
                    compare(process.name, replica.view, truth)
        if self._observer is not None:
            self._observer.check_end()
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
    return not sick.severed and not sick.hung


def _phases(process: SimProcess) -> str:
    return ", ".join(f"{replica.phase}: {replica.why}" for replica in process.engine.replicas)


RATES = (1.0, 2.0, 5.0, 5.0)
ALONE_S = 16.0
"""Longer than half the lag and the time after which debts are paid at once: by then some heartbeat was clean again."""
ALONE_SHARE = 0.5
JOIN_S = 12.0
UNREAD_SHARE = 0.3
UNREAD_S = 1.5
COLD_S = 30.0
"""Until one of the members that wait goes on from what it had read, because none holds more."""
BENT_SHARE = 0.5
DIFFERS_WITHIN_S = 15.0
"""The leader says once a second what it holds; a joiner that waits compares on its first word."""
DEAF_RATES = (6.0, 8.0)
"""At least one record between two ticks: there is a moment without debt only if debts are paid as they are read."""
DEAF_LAG_S = 30.0
DEAF_JOIN_S = 5.0

WAVES = 4
WAVE_RECORDS = 1_300
WAVE_EVERY_S = 2.0
"""The registry itself is behind by 1.3 s then: less than the silence from which on a member goes to safe mode."""
BEHIND_MAX_S = 1.8
"""The leader's heartbeats come each second, at a tick; the rest is for the way, and for some portions of the flood."""


class Trickle:
    """Writes junk at a rate until it is ended."""

    def __init__(self, cluster: SimCluster, rng: Random, rates: Sequence[float] = RATES) -> None:
        self._cluster, self._rng = cluster, rng
        self._scribe = Scribe("x", "i8")
        self._count = 0
        self._gap_s = 1.0 / rng.choice(rates)
        self.is_on = True

    def write(self) -> None:
        cluster = self._cluster
        if not self.is_on:
            return
        self._count += 1
        namespace = self._rng.choice(cluster.namespaces)
        bounds = f"0x{self._count:08x}_0x{self._count + 1:08x}"
        fields = self._scribe.head("proposal", -1) | {"version": 7, "base": "zz", "state": State.ASSIGNED}
        value = encode(fields | {"from": None, "to": "x"})
        partition = cluster.partition_of(namespace)
        cluster.append("trickle", Topic.CHANNEL, partition, f"{namespace}/{bounds}".encode(), value)
        cluster.events.after(self._gap_s, self.write)


def join_in_a_trickle(cluster: SimCluster, rng: Random, marks: Callable[[int], Sequence[int]]) -> None:
    """Let it trickle: perhaps the members alone at first, then one who joins; both are judged while it goes on.

    Args:
        marks: Offsets of the marks of cold starts that count, of a partition.
    """
    trickle = Trickle(cluster, rng)
    cluster.note("junk begins to trickle")
    for process in cluster.alive():
        process.slow = False  # a cold start at the end may have left its leader so
    cluster.trace.count("trickles")
    trickle.write()
    if rng.random() < ALONE_SHARE:
        cluster.events.run_until(cluster.events.now_s + ALONE_S)
        for log in cluster.logs:
            if vouched_to(log, log.end, cluster.now_ms, marks=marks(log.partition)) < 0:
                raise Violation(
                    "unvouched", f"no heartbeat has vouched for partition {log.partition} for {LAG_S / 2:g} s"
                )
    process = cluster.spawn_newcomer()
    _await_join(cluster, process, "a trickle")
    trickle.is_on = False


def _await_join(cluster: SimCluster, process: SimProcess, fault: str, *, within_s: float = JOIN_S) -> None:
    until_s = cluster.events.now_s + within_s
    while not process.engine.caught_up:
        if cluster.events.now_s > until_s or not process.alive:
            raise Violation(
                "starved", f"{process.broker} has not joined within {within_s:g} s of {fault}: {_phases(process)}"
            )
        cluster.events.run_until(cluster.events.now_s + 0.5)


def join_behind_lost_heads(cluster: SimCluster, rng: Random) -> None:
    """The heads of the channel's logs are deleted, which members learn within a look of their watch; one joins meanwhile.

    Perhaps all members read too late for the newest records, which are deleted as well.
    """
    cluster.note("the heads of the logs are deleted")
    cluster.trace.count("lost heads")
    members = cluster.alive()
    unread = rng.random() < UNREAD_SHARE
    if unread:
        for process in members:
            process.lag_s[Topic.CHANNEL] = 2 * UNREAD_S
        cluster.events.run_until(cluster.events.now_s + UNREAD_S)
    for log in cluster.logs:
        read = min(process.engine.replicas[log.partition].position for process in members)
        log.delete_head(log.end if unread else rng.randint(1, max(1, read)))
        for process in members:
            cluster.events.after(rng.uniform(0.0, WATCH_S), partial(_learn, process, log))
    for process in members if unread else ():
        process.heal()
    cluster.events.run_until(cluster.events.now_s + rng.uniform(0.0, 2 * WATCH_S))
    newcomer = cluster.spawn_newcomer()
    _await_join(cluster, newcomer, "a lost head", within_s=JOIN_S + (COLD_S if unread else 0.0))
    for replica in newcomer.engine.replicas:
        compare(newcomer.name, replica.view, cluster.truths[replica.partition])


def differ(cluster: SimCluster, rng: Random) -> None:
    """One process holds another state than all others: a member whose view is bent, or one that joins on a log with a loss.

    Within a bound a member reports it, and names it; no member stops, and none joins leniently on such a log.
    """
    places = [
        (truth.view.partition, key.key) for truth in cluster.truths for key in truth.view.existing() if key.is_namespace
    ]
    if not places:
        return
    if cluster.differing:
        raise Violation("differs", f"reported although all views are the same: {sorted(cluster.differing)}")
    partition, name = rng.choice(places)
    if rng.random() < BENT_SHARE:
        bent = rng.choice(cluster.alive())
        view = bent.engine.replicas[partition].view
        key = view.keys[name]
        view.place(key, key.state or State.DELETED, key.version, None, None)
        key.record_id = "bent"
        cluster.note(f"{bent.name} holds another id of {name.decode()}")
        cluster.trace.count("bent views")
    else:
        bent = cluster.spawn_newcomer()
        entries = cluster.logs[partition].entries
        bent.lose(partition, frozenset(entry.offset for entry in entries if entry.key == name))
        cluster.note(f"{bent.name} is not given the records of {name.decode()}")
        cluster.trace.count("joins on a log with a loss")
    cluster.bent = cluster.sick = bent
    until_s = cluster.events.now_s + DIFFERS_WITHIN_S
    while not any(bent.name == who or bent.broker == member for who, member in cluster.differing):
        if cluster.events.now_s > until_s:
            raise Violation(
                "unnoticed", f"no member has reported within {DIFFERS_WITHIN_S:g} s that {bent.name} differs"
            )
        cluster.events.run_until(cluster.events.now_s + 0.5)
        replica = bent.engine.replicas[partition]
        if bent.has_lost and replica.caught_up and not replica.strict:
            compare(bent.name, replica.view, cluster.truths[partition])
    if not bent.alive:
        raise Violation("differs", f"{bent.name} has stopped although it may be right: {bent.reason}")
    bent.end("its view is bent")
    cluster.bent = cluster.sick = None


def _learn(process: SimProcess, log: SimLog) -> None:
    if process.alive and process.reachable:
        process.take(HeadLost(log.partition, log.first_offset))


def join_without_a_clock(cluster: SimCluster, rng: Random) -> None:
    """One joins, and does not hear itself in the registry: without Kafka's clock it has to wait for a clean heartbeat.

    All others hear that it joins: so long debts are paid as they are read.
    """
    trickle = Trickle(cluster, rng, DEAF_RATES)
    cluster.note("junk begins to trickle, faster")
    for process in cluster.alive():
        process.slow = False
    trickle.write()
    process = cluster.spawn_newcomer()
    while process.alive and not process.engine.context.announced:
        cluster.events.run_until(cluster.events.now_s + 0.0005)
    process.lag_s[Topic.REGISTRY] = DEAF_LAG_S
    until_s = cluster.events.now_s + DEAF_JOIN_S
    while process.engine.presence.clock_ahead_ms is None and not process.engine.caught_up:
        if cluster.events.now_s > until_s or not process.alive:
            raise Violation(
                "starved",
                f"{process.broker} has waited for a clean heartbeat for {DEAF_JOIN_S:g} s: {_phases(process)}",
            )
        cluster.events.run_until(cluster.events.now_s + 0.1)
    if process.engine.presence.clock_ahead_ms is None:
        cluster.trace.count("deaf joiners")
    trickle.is_on = False
    process.heal()


def endure_flood(cluster: SimCluster, rng: Random) -> None:
    """Waves of junk in the registry: everybody stays in normal mode, and no view of the channel falls behind."""
    cluster.note("junk floods the registry")
    cluster.trace.count("registry floods")
    for process in cluster.alive():
        process.slow = False
        process.lanes.is_open = True
    for _ in range(WAVES):
        for number in range(WAVE_RECORDS):
            cluster.registry.append(cluster.now_ms, b"junk-%d" % (number % 7), b"junk")
        for process in cluster.alive():
            process.notify(Topic.REGISTRY, 0)
        until_s = cluster.events.now_s + WAVE_EVERY_S + rng.uniform(0.0, 0.3)
        while cluster.events.now_s < until_s:
            cluster.events.run_until(cluster.events.now_s + 0.05)
            for process in cluster.alive():
                _check(process)
    for process in cluster.alive():
        process.lanes.is_open = False


def _check(process: SimProcess) -> None:
    engine = process.engine
    if engine.mode is not Mode.NORMAL:
        raise Violation("flooded", f"{process.name} is in mode {engine.mode} in a flood of the registry")
    for replica in engine.replicas:
        behind_s = freshness.lag_s(engine.now, replica)
        if behind_s > BEHIND_MAX_S:
            where = f"partition {replica.partition}"
            raise Violation(
                "flooded", f"{process.name} is {behind_s:.2f} s behind in {where} in a flood of the registry"
            )
