"""A plan made by hand, of all that a plan may have, for the tests of what reads and shows plans."""

from shedders.kafka_rebalance.planning.plan import (
    BrokerChange,
    BrokerFigures,
    GoalOutcome,
    GoalSpread,
    GoalStatus,
    PartitionMove,
    ReassignmentPlan,
)

MIB = 2**20


def figures(replicas: int, leaders: int, disk: int | None, traffic: int | None = None) -> BrokerFigures:
    return BrokerFigures(
        replicas=replicas,
        leaders=leaders,
        disk_bytes=disk,
        bytes_in_per_s=traffic,
        bytes_out_per_s=None if traffic is None else 2 * traffic,
        cpu=None,
    )


def move(
    topic: str, partition: int, before: tuple[int, ...], after: tuple[int, ...], size: int | None = MIB
) -> PartitionMove:
    return PartitionMove(
        topic=topic,
        partition=partition,
        before=before,
        after=after,
        leader_before=before[0],
        leader_after=after[0],
        size_bytes=size,
        goals=("disk",),
    )


MOVES = (
    move("logs", 0, (1, 2), (3, 2), 40 * MIB),
    move("logs", 1, (2, 1), (1, 2), 10 * MIB),
    move("orders", 0, (1, 3), (2, 3), None),
)
PLAN = ReassignmentPlan(
    id="0123456789abcdef",
    cluster_id="lab",
    layout="f" * 64,
    topic_ids={"logs": "L", "orders": ""},
    made_at_ms=1_790_000_000_000,
    request={"mode": "rebalance", "goals": [{"name": "disk", "range_share": 0.1}], "time_budget_s": None},
    goals=(
        GoalOutcome(
            name="rack-awareness",
            hard=True,
            unit="replicas",
            range_share=0.0,
            status=GoalStatus.INFEASIBLE,
            before=GoalSpread(violations=3, excess=3, low=0, high=1, mean=0.5, std=0.5),
            after=GoalSpread(violations=1, excess=1, low=0, high=1, mean=0.25, std=0.4),
            moves=1,
            took_s=0.25,
            witness="logs-0: 3 replicas, 2 racks",
        ),
        GoalOutcome(
            name="disk",
            hard=False,
            unit="bytes",
            range_share=0.1,
            status=GoalStatus.MET,
            before=GoalSpread(violations=2, excess=70 * MIB, low=0, high=90 * MIB, mean=50.5 * MIB, std=3.25),
            after=GoalSpread(violations=0, excess=0, low=48 * MIB, high=52 * MIB, mean=50.5 * MIB, std=1e-3),
            moves=2,
        ),
        GoalOutcome(name="cpu", hard=False, unit="millionths of CPU", range_share=0.1, status=GoalStatus.NO_DATA),
    ),
    brokers=(
        BrokerChange(
            id=1,
            rack="a",
            alive=True,
            before=figures(3, 2, 90 * MIB, 1_000),
            after=figures(1, 1, 50 * MIB, 500),
            replicas_in=0,
            replicas_out=2,
            bytes_in=0,
            bytes_out=40 * MIB,
        ),
        BrokerChange(
            id=2,
            rack="b",
            alive=True,
            before=figures(2, 1, 50 * MIB, 500),
            after=figures(3, 1, 50 * MIB, 500),
            replicas_in=1,
            replicas_out=0,
            bytes_in=0,
            bytes_out=0,
        ),
        BrokerChange(
            id=3,
            rack=None,
            alive=False,
            before=figures(1, 0, None),
            after=figures(2, 1, None),
            replicas_in=1,
            replicas_out=0,
            bytes_in=40 * MIB,
            bytes_out=0,
        ),
    ),
    moves=MOVES,
    complete=False,
    remarks=("the time budget of 300 s ended the search", "the size of orders-0 is not known"),
    took_s=300.5,
)
