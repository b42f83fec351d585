"""Which goals there are: entry points of the group `shedders.partition_goals`, and which a mode goes by where none are asked for.

[project.entry-points."shedders.partition_goals"]
mine = "my_package:MyGoal"
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from shedders.near import nearest, shown
from shedders.partitions.errors import RequestRefusedError
from shedders.partitions.goals.brokers_leave import BrokersLeave
from shedders.partitions.goals.bytes_in import BytesIn
from shedders.partitions.goals.bytes_out import BytesOut
from shedders.partitions.goals.cpu import Cpu
from shedders.partitions.goals.cpu_capacity import CpuCapacity
from shedders.partitions.goals.demotion import Demotion
from shedders.partitions.goals.disk import Disk
from shedders.partitions.goals.disk_capacity import DiskCapacity
from shedders.partitions.goals.goal import Goal
from shedders.partitions.goals.leaders import Leaders
from shedders.partitions.goals.network_in_capacity import NetworkInCapacity
from shedders.partitions.goals.network_out_capacity import NetworkOutCapacity
from shedders.partitions.goals.offline_replicas import OfflineReplicas
from shedders.partitions.goals.preferred_leader import PreferredLeader
from shedders.partitions.goals.rack_awareness import RackAwareness
from shedders.partitions.goals.replica_capacity import ReplicaCapacity
from shedders.partitions.goals.replicas import Replicas
from shedders.partitions.goals.replication_factor import ReplicationFactor
from shedders.partitions.goals.topic_leaders import TopicLeaders
from shedders.partitions.goals.topic_replicas import TopicReplicas
from shedders.partitions.request import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "shedders.partition_goals"

HARD: Final = (
    RackAwareness,
    ReplicaCapacity,
    DiskCapacity,
    NetworkInCapacity,
    NetworkOutCapacity,
    CpuCapacity,
)
SOFT: Final = (
    TopicLeaders,
    TopicReplicas,
    Disk,
    BytesIn,
    BytesOut,
    Cpu,
    Replicas,
    Leaders,
    PreferredLeader,
)
OWN: Final[Mapping[str, type[Goal]]] = {one.name: one for one in (*HARD, *SOFT)}
"""In the order in which they are worked for."""
OF_MODES: Final[Mapping[str, type[Goal]]] = {
    one.name: one for one in (BrokersLeave, OfflineReplicas, Demotion, ReplicationFactor)
}
"""What a mode is about. Nobody asks for them by name: they come with the mode, after the hard goals."""

_HARD_NAMES: Final = tuple(one.name for one in HARD)
_SPREAD: Final = (
    "topic-leaders",
    "topic-replicas",
    "disk",
    "bytes-in",
    "bytes-out",
    "replicas",
    "leaders",
)
DEFAULTS: Final[Mapping[Mode, tuple[str, ...]]] = {
    Mode.REBALANCE: (*_HARD_NAMES, *_SPREAD, "preferred-leader"),
    Mode.ADD_BROKERS: (*_HARD_NAMES, "disk", "replicas", "bytes-in", "leaders"),
    Mode.REMOVE_BROKERS: (*_HARD_NAMES, *_SPREAD),
    Mode.DEMOTE: (*_HARD_NAMES, "bytes-in", "bytes-out", "leaders"),
    Mode.FIX_OFFLINE: (*_HARD_NAMES, *_SPREAD),
    Mode.REPLICATION_FACTOR: (*_HARD_NAMES, *_SPREAD),
}
"""Goals of each mode. add-brokers goes by replicas only where no size is known, and moves nothing for leaders."""


def available() -> dict[str, type[Goal]]:
    """All goals that can be asked for, by name: our own in their order, then those of others."""
    found = dict(OWN)
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        if point.name in OWN:
            continue
        try:
            made = point.load()
        except Exception as error:
            raise RequestRefusedError(
                f"goal {point.name} cannot be loaded from {point.value}: {error!r}",
                hint="Repair or uninstall the package that it is from.",
            ) from error
        if not (isinstance(made, type) and issubclass(made, Goal)):
            raise RequestRefusedError(
                f"goal {point.name} of {point.value} is no goal", hint="It must be a class made from `Goal`."
            )
        found[point.name] = made
    return found


def find(name: str) -> type[Goal]:
    """The class of a goal.

    Raises:
        RequestRefusedError: There is none of that name.
    """
    every = available()
    if name in every:
        return every[name]
    if name in OF_MODES:
        raise RequestRefusedError(f"goal {name} comes with its mode and is not asked for", hint="Leave it out.")
    near = nearest(name, every)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    raise RequestRefusedError(f"there is no goal `{shown(name)}`", hint=f"Goals: {', '.join(every)}.{meant}")
