"""Names of settings: what is unknown among given ones, and what is known of a setting by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from statechannel.settings.sentences import sentence_of, value_text
from statechannel.suggestions import nearest

ENV_PREFIX = "STATECHANNEL_"
ENV_DELIMITER = "__"
CONFIG_VARIABLE = "STATECHANNEL_CONFIG"
OTHER_VARIABLES = (
    "STATECHANNEL_CONFIG",
    "STATECHANNEL_CONTEXT",
    "STATECHANNEL_CONTEXTS",
    "STATECHANNEL_ACCELERATOR",
    "STATECHANNEL_KAFKA_JARS",
    "STATECHANNEL_CACHE_DIR",
    "STATECHANNEL_SPARK_JARS",
    "STATECHANNEL_SPARK_CLASS_ARCHIVE_TO",
    "STATECHANNEL_TEST_BOOTSTRAP",
    "STATECHANNEL_TEST_SEEDS_FACTOR",
    "STATECHANNEL_TEST_WAIT_S",
    "STATECHANNEL_BROWSER",
    "STATECHANNEL_REQUIRE_BROWSER",
)
"""Variables with our prefix that are no settings: read by the command line, the embedded broker, Spark, the tests."""
EXTENSIONS = "extensions"
"""The group that belongs to extensions: a group of settings each, by the extension's name."""
SettingsGroups = Mapping[str, type[BaseModel]]
"""The groups of a tree of settings, by name."""
AS_ARGUMENT = {"hooks": "hook_settings"}
"""Groups that `StateChannel.open` takes by another name: it has an argument of the group's own."""


def as_argument(group: str, name: str) -> str:
    """A setting as an argument of `StateChannel.open`."""
    return f"{AS_ARGUMENT.get(group, group)}={{'{name}': ...}}"


def problem_of(groups: SettingsGroups, detail: Mapping[str, Any], where: Callable[[str, str, str], str]) -> str:
    """What is wrong with a value, as a sentence.

    Args:
        detail: One error of the validation library, whose own words have what was given, passwords too.
        where: Names the place of a setting, from its group, its name, and `=VALUE`, which is empty for secrets.
    """
    group, *rest = (str(part) for part in detail["loc"])
    name = rest[0] if rest else ""
    secret = group == "kafka" and name == "properties"
    value = "" if secret else f"={value_text(detail['input'])}"
    sentence = sentence_of(detail, unit=unit_of(name), bounds=bounds_of(groups, group, name))
    return f"{where(group, name, value)}: {sentence}."


def bounds_of(groups: SettingsGroups, group: str, name: str) -> dict[str, Any]:
    """Bounds of a setting (`ge`, `gt`, `le`, `lt`), and `form`, the form of a text; empty where it is unknown."""
    field = groups[group].model_fields.get(name) if group in groups else None
    if field is None:
        return {}
    signs = ("ge", "gt", "le", "lt")
    bounds = {
        sign: bound for item in field.metadata for sign in signs if (bound := getattr(item, sign, None)) is not None
    }
    extra = field.json_schema_extra
    form = extra.get("form") if isinstance(extra, dict) else None
    return bounds | ({"form": form} if form else {})


def unit_of(name: str) -> str:
    """What a setting counts, from the end of its name."""
    last = name.rpartition("_")[2]
    return {"s": "seconds", "ms": "milliseconds", "mib": "MiB", "kib": "KiB", "bytes": "bytes"}.get(last, "")


def known(groups: SettingsGroups) -> dict[str, list[str]]:
    return {name: list(group.model_fields) for name, group in groups.items()}


def unknown_in(groups: SettingsGroups, tree: Mapping[str, Any], origin: str) -> Iterator[str]:
    names = known(groups)
    every = [f"{group}.{name}" for group, fields in names.items() for name in fields]
    for group, values in tree.items():
        if group == EXTENSIONS and isinstance(values, Mapping):
            yield from _extension_problems(values, origin)
        elif group not in names:
            yield f"{origin}: unknown group of settings `{group}`.{_suggestion(group, names, every)}"
        elif not isinstance(values, Mapping):
            yield f"{origin}: `{group}` is a group of settings, not a setting.{_listed(names[group])}"
        else:
            for name in values:
                if name not in names[group]:
                    yield f"{origin}: unknown setting `{group}.{name}`.{_suggestion(f'{group}.{name}', every, every)}"


def _extension_problems(values: Mapping[str, Any], origin: str) -> Iterator[str]:
    """Errors in the extensions' group; their own settings are checked when they are created."""
    for name, own in values.items():
        if not isinstance(own, Mapping):
            yield f"{origin}: `{EXTENSIONS}.{name}` is the group of an extension's settings, not a setting."


def unknown_variables(groups: SettingsGroups, environ: Iterable[str]) -> Iterator[str]:
    """A sentence for each variable with our prefix that is none."""
    names = known(groups)
    every = [f"{ENV_PREFIX}{group}{ENV_DELIMITER}{name}".upper() for group, fields in names.items() for name in fields]
    every.append(f"{ENV_PREFIX}{EXTENSIONS}".upper())
    whole = {f"{ENV_PREFIX}{group}".upper() for group in names}
    for variable in sorted(environ):
        upper = variable.upper()
        if not upper.startswith(ENV_PREFIX) or upper in OTHER_VARIABLES or upper in every:
            continue
        if upper in whole or any(upper.startswith(f"{name}{ENV_DELIMITER}") for name in every):
            continue  # a group as JSON, or an entry of a setting that is a mapping
        meant = _suggestion(upper, [*every, *OTHER_VARIABLES], every)
        yield f"the environment: unknown setting {variable}.{meant}"


def _suggestion(wrong: str, first: Iterable[str], second: Iterable[str]) -> str:
    names = nearest(wrong, first) or nearest(wrong, second, cutoff=0.5) or _same_last_word(wrong, second)
    return f" Did you mean `{names[0]}`?" if names else ""


def _same_last_word(wrong: str, names: Iterable[str]) -> list[str]:
    """A setting of the same name in another group."""
    last = wrong.rpartition(".")[2]
    return [name for name in names if name.rpartition(".")[2] == last][:1]


def _listed(names: Iterable[str]) -> str:
    return f" Its settings: {', '.join(names)}."
