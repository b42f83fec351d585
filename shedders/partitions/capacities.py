"""What brokers can carry, by their places in the virtual cluster; those that are not known are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaddata.partitions.loads import CPU_UNITS

if TYPE_CHECKING:
    from loaddata.partitions.capacity import Capacities
    from loaddata.partitions.cluster import VirtualCluster
    from loaddata.partitions.layout import ClusterLayout


def capacities(cluster: VirtualCluster, asked: Capacities, field: str) -> dict[int, int]:
    """One field of the capacities asked for: of the broker, else the default."""
    found: dict[int, int] = {}
    for place, broker in enumerate(cluster.broker_ids):
        value = getattr(asked.of.get(broker, asked.default), field)
        value = getattr(asked.default, field) if value is None else value
        if value is not None:
            found[place] = value
    return found


def disk_capacities(cluster: VirtualCluster, layout: ClusterLayout, asked: Capacities) -> dict[int, int]:
    """Bytes: as asked for, else the sum of the log directories that are online, where all of them tell; 0 is not known."""
    found: dict[int, int] = {}
    for broker in layout.brokers:
        online = [one.total_bytes for one in broker.log_dirs if not one.offline]
        told = [one for one in online if one is not None]
        if sum(told) and len(told) == len(online):
            found[cluster.index[broker.id]] = sum(told)
    return found | capacities(cluster, asked, "disk_bytes")


def cpu_capacities(cluster: VirtualCluster, asked: Capacities) -> dict[int, int]:
    """Millionths of a broker's CPU."""
    found: dict[int, int] = {}
    for place, broker in enumerate(cluster.broker_ids):
        value = asked.of.get(broker, asked.default).cpu
        value = asked.default.cpu if value is None else value
        if value is not None:
            found[place] = round(value * CPU_UNITS)
    return found
