"""How a setting is declared: its default, why that default, its bounds, and upstream's name for it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class SettingsGroup(BaseModel):
    """A group of settings: never changed after the start, and without names that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


def setting(default: Any, why: str, *, pip_192: str = "", **bounds: Any) -> Any:
    """Declare a setting.

    Args:
        default: What holds where nobody says otherwise.
        why: What it does, and the reason for the default.
        pip_192: Name of the nearest setting or constant of Pulsar's load manager extension (PIP-192 as built).
        **bounds: Bounds as pydantic names them (`ge`, `gt`, `le`, `lt`, `pattern`, ...).
    """
    return Field(default, description=why, json_schema_extra={"pip_192": pip_192}, **bounds)
