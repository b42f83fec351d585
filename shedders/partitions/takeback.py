"""Takes back what no goal needs in the end, the largest replicas first: fewer bytes for the same goals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaddata.partitions.cluster import Known
from loaddata.partitions.moves import MoveReplica, Reorder, SwitchLeader

if TYPE_CHECKING:
    from shedders.partitions.limits import Limits
    from shedders.partitions.search import Search


def take_back(search: Search, limits: Limits, *, leaders_first: bool) -> int:
    """Undo what can be undone without any cell of any goal getting (further) out of its range.

    Args:
        search: Its state.
        limits: Of all goals.
        leaders_first: Whether a goal wants leaders to stand first: then an order that was mended is kept.

    Returns:
        How much was undone.
    """
    total = 0
    while True:
        made = _pass(search, limits, leaders_first=leaders_first)
        total += made
        if not made:
            return total


def changed(search: Search) -> Any:
    """Partitions that are not as they were."""
    cluster, scope = search.cluster, search.scope
    return np.nonzero((cluster.replicas != scope.began).any(axis=1) | (cluster.leader != scope.led))[0]


def _pass(search: Search, limits: Limits, *, leaders_first: bool) -> int:
    rows = changed(search)
    order = rows[np.lexsort((rows, -search.cluster.load[rows, Known.DISK]))].tolist()
    made = 0
    for partition in order:
        search.look()
        made += _replicas(search, limits, partition)
        made += _leader(search, limits, partition, leaders_first=leaders_first)
        made += _order(search, partition, leaders_first=leaders_first)
    return made


def _replicas(search: Search, limits: Limits, partition: int) -> int:
    cluster, scope = search.cluster, search.scope
    began = [one for one in scope.began[partition].tolist() if one >= 0]
    made = 0
    here = cluster.holders(partition)
    if len(here) != len(began):
        return 0
    for back in [one for one in began if one not in here]:
        if scope.leaving[back] or (scope.lost is not None and back in scope.lost[partition]):
            continue
        for source in [one for one in here if one not in began]:
            leads = bool(cluster.leader[partition] == source)
            if leads and not (scope.leaders[back] and scope.may_lead(np.array([partition]), np.array([back]))[0]):
                continue
            one, at = np.array([partition]), np.array([source])
            if not limits.moves_to(one, at, np.array([leads]), back)[0]:
                continue
            search.make(MoveReplica(partition, cluster.holders(partition).index(source), back), taken_back=True)
            here = cluster.holders(partition)
            made += 1
            break
    return made


def _leader(search: Search, limits: Limits, partition: int, *, leaders_first: bool) -> int:
    cluster, scope = search.cluster, search.scope
    led, leader = int(scope.led[partition]), int(cluster.leader[partition])
    if led == leader or led not in cluster.holders(partition) or leader < 0:
        return 0
    if leaders_first and led != scope.began[partition, 0]:
        return 0
    one, to = np.array([partition]), np.array([led])
    if not (scope.leaders[led] and limits.switches(one, to)[0]):
        return 0
    place = cluster.holders(partition).index(led)
    switch = SwitchLeader(partition, led)
    search.make(*((switch, Reorder(partition, 0, place)) if place else (switch,)), taken_back=True)
    return 1


def _order(search: Search, partition: int, *, leaders_first: bool) -> int:
    """Put the list back in its old order, where nothing else is changed any more."""
    cluster, scope = search.cluster, search.scope
    began = [one for one in scope.began[partition].tolist() if one >= 0]
    here = cluster.holders(partition)
    if here == began or sorted(here) != sorted(began) or cluster.leader[partition] != scope.led[partition]:
        return 0
    if leaders_first and began[0] != cluster.leader[partition]:
        return 0
    if scope.subjects_lead_nothing and scope.subjects[began[0]]:
        return 0
    moves: list[Reorder] = []
    for place, broker in enumerate(began):
        if here[place] != broker:
            other = here.index(broker)
            here[place], here[other] = here[other], here[place]
            moves.append(Reorder(partition, place, other))
    search.make(*moves, taken_back=True)
    return 1
