"""Table of the goals, in the order of planning, and the default goals of each mode.

The entry points of the group `shedders.partition_goals` add rows of other packages, each a `GoalRow`:

[project.entry-points."shedders.partition_goals"]
mine = "my_package:MY_GOAL"
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.goals.broker_goals import CAPACITY_SHARE, DISK_CAPACITY, CapacityGoal, RangeGoal
from shedders.kafka_rebalance.goals.goal import GoalRow
from shedders.kafka_rebalance.goals.log_dir_goal import LogDirs, LogDirsLeave
from shedders.kafka_rebalance.goals.partition_goals import (
    BrokersLeave,
    ChosenBrokers,
    Demotion,
    OfflineReplicas,
    PreferredLeader,
    RackAwareness,
    ReplicationFactor,
)
from shedders.kafka_rebalance.goals.topic_goals import TopicGoal
from shedders.kafka_rebalance.planning.request import PlanMode
from shedders.kafka_rebalance.planning.virtual_cluster import Measure
from statechannel.suggestions import nearest, shown

if TYPE_CHECKING:
    from collections.abc import Mapping


def _even(cells: str, mean: str, value: str) -> str:
    """Formula of goals that want each cell within a range around the mean."""
    return f"{cells}:\n\n    mean = {mean}\n    mean x (1 - range) <= {value} <= mean x (1 + range)"


def _each(cells: str, *lines: str) -> str:
    return f"{cells}:\n\n" + "\n".join(f"    {line}" for line in lines)


_WHOLE: Final = "The bounds are whole numbers, and at least those of a fair split: 10 {0} on 4 brokers are 2 or 3 each."

HARD: Final = (
    GoalRow(
        name="rack-awareness",
        shape=RackAwareness,
        unit="replicas",
        about="The replicas of a partition are spread over the racks.",
        formula=_each(
            "partition and rack",
            "replicas of the partition in the rack <= the least number with which all of its replicas find a place",
        ),
        note="With enough racks that is 1; with RF 3 on 2 racks it is 2 (2 + 1). Where no broker has a rack the goal has nothing "
        "to compare; where some have none, each of those is a rack of its own.",
        moves="a replica off a rack that has too many, from the fullest broker, to the emptiest broker of a rack that has room.",
        example="replicas on brokers a1, a2 and b1 of racks a, b, c: the replica on a2 moves to rack c.",
        source="Cruise Control's RackAwareGoal and RackAwareDistributionGoal.",
    ),
    GoalRow(
        name="replica-capacity",
        shape=CapacityGoal,
        measure=Measure.REPLICAS,
        share=1.0,
        about="No broker holds more replicas than the limit that was asked for.",
        formula=_each("broker", "replicas of the broker <= limit x share"),
        moves="the smallest replicas off a broker that has too many, to the broker with the most room.",
        example="limit 4 with 6, 2 and 1 replicas: two leave the first.",
        source="Cruise Control's ReplicaCapacityGoal.",
    ),
    GoalRow(
        name=DISK_CAPACITY,
        shape=CapacityGoal,
        measure=Measure.DISK,
        share=CAPACITY_SHARE,
        about="No broker's disks are fuller than a share of them.",
        formula=_each(
            "broker whose disks are known (as asked for, else all of its log directories that are online)",
            "bytes of its replicas <= disks x share",
        ),
        moves="as those of disk, off brokers that have too much.",
        example="disks of 100 bytes with share 0.8, 95 and 20 in use: 15 leave the first.",
        source="Cruise Control's DiskCapacityGoal (disk.capacity.threshold 0.8).",
    ),
    GoalRow(
        name="network-in-capacity",
        shape=CapacityGoal,
        measure=Measure.NET_IN,
        share=CAPACITY_SHARE,
        about="No broker takes in more than a share of what its network can.",
        formula=_each(
            "broker whose capacity is known; followers fetch all that their leaders take in",
            "bytes in of the partitions that it leads or follows <= capacity x share",
        ),
        moves="replicas off brokers above, first what copies the fewest bytes for the load that it takes along; then swaps.",
        example="capacity 100 with share 0.8, 90 and 10 bytes/s: a replica of 10 bytes/s or more leaves the first.",
        source="Cruise Control's NetworkInboundCapacityGoal (network.inbound.capacity.threshold 0.8).",
    ),
    GoalRow(
        name="network-out-capacity",
        shape=CapacityGoal,
        measure=Measure.NET_OUT,
        share=CAPACITY_SHARE,
        about="No broker gives out more than a share of what its network can.",
        formula=_each(
            "broker whose capacity is known; each follower fetches all that its leader takes in",
            "sum over partitions that it leads of (bytes out + bytes in x followers) <= capacity x share",
        ),
        moves="leader switches first (no bytes), then leaders' replicas, then swaps.",
        example="capacity 100 with share 0.8, 90 and 10 bytes/s: a partition of 10 bytes/s or more is led by the second instead.",
        source="Cruise Control's NetworkOutboundCapacityGoal (network.outbound.capacity.threshold 0.8).",
    ),
    GoalRow(
        name="cpu-capacity",
        shape=CapacityGoal,
        measure=Measure.CPU,
        share=0.7,
        about="No broker's partitions take more CPU than a share of it; a follower takes a third of its leader's.",
        formula=_each("broker, in millionths of a broker's CPU", "CPU of its replicas <= capacity x share"),
        moves="leader switches first (no bytes), then replicas, then swaps.",
        example="900,000 and 100,000 of 1,000,000 each, share 0.7: 200,000 or more leave the first.",
        source="Cruise Control's CpuCapacityGoal (cpu.capacity.threshold 0.7).",
    ),
)
SOFT: Final = (
    GoalRow(
        name="topic-leaders",
        shape=TopicGoal,
        measure=Measure.LEADERS,
        share=0.1,
        about="Each broker leads as many partitions of a topic as the others.",
        formula=_even("topic and broker", "leaders of the topic / brokers", "leaders of the topic on the broker"),
        note=_WHOLE.format("leaders"),
        moves="leader switches from a broker above to one below, or passed on over others (no bytes); then the leader's replica "
        "is moved, the smallest first.",
        example="4 partitions, all led by the first of two brokers that both hold replicas: 2 switches.",
        source="Cruise Control's MinTopicLeadersPerBrokerGoal and LeaderReplicaDistributionGoal.",
    ),
    GoalRow(
        name="topic-replicas",
        shape=TopicGoal,
        measure=Measure.REPLICAS,
        share=0.1,
        about="Each broker holds as many replicas of a topic as the others.",
        formula=_even("topic and broker", "replicas of the topic / brokers", "replicas of the topic on the broker"),
        note=_WHOLE.format("replicas"),
        moves="from a broker above to one below, the smallest replica first; among equals off the fullest, to the emptiest.",
        example="6 replicas as 4, 2, 0 on three brokers: two move from the first to the third.",
        source="Cruise Control's TopicReplicaDistributionGoal.",
    ),
    GoalRow(
        name="disk",
        shape=RangeGoal,
        measure=Measure.DISK,
        share=0.1,
        about="Brokers' disks are equally full.",
        formula=_even(
            "broker; where the disks of all brokers are known, its part is by capacity, else all parts are equal",
            "bytes of all replicas x disk of the broker / disks of all brokers",
            "bytes of its replicas",
        ),
        note="Where racks cannot hold that, the mean is the nearest that they can; above the range, brokers are levelled to a "
        "tenth of it.",
        moves="off a broker above its range go the pieces that together are little more than what is too much; a broker below is "
        "filled up to its lower bound only, from the fullest. Swaps of a large replica for a small one where counts forbid "
        "moves.",
        example="100, 100 and 40 bytes with range 0.1 (72 to 88): 16 of each of the first two go to the third.",
        source="Cruise Control's DiskUsageDistributionGoal.",
    ),
    GoalRow(
        name="bytes-in",
        shape=RangeGoal,
        measure=Measure.LEADER_IN,
        share=0.1,
        about="What clients write is spread evenly over the brokers that lead.",
        formula=_even("broker", "bytes in of all partitions / brokers", "bytes in of the partitions that it leads"),
        moves="leader switches, the largest first, and leaderships exchanged or passed on (no bytes); then the leader's replica "
        "is moved, first what copies the fewest bytes for the load that it takes along; then swaps.",
        example="60 and 20 bytes/s on two brokers that both hold all replicas: partitions of 20 bytes/s switch.",
        source="Cruise Control's LeaderBytesInDistributionGoal.",
    ),
    GoalRow(
        name="bytes-out",
        shape=RangeGoal,
        measure=Measure.LEADER_OUT,
        share=0.1,
        about="What clients read is spread evenly over the brokers that lead.",
        formula=_even("broker", "bytes out of all partitions / brokers", "bytes out of the partitions that it leads"),
        moves="as those of bytes-in.",
        example="60 and 20 bytes/s on two brokers that both hold all replicas: partitions of 20 bytes/s switch.",
        source="Cruise Control's NetworkOutboundUsageDistributionGoal.",
    ),
    GoalRow(
        name="cpu",
        shape=RangeGoal,
        measure=Measure.CPU,
        share=0.1,
        about="CPU that partitions take is spread evenly; a follower takes a third of its leader's.",
        formula=_even(
            "broker, in millionths of a broker's CPU", "CPU of all replicas / brokers", "CPU of its replicas"
        ),
        moves="leader switches first (they move two thirds), then replicas, then swaps.",
        example="900,000 for leading on one of two brokers: switching half of the leaderships brings 600,000 to each.",
        source="Cruise Control's CpuUsageDistributionGoal.",
    ),
    GoalRow(
        name="replicas",
        shape=RangeGoal,
        measure=Measure.REPLICAS,
        share=0.1,
        about="Brokers hold about equally many replicas, of all topics together.",
        formula=_even("broker", "replicas / brokers", "replicas of the broker"),
        moves="the smallest replicas first. It needs no sizes.",
        example="12, 6 and 0 replicas with range 0.1 (6 each): 6 move from the first to the third.",
        source="Cruise Control's ReplicaDistributionGoal.",
    ),
    GoalRow(
        name="leaders",
        shape=RangeGoal,
        measure=Measure.LEADERS,
        share=0.1,
        about="Brokers lead about equally many partitions, of all topics together.",
        formula=_even("broker", "leaders / brokers", "leaders of the broker"),
        moves="leader switches first (no bytes), then the leader's replica, the smallest first.",
        example="8, 1 and 0 leaders of partitions that all brokers hold: 3 each after five switches.",
        source="Cruise Control's LeaderReplicaDistributionGoal.",
    ),
    GoalRow(
        name="preferred-leader",
        shape=PreferredLeader,
        unit="partitions",
        about="Each partition is led by the first broker of its list.",
        formula=_each("partition", "leader = first of the replicas"),
        moves="a leader switch to the first where earlier goals allow it; else who leads is put first (no bytes either way). "
        "What the planner moves has its leader first anyway.",
        example="replicas 1, 2, 3, led by 2: 1 is to lead; where that would overload 1, the list becomes 2, 1, 3.",
        source="Kafka's preferred leader election; Cruise Control's PreferredLeaderElectionGoal.",
    ),
    GoalRow(
        name="log-dirs",
        shape=LogDirs,
        unit="bytes",
        share=0.1,
        about="The replicas of a broker are spread over its log directories, by size (JBOD).",
        formula=_even(
            "directory of a broker that is neither offline nor cordoned",
            "bytes of the broker's replicas in such directories x size of the directory / size of all of them",
            "bytes of its replicas",
        ),
        moves="replicas go from one directory to another of the same broker, or two are exchanged; no data crosses the network. "
        "A replica that the plan brings to the broker gets its directory in advance. A cordoned directory keeps what it has and "
        "gets nothing.",
        example="80, 30 and 10 GB on three equal disks: 40 GB leave the first one, 30 of them for the third.",
        source="Cruise Control's IntraBrokerDiskUsageDistributionGoal; KIP-113, KIP-1066.",
    ),
)
_OF_MODES: Final = (
    GoalRow(
        name="brokers-leave",
        shape=BrokersLeave,
        unit="replicas",
        with_mode=(PlanMode.REMOVE_BROKERS.value, "brokers going offline"),
        about="No replica is left on brokers that are going: those to be removed, and those that are going offline.",
        formula=_each("broker that is going", "replicas of the broker = 0"),
        moves="the largest replicas first, each to the emptiest broker that the hard goals allow.",
        example="broker 4 is removed with 10 replicas: each is copied once, nothing else is.",
        source="Cruise Control's remove_broker.",
    ),
    GoalRow(
        name="chosen-brokers",
        shape=ChosenBrokers,
        unit="replicas",
        with_mode=("topics with brokers",),
        about="All replicas of the chosen topics are on the chosen brokers.",
        formula=_each("broker that was not chosen", "replicas of the chosen topics on the broker = 0"),
        moves="as those of brokers-leave. What is on a chosen broker already stays there, unless a later goal needs it elsewhere "
        "among them; other topics stay.",
        example="`--topics orders --brokers 4,5,6`: the replicas of orders on 1, 2 and 3 go to 4, 5 and 6, each to another rack.",
        source="Cruise Control's destination_broker_ids.",
    ),
    GoalRow(
        name="offline-replicas",
        shape=OfflineReplicas,
        unit="replicas",
        with_mode=(PlanMode.FIX_OFFLINE.value,),
        about="No replica stays on a broker or log directory that is away.",
        formula=_each("broker", "offline replicas of the broker = 0"),
        moves="offline replicas only, as those of brokers-leave. A partition without any leader has nothing to be copied from; "
        "it stays, and is named.",
        example="broker 2 is dead with 10 replicas: each gets a new place.",
        source="Cruise Control's fix_offline_replicas.",
    ),
    GoalRow(
        name="demotion",
        shape=Demotion,
        unit="partitions",
        with_mode=(PlanMode.DEMOTE.value,),
        about="Brokers that are demoted lead nothing and are the preferred leader of no partition.",
        formula=_each(
            "partition with a leader", "neither the leader nor the first of its replicas is a demoted broker"
        ),
        moves="leader switches to the replica on the broker that leads least, and order changes; no data is moved.",
        example="broker 1 is demoted; replicas 1, 2, 3 led by 1 become 2, 1, 3 led by 2.",
        source="Cruise Control's demote_broker.",
    ),
    GoalRow(
        name="replication-factor",
        shape=ReplicationFactor,
        unit="replicas",
        with_mode=(PlanMode.REPLICATION_FACTOR.value,),
        about="Each partition of the chosen topics has as many replicas as asked for.",
        formula=_each("partition", "replicas = wanted replication factor"),
        moves="new replicas go to the broker with the fewest replicas of the partition in its rack, then to the emptiest; "
        "replicas that are too many go from racks that have most of the partition, then from the fullest broker, and never the "
        "leader's.",
        example="replicas 1, 2 of racks a, b with a factor of 3: a third on an empty broker of rack c.",
        source="KIP-455; Cruise Control's topic_configuration.",
    ),
    GoalRow(
        name="log-dirs-leave",
        shape=LogDirsLeave,
        unit="replicas",
        with_mode=(PlanMode.REMOVE_LOG_DIRS.value,),
        about="No replica is left in the log directories that are to be emptied.",
        formula=_each("of these directories", "replicas in the directory = 0")
        + "\n\nand for each other one that is neither offline nor cordoned:\n\n"
        "    bytes of its replicas <= size x range of disk-capacity\n    bytes that come <= free bytes of its volume",
        moves="replicas go to other directories of the same broker, the largest first into the emptiest; no data crosses the "
        "network. Where not all of them fit like that, each goes into the fullest that it fits into.",
        example="`--remove-log-dirs 1:/d1`: 40 and 10 GB of it go to /d2 and /d3 of broker 1.",
        source="Cruise Control's remove_disks; KIP-113.",
    ),
)
OWN: Final[Mapping[str, GoalRow]] = {goal.name: goal for goal in (*HARD, *SOFT)}
"""Built-in goals in the order of planning."""
OF_MODES: Final[Mapping[str, GoalRow]] = {goal.name: goal for goal in _OF_MODES}
"""Goals of the modes themselves. They cannot be requested by name, and follow the hard goals."""

_HARD_NAMES: Final = tuple(goal.name for goal in HARD)
_SPREAD: Final = ("topic-leaders", "topic-replicas", "disk", "bytes-in", "bytes-out", "replicas", "leaders")
DEFAULTS: Final[Mapping[PlanMode, tuple[str, ...]]] = {
    PlanMode.REBALANCE: (*_HARD_NAMES, *_SPREAD, "preferred-leader", "log-dirs"),
    PlanMode.ADD_BROKERS: (*_HARD_NAMES, "disk", "replicas", "bytes-in", "leaders"),
    PlanMode.REMOVE_BROKERS: (*_HARD_NAMES, *_SPREAD),
    PlanMode.DEMOTE: (*_HARD_NAMES, "bytes-in", "bytes-out", "leaders"),
    PlanMode.FIX_OFFLINE: (*_HARD_NAMES, *_SPREAD),
    PlanMode.REPLICATION_FACTOR: (*_HARD_NAMES, *_SPREAD),
    PlanMode.REMOVE_LOG_DIRS: _HARD_NAMES,
}
"""Default goals of each mode. log-dirs is left out where no broker has several log directories. add-brokers uses replica counts
only if no size is known, and moves nothing for leaders."""


def modes_of(goal: GoalRow) -> tuple[str, ...]:
    """Modes that use it by default."""
    modes = goal.with_mode or tuple(mode.value for mode in PlanMode if goal.name in DEFAULTS[mode])
    return ("all modes",) if len(modes) == len(PlanMode) else modes


def modes_text(goal: GoalRow) -> str:
    return ", ".join(modes_of(goal)) or "no mode"


GROUP: Final = "shedders.partition_goals"


def available() -> dict[str, GoalRow]:
    """All goals that can be requested, by name: built-in ones in order, then those of other packages."""
    goals = dict(OWN)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        if point.name in OWN:
            continue
        try:
            goal = point.load()
        except Exception as error:
            raise RequestRefusedError(
                f"goal {point.name} cannot be loaded from {point.value}: {error!r}",
                hint="Repair or uninstall its package.",
            ) from error
        if not isinstance(goal, GoalRow):
            raise RequestRefusedError(
                f"goal {point.name} of {point.value} is not a goal", hint="It must be a `GoalRow`."
            )
        goals[point.name] = goal
    return goals


def every() -> tuple[GoalRow, ...]:
    """All goals in the order of planning, then those that belong to a mode."""
    return (*available().values(), *OF_MODES.values())


def explained(name: str) -> GoalRow:
    """As `find`, also for goals that belong to a mode."""
    return OF_MODES[name] if name in OF_MODES else find(name)


def find(name: str) -> GoalRow:
    """A goal that can be requested."""
    if name in OWN:
        return OWN[name]  # without a scan of installed packages, which takes longer than a small plan
    goals = available()
    if name in goals:
        return goals[name]
    if name in OF_MODES:
        raise RequestRefusedError(f"goal {name} belongs to its mode and cannot be requested", hint="Omit it.")
    near = nearest(name, goals)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    raise RequestRefusedError(f"unknown goal `{shown(name)}`", hint=f"Goals: {', '.join(goals)}.{meant}")
