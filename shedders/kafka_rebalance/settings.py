"""Settings of the rebalance planner: `extensions.partitions.*`; options of the commands stand over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from shedders.model import extension_settings
from statechannel.settings.field import SettingsGroup, setting

NAME = "partitions"
DAY_S = 86_400.0


def _listed(given: object) -> object:
    """Flags and the environment have texts: a JSON list, or one pattern (which may have commas)."""
    if not isinstance(given, str):
        return given
    return json.loads(given) if given.lstrip().startswith("[") else [given]


class SampleSettings(SettingsGroup):
    """Where samples come from and how long they are averaged."""

    topic: str = setting("partition-samples", "Topic of the samples.", min_length=1, max_length=249)
    interval_s: float = setting(60.0, "Time between two samples of a partition.", ge=1, le=3_600)
    window_s: float = setting(
        6 * 3_600.0, "Samples of so long before now are averaged into the load of a partition.", ge=60, le=30 * DAY_S
    )
    completeness_min: float = setting(
        0.5, "Loads with a smaller part of the window measured are taken for unknown.", ge=0, le=1
    )
    timeout_s: float = setting(10.0, "Longest wait for one answer of a source.", ge=0.1, le=600)


class PlanSettings(SettingsGroup):
    """Bounds of a plan where the command names none."""

    time_budget_s: float = setting(300.0, "Longest search; then the best plan so far is given.", ge=0.1, le=DAY_S)
    excluded_topics: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default_factory=list,
        description="Patterns (RE2, whole name) of topics whose replicas stay where they are: one, or a list as JSON has it.",
    )
    copy_bytes_per_s: int = setting(
        50_000_000,
        "What a broker is assumed to copy in each direction where no throttle is set: for the estimated duration alone.",
        ge=1,
        le=2**60,
    )


class PaceSettings(SettingsGroup):
    """How fast a plan is carried out."""

    moves_per_broker: int = setting(
        5,
        "Partitions on their way at the same time that one broker gets, gives or is copied from (parallelism).",
        ge=1,
        le=10_000,
    )
    moves_max: int = setting(
        1_000, "Partitions on their way at the same time in the whole cluster.", ge=1, le=1_000_000
    )
    bytes_in_flight: int = setting(
        50 * 2**30, "Bytes on their way at the same time; one partition alone may be larger.", ge=1, le=2**60
    )
    leaders_at_once: int = setting(1_000, "Leader switches asked for at once.", ge=1, le=1_000_000)
    one_replica: bool = setting(False, "Only one replica of a partition is on its way at a time.")
    throttle_bytes_per_s: int | None = setting(
        None, "Replication rate of each broker for what the plan moves; None: no throttle is set.", ge=1, le=2**60
    )
    order: Literal["plan", "small-first", "large-first"] = setting(
        "plan", "Which partitions set out first, behind those that are under-replicated."
    )
    settle_s: float = setting(
        5.0,
        "An answer of the cluster that contradicts the plan counts when it lasts so long; nor is anything asked again sooner.",
        ge=0.1,
        le=600,
    )
    attempts_max: int = setting(5, "So often a partition that Kafka refuses is asked for.", ge=1, le=1_000)
    full_look_s: float = setting(
        5.0, "Time between two looks at all partitions of the cluster and at what was copied.", ge=0.05, le=600
    )
    executor_away_s: float = setting(
        15.0, "An executor that says nothing for so long is taken for dead; another one may go on.", ge=2, le=600
    )
    poll_s: float = setting(1.0, "Time between two looks at the cluster.", ge=0.05, le=600)
    stalled_s: float = setting(
        1_800.0, "A move that is under way for so long without any progress stops the execution.", ge=1, le=30 * DAY_S
    )
    broker_grace_s: float = setting(
        60.0, "A broker of the plan may be away for so long before the execution stops.", ge=0, le=DAY_S
    )
    urp_grace_s: float = setting(
        60.0,
        "Under-replicated partitions beyond those of the beginning and of the plan may last so long.",
        ge=0,
        le=DAY_S,
    )


class PartitionsSettings(SettingsGroup):
    """Settings of `statechannel partitions`."""

    state_topic: str = setting(
        "partition-plans",
        "Topic of plans, their progress and what operators ask of them.",
        min_length=1,
        max_length=249,
    )
    replication_factor: int = setting(
        3, "Of the topics that it makes; fewer brokers: as many as there are.", ge=1, le=32
    )
    sample: SampleSettings = Field(default_factory=SampleSettings, description="Samples of the partitions' load.")
    plan: PlanSettings = Field(default_factory=PlanSettings, description="Bounds of a plan.")
    pace: PaceSettings = Field(default_factory=PaceSettings, description="How fast a plan is carried out.")


def configured(values: Mapping[str, Any]) -> PartitionsSettings:
    """Settings as `extensions.partitions.*` has them.

    Raises:
        SettingsError: A setting is unknown, malformed or out of bounds.
    """
    return extension_settings.configured(NAME, PartitionsSettings, values)


def no_extension(_settings: Any, values: Mapping[str, Any]) -> None:
    """For brokers, whose file of settings may be the same one: these settings are known, checked, and of the commands alone.

    Raises:
        SettingsError: As `configured`.
    """
    configured({name: value for name, value in values.items() if name != "enabled"})
