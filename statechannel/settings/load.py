"""Loading of settings: flags override the environment, which overrides the file; unknown names are refused."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args

from statechannel.files import UnreadableFileError, parse_value, read_text
from statechannel.settings.errors import SettingsError
from statechannel.settings.groups_cluster import AccessRole, LogFormat, LogLevel
from statechannel.settings.names import (
    CONFIG_VARIABLE,
    ENV_DELIMITER,
    ENV_PREFIX,
    EXTENSIONS,
    OTHER_VARIABLES,
    unknown_in,
    unknown_variables,
)
from statechannel.settings.relations import require_relations
from statechannel.settings.tree import Settings, groups

_NONE = "none"
_PLAIN = frozenset({str, int, float, bool, Path, LogLevel, LogFormat, AccessRole, NoneType})
"""Types of settings whose values in the environment are texts."""


class _Places(NamedTuple):
    """Where values come from, for messages.

    Attributes:
        typed: Of the options those given by `--set`.
        origin: Name of the file.
        options_origin: What the options are; None: options of the command line.
    """

    file: dict[str, Any]
    options: dict[str, Any]
    typed: dict[str, Any]
    origin: str
    options_origin: str | None

    def of(self, group: str, name: str, value: str) -> str:
        setting = f"{group}.{name}{value}" if name else f"{group}{value}"
        variable = f"{ENV_PREFIX}{group}{ENV_DELIMITER}{name}".upper()
        if name in self.options.get(group, {}):
            if self.options_origin is not None:
                return f"{self.options_origin}: {setting}"
            return f"--set {setting}" if name in self.typed.get(group, {}) else setting
        if name in self.file.get(group, {}) and variable not in {known.upper() for known in os.environ}:
            return f"{self.origin}: {setting}"
        return f"the environment: {variable}{value}"


def load_settings(config: Path | str | None = None, **groups: Mapping[str, Any]) -> Settings:
    """Settings of these groups, of the environment and of a file, in this order of precedence; all checked.

    Example:
        ```
        settings = load_settings("broker.toml", hooks={"deadline_s": 5}, extensions={"balancer": {"enabled": False}})
        ```

    Args:
        config: TOML file, one table per group; None takes STATECHANNEL_CONFIG, if set.
        groups: Values by group and name (settings.md).

    Raises:
        SettingsError: Names every setting that is unknown, malformed, out of bounds, or contradicts another.
    """
    path = Path(config) if isinstance(config, str) else config
    return load(config=path, overrides=groups, options_origin="an argument")


def load(
    *,
    config: Path | None = None,
    flags: Iterable[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    options_origin: str | None = None,
    by_opening: bool = False,
) -> Settings:
    """Read, check and relate all settings.

    Args:
        config: TOML file, one table per group; None takes STATECHANNEL_CONFIG, if set.
        flags: `group.name=value`, with the highest precedence.
        overrides: Values of named options, by group and name; same precedence as flags. None
            means that the option was not given.
        defaults: Values by group and name that only this function's own defaults give way to: file, environment and
            flags override them.
        options_origin: What flags and overrides are, for messages; None: options of the command line.
        by_opening: They are arguments of `StateChannel.open`.

    Raises:
        SettingsError: Names every setting that is unknown, malformed, out of bounds, or contradicts another.
    """
    path = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    file = {} if path is None else _read_toml(path)
    typed = _parse_flags(flags)
    named = {
        group: {name: value for name, value in values.items() if value is not None}
        for group, values in (overrides or {}).items()
    }
    options = {group: {**typed.get(group, {}), **named.get(group, {})} for group in typed.keys() | named.keys()}
    broken = [
        f"the environment: {name} is not valid UTF-8." for name, text in os.environ.items() if _is_broken(name, text)
    ]
    if broken:
        raise SettingsError(broken)
    known_groups = groups()
    unknown = [
        *unknown_in(known_groups, file, str(path)),
        *unknown_variables(known_groups, os.environ),
        *unknown_in(known_groups, typed, options_origin or "--set"),
        *unknown_in(known_groups, named, options_origin or "an option"),
    ]
    if unknown:
        raise SettingsError(unknown)
    below = {group: {**values, **file.get(group, {})} for group, values in (defaults or {}).items()}
    whole = {**file, **below}
    places = _Places(whole, options, typed, str(path) if path is not None else "the context", options_origin)
    settings = Settings.of(_merged(_merged(whole, _from_environment()), options), places.of)
    require_relations(settings, by_opening=by_opening)
    return settings


def _is_broken(name: str, text: str) -> bool:
    """Whether a value has lone surrogates (invalid UTF-8), which neither Kafka's client nor JSON accepts."""
    return name.upper().startswith(ENV_PREFIX) and text.encode(errors="replace") != text.encode(errors="surrogatepass")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The values of both; of mappings each entry, else `above` overrides `below`."""
    merged = dict(below)
    for name, value in above.items():
        lower = merged.get(name)
        if isinstance(lower, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(lower, value)
        else:
            merged[name] = value
    return merged


def _from_environment() -> dict[str, Any]:
    variables = {name: text for name, text in os.environ.items() if name.upper().startswith(ENV_PREFIX)}
    plain = _plain(variables)
    if plain is not None:
        return plain
    # Lists, mappings and whole groups need the library, which takes a tenth of a lookup's time.
    from pydantic_settings import EnvSettingsSource  # noqa: PLC0415
    from pydantic_settings import SettingsError as SourceError  # noqa: PLC0415

    source = EnvSettingsSource(
        Settings,  # type: ignore[arg-type]  # only its fields are read
        case_sensitive=False,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        env_parse_none_str=_NONE,
    )
    try:
        return source()
    except SourceError as error:
        raise SettingsError([f"the environment: {error}."]) from error


def _plain(variables: Mapping[str, str]) -> dict[str, dict[str, str | None]] | None:
    """The values of variables if each names one setting that is neither a list nor a mapping; else None."""
    known_groups = groups()
    values: dict[str, dict[str, str | None]] = {}
    for variable, text in variables.items():
        if variable.upper() in OTHER_VARIABLES:
            continue
        group, _, name = variable[len(ENV_PREFIX) :].lower().partition(ENV_DELIMITER)
        field = known_groups[group].model_fields.get(name) if group in known_groups else None
        if field is None or not set(get_args(field.annotation) or [field.annotation]) <= _PLAIN:
            return None
        values.setdefault(group, {})[name] = None if text == _NONE else text
    return values


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except UnreadableFileError as error:
        raise SettingsError([f"{path} {error}."], hint="Check --config.") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            [f"{path} is not TOML: {error}."], hint="Write `[group]` and under it `name = value`."
        ) from error


def _parse_flags(flags: Iterable[str]) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        group, dot, field = name.strip().partition(".")
        if not equals or not dot or not field:
            raise SettingsError(
                [f"--set {name}: not of the form group.name=value."], hint="Example: --set membership.expiry_s=8"
            )
        target = options.setdefault(group, {})
        if group == EXTENSIONS:
            *path, field = field.split(".")
            if not path or not field or not all(path):
                raise SettingsError(
                    [f"--set {name}: not of the form extensions.extension.name=value."],
                    hint="Example: --set extensions.balancer.enabled=false",
                )
            for part in path:  # an extension has groups of its own
                target = target.setdefault(part, {})
        target[field] = parse_value(value)
    return options
