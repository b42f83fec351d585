"""Loading of settings: flags override the environment, which overrides the file; unknown names are refused."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from statechannel.settings.errors import SettingsError
from statechannel.settings.relations import violations
from statechannel.settings.sentences import sentence_of, value_text
from statechannel.settings.tree import ENV_DELIMITER, ENV_PREFIX, Settings, groups
from statechannel.suggestions import nearest

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
        """Place, name and value of a setting."""
        setting = f"{group}.{name}{value}" if name else f"{group}{value}"
        variable = f"{ENV_PREFIX}{group}{ENV_DELIMITER}{name}".upper()
        if name in self.options.get(group, {}):
            if self.options_origin is not None:
                return f"{self.options_origin}: {setting}"
            return f"--set {setting}" if name in self.typed.get(group, {}) else setting
        if name in self.file.get(group, {}) and variable not in {known.upper() for known in os.environ}:
            return f"{self.origin}: {setting}"
        return f"the environment: {variable}{value}"


def load(
    *,
    config: Path | None = None,
    flags: Iterable[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    options_origin: str | None = None,
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
    unknown = [
        *unknown_in(file, str(path)),
        *unknown_variables(os.environ),
        *unknown_in(typed, options_origin or "--set"),
        *unknown_in(named, options_origin or "an option"),
    ]
    if unknown:
        raise SettingsError(unknown)
    below = {group: {**values, **file.get(group, {})} for group, values in (defaults or {}).items()}
    whole = {**file, **below}
    places = _Places(whole, options, typed, str(path) if path is not None else "the context", options_origin)
    settings = _validated(whole, options, places)
    wrong = list(violations(settings))
    if wrong:
        raise SettingsError(wrong, hint="Change one of the two; design/settings.md explains both.", settings=settings)
    return settings


def _is_broken(name: str, text: str) -> bool:
    """Whether a value has lone surrogates (invalid UTF-8), which neither Kafka's client nor JSON accepts."""
    return name.upper().startswith(ENV_PREFIX) and text.encode(errors="replace") != text.encode(errors="surrogatepass")


def _validated(file: dict[str, Any], options: dict[str, Any], places: _Places) -> Settings:
    try:
        return Settings(**_merged(_merged(file, _from_environment()), options))
    except ValidationError as error:
        problems = [_problem(detail, places) for detail in error.errors(include_url=False)]
        raise SettingsError(problems) from None  # the library's own words have what was given, passwords too


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
    """Values of environment variables, by group and name."""
    if all(name in OTHER_VARIABLES for name in map(str.upper, os.environ) if name.startswith(ENV_PREFIX)):
        return {}
    # Commands whose settings are elsewhere begin sooner without it.
    from pydantic_settings import EnvSettingsSource  # noqa: PLC0415
    from pydantic_settings import SettingsError as SourceError  # noqa: PLC0415

    source = EnvSettingsSource(
        Settings,  # type: ignore[arg-type]  # only its fields are read
        case_sensitive=False,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        env_parse_none_str="none",
    )
    try:
        return source()
    except SourceError as error:
        raise SettingsError([f"the environment: {error}."]) from error


def _problem(detail: Any, places: _Places) -> str:
    group, *rest = (str(part) for part in detail["loc"])
    name = rest[0] if rest else ""
    secret = group == "kafka" and name == "properties"
    value = "" if secret else f"={value_text(detail['input'])}"
    where = places.of(group, name, value)
    return f"{where}: {sentence_of(detail, unit=unit_of(name), bounds=bounds_of(group, name))}."


def bounds_of(group: str, name: str) -> dict[str, Any]:
    """Bounds of a setting (`ge`, `gt`, `le`, `lt`), and `form`, the form of a text; empty where it is unknown."""
    field = groups()[group].model_fields.get(name) if group in groups() else None
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


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError([f"{path} cannot be read: {error.strerror}."], hint="Check --config.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
        target[field] = _parse_value(value)
    return options


def _parse_value(value: str) -> Any:
    """Text stays text, since pydantic reads numbers from it; lists and mappings are JSON; `none` is None."""
    if value.strip().lower() == "none":
        return None
    if value.strip()[:1] in ("[", "{"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


# --- names ---------------------------------------------------------------------------------------------------------


def known() -> dict[str, list[str]]:
    return {name: list(group.model_fields) for name, group in groups().items()}


def unknown_in(tree: Mapping[str, Any], origin: str) -> Iterator[str]:
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
    names = nearest(wrong, first) or nearest(wrong, second, cutoff=0.5) or _same_last_word(wrong, second)
    return f" Did you mean `{names[0]}`?" if names else ""


def _same_last_word(wrong: str, names: Iterable[str]) -> list[str]:
    """A setting of the same name in another group."""
    last = wrong.rpartition(".")[2]
    return [name for name in names if name.rpartition(".")[2] == last][:1]


def _listed(names: Iterable[str]) -> str:
    return f" Its settings: {', '.join(names)}."
