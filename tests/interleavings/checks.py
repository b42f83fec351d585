"""What must hold in every state of the cluster: one history, and one server of a generation, by its own record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from statechannel.engine.engine import Engine
from statechannel.protocol.states import State
from statechannel.sim.checks import overlap
from statechannel.sim.trace import Violation
from statechannel.sim.truth import accepted_of, compare
from tests.interleavings.automaton import EngineFacts
from tests.interleavings.log import Log
from tests.interleavings.state import Danger, Process

_NOT_SERVING = (State.ASSIGNED, State.UNASSIGNED, State.DELETED, State.ASSIGNING)
"""Later states of a bundle in which the one that served it before serves no more; in others it still may."""


def check_cold_start(name: str, engine: Engine, channel: Log) -> bool:
    """Whether a cold start that begins may change what is accepted: unpaid debts, or the versions that it raises."""
    view = engine.replicas[0].view
    if view.applied < 0:
        return False
    truth = channel.upto(view.applied + 1).truth
    if truth.debts[-1]:
        return True
    have, want = {key.key: accepted_of(key) for key in view.existing()}, truth.states[-1]
    raised = {
        key: state._replace(version=max(state.version, have[key].version)) for key, state in want.items() if key in have
    }
    if have != raised or len(raised) < len(want):
        raise Violation("cold-start", f"{name} starts cold from other states than the log's")
    return have != want


def check_view(name: str, engine: Engine, channel: Log) -> None:
    """The view of a process that has caught up is what the whole log says at its offset."""
    replica = engine.replicas[0]
    if replica.caught_up and engine.context.judges(0) and replica.view.applied >= 0:
        compare(name, replica.view, channel.upto(replica.view.applied + 1).truth)


def check_service(
    process: Process,
    mine: EngineFacts,
    others: Mapping[Process, EngineFacts],
    channel: Log,
    time_s: float,
    *,
    rewritten: bool,
) -> Counter[Danger]:
    """Who serves was given the bundle, by its own record, and alone at its generation; the dangerous moments in that."""
    seen = Counter[Danger]()
    if mine.leading and any(theirs.leading for theirs in others.values()):
        seen[Danger.TWO_LEADERS] += 1
    for bundle, generation in mine.serving:
        for other, theirs in others.items():
            for second, level in theirs.serving:
                if second == bundle and level == generation:
                    raise Violation("serving", f"{process.name} and {other.name} both serve {bundle} at {generation}")
                if overlap(bundle, second):
                    seen[Danger.OLD_OWNER] += 1
                    old, facts = (other, theirs) if level < generation else (process, mine)
                    _check_old_owner(old, facts, channel, time_s, rewritten=rewritten)
        if not rewritten:
            _check_grant(process, bundle, generation, channel)
    return seen


def _check_grant(process: Process, bundle: str, generation: int, channel: Log) -> None:
    broker, _, number = process.name.partition("#")
    grant = channel.truth.grants.get((bundle, generation))
    if grant is None or grant.broker != broker:
        raise Violation("serving", f"{process.name} serves {bundle} at {generation}, granted: {grant}")
    if grant.writer is not None and grant.writer != (broker, f"{broker}-{number}"):
        raise Violation("serving", f"{process.name} serves {bundle} at {generation} by the record of {grant.writer}")


def _check_old_owner(process: Process, facts: EngineFacts, channel: Log, time_s: float, *, rewritten: bool) -> None:
    """Who serves beside a newer owner has not read of it yet; with the lease, nobody does."""
    sleeps = process.away_s > 0.0 and not process.cut  # it is asked by the clock once it wakes (`Lease.serves_at`)
    if facts.lease_ends_s is not None and (not sleeps or facts.lease_ends_s >= time_s):
        raise Violation(
            "lease", f"{process.name} serves beside a newer owner, by a lease until {facts.lease_ends_s:.1f} s"
        )
    if rewritten:
        return
    read = channel.upto(max(process.position, 0)).truth.view
    for bundle, generation in facts.serving:
        key = read.keys.get(bundle.encode())
        if key is not None and key.state in _NOT_SERVING and key.version > generation:
            raise Violation("serving", f"{process.name} serves {bundle} at {generation}, and has read of {key!r}")


def is_replaced(process: Process, facts: EngineFacts, channel: Log) -> bool:
    """Whether a bundle that it serves is another's by now."""
    broker = process.name.split("#")[0]
    keys = (channel.truth.view.keys.get(name.encode()) for name, _ in facts.serving)
    return any(key is not None and key.owner != broker for key in keys)
