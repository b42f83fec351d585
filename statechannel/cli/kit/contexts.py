"""Contexts: names for clusters in a small file of the user, each with an address, a channel and files with settings."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from platformdirs import user_config_path

from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode
from statechannel.files import new_file
from statechannel.suggestions import nearest, shown

NAME_VARIABLE: Final = "STATECHANNEL_CONTEXT"
FILE_VARIABLE: Final = "STATECHANNEL_CONTEXTS"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """One cluster; what is None comes from the settings.

    Attributes:
        config: Settings file (TOML).
        kafka_config: librdkafka properties file, the place for passwords.
    """

    bootstrap_servers: str | None = None
    channel: str | None = None
    config: str | None = None
    kafka_config: str | None = None

    def fields(self) -> dict[str, str | None]:
        return {name.name: getattr(self, name.name) for name in fields(self)}

    def values(self) -> dict[str, dict[str, Any]]:
        """Its settings, by group and name."""
        kafka = {"bootstrap_servers": self.bootstrap_servers, "properties_file": self.kafka_config}
        groups = {"kafka": kafka, "channel": {"name": self.channel}}
        return {group: {name: value for name, value in own.items() if value} for group, own in groups.items()}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts.

    Attributes:
        current: Name of the one in use; None: none is.
    """

    current: str | None = None
    named: Mapping[str, ClusterContext] = field(default_factory=dict)

    def get(self, name: str) -> ClusterContext:
        """The context of that name.

        Raises:
            CommandError: There is none.
        """
        if name not in self.named:
            meant = nearest(name, self.named)
            raise CommandError(
                f"context `{shown(name)}` does not exist" + (f"; did you mean `{meant[0]}`?" if meant else ""),
                hint="`statechannel context list` lists them; `statechannel context set NAME -b HOST:PORT` makes one.",
                code=ExitCode.NOT_FOUND,
            )
        return self.named[name]


def contexts_file() -> Path:
    chosen = os.environ.get(FILE_VARIABLE)
    return Path(chosen) if chosen else user_config_path("statechannel", appauthor=False) / "contexts.toml"


def require_context_name(name: str) -> str:
    """Refuse a name that cannot be one of a context."""
    if not _NAME.fullmatch(name):
        raise CommandError(
            f"`{shown(name)}` is not a name of a context",
            hint="Use 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit.",
            code=ExitCode.USAGE,
        )
    return name


def read_contexts() -> Contexts:
    """The contexts of the user's file; none if there is no file.

    Raises:
        CommandError: The file cannot be read, or is none of contexts.
    """
    path = contexts_file()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return Contexts()
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unusable(path, str(error)) from error
    known = {name.name for name in fields(ClusterContext)}
    current, tables = content.get("current"), content.get("contexts", {})
    if not isinstance(tables, dict) or not (current is None or isinstance(current, str)):
        raise _unusable(path, "`current` is a name, and `contexts` a table")
    for name, own in tables.items():
        if not isinstance(own, dict) or not all(isinstance(value, str) for value in own.values()):
            raise _unusable(path, f"context `{name}` is not a table of texts")
        for key in own.keys() - known:
            raise _unusable(path, f"context `{name}` has an unknown entry `{key}`; known: {', '.join(sorted(known))}")
    return Contexts(current, {name: ClusterContext(**own) for name, own in tables.items()})


def write_contexts(contexts: Contexts) -> None:
    """Replace the user's file."""
    path = contexts_file()
    lines = [] if contexts.current is None else [f"current = {json.dumps(contexts.current)}"]
    for name, context in sorted(contexts.named.items()):
        lines += ["", f"[contexts.{json.dumps(name)}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in context.fields().items() if value is not None]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    with new_file(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def context_in_use(chosen: str | None) -> tuple[str, ClusterContext]:
    """Name and values of the context for a command; an empty name if none is in use.

    Args:
        chosen: Value of `--context`; it overrides the variable, which overrides the current one of the file.
    """
    name = os.environ.get(NAME_VARIABLE) if chosen is None else require_context_name(chosen)
    if not name and not contexts_file().exists():
        return "", ClusterContext()
    contexts = read_contexts()
    name = name or contexts.current
    return ("", ClusterContext()) if not name else (name, contexts.get(name))


def _unusable(path: Path, why: str) -> CommandError:
    return CommandError(
        f"the file of contexts {path} cannot be used: {why}",
        hint=f"Mend or remove it; {FILE_VARIABLE} names another one.",
        code=ExitCode.BAD_SETTINGS,
    )
