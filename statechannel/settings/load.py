"""Loading of settings: flags override the environment, which overrides the file; unknown names are refused."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError
from pydantic_settings import PydanticBaseSettingsSource
from pydantic_settings import SettingsError as SourceError

from statechannel.settings.errors import SettingsError
from statechannel.settings.names import EXTENSIONS, unknown_in, unknown_variables
from statechannel.settings.relations import violations
from statechannel.settings.tree import ENV_DELIMITER, ENV_PREFIX, Settings

CONFIG_VARIABLE = "STATECHANNEL_CONFIG"


def load(
    *, config: Path | None = None, flags: Iterable[str] = (), overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Read, check and relate all settings.

    Args:
        config: TOML file, one table per group; None takes STATECHANNEL_CONFIG, if set.
        flags: `group.name=value`, with the highest precedence.
        overrides: Values of named options, by group and name; same precedence as flags. None
            means that the option was not given.

    Raises:
        SettingsError: Names every setting that is unknown, malformed, out of bounds, or contradicts another.
    """
    path = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    file = {} if path is None else _read_toml(path)
    options = _parse_flags(flags)
    for group, values in (overrides or {}).items():
        options.setdefault(group, {}).update({name: value for name, value in values.items() if value is not None})
    broken = [
        f"the environment: {name} is not valid UTF-8." for name, text in os.environ.items() if _is_broken(name, text)
    ]
    if broken:
        raise SettingsError(broken)
    unknown = [*unknown_in(file, str(path)), *unknown_variables(os.environ), *unknown_in(options, "a flag")]
    if unknown:
        raise SettingsError(unknown)
    settings = _validated(file, options, origin=str(path))
    wrong = list(violations(settings))
    if wrong:
        raise SettingsError(wrong, hint="Change one of the two; design/settings.md explains both.", settings=settings)
    return settings


def _is_broken(name: str, text: str) -> bool:
    """Whether a value has lone surrogates (invalid UTF-8), which neither Kafka's client nor JSON accepts."""
    return name.upper().startswith(ENV_PREFIX) and text.encode(errors="replace") != text.encode(errors="surrogatepass")


def _validated(file: dict[str, Any], options: dict[str, Any], *, origin: str) -> Settings:
    class FromEverywhere(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[Settings],  # type: ignore[override]  # noqa: ARG003 - the library's signature
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, lambda: file  # type: ignore[return-value]

    try:
        return FromEverywhere(**options)
    except ValidationError as error:
        problems = [_problem(detail, file, options, origin) for detail in error.errors(include_url=False)]
        raise SettingsError(problems) from None  # the library's own words have what was given, passwords too
    except SourceError as error:
        raise SettingsError([f"the environment: {error}."]) from error


def _problem(detail: Any, file: dict[str, Any], options: dict[str, Any], origin: str) -> str:
    group, *rest = (str(part) for part in detail["loc"])
    name = rest[0] if rest else ""
    if name in options.get(group, {}):
        where = "a flag"
    elif f"{ENV_PREFIX}{group}{ENV_DELIMITER}{name}".upper() in {variable.upper() for variable in os.environ}:
        where = "the environment"
    else:
        where = origin if name in file.get(group, {}) else "the environment"
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    shown = "" if group == "kafka" and name == "properties" else f" (found {detail['input']!r})"
    return f"{where}: {'.'.join(detail['loc'][:2])}: {message}{shown}."


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
