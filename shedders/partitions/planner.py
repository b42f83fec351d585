"""The planner: goals in order change a virtual cluster; the difference from the real one is the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from loaddata.partitions.layout import ClusterLayout
    from loaddata.partitions.loads import PartitionLoads
    from shedders.partitions.plan import Plan
    from shedders.partitions.request import PlanRequest


def plan_partitions(
    layout: ClusterLayout,
    loads: PartitionLoads,
    request: PlanRequest,
    *,
    now_s: Callable[[], float] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Plan:
    """Plan moves that bring the cluster to the goals of the request with as few bytes as it can find.

    Args:
        layout: The cluster as it is.
        loads: Of its partitions; may be empty, goals of placement work without.
        request: What is asked for.
        now_s: Monotonic clock, for the time budget and the time of each goal; without one there is no budget.
        progress: Called with the goal's name, how many of its cells are looked at, and how many there are.

    Raises:
        RequestRefusedError: Unknown brokers, patterns that leave nothing, a range that cannot hold the replicas.
    """
    raise NotImplementedError
