"""Tree of settings, and the plain values that an engine takes from it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ulid import ULID

from statechannel.clocks import now_ms
from statechannel.engine.config import EngineConfig, Identity
from statechannel.settings.errors import SettingsError
from statechannel.settings.field import SettingsGroup
from statechannel.settings.groups_cluster import (
    ChannelSettings,
    EmbeddedSettings,
    HttpSettings,
    KafkaSettings,
    ObserveSettings,
)
from statechannel.settings.groups_engine import (
    HookSettings,
    LeaderSettings,
    LimitSettings,
    LookupSettings,
    MembershipSettings,
    RepairSettings,
    RequestSettings,
    RuntimeSettings,
    SafeModeSettings,
)
from statechannel.settings.names import problem_of, unknown_in

_ARGUMENT = "an argument"


class Settings(BaseModel):
    """All settings, immutable.

    Made by `load_settings`, which also reads the environment and a file, or of groups alone: `Settings(kafka={...})`. The rules
    between settings are checked by `load_settings` and by `StateChannel.open`.

    Raises:
        SettingsError: A setting is unknown, malformed, or out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    channel: ChannelSettings = Field(default_factory=ChannelSettings)
    membership: MembershipSettings = Field(default_factory=MembershipSettings)
    leader: LeaderSettings = Field(default_factory=LeaderSettings)
    lookups: LookupSettings = Field(default_factory=LookupSettings)
    hooks: HookSettings = Field(default_factory=HookSettings)
    safe_mode: SafeModeSettings = Field(default_factory=SafeModeSettings)
    repair: RepairSettings = Field(default_factory=RepairSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings)
    requests: RequestSettings = Field(default_factory=RequestSettings)
    embedded: EmbeddedSettings = Field(default_factory=EmbeddedSettings)
    observe: ObserveSettings = Field(default_factory=ObserveSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    extensions: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="By name of an extension: its settings, which it validates itself."
    )

    def __init__(self, /, **values: Any) -> None:
        plain = {name: value for name, value in values.items() if not isinstance(value, BaseModel)}
        if unknown := list(unknown_in(groups(), plain, _ARGUMENT)):
            raise SettingsError(unknown)
        self._fill(values, lambda group, name, value: f"{_ARGUMENT}: {group}{f'.{name}' if name else ''}{value}")

    @classmethod
    def of(cls, values: Mapping[str, Any], where: Callable[[str, str, str], str]) -> Settings:
        """Settings of values whose names are known.

        Args:
            where: See `problem_of`.

        Raises:
            SettingsError: A value is malformed, or out of bounds.
        """
        settings = cls.__new__(cls)
        settings._fill(values, where)  # noqa: SLF001 - its own class
        return settings

    def _fill(self, values: Mapping[str, Any], where: Callable[[str, str, str], str]) -> None:
        # A group that is left to its default would be built by itself, with another validator: more than all of them take.
        whole: dict[str, Any] = {**{name: {} for name in groups()}, **values}
        try:
            super().__init__(**whole)
        except ValidationError as error:
            problems = [problem_of(groups(), detail, where) for detail in error.errors(include_url=False)]
            raise SettingsError(problems) from None


class SettingGroups(TypedDict, total=False):
    """Groups of settings as arguments of `StateChannel.open`: each a mapping of its settings ([settings](settings.md)).

    Those of the hooks are the argument `hook_settings`.
    """

    kafka: Mapping[str, Any]
    channel: Mapping[str, Any]
    membership: Mapping[str, Any]
    leader: Mapping[str, Any]
    lookups: Mapping[str, Any]
    safe_mode: Mapping[str, Any]
    repair: Mapping[str, Any]
    limits: Mapping[str, Any]
    runtime: Mapping[str, Any]
    requests: Mapping[str, Any]
    embedded: Mapping[str, Any]
    observe: Mapping[str, Any]
    http: Mapping[str, Any]


def groups() -> dict[str, type[SettingsGroup]]:
    annotations = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, SettingsGroup)
    }


ENTROPY_BYTES = 10
_ENGINE_FIELDS = frozenset(field.name for field in dataclasses.fields(EngineConfig))


def to_engine(settings: Settings, *, partitions: int | None = None) -> EngineConfig:
    """The configuration of an engine: a setting with the name of one of its fields is that field.

    Args:
        partitions: Partitions of the channel's topic; None takes the setting.
    """
    s = settings
    of_engine = (s.membership, s.leader, s.lookups, s.hooks, s.safe_mode, s.repair, s.limits)
    same = {name: value for group in of_engine for name, value in group if name in _ENGINE_FIELDS}
    return EngineConfig(
        partitions=partitions or s.channel.partitions,
        compaction_lag_s=s.channel.min_compaction_lag_ms / 1_000,
        member_interval_s=s.membership.interval_s,
        member_expiry_s=s.membership.expiry_s,
        safe_after_s=s.safe_mode.after_s,
        hook_deadline_s=s.hooks.deadline_s,
        lookup_waiting_max=s.lookups.waiting_max,
        lookup_cached_max=s.lookups.cached_max,
        debt_age_leader_s=s.leader.debt_age_s,
        repair_interval_s=s.repair.interval_s,
        repair_batch_max=s.repair.batch_max,
        kept_max_bytes=s.limits.kept_max_mib * 2**20,
        members_max_bytes=s.limits.members_max_mib * 2**20,
        **same,
    )


def to_identity(
    broker: str,
    *,
    listeners: Mapping[str, str] | None = None,
    persistent: bool = True,
    non_persistent: bool = True,
    properties: Mapping[str, str] | None = None,
    extensions: Sequence[str] = (),
    checks: Sequence[str] = (),
) -> Identity:
    """Identity of a new incarnation of a broker, different at each call.

    Args:
        listeners: URL for clients, by protocol name.
        checks: Checks that these make before it executes requests.
    """
    return Identity(
        broker=broker,
        incarnation=str(ULID()),
        entropy=os.urandom(ENTROPY_BYTES),
        started_at_ms=now_ms(),
        listeners=dict(listeners or {}),
        persistent=persistent,
        non_persistent=non_persistent,
        properties=dict(properties or {}),
        software=metadata.version("statechannel"),
        extensions=tuple(extensions),
        checks=tuple(checks),
    )
