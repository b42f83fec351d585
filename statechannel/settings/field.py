"""Declaration of a setting: default with its reason, bounds, and Pulsar's name for it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class SettingsGroup(BaseModel):
    """A group of settings: immutable, without unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, defer_build=True)


def setting(default: Any, why: str, *, pip_192: str = "", form: str = "", **bounds: Any) -> Any:
    """Declare a setting.

    Args:
        why: Meaning, and the reason for the default.
        pip_192: Name of the nearest setting or constant of Pulsar's load manager extension (PIP-192 as built).
        form: Form of a text, for people; `pattern` checks it.
        **bounds: Bounds as pydantic names them (`ge`, `gt`, `le`, `lt`, `pattern`, ...).
    """
    return Field(default, description=why, json_schema_extra={"pip_192": pip_192, "form": form}, **bounds)
