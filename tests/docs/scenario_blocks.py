"""The generated parts of design/reference/scenarios.md: fields out of the models, scenarios out of their files."""

import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shedders.contest.scenario import (
    CostsPart,
    Fleet,
    LoadChange,
    LoadWave,
    Namespaces,
    Noise,
    Scenario,
    ScenarioAntiAffinity,
    ScenarioEvent,
    ScenarioIsolation,
    ScenarioPin,
    ScenarioPolicies,
    Spikes,
    TopicKind,
    load_scenario,
    scenarios,
)

PARTS: dict[str, type[BaseModel]] = {
    "The file": Scenario,
    "`[[fleet]]`": Fleet,
    "`[[kinds]]`": TopicKind,
    "`[[namespaces]]`": Namespaces,
    "`[[noise]]`": Noise,
    "`[wave]`": LoadWave,
    "`[[changes]]`": LoadChange,
    "`[[spikes]]`": Spikes,
    "`[[events]]`": ScenarioEvent,
    "`[policies]`": ScenarioPolicies,
    "`[[policies.isolation]]`": ScenarioIsolation,
    "`[[policies.anti_affinity]]`": ScenarioAntiAffinity,
    "`[[policies.pins]]`": ScenarioPin,
    "`[costs]`": CostsPart,
}


def fields() -> str:
    """A table of fields for each part of a scenario."""
    return "\n\n".join(f"### {title}\n\n{_fields_of(model)}" for title, model in PARTS.items())


def _fields_of(model: type[BaseModel]) -> str:
    lines = ["| field | default | meaning |", "| --- | --- | --- |"]
    for name, field in model.model_fields.items():
        about = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{name}` | {_default(field)} | {about}{_choices(field.annotation)} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "needed"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, list) and any(isinstance(one, BaseModel) for one in value):
        return "one: " + ", ".join(f"`{one.name}`" for one in value)
    if value is None or value == []:
        return "-"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _choices(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " One of " + ", ".join(f"`{one}`" for one in typing.get_args(annotation)) + "."
    if isinstance(annotation, types.UnionType):
        return "".join(_choices(one) for one in typing.get_args(annotation))
    return ""


def shipped() -> str:
    """The scenarios that strategies were tuned with."""
    return _listed(scenarios())


def held_out() -> str:
    """Those that nobody looked at meanwhile."""
    return _listed(scenarios(held_out=True))


def _listed(names: Iterable[str]) -> str:
    lines = ["| name | brokers | bundles | topics | hours | what it shows | source |", "|" + " --- |" * 7]
    for name in names:
        one = load_scenario(name)
        counts = (
            sum(fleet.count for fleet in one.fleet),
            sum(space.count * space.bundles for space in one.namespaces),
            sum(space.count * space.topics for space in one.namespaces),
        )
        told = " | ".join(f"{count:,}" for count in counts)
        lines.append(f"| `{name}` | {told} | {one.hours:g} | {one.about} | {one.source} |")
    return "\n".join(lines)
