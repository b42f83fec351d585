"""Names of settings, with suggestions for unknown ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from statechannel.settings.tree import ENV_DELIMITER, ENV_PREFIX, groups

OTHER_VARIABLES = (
    "STATECHANNEL_CONFIG",
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


def known() -> dict[str, list[str]]:
    """Names of the settings of each group."""
    return {name: list(group.model_fields) for name, group in groups().items()}


def unknown_in(tree: Mapping[str, Any], origin: str) -> Iterator[str]:
    """A sentence for each unknown name in a nested mapping."""
    names = known()
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


def unknown_variables(environ: Iterable[str]) -> Iterator[str]:
    """A sentence for each unknown environment variable with our prefix."""
    names = known()
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
    names = get_close_matches(wrong, [*first], n=1) or get_close_matches(wrong, [*second], n=1, cutoff=0.5)
    names = names or _same_last_word(wrong, second)
    return f" Did you mean `{names[0]}`?" if names else ""


def _same_last_word(wrong: str, names: Iterable[str]) -> list[str]:
    """A setting of the same name in another group."""
    last = wrong.rpartition(".")[2]
    return [name for name in names if name.rpartition(".")[2] == last][:1]


def _listed(names: Iterable[str]) -> str:
    return f" Its settings: {', '.join(names)}."
