"""Contexts: names for clusters in a small file of the user, each with an address, a channel and files with settings."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from platformdirs import user_config_path
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode, NotFoundError
from statechannel.files import UnreadableFileError, new_file, read_text
from statechannel.suggestions import nearest, shown

_CURRENT = re.compile(r"^\s*current\s*=.*\n?", re.MULTILINE)
_TABLE = re.compile(r"^(?=\s*\[)", re.MULTILINE)


class ClusterContext(BaseModel):
    """One cluster; what is None comes from the settings. `kafka_config` is a librdkafka properties file, for passwords."""

    model_config = ConfigDict(extra="forbid")
    bootstrap_servers: str | None = None
    channel: str | None = None
    config: str | None = None
    kafka_config: str | None = None

    @field_validator("config", "kafka_config")
    @classmethod
    def _path(cls, name: str) -> str:
        """From any folder: names are relative to the user's file."""
        return str(contexts_file().absolute().parent / Path(name).expanduser())

    def values(self) -> dict[str, dict[str, Any]]:
        kafka = {"bootstrap_servers": self.bootstrap_servers, "properties_file": self.kafka_config}
        channel = {"name": self.channel} if self.channel else {}
        return {"kafka": {name: value for name, value in kafka.items() if value}, "channel": channel}


class Contexts(BaseModel):
    """The user's file; `current` is the name of the context in use."""

    current: str | None = None
    contexts: dict[str, ClusterContext] = {}

    def get(self, name: str) -> ClusterContext:
        """The context of that name.

        Raises:
            NotFoundError: There is none.
        """
        if name not in self.contexts:
            meant = "".join(f"; did you mean `{near}`?" for near in nearest(name, self.contexts))
            hint = f"`statechannel context list` lists them; they are in {contexts_file()}."
            raise NotFoundError(f"context `{shown(name)}` does not exist{meant}", hint=hint)
        return self.contexts[name]


def contexts_file() -> Path:
    chosen = os.environ.get("STATECHANNEL_CONTEXTS")
    return Path(chosen) if chosen else user_config_path("statechannel", appauthor=False) / "contexts.toml"


def read_contexts() -> Contexts:
    """The contexts of the user's file; none if there is no file.

    Raises:
        CommandError: The file cannot be read, or is none of contexts.
    """
    try:
        return Contexts(**tomllib.loads(read_text(contexts_file())))
    except (UnreadableFileError, tomllib.TOMLDecodeError, ValidationError) as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return Contexts()
        wrong = error.errors()[0] if isinstance(error, ValidationError) else None
        unread = "it " if isinstance(error, UnreadableFileError) else ""
        why = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}" if wrong else f"{unread}{error}"
        hint = "Mend or remove it; STATECHANNEL_CONTEXTS names another file."
        raise CommandError(f"{contexts_file()} cannot be used: {why}", hint=hint, code=ExitCode.BAD_SETTINGS) from error


def choose_context(name: str) -> None:
    """Make it the current one in the user's file; all else in the file stays as it is."""
    read_contexts().get(name)
    top, *tables = _TABLE.split(read_text(contexts_file()), maxsplit=1)
    parts = [f"current = {json.dumps(name, ensure_ascii=False)}\n", _CURRENT.sub("", top), *tables]
    with new_file(contexts_file()) as file:
        file.write("".join(parts).encode())


def context_in_use(chosen: str | None) -> tuple[str, ClusterContext]:
    """Name and values of the context for a command, by `--context`, else the variable, else the file; empty if none is."""
    known = read_contexts()
    name = (os.environ.get("STATECHANNEL_CONTEXT") or known.current or "") if chosen is None else chosen
    return (name, known.get(name)) if name or chosen is not None else ("", ClusterContext())
