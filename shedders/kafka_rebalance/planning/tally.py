"""Why a goal could not get further: what stands against the moves that would help it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shedders.kafka_rebalance.planning.limits import GoalLimits

if TYPE_CHECKING:
    from shedders.kafka_rebalance.goals.broker_sums import BrokerGoal
    from shedders.kafka_rebalance.planning.search import Search

REPLICAS_MAX = 2_000
"""So many replicas are looked at for a witness."""
RICHEST = 3


def broker_blocked(search: Search, goal: BrokerGoal, broker: int, *, above: bool) -> str:
    """Why nothing helps a broker that is out of a goal's range."""
    cluster, scope = search.cluster, search.scope
    spare = np.where(np.arange(len(goal.cells)) == broker, 0, goal.spare())
    sources = [broker] if above else np.argsort(-spare, kind="stable")[:RICHEST].tolist()
    partitions, here = _on(search, sources)
    weight = goal.weight(partitions, cluster.leader[partitions] == here)
    heavy = weight > 0
    if not heavy.any():
        return "no replica there weighs anything" if above else "no other broker can give anything"
    partitions, here, weight = partitions[heavy], here[heavy], weight[heavy]
    free = scope.movable(partitions, here)
    if not free.any():
        return "none of the replicas that would help may move"
    partitions, here, weight = partitions[free], here[free], weight[free]
    values = goal.values
    gain = goal.distance(values[here], here) - goal.distance(values[here] - weight, here)
    total = gain[:, None] + goal.distance(values) - goal.distance(values + weight[:, None])
    total[np.arange(len(here)), here] = 0
    useful = (total > 0) & scope.takers
    if not above:
        useful[:, np.arange(useful.shape[1]) != broker] = False
    if not useful.any():
        return f"the smallest replica that would help ({int(weight.min())} {goal.unit}) is too large"
    return forbidden(search, partitions, here, useful)


def _on(search: Search, brokers: Any) -> tuple[Any, Any]:
    found = [search.cluster.on_broker(one)[0][:REPLICAS_MAX] for one in brokers]
    return np.concatenate(found), np.repeat(np.array(brokers), [len(one) for one in found])


def forbidden(search: Search, partitions: Any, here: Any, useful: Any) -> str:
    """Which goals stand against these moves."""
    partitions, here, useful = partitions[:REPLICAS_MAX], here[:REPLICAS_MAX], useful[:REPLICAS_MAX]
    leads = search.cluster.leader[partitions] == here
    held = search.cluster.replicas[partitions]
    for place in range(held.shape[1]):
        rows = np.nonzero(held[:, place] >= 0)[0]
        useful[rows, held[rows, place]] = False
    count = int(np.count_nonzero(useful))
    if not count:
        return "all brokers that could take a replica hold one of that partition"
    found: list[str] = []
    every = np.arange(useful.shape[1])
    for goal in search.earlier:
        limits = GoalLimits(search.cluster)
        goal.limit(limits)
        against = int(np.count_nonzero(useful & ~limits.moves(partitions, here, leads, every)))
        if against:
            found.append(f"{goal.name} {against}")
    if not found:
        return f"{count} moves would help and none is left that may be made"
    return f"of {count} moves that would help, earlier goals forbid: {', '.join(found)}"
