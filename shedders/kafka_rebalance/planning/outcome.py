"""Results of a search: moves of partitions, brokers before and after, the id of the plan."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from loaddata.samples.loads import CPU_UNITS
from shedders.kafka_rebalance.planning.byte_savings import changed
from shedders.kafka_rebalance.planning.plan import BrokerChange, BrokerFigures, PartitionMove
from shedders.kafka_rebalance.planning.virtual_cluster import LoadColumn, Measure, ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shedders.kafka_rebalance.planning.request import PlanRequest
    from shedders.kafka_rebalance.planning.search import Search
    from shedders.kafka_rebalance.planning.virtual_cluster import VirtualCluster


def partition_moves(search: Search, names: Sequence[str]) -> tuple[PartitionMove, ...]:
    """Moves of all changed partitions, in order.

    Args:
        search: Finished search.
        names: Names of the goals, by their bits.
    """
    cluster, scope = search.cluster, search.scope
    moves: list[PartitionMove] = []
    for row in changed(search).tolist():
        began = [broker for broker in scope.began[row].tolist() if broker >= 0]
        led, leader = int(scope.led[row]), int(cluster.leader[row])
        bits = int(search.reasons[row])
        moves.append(
            PartitionMove(
                topic=cluster.topics[cluster.topic_of[row]],
                partition=int(cluster.partition_of[row]),
                before=ids(cluster, began),
                after=ids(cluster, cluster.holders(row)),
                leader_before=cluster.broker_ids[led] if led >= 0 else None,
                leader_after=cluster.broker_ids[leader],
                size_bytes=int(cluster.load[row, LoadColumn.DISK]) if cluster.known[row, LoadColumn.DISK] else None,
                goals=tuple(name for place, name in enumerate(names) if bits >> place & 1),
            )
        )
    return tuple(moves)


def figures(cluster: VirtualCluster) -> list[BrokerFigures]:
    """Present load of all brokers."""
    has = [bool(cluster.known[:, column].any()) for column in LoadColumn]
    sums = cluster.sums.T.tolist()
    return [
        BrokerFigures(
            replicas=row[Measure.REPLICAS],
            leaders=row[Measure.LEADERS],
            disk_bytes=row[Measure.DISK] if has[LoadColumn.DISK] else None,
            bytes_in_per_s=row[Measure.LEADER_IN] if has[LoadColumn.BYTES_IN] else None,
            bytes_out_per_s=row[Measure.LEADER_OUT] if has[LoadColumn.BYTES_OUT] else None,
            cpu=row[Measure.CPU] / CPU_UNITS if has[LoadColumn.CPU] else None,
        )
        for row in sums
    ]


def broker_changes(
    cluster: VirtualCluster, before: Sequence[BrokerFigures], moves: Sequence[PartitionMove]
) -> tuple[BrokerChange, ...]:
    flow: NDArray[np.int64] = np.zeros((4, len(cluster.broker_ids)), dtype=np.int64)
    for move in moves:
        for brokers, row in ((move.added, 0), (move.removed, 1)):
            for broker in brokers:
                flow[row, cluster.index[broker]] += 1
                flow[row + 2, cluster.index[broker]] += move.size_bytes or 0
    after = figures(cluster)
    return tuple(
        BrokerChange(
            id=broker,
            rack=cluster.racks[cluster.rack_of[place]] if cluster.rack_of[place] >= 0 else None,
            alive=bool(cluster.alive[place]),
            before=before[place],
            after=after[place],
            replicas_in=int(flow[0, place]),
            replicas_out=int(flow[1, place]),
            bytes_in=int(flow[2, place]),
            bytes_out=int(flow[3, place]),
        )
        for place, broker in enumerate(cluster.broker_ids)
    )


def identity(cluster_id: str, layout: str, moves: Sequence[PartitionMove]) -> str:
    """Id of a plan: 16 hex digits of a digest of its moves."""
    digest = hashlib.sha256(f"{cluster_id}\n{layout}\n".encode())
    for move in moves:
        digest.update(f"{move.topic} {move.partition} {move.before} {move.after} {move.leader_after}\n".encode())
    return digest.hexdigest()[:16]


def as_json(request: PlanRequest) -> dict[str, Any]:
    asked = request.capacities
    fields = ("disk_bytes", "bytes_in_per_s", "bytes_out_per_s", "cpu")
    return {
        "mode": request.mode.value,
        "goals": [{"name": goal.name, "range_share": goal.range_share} for goal in request.goals],
        "brokers": list(request.brokers),
        "subjects": list(request.subjects),
        "offline_brokers": list(request.offline_brokers),
        "excluded_topics": list(request.excluded_topics),
        "topics": list(request.topics),
        "replication_factor": request.replication_factor,
        "replicas_max": request.replicas_max,
        "capacities": {
            "default": {field: getattr(asked.default, field) for field in fields},
            "of": {
                str(broker): {field: getattr(item, field) for field in fields}
                for broker, item in sorted(asked.of.items())
            },
        },
        "moves_max": request.moves_max,
        "bytes_max": request.bytes_max,
        "time_budget_s": request.time_budget_s,
        "completeness_min": request.completeness_min,
    }
