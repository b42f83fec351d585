"""Settings as text: type, default and bounds; for the pages of design/ and for `statechannel settings`."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from statechannel.settings.names import ENV_DELIMITER, ENV_PREFIX
from statechannel.settings.relations import RELATIONS
from statechannel.settings.tree import groups

GROUP: Final = "statechannel.settings"
"""Entry points of extensions: name of the extension = class of its settings."""
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"), ("pattern", "matches"))


@dataclass(frozen=True, slots=True)
class SettingText:
    """One setting, as text.

    Attributes:
        name: Dotted: `membership.expiry_s`, `extensions.balancer.interval_s`.
        allowed: Bounds; empty if there are none.
        about: Meaning, and reason for the default.
        upstream: Nearest setting or constant of Pulsar; may be empty.
    """

    name: str
    type: str
    default: str
    allowed: str
    about: str
    upstream: str

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.replace(".", ENV_DELIMITER).upper()

    def fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "default": self.default,
            "allowed": self.allowed or None,
            "about": self.about,
            "upstream": self.upstream or None,
            "environment": self.variable,
            "relations": relations_of(self.name),
        }


def relations_of(name: str) -> list[str]:
    return [
        f"{relation.left} {relation.relation} {relation.right}: {relation.why}"
        for relation in RELATIONS
        if name in (str(relation.left), str(relation.right))
    ]


def every_setting() -> Iterator[SettingText]:
    """All settings, those of installed extensions included."""
    for name, group in groups().items():
        yield from _settings_in(name, group)
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        yield from _settings_in(f"extensions.{point.name}", point.load())


def _settings_in(path: str, model: type[BaseModel]) -> Iterator[SettingText]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _settings_in(f"{path}.{name}", field.annotation)
        else:
            yield SettingText(
                f"{path}.{name}",
                type_text(field.annotation),
                default_text(field.get_default(call_default_factory=True)),
                bounds_text(field),
                field.description or "",
                upstream_text(field),
            )


def upstream_text(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("pip_192", "")) if isinstance(extra, dict) else ""


def type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(part) for part in get_args(annotation))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if origin is dict:
        return "table" if get_origin(get_args(annotation)[1]) is dict else "table of texts"
    if origin in (tuple, frozenset, list):
        return "list of texts"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    names: Mapping[Any, str] = {
        str: "text",
        SecretStr: "text",
        Path: "path",
        bool: "true or false",
        int: "int",
        float: "number",
        type(None): "none",
    }
    return names.get(annotation, str(annotation))


def default_text(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1 else f"{value:.10g}"
    return f"{sorted(value)}" if isinstance(value, tuple | frozenset | list) else str(value)


def bounds_text(field: FieldInfo) -> str:
    bounds = []
    for item in field.metadata:
        for attribute, sign in _BOUNDS:
            bound = getattr(item, attribute, None)
            if bound is not None:
                bounds.append(f"{sign} `{bound}`" if attribute == "pattern" else f"{sign} {bound:g}")
    return ", ".join(bounds)
