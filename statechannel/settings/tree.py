"""Tree of settings."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from statechannel.settings.field import SettingsGroup
from statechannel.settings.groups_cluster import ChannelSettings, EmbeddedSettings, KafkaSettings, ObserveSettings
from statechannel.settings.groups_engine import (
    HookSettings,
    LeaderSettings,
    LimitSettings,
    LookupSettings,
    MembershipSettings,
    RepairSettings,
    SafeModeSettings,
)
from statechannel.settings.groups_runtime import RequestSettings, RuntimeSettings

ENV_PREFIX = "STATECHANNEL_"
ENV_DELIMITER = "__"


class Settings(BaseSettings):
    """All settings, immutable. Created by `load`, which knows the origin of each value."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        env_parse_none_str="none",
    )

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
    extensions: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="By name of an extension: its settings, which it validates itself."
    )


def groups() -> dict[str, type[SettingsGroup]]:
    """Group name to its class, in order."""
    annotations = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, SettingsGroup)
    }
