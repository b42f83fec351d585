"""Takes back what no goal needs in the end, the largest replicas first: fewer bytes for the same goals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loaddata.partitions.cluster import Known
from loaddata.partitions.moves import MoveReplica, Reorder, SwitchLeader, between

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
    rows = rows[np.lexsort((rows, -search.cluster.load[rows, Known.DISK]))]
    made = _replicas(search, limits, rows) + _leaders(search, limits, rows, leaders_first=leaders_first)
    cluster, scope = search.cluster, search.scope
    here, began = np.sort(cluster.replicas[rows], axis=1), np.sort(scope.began[rows], axis=1)
    back = (here == began).all(axis=1) & (cluster.leader[rows] == scope.led[rows])
    for partition in rows[back].tolist():
        made += _order(search, partition, leaders_first=leaders_first)
    return made


def _replicas(search: Search, limits: Limits, rows: Any) -> int:
    """Move replicas back to where they were: all ways back are asked about at once, those that are open again one by one."""
    cluster, scope = search.cluster, search.scope
    here, began = cluster.replicas[rows], scope.began[rows]
    even = (here >= 0).sum(axis=1) == (began >= 0).sum(axis=1)
    came = (here >= 0) & even[:, None] & ~(here[:, :, None] == began[:, None, :]).any(axis=2)
    gone = (began >= 0) & ~(began[:, :, None] == here[:, None, :]).any(axis=2)
    gone &= ~np.append(scope.leaving, np.False_)[began]
    if scope.lost is not None:
        gone &= scope.lost[rows] != began
    at, place, back = np.nonzero(came[:, :, None] & gone[:, None, :])
    partitions, sources, to = rows[at], here[at, place], began[at, back]
    leads = cluster.leader[partitions] == sources
    fits = ~leads | (scope.leaders[to] & scope.may_lead(partitions, to))
    partitions, sources, to, leads = partitions[fits], sources[fits], to[fits], leads[fits]
    made = 0
    for one in np.nonzero(limits.moves_each(partitions, sources, leads, to))[0].tolist():
        search.look()
        partition, source, target = int(partitions[one]), int(sources[one]), int(to[one])
        held = cluster.holders(partition)
        if source not in held or target in held or bool(cluster.leader[partition] == source) != bool(leads[one]):
            continue
        if limits.move(partition, source, bool(leads[one]), target):
            search.make(MoveReplica(partition, held.index(source), target), taken_back=True)
            made += 1
    return made


def _leaders(search: Search, limits: Limits, rows: Any, *, leaders_first: bool) -> int:
    """Let those lead again who did."""
    cluster, scope = search.cluster, search.scope
    led = scope.led[rows]
    fits = (led != cluster.leader[rows]) & (led >= 0) & (cluster.leader[rows] >= 0) & scope.leaders[led]
    fits &= (cluster.replicas[rows] == led[:, None]).any(axis=1)
    if leaders_first:
        fits &= led == scope.began[rows, 0]
    rows, led = rows[fits], led[fits]
    made = 0
    for one in np.nonzero(limits.switches(rows, led))[0].tolist():
        search.look()
        partition, to = int(rows[one]), int(led[one])
        if limits.switch(partition, to):
            place = cluster.holders(partition).index(to)
            switch = SwitchLeader(partition, to)
            search.make(*((switch, Reorder(partition, 0, place)) if place else (switch,)), taken_back=True)
            made += 1
    return made


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
    leader = int(cluster.leader[partition])
    moves = between(partition, here, leader, began, leader)
    search.make(*moves, taken_back=True)
    return 1
