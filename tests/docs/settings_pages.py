"""Pages of settings, made from their models: of brokers, of the balancer, of the rebalance planner."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shedders.balancer.active_strategies import BALANCER
from shedders.balancer.settings import BalancerSettings
from shedders.kafka_rebalance.settings import NAME as PARTITIONS
from shedders.kafka_rebalance.settings import PartitionsSettings
from statechannel.settings.relations import RELATIONS
from statechannel.settings.tree import ENV_DELIMITER, ENV_PREFIX, groups

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"), ("pattern", "matches"))


MADE = "Made from the code by `make docs`; a test compares. Do not edit by hand."


def settings_page() -> Iterator[str]:
    """Lines of design/settings.md."""
    yield "# Settings"
    yield ""
    yield MADE
    yield ""
    yield "Flags (`--set group.name=value`, and named options) override the environment"
    yield f"(`{ENV_PREFIX}GROUP{ENV_DELIMITER}NAME`), which overrides the file (`--config FILE` or"
    yield "`STATECHANNEL_CONFIG`; TOML, one table per group). Unknown names are refused, with a suggestion."
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
    yield "Checked at start; all violations are reported."
    yield ""
    yield "| rule | why |"
    yield "|---|---|"
    for relation in RELATIONS:
        yield f"| `{relation.left}` {relation.relation} `{relation.right}` | {relation.why} |"


def table(fields: Mapping[str, FieldInfo], *, upstream: bool = True) -> Iterator[str]:
    """Table of settings, one row each; also used for pages of other packages.

    Args:
        upstream: With a column for Pulsar's names.
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


def balancer_page() -> Iterator[str]:
    """Lines of design/balancer-settings.md."""
    prefix = "extensions.balancer"
    yield "# Settings of the balancing extension"
    yield ""
    yield MADE
    yield ""
    yield f"Given like all others (settings.md), below `{prefix}`: `--set {prefix}.interval_s=30`, or in the file"
    yield ""
    yield "```toml"
    yield f"[{prefix}]"
    yield "interval_s = 30"
    yield ""
    yield f"[{prefix}.load]"
    yield "top_bundles_max = 20"
    yield "```"
    yield ""
    names = ", ".join(f"`{name}`" for name in BALANCER)
    yield fill(
        "They apply to one broker, from its start. A policy of kind `setting` (policies.md) can change on all running brokers: "
        f"profile, strategies, their settings, and of the balancer {names} and `budget.*`.",
        width=128,
        break_on_hyphens=False,
    )
    yield from group_tables(prefix, BalancerSettings)


def partitions_page() -> Iterator[str]:
    """Lines of design/partitions-settings.md."""
    prefix = f"extensions.{PARTITIONS}"
    yield "# Settings of the rebalance planner"
    yield ""
    yield MADE
    yield ""
    yield f"Set like all others (settings.md), under `{prefix}`, for the commands of `statechannel partitions`; options of a"
    yield f"command override them: `--set {prefix}.pace.moves_per_broker=10`, or in the file"
    yield ""
    yield "```toml"
    yield f"[{prefix}.pace]"
    yield "moves_per_broker = 10"
    yield "throttle_bytes_per_s = 50_000_000"
    yield ""
    yield f"[{prefix}.plan]"
    yield 'excluded_topics = ["tmp-.*"]'
    yield "```"
    yield ""
    yield "Brokers of the channel check them if their file has them, but do not use them."
    yield from group_tables(prefix, PartitionsSettings, upstream=False)


def group_tables(path: str, model: type[BaseModel], *, upstream: bool = True) -> Iterator[str]:
    """A table of a group's own settings, and one of each group in it, as lines of Markdown.

    Args:
        upstream: With a column for the names of Pulsar's settings.
    """
    inner = {
        name: field.annotation
        for name, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    yield ""
    yield f"## {path}"
    yield ""
    yield " ".join((model.__doc__ or "").split())
    yield ""
    own = {name: field for name, field in model.model_fields.items() if name not in inner}
    yield from table(own, upstream=upstream)
    for name, group in inner.items():
        yield from group_tables(f"{path}.{name}", group, upstream=upstream)
