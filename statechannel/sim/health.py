"""The liveness phase: faults are over, so within a bound everything that was begun must have ended."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from statechannel.protocol.log import Topic
from statechannel.protocol.states import IN_FLIGHT, State
from statechannel.sim.checks import overlap
from statechannel.sim.faults import sicknesses
from statechannel.sim.flood import endure_flood
from statechannel.sim.process import READ, WRITE, SimLink, SimProcess
from statechannel.sim.trickle import join_in_a_trickle, join_without_a_clock
from statechannel.sim.truth import compare
from statechannel.sim.violation import Violation

if TYPE_CHECKING:
    from statechannel.sim.world import SimWorld

LIVENESS_BOUND_S = 75.0
QUIET_S = 3.0
MEMBERS_AT_LEAST = 2
SICK_FOR_S = 40.0
LEADER_SHARE = 0.8
HUNG, FROZEN = SimLink("hung"), SimLink("frozen")


def settle(world: SimWorld) -> None:
    """Let the world get well, judge it; then, perhaps, once more with one member left sick."""
    world.faulty = False
    world.note("faults are over")
    for process in world.alive():
        process.slow = False
        process.crash_after = None
        process.heal()
        process.wake()
    _await_health(world, at_least_s=0.0)
    world.events.run_until(world.events.now_s + QUIET_S)
    _check_end(world)
    if world.options.trickle:
        join_in_a_trickle(world, Random(f"{world.seed}/trickle"))
        _await_health(world, at_least_s=0.0)
    if world.options.deaf_joiners:
        join_without_a_clock(world, Random(f"{world.seed}/deaf joiners"))
        _await_health(world, at_least_s=0.0)
    if world.options.registry_floods:
        endure_flood(world, Random(f"{world.seed}/registry floods"))
        _await_health(world, at_least_s=0.0)
    options = world.options
    if options.sick or options.sick_owners or options.sick_starters:
        if options.sick_owners:
            sicken_owner(world, Random(f"{world.seed}/sick owners"))
        elif options.sick:
            sicken(world, Random(f"{world.seed}/sick"))
        else:
            sicken_starter(world, Random(f"{world.seed}/sick starters"))
        _await_health(world, at_least_s=SICK_FOR_S)
        world.events.run_until(world.events.now_s + QUIET_S)
        _check_end(world)


def _await_health(world: SimWorld, *, at_least_s: float) -> None:
    """Return once nothing is wrong, every bundle having been looked up, but not before some time has passed."""
    started_s = world.events.now_s
    problems = ["not looked at yet"]
    touched = False
    while problems:
        if world.events.now_s - started_s > at_least_s + LIVENESS_BOUND_S:
            raise Violation("liveness", f"after {LIVENESS_BOUND_S:g} s: " + "; ".join(problems[:6]))
        _restart_missing(world)
        world.events.run_until(world.events.now_s + 1.0)
        problems = unwell(world)
        if world.events.now_s - started_s < at_least_s:
            problems = ["too early to judge"]
        elif not problems and not touched:
            touched = True
            world.clients.touch_everything()
            problems = ["every bundle was looked up"]
    world.trace.count("healthy after s", int(world.events.now_s - started_s))


def sicken(world: SimWorld, rng: Random) -> None:
    """One member falls sick and stays so: most often the one that leads."""
    holder, alive = world.election.holder, world.alive()
    sick = holder if holder in alive and rng.random() < LEADER_SHARE else rng.choice(alive)
    world.sick = sick
    ways = [*sicknesses(world), [HUNG], [HUNG, FROZEN]]
    chosen = rng.choice(ways)
    world.note(f"{sick.name} stays sick: {', '.join(map(str, chosen))}")
    world.trace.count(f"left sick: {' and '.join(sorted({link.way for link in chosen}))}")
    if FROZEN in chosen and holder is sick:
        world.election.frozen = sick
    if HUNG in chosen:
        sick.hang()
    else:
        sick.sever(chosen)
    world.clients.unload_from(sick)


def sicken_owner(world: SimWorld, rng: Random) -> None:
    """One member that owns bundles loses connections for good; what becomes of the bundles is up to the others."""
    world.sick = sick = _choose_owner(world, rng)
    chosen = rng.choice(sicknesses(world))
    world.note(f"{sick.name}, which owns {len(sick.served)} bundles, stays sick: {', '.join(map(str, chosen))}")
    world.trace.count("owners left sick")
    sick.sever(chosen)


def sicken_starter(world: SimWorld, rng: Random) -> None:
    """An owner dies, and a process that starts under its id can write its heartbeats, but reads the registry no more."""
    owner = _choose_owner(world, rng)
    world.note(f"{owner.name}, which owns {len(owner.served)} bundles, dies for good")
    owner.end("crash")
    world.sick = sick = world.spawn(owner.broker)
    while sick.alive and not sick.engine.context.announced:
        world.events.run_until(world.events.now_s + 0.0005)
    sick.sever([SimLink(READ, Topic.REGISTRY, 0)])
    world.note(f"{sick.name} reads the registry no more")
    world.trace.count("starters left sick")


def _choose_owner(world: SimWorld, rng: Random) -> SimProcess:
    owners = sorted((process for process in world.alive() if process.served), key=lambda process: process.name)
    return rng.choice(owners or world.alive())


def _restart_missing(world: SimWorld) -> None:
    for broker in world.brokers[: max(MEMBERS_AT_LEAST, world.options.brokers)]:
        if not any(process.broker == broker for process in world.alive()):
            world.spawn(broker)


def unwell(world: SimWorld) -> list[str]:
    """What is not as it should be, whoever is left sick: the others lead, repair, serve and answer."""
    alive = [process for process in world.alive() if process is not world.sick]
    problems = [f"{p.name} is not caught up ({_phases(p.engine.replicas)})" for p in alive if not p.engine.caught_up]
    problems += [f"{p.name} is in mode {p.engine.mode}" for p in alive if p.engine.mode != "normal"]
    problems += [f"{p.name} takes no bundles" for p in alive if not p.engine.accepting and not p.engine.draining]
    problems += [f"{p.name} is not fit to lead" for p in alive if not p.engine.candidacy.seat.fit]
    ids = [process.broker for process in alive]
    problems += [
        f"{process.name} is not the only {process.broker}" for process in alive if ids.count(process.broker) > 1
    ]
    problems += _led_wrongly(world, alive)
    served = {(bundle, generation) for p in world.alive() for bundle, generation in p.engine.serving().items()}
    silent = world.sick is not None and _silent(world, world.sick)
    for truth in world.truths:
        if truth.debts and truth.debts[-1]:
            problems.append(f"debts: {sorted(truth.debts[-1])[:3]}")
        for key in truth.view.live():
            if key.state in IN_FLIGHT:
                problems.append(f"in flight: {key!r}")
            elif key.state is State.ASSIGNED and (key.name, key.version) not in served:
                problems.append(f"not served: {key!r}")
            elif key.state is State.ASSIGNED and silent and world.sick is not None and key.to == world.sick.broker:
                problems.append(f"left to who is not heard: {key!r}")
    problems += world.clients.overdue()
    return problems


def _led_wrongly(world: SimWorld, alive: list[SimProcess]) -> list[str]:
    leaders = [process.name for process in alive if process.engine.leading]
    if world.election.frozen is not None:
        deputies = [process.name for process in alive if process.engine.deputizing]
        return [] if len(deputies) == 1 and not leaders else [f"deputies: {deputies}, leaders: {leaders}"]
    sick = world.sick
    if sick is not None and sick.engine.leading and sick is world.election.holder and _may_lead(sick):
        return []
    return [] if len(leaders) == 1 else [f"leaders: {leaders}"]


def _silent(world: SimWorld, sick: SimProcess) -> bool:
    """Whether the others hear nothing of it."""
    return sick.hung or not sick.reaches(WRITE, world.registry.topic, 0)


def _may_lead(sick: SimProcess) -> bool:
    """Whether what it lost is not needed to lead."""
    return not sick.severed and not sick.hung


def _phases(replicas: object) -> str:
    return ", ".join(f"{r.phase}: {r.why}" for r in replicas)  # type: ignore[attr-defined]


def _check_end(world: SimWorld) -> None:
    """All agree, and what is served is served once; who is left sick may serve on at an old generation."""
    alive = [process for process in world.alive() if process is not world.sick]
    for process in alive:
        for replica, truth in zip(process.engine.replicas, world.truths, strict=True):
            if replica.caught_up:
                compare(process.name, replica.view, truth)
    claims = [(process.name, bundle) for process in alive for bundle in process.engine.serving()]
    for index, (name, bundle) in enumerate(claims):
        for other, second in claims[:index]:
            if overlap(bundle, second):
                raise Violation("serving", f"healthy, but {other} serves {second} and {name} serves {bundle}")
    late = world.clients.overdue()
    if late:
        raise Violation("answer", late[0])
    world.trace.count("bundles served at the end", len(claims))
