"""The liveness phase: faults are over, so within a bound everything that was begun must have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statechannel.core.states import IN_FLIGHT, State
from statechannel.sim.checks import overlap
from statechannel.sim.truth import compare
from statechannel.sim.violation import Violation

if TYPE_CHECKING:
    from statechannel.sim.world import World

LIVENESS_BOUND_S = 75.0
QUIET_S = 3.0
MEMBERS_AT_LEAST = 2


def settle(world: World) -> None:
    """Let the world get well; raise what is still wrong when the bound has passed."""
    world.faulty = False
    world.note("faults are over")
    for process in world.alive():
        process.slow = False
        process.crash_after = None
        process.heal()
        process.wake()
    started_s = world.events.now_s
    problems = ["not looked at yet"]
    touched = False
    while problems:
        if world.events.now_s - started_s > LIVENESS_BOUND_S:
            raise Violation("liveness", f"after {LIVENESS_BOUND_S:g} s: " + "; ".join(problems[:6]))
        _restart_missing(world)
        world.events.run_until(world.events.now_s + 1.0)
        problems = unwell(world)
        if not problems and not touched:
            touched = True
            world.clients.touch_everything()
            problems = ["every bundle was looked up"]
    world.events.run_until(world.events.now_s + QUIET_S)
    _check_end(world)
    world.trace.count("healthy after s", int(world.events.now_s - started_s))


def _restart_missing(world: World) -> None:
    for broker in world.brokers[: max(MEMBERS_AT_LEAST, world.options.brokers)]:
        if not any(process.broker == broker for process in world.alive()):
            world.spawn(broker)


def unwell(world: World) -> list[str]:
    """What is not as it should be in a healthy cluster."""
    alive = world.alive()
    problems = [f"{p.name} is not caught up ({_phases(p.engine.replicas)})" for p in alive if not p.engine.caught_up]
    problems += [f"{p.name} is in mode {p.engine.mode}" for p in alive if p.engine.mode != "normal"]
    ids = [process.broker for process in alive]
    problems += [
        f"{process.name} is not the only {process.broker}" for process in alive if ids.count(process.broker) > 1
    ]
    leaders = [process.name for process in alive if process.engine.leading]
    if len(leaders) != 1:
        problems.append(f"leaders: {leaders}")
    served = {(bundle, generation) for p in alive for bundle, generation in p.engine.serving().items()}
    for truth in world.truths:
        if truth.debts and truth.debts[-1]:
            problems.append(f"debts: {sorted(truth.debts[-1])[:3]}")
        for key in truth.view.live():
            if key.state in IN_FLIGHT:
                problems.append(f"in flight: {key!r}")
            elif key.state is State.ASSIGNED and (key.name, key.version) not in served:
                problems.append(f"not served: {key!r}")
    problems += world.clients.overdue()
    return problems


def _phases(replicas: object) -> str:
    return ", ".join(f"{r.phase}: {r.why}" for r in replicas)  # type: ignore[attr-defined]


def _check_end(world: World) -> None:
    """All agree, and what is served is served once."""
    alive = world.alive()
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
