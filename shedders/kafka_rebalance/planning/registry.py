"""Registry of goals: entry points of the group `shedders.partition_goals`, and the default goals of each mode.

[project.entry-points."shedders.partition_goals"]
mine = "my_package:MyGoal"
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.goals.broker_goals import (
    WORDS,
    BytesIn,
    BytesOut,
    Cpu,
    CpuCapacity,
    Disk,
    DiskCapacity,
    Leaders,
    NetworkInCapacity,
    NetworkOutCapacity,
    ReplicaCapacity,
    Replicas,
)
from shedders.kafka_rebalance.goals.goal import Goal
from shedders.kafka_rebalance.goals.log_dir_goal import LogDirs, LogDirsLeave
from shedders.kafka_rebalance.goals.mode_goals import (
    BrokersLeave,
    ChosenBrokers,
    Demotion,
    OfflineReplicas,
    ReplicationFactor,
)
from shedders.kafka_rebalance.goals.placement_goals import PreferredLeader, RackAwareness
from shedders.kafka_rebalance.goals.topic_goals import TopicLeaders, TopicReplicas
from shedders.kafka_rebalance.planning.request import PlanMode
from statechannel.suggestions import nearest, shown

if TYPE_CHECKING:
    from collections.abc import Mapping


MODES: Final = {
    "brokers-leave": (PlanMode.REMOVE_BROKERS.value, "brokers going offline"),
    "chosen-brokers": ("topics with brokers",),
    "offline-replicas": (PlanMode.FIX_OFFLINE.value,),
    "demotion": (PlanMode.DEMOTE.value,),
    "replication-factor": (PlanMode.REPLICATION_FACTOR.value,),
    "log-dirs-leave": (PlanMode.REMOVE_LOG_DIRS.value,),
}
"""Modes of the goals that cannot be requested by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalDescription:
    """Description of one goal.

    Attributes:
        share: Default range.
        share_of: Quantity that the range is a share of; empty: no range.
        needs: Figures of partitions that it uses.
        modes: Modes that use it by default.
        with_mode: Whether it belongs to a mode and cannot be requested.
        about: First line of its docstring.
        text: Whole docstring.
    """

    name: str
    hard: bool
    unit: str
    share: float
    share_of: str
    needs: tuple[str, ...]
    modes: tuple[str, ...]
    with_mode: bool
    about: str
    text: str

    @property
    def kind(self) -> str:
        return "hard" if self.hard else "soft"

    @property
    def needs_text(self) -> str:
        return ", ".join(self.needs) or "nothing"

    @property
    def modes_text(self) -> str:
        return ", ".join(self.modes) or "no mode"

    @property
    def range_text(self) -> str:
        return f"{self.share:g} {self.share_of}" if self.share_of else "none"


def every() -> tuple[GoalDescription, ...]:
    """All goals in the order of planning, then those that belong to a mode."""
    return tuple(_of(goal) for goal in (*available().values(), *OF_MODES.values()))


def explained(name: str) -> GoalDescription:
    """Description of a goal, by name.

    Raises:
        RequestRefusedError: The goal does not exist.
    """
    return _of(OF_MODES[name] if name in OF_MODES else find(name))


def _of(goal: type[Goal]) -> GoalDescription:
    text = inspect.getdoc(goal) or ""
    with_mode = goal.name in MODES
    modes = MODES[goal.name] if with_mode else tuple(mode.value for mode in PlanMode if goal.name in DEFAULTS[mode])
    modes = ("all modes",) if len(modes) == len(PlanMode) else modes
    return GoalDescription(
        name=goal.name,
        hard=goal.hard,
        unit=goal.unit,
        share=goal.default_share,
        share_of=goal.share_of,
        needs=tuple(WORDS[need] for need in goal.needs),
        modes=modes,
        with_mode=with_mode,
        about=text.partition("\n")[0],
        text=text,
    )


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
    LogDirs,
)
OWN: Final[Mapping[str, type[Goal]]] = {goal.name: goal for goal in (*HARD, *SOFT)}
"""Built-in goals in the order of planning."""
OF_MODES: Final[Mapping[str, type[Goal]]] = {
    goal.name: goal
    for goal in (BrokersLeave, ChosenBrokers, OfflineReplicas, Demotion, ReplicationFactor, LogDirsLeave)
}
"""Goals of the modes themselves. They cannot be requested by name, and follow the hard goals."""

_HARD_NAMES: Final = tuple(goal.name for goal in HARD)
_SPREAD: Final = (
    "topic-leaders",
    "topic-replicas",
    "disk",
    "bytes-in",
    "bytes-out",
    "replicas",
    "leaders",
)
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


def available() -> dict[str, type[Goal]]:
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
        if not (isinstance(goal, type) and issubclass(goal, Goal)):
            raise RequestRefusedError(
                f"goal {point.name} of {point.value} is not a goal", hint="It must be a subclass of `Goal`."
            )
        goals[point.name] = goal
    return goals


def find(name: str) -> type[Goal]:
    """Class of a goal.

    Raises:
        RequestRefusedError: The name is unknown.
    """
    if name in OWN:
        return OWN[name]  # without a scan of installed packages, which takes longer than a small plan
    every = available()
    if name in every:
        return every[name]
    if name in OF_MODES:
        raise RequestRefusedError(f"goal {name} belongs to its mode and cannot be requested", hint="Omit it.")
    near = nearest(name, every)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    raise RequestRefusedError(f"unknown goal `{shown(name)}`", hint=f"Goals: {', '.join(every)}.{meant}")
