"""Settings of the rebalance planner: `extensions.partitions.*`; options of the commands override them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from shedders.model import extension_settings
from statechannel.settings.field import SettingsGroup, setting

NAME = "partitions"
DAY_S = 86_400.0


def _listed(value: object) -> object:
    """Parse text from flags and the environment: a JSON list, or one pattern (which may have commas)."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("[") else [value]


class SampleSettings(SettingsGroup):
    """Settings of samples and their averages."""

    topic: str = setting("partition-samples", "Topic of the samples of partition loads.", min_length=1, max_length=249)
    interval_s: float = setting(60.0, "Time between two samples of a partition.", ge=1, le=3_600)
    window_s: float = setting(
        6 * 3_600.0, "Time before now over which samples are averaged to the load of a partition.", ge=60, le=30 * DAY_S
    )
    completeness_min: float = setting(
        0.5, "Least share of the window that must be measured; other loads are treated as unknown.", ge=0, le=1
    )
    timeout_s: float = setting(10.0, "Time limit of one answer of a source.", ge=0.1, le=600)


class PlanSettings(SettingsGroup):
    """Bounds of a plan, unless options set them."""

    time_budget_s: float = setting(
        300.0, "Time limit of the search; then the best plan so far is used.", ge=0.1, le=DAY_S
    )
    excluded_topics: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default_factory=list,
        description="Patterns (RE2, whole name) of topics whose replicas stay where they are: one, or a list as JSON has it.",
    )
    worsen_max_share: float = setting(
        0.5,
        "How far soft goals may bring a broker beyond the range of a later goal, as a share of the mean; 0: not at all.",
        ge=0,
        le=1_000,
    )
    copy_bytes_per_s: int = setting(
        50_000_000,
        "Assumed copy rate of a broker in each direction without a throttle, for the estimated duration only.",
        ge=1,
        le=2**60,
    )


class PaceSettings(SettingsGroup):
    """Speed and tolerances of an execution."""

    moves_per_broker: int = setting(
        5, "Most partitions in flight per broker, as source, destination or leader (parallelism).", ge=1, le=10_000
    )
    dir_moves_per_broker: int = setting(
        2, "Most replicas in flight between log directories of a broker; they share its disks.", ge=1, le=10_000
    )
    moves_max: int = setting(1_000, "Most partitions in flight in the whole cluster.", ge=1, le=1_000_000)
    bytes_in_flight: int = setting(
        50 * 2**30, "Most bytes in flight; one partition alone may be larger.", ge=1, le=2**60
    )
    leaders_at_once: int = setting(1_000, "Most leader switches per request.", ge=1, le=1_000_000)
    one_replica: bool = setting(False, "Whether to move only one replica of a partition at a time.")
    throttle_bytes_per_s: int | None = setting(
        None, "Replication throttle of each broker for the moves of the plan; None: no throttle.", ge=1, le=2**60
    )
    unthrottle: bool = setting(
        False, "Whether a stop removes the throttle of moves in flight, which then continue at full speed."
    )
    order: Literal["plan", "small-first", "large-first"] = setting(
        "plan", "Order in which partitions are moved, after under-replicated ones."
    )
    settle_s: float = setting(
        5.0,
        "How long a deviation from the plan must last to count; also the least time before a retry.",
        ge=0.1,
        le=600,
    )
    attempts_max: int = setting(5, "Most attempts for a partition that Kafka refuses.", ge=1, le=1_000)
    full_look_s: float = setting(
        5.0, "Time between two reads of all partitions of the cluster and of copied bytes.", ge=0.05, le=600
    )
    executor_away_s: float = setting(
        15.0, "Time without heartbeats after which an executor expires and another may continue.", ge=2, le=600
    )
    poll_s: float = setting(1.0, "Time between two observations of the cluster.", ge=0.05, le=600)
    stalled_s: float = setting(
        1_800.0, "Time without progress of a move after which the execution stops.", ge=1, le=30 * DAY_S
    )
    broker_grace_s: float = setting(
        60.0, "How long a broker of the plan may be down before the execution stops.", ge=0, le=DAY_S
    )
    urp_grace_s: float = setting(
        60.0,
        "How long additional under-replicated partitions, outside of the plan, may last before the execution stops.",
        ge=0,
        le=DAY_S,
    )


class PartitionsSettings(SettingsGroup):
    """Settings of `statechannel partitions`."""

    state_topic: str = setting(
        "partition-plans", "Topic of plans, their progress and requests of operators.", min_length=1, max_length=249
    )
    replication_factor: int = setting(
        3, "Replication factor of topics that are created; at most the number of brokers.", ge=1, le=32
    )
    sample: SampleSettings = Field(default_factory=SampleSettings, description="Samples of the partitions' load.")
    plan: PlanSettings = Field(default_factory=PlanSettings, description="Bounds of plans.")
    pace: PaceSettings = Field(default_factory=PaceSettings, description="Speed of an execution.")


def configured(values: Mapping[str, Any]) -> PartitionsSettings:
    """Validate `extensions.partitions.*`."""
    return extension_settings.configured(NAME, PartitionsSettings, values)


def no_extension(_settings: Any, values: Mapping[str, Any]) -> None:
    """Validate the settings for brokers that share the file; only commands use them."""
    configured({name: value for name, value in values.items() if name != "enabled"})
