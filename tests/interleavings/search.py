"""All orders of what may happen from a start, each state of the cluster once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from statechannel.sim.trace import Violation
from tests.interleavings.cluster import Cluster
from tests.interleavings.flows import FLOWS, Start, start_of
from tests.interleavings.recovery import Recovery
from tests.interleavings.state import Budget, ClusterState, Danger
from tests.mutants import planted

_ELSEWHERE = 0.1
"""Share of the steps of a limited search that go on from any state that waits, and not from the newest."""


@dataclass(slots=True)
class Search:
    """What was found.

    Attributes:
        states: Different states of the cluster.
        moves: Steps from one state to another.
        calm: States in which nothing moves unless time passes; from each the cluster was let recover.
        engine_states: Different states of engines.
        seen: Dangerous moments, counted by moves that went through them.
        slowest_s: The longest recovery.
        violation: What is wrong, and the way there.
        reached: Every state, where it is asked for.
        complete: Nothing was left out within the scope.
    """

    states: int = 0
    moves: int = 0
    calm: int = 0
    engine_states: int = 0
    seen: Counter[Danger] = field(default_factory=Counter)
    slowest_s: float = 0.0
    violation: str = ""
    reached: Collection[ClusterState] = ()
    complete: bool = True


def explore(start: Start, *, states_max: int | None = None, keep: bool = False) -> Search:
    """Search everything that the budget of the start allows, depth first; with a limit, now and then from elsewhere."""
    rng = Random(1)
    setting, automaton = start.setting, start.automaton
    search = Search()
    came_from: dict[ClusterState, tuple[ClusterState, str] | None] = {start.state: None}
    waiting = [start.state]
    recovered: set[ClusterState] = set()
    while waiting:
        if states_max is not None and search.states >= states_max:
            search.complete = False
            break
        state = _take(waiting, rng if states_max is not None else None)
        search.states += 1
        cluster = Cluster(automaton, setting, state)
        moves = [*cluster.moves(), *cluster.periods()]
        if cluster.is_calm():
            rest = state._replace(budget=Budget())
            if rest not in recovered:
                recovered.add(rest)
                search.calm += 1
                try:
                    for strays_land in (False, True) if rest.strays else (False,):
                        took_s = Recovery(automaton, setting, rest, strays_land=strays_land).run()
                        search.slowest_s = max(search.slowest_s, took_s)
                except Violation as violation:
                    search.violation = _story(came_from, state, "then all faults are over", violation)
                    break
        for move in moves:
            cluster, name = Cluster(automaton, setting, state), f"{move.name}@{move.slot}"
            search.moves += 1
            try:
                move.act(cluster)
                cluster.deliver_background()
            except Violation as violation:
                search.violation = _story(came_from, state, name, violation)
                waiting.clear()
                break
            search.seen.update(set(cluster.seen))
            following = cluster.freeze()
            if following not in came_from:
                came_from[following] = (state, name)
                waiting.append(following)
    search.engine_states = len(automaton)
    search.complete = search.complete and not search.violation
    search.reached = came_from.keys() if keep else ()
    return search


def _take(waiting: list[ClusterState], rng: Random | None) -> ClusterState:
    """The next state to go on from; a search that will not see all of them must not stay in one corner."""
    if rng is not None and rng.random() < _ELSEWHERE:
        index = rng.randrange(len(waiting))
        waiting[index], waiting[-1] = waiting[-1], waiting[index]
    return waiting.pop()


def _story(
    came_from: dict[ClusterState, tuple[ClusterState, str] | None], state: ClusterState, last: str, violation: Violation
) -> str:
    lines = [last]
    place = came_from[state]
    while place is not None:
        before, name = place
        lines.append(name)
        place = came_from[before]
    return f"{violation}\n" + "\n".join(f"{number:3} {line}" for number, line in enumerate(reversed(lines), 1))


class Case(NamedTuple):
    """One search.

    Attributes:
        without: Planted bug; empty for none.
    """

    flow: str
    scope: str
    states_max: int | None = None
    without: str = ""


class Result(NamedTuple):
    """What a search gave, and how long it took."""

    case: Case
    search: Search
    seconds: float


def run_case(case: Case) -> Result:
    """Search one flow with the faults of one scope."""
    began_s = time.monotonic()
    with planted(case.without) if case.without else nullcontext():
        search = explore(start_of(FLOWS[case.flow], case.scope), states_max=case.states_max)
    return Result(case, search, time.monotonic() - began_s)
