"""Makes design/settings.md from the tree: `python -m statechannel.settings.render > design/settings.md`."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from statechannel.settings.relations import RELATIONS
from statechannel.settings.tree import ENV_DELIMITER, ENV_PREFIX, groups

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"), ("pattern", "matches"))


def render() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Made from the code by `python -m statechannel.settings.render`; a test compares. Do not edit by hand."
    yield ""
    yield "Flags (`--set group.name=value`, and the options with names of their own) are stronger than the environment"
    yield f"(`{ENV_PREFIX}GROUP{ENV_DELIMITER}NAME`), and that is stronger than the file (`--config FILE` or"
    yield "`STATECHANNEL_CONFIG`; TOML, a table a group). A name that nobody knows is refused, with what was probably meant."
    yield "The unit is the last word of a name. `none` stands for None. The last column names the nearest setting or"
    yield "constant of Pulsar's load manager extension (PIP-192 as built)."
    for name, group in groups().items():
        yield ""
        yield f"## {name}"
        yield ""
        yield " ".join((group.__doc__ or "").split())
        yield ""
        yield from table(group.model_fields)
    yield ""
    yield "## Relations"
    yield ""
    yield "Checked at start; all that do not hold are named."
    yield ""
    yield "| rule | why |"
    yield "|---|---|"
    for relation in RELATIONS:
        yield f"| `{relation.left}` {relation.relation} `{relation.right}` | {relation.why} |"


def table(fields: Mapping[str, FieldInfo], *, upstream: bool = True) -> Iterator[str]:
    """Settings as a table, a row each; pages of other packages have the same.

    Args:
        upstream: With a column for upstream's names.
    """
    headers = ["setting", "type", "default", "bounds", "why", "PIP-192"][: None if upstream else -1]
    yield f"| {' | '.join(headers)} |"
    yield "|---" * len(headers) + "|"
    for name, field in fields.items():
        yield f"| {' | '.join(_row(name, field)[: len(headers)])} |"


def _row(name: str, field: FieldInfo) -> list[str]:
    extra = field.json_schema_extra
    upstream = str(extra.get("pip_192", "")) if isinstance(extra, dict) else ""
    cells = [
        f"`{name}`",
        _type(field.annotation),
        f"`{_default(field.get_default(call_default_factory=True))}`",
        _bounds(field),
        field.description or "",
        f"`{upstream}`" if upstream and " " not in upstream else upstream,
    ]
    return [cell.replace("|", "\\|") for cell in cells]


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(annotation))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if origin is dict:
        return "table" if get_origin(get_args(annotation)[1]) is dict else "table of texts"
    if origin in (tuple, frozenset, list):
        return "list of texts"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    names = {str: "text", Path: "path", bool: "true or false", int: "int", float: "number", type(None): "none"}
    return names.get(annotation, str(annotation))


def _default(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1 else f"{value:.10g}"
    return f"{sorted(value)}" if isinstance(value, tuple | frozenset | list) else str(value)


def _bounds(field: FieldInfo) -> str:
    bounds = []
    for item in field.metadata:
        for attribute, sign in _BOUNDS:
            bound = getattr(item, attribute, None)
            if bound is not None:
                bounds.append(f"{sign} `{bound}`" if attribute == "pattern" else f"{sign} {bound:g}")
    return ", ".join(bounds)


if __name__ == "__main__":
    sys.stdout.write(render())
